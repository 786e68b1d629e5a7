#!/usr/bin/env bash
# Leaks that others reported and mended: is the function named by `stackprof heap`, and is there no row of it in the release
# that mended it? Prints what stackprof prints of both.
#
#   STACKPROF=path scripts/measure/heap-leaks.sh
#
# Installs both releases from PyPI below a temporary directory. Needs python3 with pip and venv, and a C compiler where PyPI has no
# wheel. Exits 1 if a leak is not named, or one is named that is mended.
set -euo pipefail
stackprof=${STACKPROF:-stackprof}
python=${PYTHON:-/usr/bin/python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
failed=0

# leaks PROGRAM PACKAGE VERSION OPTION...: the rows under `leaked`, which the summary ends with.
leaks() {
    local place=$work/$2-$3
    "$work/venv/bin/pip" install -q --disable-pip-version-check --no-deps --target "$place" "$2==$3"
    PYTHONPATH=$place "$stackprof" heap --callers 3 "${@:4}" -o "$work/a.pb.gz" -- "$python" "$work/$1.py" 2>&1 >/dev/null |
        sed -n '/^  leaked/,$p'
}

# leak WHERE FUNCTION PROGRAM PACKAGE LEAKING MENDED OPTION...
leak() {
    local rows
    echo "$1"
    rows=$(leaks "$3" "$4" "$5" "${@:7}")
    printf '%s %s\n%s\n' "$4" "$5" "$rows"
    grep -q "$2" <<<"$rows" || { echo "not named: $2" && failed=1; }
    rows=$(leaks "$3" "$4" "$6" "${@:7}")
    printf '%s %s\n%s\n\n' "$4" "$6" "${rows:-  no rows}"
    if grep -q "$2" <<<"$rows"; then echo "named, though mended: $2" && failed=1; fi
}

# The errors that startswith returns are dropped.
cat >"$work/trim.py" <<'P'
import jq
program = jq.compile('map(ltrimstr("a")) | length')
for _ in range(10):
    program.input_value(list(range(50000))).first()
P
# The context of a failed decompression is not freed.
cat >"$work/decompress.py" <<'P'
import lz4.frame
text = " ".join(str(number * 7919 % 100003) for number in range(200000)).encode()
damaged = bytearray(lz4.frame.compress(text))
for at in range(100, len(damaged) // 2):
    damaged[at] ^= 0x55
for _ in range(100):
    try:
        lz4.frame.decompress(bytes(damaged))
    except RuntimeError:
        pass
P
# The text is not released if its write fails.
cat >"$work/dump.py" <<'P'
import ujson
class Full:
    def write(self, text):
        raise OSError("no space left on device")
rows = [{"name": str(number), "values": list(range(20))} for number in range(2000)]
for _ in range(200):
    try:
        ujson.dump(rows, Full())
    except OSError:
        pass
P

leak 'jq 1.6, https://github.com/jqlang/jq/pull/2977' 'f_startswith < f_ltrimstr' trim jq 1.6.0 1.7.0 --skip '^jvp?_'
leak 'python-lz4, https://github.com/python-lz4/python-lz4/issues/247' '__decompress < decompress' decompress lz4 4.0.1 4.0.2
leak 'ultrajson, CVE-2026-44660' 'objToJSON' dump ujson 5.12.0 5.12.1
exit "$failed"
