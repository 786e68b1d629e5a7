#!/usr/bin/env bash
# Lists every file that stackprof opens because a target names it, and fails on any that is not opened as
# src/sources/target_file says: below the target's root, looked at first, regular, without waiting.
#
#   scripts/opened-files.sh [PROGRAM]    PROGRAM: the stackprof to watch (target/debug/stackprof)
#
# Records ten programs and one that names a pipe as its library, each by both sources, under strace. Needs
# root, strace, python3 and a C compiler; a program that is not installed prints SKIP.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(realpath "${1:-target/debug/stackprof}")
work=$(mktemp -d)
mkdir "$work/out"
target=
stop() {
    if [ -n "$target" ]; then kill -KILL "$target" 2>/dev/null || true; wait "$target" 2>/dev/null || true; fi
    target=
}
trap 'stop; rm -rf "$work"' EXIT
[ "$(id -u)" = 0 ] || { echo "error: run it as root: what root opens is what matters" >&2; exit 2; }
command -v strace >/dev/null || { echo "error: strace is not installed; try apt-get install strace" >&2; exit 2; }

cat >"$work/check.py" <<'PYTHON'
"""Reads what strace wrote of one recording; prints what was opened and returns 1 for what should not be."""
import os, re, stat, sys

work, log, name = sys.argv[1:4]
call = re.compile(r"^\d+ +(open|openat|openat2)\((.*)\) += (-?\d+)(?:<(.*)>)?(\(deleted\))?(?: .*)?$")
begun = {}
own = re.compile(r"^(/proc/|/sys/|/dev/null$|/etc/(ld\.so|localtime|passwd|group|nsswitch|terminfo)|/lib/terminfo|/usr/share/(zoneinfo|locale|terminfo)|/usr/lib/locale)")
linked = re.compile(r"^/proc/(self|thread-self|\d+)/(fd/\d+|map_files/|root|exe|cwd)")
bad, seen = [], {}
for line in open(log, errors="replace"):
    thread = line.split(" ", 1)[0]
    # A call that others were written in between.
    if "<unfinished ...>" in line:
        begun[thread] = line.split(" <unfinished ...>")[0]
        continue
    resumed = re.match(r"^\d+ +<\.\.\. \w+ resumed>(.*)$", line)
    if resumed:
        line = begun.pop(thread, "") + resumed[1]
    matched = call.match(line.strip())
    if not matched:
        continue
    kind, arguments, result, opened, deleted = matched.groups()
    quoted = re.search(r'"((?:[^"\\]|\\.)*)"', arguments)
    path = quoted[1] if quoted else "?"
    looks = "O_PATH" in arguments
    if kind == "openat2":
        if not (looks and "RESOLVE_IN_ROOT" in arguments and "RESOLVE_NO_MAGICLINKS" in arguments):
            bad.append(f"not looked at first, or not below the root: {line.strip()}")
        continue
    if kind == "openat" and not arguments.startswith("AT_FDCWD"):
        # Its outputs.
        if re.match(rf"\d+<{re.escape(work)}/out>", arguments):
            continue
        if not (looks and "O_NOFOLLOW" in arguments):
            bad.append(f"a component that is not looked at first: {line.strip()}")
        continue
    # Its outputs, and its own root, which is not opened for reading.
    if path.startswith(f"{work}/out") or looks and path == "/":
        continue
    if linked.match(path):
        if looks:
            continue
        if not path.startswith("/proc/self/fd/"):
            bad.append(f"a link of /proc that is opened at once: {line.strip()}")
        elif int(result) < 0:
            seen[f"refused: {line.strip()}"] = None
        else:
            wanted = ["O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_RDONLY"]
            directory = "O_DIRECTORY" in arguments
            if not directory and not all(flag in arguments for flag in wanted):
                bad.append(f"may wait: {line.strip()}")
            try:
                # What has no name any more: another file may have it now.
                if not deleted:
                    mode = os.stat(re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), opened or "")).st_mode
                    if not (stat.S_ISREG(mode) or directory and stat.S_ISDIR(mode)):
                        bad.append(f"not a regular file: {line.strip()}")
            except OSError:
                seen[f"(has another name here) {opened}"] = None
            seen[f"{opened}{' (deleted)' if deleted else ''}"] = None
        continue
    if not own.match(path):
        bad.append(f"by its plain path: {line.strip()}")
if not seen:
    bad.append("nothing was opened: the recording shows nothing")
print(f"{name}: {len(seen)} files")
for path in sorted(seen):
    print(f"  {path}")
for line in bad:
    print(f"  ERROR {line}")
sys.exit(1 if bad else 0)
PYTHON

failed=0
# Records what runs as $target, by both sources.
check() {
    local name=$1 source
    for source in perf ptrace; do
        strace -f -y -s 4096 -e trace=open,openat,openat2 -o "$work/log" \
            "$program" -q -d 2 --source "$source" -p "$target" -o "$work/out/profile.folded" >"$work/said" 2>&1 ||
            { echo "$name by $source: stackprof failed:"; cat "$work/said"; failed=1; }
        # What the loader of the profiler itself opens stands before its first look at /proc.
        sed -n '/"\/proc\//,$p' "$work/log" >"$work/after"
        python3 "$work/check.py" "$work" "$work/after" "$name by $source" || failed=1
    done
    stop
}

# Starts a program in a directory of its own and records it.
try() {
    local name=$1
    shift
    if ! command -v "$1" >/dev/null; then
        echo "SKIP $name: $1 is not installed"
        [ "${STACKPROF_NO_SKIP:-}" != 1 ] || failed=1
        return
    fi
    "$@" >/dev/null 2>&1 </dev/null &
    target=$!
    sleep 1
    check "$name"
}

cat >"$work/Busy.java" <<'JAVA'
class Busy { public static void main(String[] a) { double x = 0; for (long i = 0; ; i++) x += Math.sqrt(i); } }
JAVA
cat >"$work/busy.c" <<'C'
int main(void) { volatile unsigned long x = 0; for (;;) x++; }
C
cat >"$work/busy.gdb" <<'GDB'
set $x = 0
while 1
set $x = $x + 1
end
GDB
cc -static -O1 -o "$work/busy" "$work/busy.c"
count='with recursive c(x) as (select 1 union all select x + 1 from c) select count(*) from c'
try sh sh -c 'while :; do :; done'
try python3 python3 -c 'while True: pass'
try java java "$work/Busy.java"
try node node -e 'for (;;);'
try sqlite3 sqlite3 :memory: "$count"
try perl perl -e '1 while 1'
try gdb gdb -q -nx -batch -x "$work/busy.gdb"
try static "$work/busy"
if command -v git >/dev/null && git rev-parse HEAD >/dev/null 2>&1; then
    git cat-file --batch-check < <(yes HEAD) >/dev/null 2>&1 &
    target=$!
    sleep 1
    check git
else
    echo "SKIP git: it is not installed, or this is no repository"
    [ "${STACKPROF_NO_SKIP:-}" != 1 ] || failed=1
fi
if command -v redis-server >/dev/null && command -v redis-cli >/dev/null; then
    redis-server --port 0 --unixsocket "$work/redis" --save '' >/dev/null 2>&1 &
    target=$!
    until [ -S "$work/redis" ]; do sleep 0.1; done
    redis-cli -s "$work/redis" eval 'while true do end' 0 >/dev/null 2>&1 &
    check redis-server
else
    echo "SKIP redis-server: it is not installed"
    [ "${STACKPROF_NO_SKIP:-}" != 1 ] || failed=1
fi

# A program that runs code of a library, and has a pipe, a device and a link out in the place of others.
cat >"$work/hostile.c" <<'C'
#include <dlfcn.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
int main(int count, char **names) {
    char map[64];
    void (*once[9])(void);
    for (int at = 1; at < count; at++) {
        void *library = dlopen(names[at], RTLD_NOW);
        if (!library) { puts(dlerror()); return 1; }
        *(void **)&once[at] = dlsym(library, "once");
        unlink(names[at]);
        if (at == 1) mkfifo(names[at], 0666);
        if (at == 2) mknod(names[at], S_IFCHR | 0666, makedev(5, 2));
        if (at == 3) symlink("/etc/shadow", names[at]);
        if (at == 4) symlink("/proc/kmsg", names[at]);
    }
    snprintf(map, sizeof map, "/tmp/perf-%d.map", getpid());
    mkfifo(map, 0666);
    for (;;)
        for (int at = 1; at < count; at++) once[at]();
}
C
echo 'void once(void) { for (volatile int i = 0; i < 100000; i++); }' >"$work/library.c"
cc -o "$work/hostile" "$work/hostile.c" -ldl
for at in 1 2 3 4; do cc -shared -fPIC -o "$work/library$at.so" "$work/library.c"; done
"$work/hostile" "$work"/library[1-4].so >"$work/hostile.out" 2>&1 &
target=$!
sleep 1
kill -0 "$target" || { cat "$work/hostile.out"; exit 1; }
map=/tmp/perf-$target.map
check hostile
rm -f "$map"
[ "$failed" = 0 ] && echo "every file was looked at first, regular, below its root and not waited for"
exit "$failed"
