#!/usr/bin/env bash
# How often `stackprof gate` is right about real runs: records tests/fixtures/forty.c again and
# again, unchanged and with planted changes, in turn; draws gates from the recordings
# (`cargo bench --bench gate`); then makes LIVE gates of unchanged code, each of 14 recordings of
# its own. Exits 1 if a bar is missed: unchanged code fails in at most 5 % of drawn gates and 1 in
# 20 live ones, +5 % of the total in one function is found and named first in 95 %.
# Usage: scripts/gate-power.sh [ROUNDS [LIVE [DIRECTORY]]], 24 and 20 unless given; needs cc and
# ptrace, and half an hour. What DIRECTORY holds already is not recorded again.
set -euo pipefail
cd "$(dirname "$0")/.."
stackprof=${STACKPROF:-target/release/stackprof}
rounds=${1:-24}
live=${2:-20}
if [ $# -ge 3 ]; then
    runs=$(realpath -m "$3")
    mkdir -p "$runs"
else
    runs=$(mktemp -d)
    trap 'rm -rf "$runs"' EXIT
fi
forty=$runs/forty
cc -O2 -g -fno-omit-frame-pointer -o "$forty" tests/fixtures/forty.c -lpthread -lm

# Name, amount of work, planted changes as the program takes them.
record() {
    [ -e "$runs/$1" ] || "$stackprof" -q -o "$runs/$1" -- "$forty" "${@:2}"
}

for round in $(seq "$rounds"); do
    record "base-${round}a.pb.gz" 100
    record "plus5-$round.pb.gz" 100 24 5
    record "base-${round}b.pb.gz" 100
    record "plus2-$round.pb.gz" 100 24 2
    record "all10-$round.pb.gz" 100 all 10
    record "moved-$round.pb.gz" 100 24 5 0 -5
done
cargo bench --quiet --bench gate -- --runs "$runs"

failed=0
for gate in $(seq "$live"); do
    for run in 1 2 3 4 5 6 7; do
        record "live-$gate-base-$run.pb.gz" 80
        record "live-$gate-new-$run.pb.gz" 80
    done
    code=0
    "$stackprof" gate --base "$runs/live-$gate-base-"*.pb.gz --new "$runs/live-$gate-new-"*.pb.gz \
        > "$runs/live-$gate.txt" || code=$?
    case $code in
        0) ;;
        3) failed=$((failed + 1)) && cat "$runs/live-$gate.txt" ;;
        *) exit "$code" ;;
    esac
done
echo "live gates of unchanged code: $failed of $live fail"
[ "$failed" -le $(((live + 19) / 20)) ]
