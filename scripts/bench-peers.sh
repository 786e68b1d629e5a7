#!/usr/bin/env bash
# What stackprof costs a program and its user, beside perf (-g and --call-graph dwarf, with inferno's
# pictures) and samply; stacks taken once beside eu-stack and gdb. All at 997 Hz.
# Usage: scripts/bench-peers.sh [-o FILE.json] [--workload NAME[,NAME]] [--tool NAME[,NAME]]
#                               [--seconds S] [--check]
# ROUNDS (9) rounds: each runs the workload without a profiler and with each, in an order
# that changes every round, so that other load meets all. Printed are Markdown tables of medians;
# ratios are to the run of the same round without a profiler. `--help` lists the workloads.
#
#   wall ×, CPU ×      of the target, for the same work; what the profiler starts counts with its start
#   ops ×, p99 ms      what a server or a program of scripts/field tells of itself
#   longest gap        between two clock readings of the busy thread: it stood, or had no CPU
#   recording, after   the profiler's CPU time and peak memory until its target ended, and from there
#                      to the picture (perf: rest of `record`, then script | collapse | flamegraph)
#   saved s            from the end of the target until the profiler has ended: samply has no picture
#   SVG s              ... until there is a flame graph; perf with --no-inline and without it.
#                      stackprof's has inlined functions, and stands in both columns
#   counts %           what was counted, of the CPU time that the target used
#   complete %         counts whose stack has the program's outermost function, or ends where threads
#                      begin: one rule for all, not what a tool says of itself
#   shares off         points between a function's share and the true one, the largest of four
#
# --check: is this script itself sound? One round of half a second, stackprof and perf only, below a
# minute; exits 1 if something was not measured. Nothing in CI runs this: it is slow, and figures of a busy
# machine prove nothing. Of the programs that a stop hurts most, those run here that tell
# their throughput (scripts/field/programs.py): go-gob, dav1d-3, openmp, python-numpy, chromium. Erlang tells
# none; its stacks are in scripts/field.sh.
# Needs Linux, a C compiler and root (perf's kernel samples); installs the peers by apt-get and cargo, and says
# SKIP for what is not to be had. STACKPROF is the program (target/release/stackprof, built if it is not there).
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

workloads='' all=true previous=''
for argument in "$@"; do
    case $argument in
        -h | --help) exec python3 scripts/peers/bench.py --help ;;
        --check) all=false ;;
        --workload=*) workloads=${argument#*=} ;;
    esac
    [[ $previous != --workload ]] || workloads=$argument
    previous=$argument
done
packages=()
need() {
    command -v "$1" >/dev/null || packages+=("${@:2}")
}
need python3 python3
need cc gcc libc6-dev
need nm binutils
need perf linux-perf
if $all; then
    need gdb gdb
    need eu-stack elfutils
    if [[ -z $workloads || $workloads == *redis* ]]; then
        need redis-server redis-server
        need redis-benchmark redis-tools
    fi
fi
if ((${#packages[@]} > 0)); then
    # One by one, so that the missing of one leaves the others.
    for package in "${packages[@]}"; do
        install_packages "$package" >&2 || echo "SKIP what needs $package: apt-get has not installed it" >&2
    done
fi

# The peers of crates.io, into a folder of the build's; PEERS_BIN is another one that has them.
built=${CARGO_TARGET_DIR:-target}
peers=${PEERS_BIN:-$built/peers/bin}
from_cargo() {
    local command=$1 crate=$2
    shift 2
    command -v "$command" >/dev/null || [[ -x $peers/$command ]] ||
        cargo install --quiet --locked --root "$built/peers" "$crate" "$@" >&2 ||
        echo "SKIP what needs $crate: \`cargo install $crate --locked\` failed" >&2
}
from_cargo inferno-flamegraph inferno --version 0.12.8
$all && from_cargo samply samply --version 0.13.1
# In front of what else the machine has, which may be of another age.
PATH="$(cd "$peers" 2>/dev/null && pwd || echo /nonexistent):$PATH"

STACKPROF=${STACKPROF:-$built/release/stackprof}
[[ -x $STACKPROF ]] || cargo build --release --locked >&2
export PATH STACKPROF
exec python3 scripts/peers/bench.py "$@"
