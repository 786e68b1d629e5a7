#!/usr/bin/env bash
# Compares the names that stackprof gives in real macOS programs with those of LLVM's tools.
# Also walks their code where compact unwind information tells where the caller is.
#
#   scripts/check-macho-symbols.sh [DIR]       default: target/macho-symbols
#
# Fetches public Python packages built for macOS (Apple silicon and Intel) into DIR, unless
# they are there already, and runs tests/files/macho_symbols.rs and tests/files/macho_frames.rs over
# every Mach-O file in them. They are never committed. Needs cargo; installs LLVM's tools
# and pip through apt-get.
# STACKPROF_SEED=N looks at other random addresses.
set -euo pipefail
cd "$(dirname "$0")/.."
dir="${1:-target/macho-symbols}"
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

# The versions are fixed so that a change of the result is a change of stackprof. Those for
# Intel are the last that were built for it.
arm64=(numpy==2.4.6 cryptography==50.0.2 py-spy==0.4.3 pyzmq==27.3.0)
x86_64=(numpy==2.4.6 cryptography==48.0.1 py-spy==0.4.3 pyzmq==26.2.1)

packages=()
for tool in llvm-nm-19 llvm-symbolizer-19 llvm-objdump-19; do
    command -v "$tool" >/dev/null || packages=(llvm-19)
done
command -v cc >/dev/null || packages+=(gcc libc6-dev)
command -v python3 >/dev/null || packages+=(python3)
python3 -m pip --version >/dev/null 2>&1 || packages+=(python3-pip)
if ((${#packages[@]} > 0)); then
    install_packages "${packages[@]}"
fi

# fetch ARCH PACKAGE TAG...: the file of the first tag that has one. Whatever Python runs
# this, the files are those for 3.11.
fetch() {
    local arch="$1" package="$2" tag wheel
    local into="$dir/$arch/$package"
    [[ ! -e $into/complete ]] || return 0
    rm -rf "$into"
    mkdir -p "$into"
    for tag in "${@:3}"; do
        if python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
            --python-version 3.11 --platform "$tag" -d "$into" "$package" 2>>"$into/log"; then
            for wheel in "$into"/*.whl; do
                python3 -m zipfile -e "$wheel" "$into/files"
                rm "$wheel"
            done
            touch "$into/complete"
            return 0
        fi
    done
    echo "check-macho-symbols.sh: no file of $package for $arch; what pip said:" >&2
    cat "$into/log" >&2
    return 1
}

for package in "${arm64[@]}"; do
    fetch arm64 "$package" macosx_11_0_arm64 macosx_12_0_arm64 macosx_14_0_arm64
done
for package in "${x86_64[@]}"; do
    fetch x86_64 "$package" macosx_10_12_x86_64 macosx_10_9_x86_64 macosx_10_15_x86_64 macosx_14_0_x86_64
done

STACKPROF_NO_SKIP=1 STACKPROF_MACHO_DIR="$(cd "$dir" && pwd)" \
    cargo test --locked --test files -- --nocapture macho_symbols:: macho_frames:: </dev/null
