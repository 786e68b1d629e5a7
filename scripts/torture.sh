#!/usr/bin/env bash
# Torture: signals at random moments (KILL, TERM, INT, HUP, TSTP and CONT, STOP and CONT, XFSZ, pairs), full and
# read-only disks, short memory and descriptors, pipes without a reader, for record, render, diff, gate and dump
# by both sources of Linux and on simulated processes. Targets check themselves meanwhile.
# Usage: scripts/torture.sh [--tries 3000] [--seed N] [--kind KIND] [--jobs 4] [STACKPROF]     an hour and more
#        scripts/torture.sh --seed N --try K     one try again, with all that it said
#        scripts/torture.sh --mach [...]         the macOS build over the Mach kernel of tests/darwin
#        scripts/torture.sh --ci                 below two minutes, always the same tries; no time fails it
# `--help` tells all. STACKPROF is target/release/stackprof unless named, and built if it is not there.
# Fails by a target that stands or was harmed, a file that is left or half, a profiler that does not end, and in
# the form for people by an answer to INT, TERM or HUP that took more than a second of CPU time and sleep.
# Full disks are small ones in a mount namespace of its own, which needs root; so do perf_event and
# ptrace on some machines. The last line is `N passed, N failed`.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

mach=false
for argument in "$@"; do
    case $argument in
        -h | --help) exec python3 -B scripts/torture/torture.py --help ;;
        --mach) mach=true ;;
    esac
done
packages=()
need() {
    command -v "$1" >/dev/null || packages+=("${@:2}")
}
need python3 python3
need unshare util-linux
need mount mount
printf '#include <stdlib.h>\n' | cc -E - >/dev/null 2>&1 || packages+=(gcc libc6-dev)
if ((${#packages[@]} > 0)); then
    install_packages "${packages[@]}"
fi
if $mach; then
    scripts/run-macos-build.sh --build
fi
stackprof=${STACKPROF:-target/release/stackprof}
arguments=("$@")
# The program is the last argument, unless that is an option or what an option is about.
if (($# > 0)) && [[ -x ${!#} && -f ${!#} ]]; then
    stackprof=${!#}
    arguments=("${@:1:$#-1}")
elif [[ ! -x $stackprof ]]; then
    cargo build --release --locked
fi
namespace=()
if ((EUID == 0)) && unshare --mount --propagation private mount -t tmpfs torture /mnt 2>/dev/null; then
    namespace=(unshare --mount --propagation private env STACKPROF_TORTURE_MOUNTS=1)
fi
exec "${namespace[@]}" python3 -B scripts/torture/torture.py "${arguments[@]}" "$stackprof"
