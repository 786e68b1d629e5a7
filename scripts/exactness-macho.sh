#!/bin/sh
# Measures how exact stack walks are in code for macOS: programs are executed instruction by
# instruction in an emulator, and each walk is compared with the calls that were made.
#
# Usage: scripts/exactness-macho.sh [DIR]
#
# Prints a table; ends with an error below the bar (see tests/emulator/README.md). Programs
# and the whole report go to DIR, by default target/exactness. Needs cargo, clang-19 and
# lld-19, and cmake and libclang to build the emulator: what is missing is installed through
# apt-get, as root or by `sudo -n`. The first build of the emulator takes minutes.
set -eu
cd "$(dirname "$0")/.."
mkdir -p "${1:-target/exactness}"
dir=$(cd "${1:-target/exactness}" && pwd)

missing=
need() {
    command -v "$1" >/dev/null || missing="$missing $2"
}
need clang-19 clang-19
need ld64.lld-19 lld-19
need llvm-objdump-19 llvm-19
need cmake cmake
# bindgen opens it at build time; it is no command.
ls /usr/lib/llvm-19/lib/libclang*.so* >/dev/null 2>&1 || missing="$missing libclang1-19"
if [ -n "$missing" ]; then
    sudo=$([ "$(id -u)" -eq 0 ] || echo 'sudo -n')
    $sudo apt-get update -qq
    # shellcheck disable=SC2086 # several words
    $sudo apt-get install -y -qq $missing >/dev/null
fi

# The dependencies of stackprof are those that its own tests were built with.
target=${CARGO_TARGET_DIR:-$PWD/target}
cargo run --quiet --locked --manifest-path tests/emulator/Cargo.toml --target-dir "$target" -- "$dir"
