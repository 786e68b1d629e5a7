#!/usr/bin/env bash
# Does the program still write the same bytes? Builds an older commit beside the tree as it is,
# lets both record the same simulated processes, and compares all that they write.
#
#   scripts/same-behaviour.sh [--seeds N] [--cost] [--keep DIR] [COMMIT]
#
#   COMMIT       what is compared with (a4f3f43: the last one before the layout of src/ changed)
#   --seeds N    simulated processes, from seed 1 on (300)
#   --cost       also count the instructions of the benchmarks walk, trie and symbol, and of ten
#                simulated seconds of recording, with valgrind
#   --keep DIR   where outputs that differ are kept (else they go with the temporary folder)
#
# What is compared, of each seed: folded stacks, flame graph and summary of a usual recording, the
# same with --idle, with --threads and by frame pointers, the statistics of each, the three other
# forms of a profile, and the four dumps; then what render, diff and gate make of these profiles; then
# the runs of the golden files, and the golden files themselves. Not compared are keys of the statistics
# which are measured anew in each run of one program; they are named in the output. Each output that
# differs is listed, with its first difference and, if it is meant, why. Ends with 1 if any differs, meant or not.
#
# Builds the commit in a worktree below a temporary folder, and both below
# $CARGO_TARGET_DIR/same-behaviour; a second run builds only what changed.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

usage() {
    echo "same-behaviour: $1 (scripts/same-behaviour.sh --help)" >&2
    exit 2
}

commit=a4f3f43 seeds=300 cost='' keep=''
while [ $# -gt 0 ]; do
    case $1 in
    --seeds) seeds=${2:-} && shift ;;
    --cost) cost=1 ;;
    --keep) keep=${2:-} && shift ;;
    -h | --help) sed -n '2,/^set -eu/p' "$0" | sed -n 's/^# \{0,1\}//p' && exit 0 ;;
    -*) usage "there is no option $1" ;;
    *) commit=$1 ;;
    esac
    shift || usage "the last option needs a value"
done
case $seeds in
'' | *[!0-9]*) usage "--seeds \`$seeds\`: expected a whole number" ;;
esac
git rev-parse --quiet --verify "$commit^{commit}" >/dev/null || usage "there is no commit $commit"

# Changes that were meant, one a line: `PATTERN|COMMIT|why`, where PATTERN matches each line that
# differs. What differs and is not here was not meant. Empty: none shows in these outputs.
meant() {
    cat <<'MEANT'
MEANT
}

# Measured anew in each run, by two runs of one program as by two programs.
measured='profiler_cpu_s|profiler_peak_rss_bytes|recording_peak_rss_bytes|recording_private_bytes|recording_file_bytes|symbolicate_s|write_s'

targets=${CARGO_TARGET_DIR:-$root/target}/same-behaviour
work=$(mktemp -d)
cleanup() {
    git worktree remove --force "$work/tree" 2>/dev/null || true
    rm -rf "$work"
    git worktree prune
}
trap cleanup EXIT

# Builds `stackprof`, and with --cost the benchmarks, of the tree in folder $1 into folder $2. Both
# trees have much the same dependencies, so both build in one folder, and programs are copied out.
build() {
    local tree=$1 into=$2 bench path
    mkdir -p "$into"
    (cd "$tree" && CARGO_TARGET_DIR=$targets cargo build --quiet --release --locked)
    cp "$targets/release/stackprof" "$into/stackprof"
    [ -n "$cost" ] || return 0
    for bench in walk trie symbol; do
        path=$(cd "$tree" && CARGO_TARGET_DIR=$targets cargo bench --no-run --locked --bench "$bench" 2>&1 |
            sed -n 's/.*Executable .*(\(.*\))$/\1/p')
        cp "$path" "$into/$bench"
    done
}

echo "same-behaviour: $(git log -1 --format='%h (%s)' "$commit") and the tree as it is"
# A commit does not change: its programs are kept.
old_programs=$targets/programs/$(git rev-parse "$commit^{commit}")
if [ ! -x "$old_programs/stackprof" ] || { [ -n "$cost" ] && [ ! -x "$old_programs/symbol" ]; }; then
    git worktree add --quiet --detach "$work/tree" "$commit"
    build "$work/tree" "$old_programs"
fi
mkdir -p "$work/old"
cp "$old_programs"/* "$work/old/"
build "$root" "$work/new"

# Runs `stackprof $3...` of side $1 in a folder of its own, and keeps all that it writes there.
run() {
    local side=$1 name=$2 status=0
    shift 2
    local place=$work/$side/out/$name
    mkdir -p "$place"
    (cd "$place" && "$work/$side/stackprof" "$@" >stdout 2>stderr) || status=$?
    echo "$status" >"$place/status"
}

equal=0 different=0 unmeant=0
different_outputs=$work/different
: >"$different_outputs"

# Compares what both sides wrote as run $1, file by file.
compare() {
    local name=$1 file old new
    for file in $(find "$work"/*/out/"$name" -type f -printf "%f\n" | sort -u); do
        old=$work/old/out/$name/$file new=$work/new/out/$name/$file
        if [ "${file##*.}" = json ] && [ "$file" = stats.json ]; then
            sed -i -E "/^  \"($measured)\": /d" "$old" "$new"
        fi
        if cmp -s "$old" "$new"; then
            equal=$((equal + 1))
        else
            different=$((different + 1))
            tell_difference "$name/$file" "$old" "$new"
        fi
    done
    rm -rf "$work/old/out/$name" "$work/new/out/$name"
}

# One line for an output that differs, the reason if it was meant, and its first difference.
tell_difference() {
    local what=$1 old=$2 new=$3 lines pattern by why reason=''
    lines=$(diff --text "$old" "$new" 2>&1 | grep '^[<>]' | cut -c1-160 || true)
    while IFS='|' read -r pattern by why; do
        # Meant only if every line that differs is of that kind.
        if [ -n "$pattern" ] && [ -n "$lines" ] && ! grep -qvE "$pattern" <<<"$lines"; then
            reason="meant, $by: $why"
        fi
    done < <(meant)
    if [ -z "$reason" ]; then
        unmeant=$((unmeant + 1))
        reason='NOT MEANT'
    fi
    printf '%s: %s\n%s\n' "$what" "$reason" "$(head -n 2 <<<"$lines")" >>"$different_outputs"
    if [ -n "$keep" ]; then
        mkdir -p "$keep/$what"
        cp "$old" "$keep/$what/old" 2>/dev/null || true
        cp "$new" "$keep/$what/new" 2>/dev/null || true
    fi
}

# Both sides run the same, and are compared.
both() {
    run old "$@"
    run new "$@"
    compare "$1"
}

mkdir "$work/profiles"
stats=(--stats stats.json)
for ((seed = 1; seed <= seeds; seed++)); do
    target=(--target "sim:$seed")
    both "sim-$seed" "${target[@]}" -v -o out.folded -o out.svg "${stats[@]}"
    both "sim-$seed-idle" "${target[@]}" --idle -o out.folded "${stats[@]}"
    both "sim-$seed-threads" "${target[@]}" --threads -o out.folded -o out.svg "${stats[@]}"
    both "sim-$seed-fp" "${target[@]}" --unwind fp --lines -o out.folded "${stats[@]}"
    forms=("sim-$seed-forms" "${target[@]}" -q -o out.pb.gz -o out.speedscope.json -o out.firefox.json)
    run old "${forms[@]}"
    run new "${forms[@]}"
    # Read below, by both sides. Some processes give no sample, and so no profile.
    cp "$work/old/out/sim-$seed-forms/out.pb.gz" "$work/profiles/$seed.pb.gz" 2>/dev/null || true
    compare "sim-$seed-forms"
    for what in threads images symbols stacks; do
        both "sim-$seed-dump-$what" dump "$what" "${target[@]}"
    done
done

# What is made of saved profiles: of two neighbours each, and of ten.
for ((seed = 2; seed <= seeds; seed++)); do
    one=../../../profiles/$((seed - 1)).pb.gz other=../../../profiles/$seed.pb.gz
    both "render-$seed" render "$one" "$other" -o out.pb.gz -o out.folded -o out.svg -o out.firefox.json
    both "filter-$seed" render "$other" --include e --exclude z --lines --reverse -o out.speedscope.json -o out.svg
    both "diff-$seed" diff "$one" "$other" -o out.json -o out.md -o out.folded -o out.svg
    if ((seed % 10 == 0)); then
        ten=()
        for ((run = seed - 9; run <= seed; run++)); do
            ten+=("../../../profiles/$run.pb.gz")
        done
        both "gate-$seed" gate --base "${ten[@]::5}" --new "${ten[@]:5}" -o out.json -o out.md -o -
    fi
done

# The runs of tests/fast/golden.rs, which has their options; nothing of them is masked here.
while read -r name options; do
    # shellcheck disable=SC2086 # options are words
    both "golden-$name" ${options/out.json/stats.json}
done < <(sed -nE 's/^    \("(sim-[^"]+)", "(.*)"\),$/\1 \2/p' tests/fast/golden.rs)
for golden in $( (git ls-tree --name-only "$commit" tests/golden/ && ls tests/golden/*) | sort -u); do
    for side in old new; do
        mkdir -p "$work/$side/out/${golden%/*}"
    done
    git show "$commit:$golden" >"$work/old/out/$golden" 2>/dev/null || true
    cp "$golden" "$work/new/out/$golden" 2>/dev/null || true
done
compare tests/golden

echo
cat "$different_outputs"
echo "not compared, since two runs of one program differ in them: ${measured//|/, }"
echo "$equal outputs are equal, $different differ, $unmeant of them not as meant ($seeds seeds)"

# ---- cost

# Instructions of a command, counted by valgrind; what it prints is thrown away.
instructions() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$@" 2>&1 >/dev/null |
        sed -n 's/.*Collected : \([0-9]*\).*/\1/p' | tail -n 1
}

# Those of the passes over a set of stacks that the benchmark walk counts, without what it prepares.
walked() {
    instructions --toggle-collect='*counted_passes*' "$work/$1/walk" "${@:2}"
}

# 20,000 addresses all over the code of a program.
addresses() {
    local size start
    read -r size start < <(objdump -h "$1" | awk '$2 == ".text" { print $3, $4 }')
    awk -v start="$((16#$start))" -v size="$((16#$size))" \
        'BEGIN { for (at = 0; at < 20000; at++) printf "%x\n", start + at * 7919 * 61 % size }'
}

# A row of the table: what, and the figures of both sides.
row() {
    awk -v what="$1" -v old="$2" -v new="$3" \
        'BEGIN { printf "%-44s %16s %16s %7.3f\n", what, old, new, new / old }'
}

if [ -n "$cost" ]; then
    command -v valgrind >/dev/null || usage "--cost needs valgrind"
    echo
    printf '%-44s %16s %16s %7s\n' 'instructions' 'before' 'now' 'ratio'
    # Stacks of 40 frames, 20 times each; the code that they go through is the benchmark's own.
    for set in 'auto 4 saved registers' 'auto 5 frame records' 'fp 5 frame records' 'auto 6 many addresses'; do
        read -r walker number name <<<"$set"
        walk=(--one "$walker" "$number")
        row "walk: --unwind $walker, $name" "$(walked old "${walk[@]}")" "$(walked new "${walk[@]}")"
    done
    # The hash map that the trie is compared with is counted, too: both are inlined in one function.
    row 'trie: 100,000 samples, 3 rounds, two orders' \
        "$(instructions "$work/old/trie" --quick)" "$(instructions "$work/new/trie" --quick)"
    row 'symbol: 20,000 addresses of itself, 1 round' \
        "$(instructions "$work/old/symbol" --rounds 1)" "$(instructions "$work/new/symbol" --rounds 1)"
    # Each of these two is another program, so here is the same work for both.
    addresses "$work/old/stackprof" >"$work/addresses"
    named=(dump symbols "$work/old/stackprof" --addresses "$work/addresses" --lines)
    row 'names of 20,000 addresses of one file' \
        "$(instructions "$work/old/stackprof" "${named[@]}")" "$(instructions "$work/new/stackprof" "${named[@]}")"
    simulated=0 seed=0 old=0 new=0
    while [ "$simulated" -lt 10000 ]; do
        seed=$((seed + 1))
        arguments=(--target "sim:$seed" -q -o "$work/out.folded" --stats "$work/stats.json")
        old=$((old + $(instructions "$work/old/stackprof" "${arguments[@]}")))
        new=$((new + $(instructions "$work/new/stackprof" "${arguments[@]}")))
        simulated=$((simulated + $(awk '/^  "duration_s"/ { printf "%d", $2 * 1000 }' "$work/stats.json")))
    done
    row "recording: sim:1 to sim:$seed, $simulated ms" "$old" "$new"
fi
[ "$different" -eq 0 ]
