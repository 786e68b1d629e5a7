#!/usr/bin/env bash
# A soak: redis and a JVM, each recorded by both sources of Linux at once, under a fixed load whose
# answers are checked. Prints what clients saw, what was lost, what the profilers used, and how far their memory
# was from its median after the first sixth of the time.
# Usage: scripts/soak.sh [--minutes 30] [--every 10] [--only redis-perf,jvm-ptrace] [--keep] [STACKPROF]
# STACKPROF is target/release/stackprof unless named, and built if it is not there. Figures only: the exit
# code is 1 if a client got a wrong answer or none, whatever else came out. `--minutes 1` tries the script.
# Needs root (or rights to trace and to use perf_event); installs redis and a JDK by apt-get.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

for argument in "$@"; do
    if [[ $argument == --help || $argument == -h ]]; then
        exec python3 -B scripts/soak/soak.py --help
    fi
done
packages=()
need() {
    command -v "$1" >/dev/null || packages+=("$2")
}
need python3 python3
need redis-server redis-server
need javac openjdk-17-jdk-headless
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
exec python3 -B scripts/soak/soak.py "${arguments[@]}" "$stackprof"
