#!/usr/bin/env bash
# Runs README's two commands, or another one, as on a fresh machine: PATH holds Rust, a C compiler and the base
# system of Debian, and nothing else that is installed here. Tests that lack a tool are skipped, and the end lists them.
#
#   scripts/fresh-machine.sh [COMMAND...]
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

bin="$(mktemp -d)"
trap 'rm -rf "$bin"' EXIT
# Tests run programs as other users.
chmod 755 "$bin"

# What Debian installs everywhere, and what its `gcc` brings.
{
    dpkg-query -W -f '${db:Status-Status} ${Package} ${Essential} ${Priority}\n' | awk '$1 == "installed" && ($3 == "yes" || $4 == "required") { print $2 }'
    dpkg-query -W -f '${db:Status-Status} ${Package}\n' | awk '$1 == "installed" && $2 ~ /^(gcc|cpp)(-[0-9]+)?$|^binutils/ { print $2 }'
} | sort -u | xargs dpkg-query -L 2>/dev/null | grep -E '^(/usr)?/s?bin/[^/]+$' |
    while read -r program; do
        if [[ -x $program ]]; then
            ln -sf "$program" "$bin/${program##*/}"
        fi
    done
# Chosen among alternatives, so in no package's list.
for program in awk cc which; do
    ln -sf "$(command -v "$program")" "$bin/$program"
done
for program in cargo rustc rustdoc; do
    ln -sf "$(command -v "$program")" "$bin/$program"
done

unset STACKPROF_NO_SKIP
if (($# > 0)); then
    PATH="$bin" "$@"
    exit
fi
PATH="$bin" cargo run --release --locked -- demo -o "$bin/demo.svg"
PATH="$bin" cargo test --locked --no-fail-fast
