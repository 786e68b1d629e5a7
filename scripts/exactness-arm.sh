#!/usr/bin/env bash
# How exact stack walks of 32-bit Arm are: compiles the programs of tests/fixtures/arm with gcc and clang,
# in A32 and T32, with unwind tables, debug information, symbols alone and nothing, executes them in an
# emulator and compares every stack with the calls that were made (see tests/emulator/README.md).
#
#   scripts/exactness-arm.sh [DIRECTORY [WORD...]]   default: target/exactness-arm; only builds with all words
#
# Prints the table; exits 1 below the bar. The first build of the emulator takes minutes.
set -eu
cd "$(dirname "$0")/.."
mkdir -p "${1:-target/exactness-arm}"
dir=$(cd "${1:-target/exactness-arm}" && pwd)
[ $# -eq 0 ] || shift

missing=
need() {
    command -v "$1" >/dev/null || missing="$missing $2"
}
need arm-none-eabi-gcc gcc-arm-none-eabi
need clang-19 clang-19
need cmake cmake
[ -e /usr/lib/arm-none-eabi/include/stdio.h ] || missing="$missing libnewlib-arm-none-eabi"
ls -d /usr/lib/arm-none-eabi/include/c++ >/dev/null 2>&1 || missing="$missing libstdc++-arm-none-eabi-newlib"
# bindgen opens it at build time; it is no command.
ls /usr/lib/llvm-19/lib/libclang*.so* >/dev/null 2>&1 || missing="$missing libclang1-19"
if [ -n "$missing" ]; then
    sudo=$([ "$(id -u)" -eq 0 ] || echo 'sudo -n')
    $sudo apt-get update -qq
    # shellcheck disable=SC2086 # several words
    $sudo apt-get install -y -qq $missing >/dev/null
fi

target=${CARGO_TARGET_DIR:-$PWD/target}
cargo run --quiet --locked --manifest-path tests/emulator/Cargo.toml --target-dir "$target" --bin arm -- "$dir" "$@"
