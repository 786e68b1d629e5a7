#!/usr/bin/env bash
# Real programs measured beside peers: completeness and self shares beside perf, stacks at
# frozen moments beside gdb, eu-stack and HotSpot's agent, throughput and latency with and without.
# Usage: scripts/field.sh [--short] [--only NAME,NAME] [--measure completeness,shares,stacks,cost]
#                         [--beside 0|2] [--table FILE] [...] [STACKPROF]
# `--help` tells all. STACKPROF is target/release/stackprof unless named, and built if it is
# not there. Needs root (ptrace, perf, cgroups), and installs programs and debuggers by apt.
# The long form (an hour and more, on a quiet machine) with --table docs/field.md makes that
# page; results are kept in target/field, so that parts can be measured again.
# --short, for CI: some programs, no figure that a busy machine could change; exits 1 if a
# stack is complete and wrong, or one is less complete than it was.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

for argument in "$@"; do
    if [[ $argument == --help || $argument == -h ]]; then
        exec python3 scripts/field/field.py --help
    fi
done
packages=()
need() {
    command -v "$1" >/dev/null || packages+=("$2")
}
need python3 python3
short=false
for argument in "$@"; do
    if [[ $argument == --short ]]; then
        short=true
    fi
done
if ! $short; then
    need perf linux-perf
fi
need gdb gdb
need eu-stack elfutils
need ps procps
# Without it the functions in which threads begin have no names.
if command -v dpkg >/dev/null && ! dpkg -s libc6-dbg >/dev/null 2>&1; then
    packages+=(libc6-dbg)
fi
if ((${#packages[@]} > 0)); then
    install_packages "${packages[@]}"
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
if $short; then
    # What the stacks are judged by.
    (cd scripts/field && python3 -m unittest -q test_judge)
fi
exec python3 scripts/field/field.py "${arguments[@]}" "$stackprof"
