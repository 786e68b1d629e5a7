#!/usr/bin/env bash
# Measures how exact stack walks are on Linux x86_64: programs are executed one instruction
# at a time, and the walk at each boundary is compared with a shadow stack of the calls that
# were made (tests/support/exact). Two kinds of programs have lines of their own behind `all`: those whose samples hold
# little of a stack, and pieces of what is above, and those whose functions run into the next one.
#
# Usage: scripts/exactness.sh [FILTER...]
#
# A filter is a part of a program's name, such as `throws.cpp` or `clang`. Prints a line per
# program, failures by kind of instruction, and the worst addresses of each way of walking;
# the same goes to target/exactness.txt. Fails if less than 99.9 % are exact by cfi or auto,
# or more than 0.01 % of a program wrong but said to be complete; of these two kinds none may be. Needs cargo,
# gcc, g++, clang-19 and objdump: what is missing is installed through apt-get, as root or
# by `sudo -n`. Takes minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
source scripts/setup.sh

if [[ $(uname -sm) != "Linux x86_64" ]]; then
    echo "SKIP the exactness harness steps programs of Linux on x86_64, this is $(uname -sm)"
    exit 0
fi
missing=()
command -v gcc >/dev/null || missing+=(gcc libc6-dev)
command -v g++ >/dev/null || missing+=(g++)
command -v clang-19 >/dev/null || missing+=(clang-19)
command -v objdump >/dev/null || missing+=(binutils)
# The C library and that of gcc for i386. Not gcc-multilib, which no compiler for another processor can stand beside.
if command -v gcc >/dev/null && ! printf "int main(void) { return 0; }" | gcc -m32 -x c -o "$(mktemp -u)" - 2>/dev/null; then
    gcc_version="$(gcc -dumpversion)"
    missing+=(libc6-dev-i386 "lib32gcc-${gcc_version%%.*}-dev" "lib32stdc++-${gcc_version%%.*}-dev")
fi
if ((${#missing[@]})); then
    install_packages "${missing[@]}"
fi
mkdir -p target
cargo bench --locked --bench exact -- "$@" | tee target/exactness.txt
