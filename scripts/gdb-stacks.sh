#!/usr/bin/env bash
# Stacks of boards behind QEMU's stub beside gdb's `bt` of the very same stop: random moments of all boards
# and builds of tests/fixtures/boards, and each instruction of a task switch.
#
#   scripts/gdb-stacks.sh [STOPS]          default: 2016 random stops over all builds
#   BUILDS='m3:gcc:-O2 a9:clang:-Os' scripts/gdb-stacks.sh 200
#
# Installs what it lacks: gcc-arm-none-eabi, gdb-multiarch, QEMU, clang; a QEMU that tells all stack pointers is
# unpacked below the target directory (QEMU names another one). Prints a table, one row for each
# build, and each stop in which the two differ, with who is right by the firmware's own structure. Exits 1 if fewer
# than 99.5 % are the same or judged ours, or if a stack that is said to be complete is wrong.
# STACKPROF names a program to try instead of target/release/stackprof.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh
# shellcheck source=scripts/gdb-stacks/qemu.sh
. scripts/gdb-stacks/qemu.sh

stops=${1:-2016}
packages=()
need() { command -v "$1" >/dev/null || packages+=("${@:2}"); }
need arm-none-eabi-gcc gcc-arm-none-eabi
need gdb-multiarch gdb-multiarch
need qemu-system-arm qemu-system-arm
need clang-19 clang-19
need ld.lld-19 lld-19
if ((${#packages[@]} > 0)); then install_packages "${packages[@]}"; fi
if [[ -z ${STACKPROF:-} ]]; then
    cargo build --release --locked
    STACKPROF=${CARGO_TARGET_DIR:-target}/release/stackprof
fi
export STACKPROF
if [[ -z ${QEMU:-} ]]; then
    mkdir -p "${CARGO_TARGET_DIR:-target}/qemu-backports"
    QEMU=$(qemu_with_stack_pointers "$(cd "${CARGO_TARGET_DIR:-target}/qemu-backports" && pwd)")
fi
"$QEMU" --version | head -n 1
# Boards that have audio look for that of the host; how to say that there is none changed.
silent=(-audio none)
if (($(qemu_version "$QEMU") < 802)); then silent=(-audiodev 'none,id=none'); fi

if [[ -n ${BUILDS:-} ]]; then
    read -ra builds <<<"$BUILDS"
else
    builds=()
    for board in m3 m4f a9 a9t rtos-m3 rtos-m4f; do
        for compiler in gcc clang; do
            for level in -O0 -O2 -Os; do builds+=("$board:$compiler:$level"); done
        done
    done
fi
each=$(((stops + ${#builds[@]} - 1) / ${#builds[@]}))
place=$(mktemp -d)
qemu=
finish() {
    if [[ -n $qemu ]]; then kill "$qemu" 2>/dev/null || true; fi
    rm -r "$place"
}
trap finish EXIT

declare -A machines=([m3]=lm3s6965evb [m4f]=mps2-an386 [a9]=vexpress-a9 [a9t]=vexpress-a9
    [rtos-m3]=mps2-an385 [rtos-m4f]=mps2-an386)
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

for build in "${builds[@]}"; do
    IFS=: read -r board compiler level <<<"$build"
    elf=$place/$board-$compiler$level.elf
    # A tenth of the time in interrupts: they are what is hard. Above tasks, which are on another stack, less.
    ticks=5000
    if [[ $board == rtos-* ]]; then ticks=500; fi
    tests/fixtures/boards/build.sh "$elf" "$board" "$compiler" "$level" "-DTICK_ROUNDS=$ticks"
    port=$(free_port)
    # Time counts instructions: see tests/live_linux/boards.rs.
    "$QEMU" -M "${machines[$board]}" -icount shift=2 "${silent[@]}" -nic none -display none \
        -monitor none -serial none \
        -gdb "tcp:127.0.0.1:$port" -kernel "$elf" </dev/null >"$place/qemu.log" 2>&1 &
    qemu=$!
    ELF=$elf PORT=$port STOPS=$each BUILD=$build RESULTS=$place/results \
        gdb-multiarch -q -nx -batch -ex 'source scripts/gdb-stacks/stops.py' "$elf" >"$place/gdb.log" 2>&1 ||
        { tail -n 30 "$place/gdb.log" >&2 && exit 1; }
    kill "$qemu"
    wait "$qemu" 2>/dev/null || true
    qemu=
done
python3 scripts/gdb-stacks/table.py "$place/results"
