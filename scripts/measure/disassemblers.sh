#!/usr/bin/env bash
# Disassemblers beside objdump, over the .text of C libraries: instructions of objdump that each of them lacks, its own that
# objdump has not, and bytes that it calls no instruction. Then 4 MB of random bytes: does it end, and how.
# Usage: scripts/measure/disassemblers.sh; installs Debian's C libraries and binutils of the processors, and builds the
# programs of scripts/measure/disassemblers. docs/decisions/dependencies.md has the figures.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh
install_packages binutils binutils-aarch64-linux-gnu binutils-arm-linux-gnueabihf libc6-arm64-cross libc6-armhf-cross \
    libc6-i386-cross
work=$PWD/target/disassemblers
mkdir -p "$work"
cargo build --quiet --release --manifest-path scripts/measure/disassemblers/Cargo.toml --target-dir "$work"

# Address and length of each instruction, by objdump.
expected() {
    "$1" -d -j .text --no-show-raw-insn "$2" | sed -nE 's/^ *([0-9a-f]+):\t.*$/\1/p' | sort -u
}

one() {
    local set=$1 library=$2 objdump=$3 address offset size
    read -r address offset size < <(readelf -SW "$library" |
        awk '{ for (i = 1; i < NF; i++) if ($i == ".text" && $(i + 1) == "PROGBITS") print $(i + 2), $(i + 3), $(i + 4) }')
    dd if="$library" of="$work/text" bs=64K iflag=skip_bytes,count_bytes skip=$((16#$offset)) count=$((16#$size)) status=none
    expected "$objdump" "$library" >"$work/expected"
    for program in iced yaxpeax capstone; do
        if ! "$work/release/$program" "$set" "$work/text" "$address" >"$work/found" 2>/dev/null; then
            continue
        fi
        cut -f1 "$work/found" | sort -u >"$work/addresses"
        printf '%-4s %-9s objdump %s, missing %s, only here %s, none %s\n' "$set" "$program" "$(wc -l <"$work/expected")" \
            "$(comm -23 "$work/expected" "$work/addresses" | wc -l)" \
            "$(comm -13 "$work/expected" "$work/addresses" | wc -l)" "$(grep -c '(bad)' "$work/found")"
    done
}

one x64 /lib/x86_64-linux-gnu/libc.so.6 objdump
one x86 /usr/i686-linux-gnu/lib/libc.so.6 objdump
one a64 /usr/aarch64-linux-gnu/lib/libc.so.6 aarch64-linux-gnu-objdump
one t32 /usr/arm-linux-gnueabihf/lib/libc.so.6 arm-linux-gnueabihf-objdump
head -c 4000000 /dev/urandom >"$work/random"
for set in x64 x86 a64 a32 t32; do
    for program in iced yaxpeax capstone; do
        status=0
        "$work/release/$program" "$set" "$work/random" 1000 >/dev/null 2>"$work/errors" || status=$?
        [[ $status == 2 ]] || echo "$set $program random bytes: status $status $(grep -m1 panicked "$work/errors" || true)"
    done
done
