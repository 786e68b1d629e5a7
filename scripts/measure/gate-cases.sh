#!/bin/sh
# The verdicts of `stackprof gate` in eight cases, on made profiles: the text of each, and its exit code.
# Usage: scripts/measure/gate-cases.sh
# STACKPROF is the program to use (target/release/stackprof).
# tests/cli/compare/cases.rs compares the output with tests/cli/compare/gate-cases.txt.
set -eu
stackprof=${STACKPROF:-target/release/stackprof}
case $stackprof in
    */*) stackprof=$(cd "$(dirname "$stackprof")" && pwd)/$(basename "$stackprof") ;;
esac
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"

# runs DIRECTORY COUNT SEED NOISE GROWTH: runs of 20 functions. NOISE is that of a function in
# percent; that of a whole run is the same. GROWTH is what functions cost more, in percent of
# themselves: `3:8 7:-8`, or `all:2`.
runs() {
    mkdir -p "$1"
    run=1
    while [ "$run" -le "$2" ]; do
        awk -v seed="$(($3 * 100 + run))" -v noise="$4" -v growth="$5" '
            # Park and Miller: all products are below 2^53.
            function uniform() { state = (state * 16807) % 2147483647; return state / 2147483647 }
            function bell(  sum, i) { for (i = 0; i < 12; i++) sum += uniform(); return sum - 6 }
            BEGIN {
                state = seed * 7919 + 1
                for (i = 0; i < 20; i++) uniform()
                count = split(growth, parts, " ")
                for (i = 1; i <= count; i++) { split(parts[i], pair, ":"); grown[pair[1]] = pair[2] }
                whole = 1 + noise / 100 * bell()
                for (f = 0; f < 20; f++) {
                    factor = 1 + grown[f] / 100 + grown["all"] / 100
                    count = 400 * (f + 1) * whole * factor * (1 + noise / 100 * bell())
                    if (f == 12 && ("only" in grown) && !grown["only"]) count = 0
                    if (count >= 1) printf "work;main;f%d %d\n", f, count
                }
            }' >"$1/$run.folded"
        run=$((run + 1))
    done
}

# gate NAME OPTIONS...
gate() {
    name=$1
    shift
    code=0
    printf '== %s\n' "$name"
    "$stackprof" gate --base base --new new "$@" || code=$?
    printf 'exit code %s\n\n' "$code"
    rm -rf base new
}

runs base 7 1 1 ''
runs new 7 2 1 ''
gate 'nothing changed'

runs base 7 1 1 ''
runs new 7 2 1 '17:8'
gate 'a function 8% slower'

runs base 7 1 1 ''
runs new 7 2 1 'all:2'
gate 'total 2% slower, limit 1%' --max-increase 1%

runs base 7 1 1 ''
runs new 7 2 1 '17:20 18:-19'
gate 'cost moved from f18 to f17'

runs base 3 1 1 ''
runs new 3 2 1 ''
gate 'three runs only'

runs base 7 1 20 ''
runs new 7 2 20 ''
gate 'noisy'

runs base 7 1 1 'only:0'
runs new 7 2 1 ''
gate 'new function f12'

runs base 7 1 1 ''
runs new 7 2 1 'only:0'
gate 'gone function f12'
