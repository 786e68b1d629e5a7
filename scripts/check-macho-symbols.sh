#!/bin/sh
# Compares the names that stackprof gives in real macOS programs with those of LLVM's tools.
# Also walks their code where compact unwind information tells where the caller is.
#
# Usage: scripts/check-macho-symbols.sh [DIR]
#
# Fetches public Python packages built for macOS (Apple silicon and Intel) into DIR, by
# default target/macho-symbols, unless they are there already, and runs
# tests/macho_symbols.rs and tests/macho_frames.rs over every Mach-O file in them. They are
# never committed. Needs cargo, python3 with pip, and llvm-19 (installed through apt-get if
# missing).
# STACKPROF_SEED=N looks at other random addresses.
set -eu
cd "$(dirname "$0")/.."
dir=${1:-target/macho-symbols}
packages='numpy cryptography py-spy pyzmq'

for tool in llvm-nm-19 llvm-symbolizer-19 llvm-objdump-19; do
    if ! command -v "$tool" >/dev/null; then
        sudo=$([ "$(id -u)" -eq 0 ] || echo sudo)
        $sudo apt-get update -qq
        $sudo apt-get install -y -qq llvm-19 >/dev/null
        break
    fi
done

# fetch PACKAGE ARCH TAG...: the newest version that has a file for one of the tags.
fetch() {
    package=$1 arch=$2
    shift 2
    into=$dir/$arch/$package
    [ ! -e "$into/complete" ] || return 0
    rm -rf "$into"
    mkdir -p "$into"
    for tag in "$@"; do
        if python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
            --platform "$tag" -d "$into" "$package" 2>"$into/log"; then
            for wheel in "$into"/*.whl; do
                python3 -m zipfile -e "$wheel" "$into/files"
                rm "$wheel"
            done
            touch "$into/complete"
            return 0
        fi
    done
    echo "no file of $package for $arch:" >&2
    cat "$into/log" >&2
    return 1
}

for package in $packages; do
    fetch "$package" arm64 macosx_11_0_arm64 macosx_12_0_arm64 macosx_14_0_arm64
    fetch "$package" x86_64 macosx_10_12_x86_64 macosx_10_9_x86_64 macosx_10_15_x86_64 macosx_14_0_x86_64
done

STACKPROF_NO_SKIP=1 STACKPROF_MACHO_DIR=$(cd "$dir" && pwd) \
    cargo test --test macho_symbols --test macho_frames -- --nocapture
