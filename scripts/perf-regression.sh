#!/usr/bin/env bash
# Did a command get slower? Records it several times with stackprof, gates the recordings
# against a baseline, and prints the report as Markdown. For Linux and macOS.
#
#   scripts/perf-regression.sh --baseline profiles/NAME -- COMMAND [ARGS...]
#   scripts/perf-regression.sh --base-command 'OLD ARGS' -- COMMAND [ARGS...]
#   scripts/perf-regression.sh --baseline profiles/NAME --update -- COMMAND [ARGS...]
#
#   --runs N            recordings a side (7)
#   --baseline DIR      recordings to compare with, kept from an earlier --update
#   --base-command CMD  the command before the change: it and COMMAND are recorded in turn,
#                       so that whatever else the machine does meets both. This is the
#                       comparison to trust. A stored baseline also carries what has changed on the
#                       machine since, and says nothing about another machine.
#   --update            keep the new recordings as the baseline if the gate passes (without
#                       a comparison if there is none yet)
#   --store DIR         where recordings and report go (target/perf-regression/COMMAND)
#   --hz N              ticks per second (997)
#   --max-increase P    growth that passes (5%)
#   --report-only       exit 0 also if something got slower
#   --stackprof FILE    the stackprof to use (target/release/stackprof)
#
# The command's own output goes to DIR/log. A run that fails is no measurement: the script
# ends there. Exit codes are those of `stackprof gate`: 0 passed, 1 error, 2 wrong usage,
# 3 something got slower, 4 no data to compare.
set -eu

usage() {
    echo "perf-regression: $1 (scripts/perf-regression.sh --help)" >&2
    exit 2
}

root=$(cd "$(dirname "$0")/.." && pwd)
runs=7 baseline='' base_command='' update='' store='' hz=997 increase=5% report_only=''
stackprof=${STACKPROF:-$root/target/release/stackprof}
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    case $1 in
        --update) update=1; shift; continue ;;
        --report-only) report_only=1; shift; continue ;;
        -h | --help) sed -n '2,/^set -eu/p' "$0" | sed -n 's/^# \{0,1\}//p'; exit 0 ;;
    esac
    [ $# -gt 1 ] || usage "$1: a value or -- COMMAND is missing"
    case $1 in
        --runs) runs=$2 ;;
        --baseline) baseline=$2 ;;
        --base-command) base_command=$2 ;;
        --store) store=$2 ;;
        --hz) hz=$2 ;;
        --max-increase) increase=$2 ;;
        --stackprof) stackprof=$2 ;;
        *) usage "there is no option $1" ;;
    esac
    shift 2
done
[ $# -gt 1 ] || usage "no command after --"
shift
case $runs in
    '' | *[!0-9]* | 0*) usage "--runs \`$runs\`: expected a whole number from 1 on" ;;
esac
if [ -n "$baseline" ] && [ -n "$base_command" ]; then
    usage "--baseline and --base-command exclude each other"
elif [ -z "$baseline" ] && [ -z "$base_command" ]; then
    usage "say what to compare with: --baseline DIR or --base-command CMD"
elif [ -n "$update" ] && [ -z "$baseline" ]; then
    usage "--update needs --baseline DIR"
elif [ -n "$baseline" ] && [ ! -d "$baseline" ] && [ -z "$update" ]; then
    echo "perf-regression: there is no baseline $baseline; make it with --update" >&2
    exit 4
fi
[ -x "$stackprof" ] || { echo "perf-regression: there is no $stackprof; cargo build --release makes it" >&2; exit 1; }

name=$(basename "$1")
store=${store:-$root/target/perf-regression/$name}
for made in "$store/base" "$store/new"; do
    if [ -n "$baseline" ] && [ "$baseline" -ef "$made" ]; then
        usage "--baseline $baseline is where --store keeps what it makes anew; name another store"
    fi
done
rm -rf "$store/base" "$store/new"
mkdir -p "$store/base" "$store/new"
log=$store/log
: >"$log"

# record SIDE NUMBER COMMAND...
record() {
    side=$1 number=$2
    shift 2
    file=$store/$side/$(printf %03d "$number").pb.gz
    printf 'perf-regression: %s %s of %s\n' "$side" "$number" "$runs" >&2
    if ! "$stackprof" -q --no-kernel --hz "$hz" -o "$file" --stats "$store/stats.json" -- "$@" >>"$log" 2>&1 </dev/null; then
        echo "perf-regression: recording \`$*\` failed:" >&2
        tail -n 3 "$log" >&2
        exit 1
    fi
    # A number, or a signal by its name in quotes.
    status=$(sed -n 's/^ *"exit_status": *\(.*[^,]\),*$/\1/p' "$store/stats.json")
    if [ "$status" != 0 ]; then
        echo "perf-regression: \`$*\` ended with exit status $status; its output is in $log" >&2
        exit 1
    fi
}

record_base() {
    side_number=$1
    # Quotes in CMD mean what they mean in a shell.
    eval "set -- $base_command"
    record base "$side_number" "$@"
}

number=1
while [ "$number" -le "$runs" ]; do
    if [ -z "$base_command" ]; then
        record new "$number" "$@"
    elif [ $((number % 2)) -eq 1 ]; then
        record_base "$number"
        record new "$number" "$@"
    else
        # The other way round, so that neither is always the one that runs first.
        record new "$number" "$@"
        record_base "$number"
    fi
    number=$((number + 1))
done

base=$store/base
if [ -n "$baseline" ]; then
    base=$baseline
fi
if [ ! -d "$base" ]; then
    "$stackprof" gate -q --new "$store/new" --update-baseline "$baseline"
    echo "Baseline of \`$name\` made in \`$baseline\`: $runs runs at $hz Hz."
    exit 0
fi
code=0
if [ -n "$update" ]; then
    "$stackprof" gate -q --base "$base" --new "$store/new" --max-increase "$increase" \
        --markdown "$store/report.md" --update-baseline "$baseline" || code=$?
else
    "$stackprof" gate -q --base "$base" --new "$store/new" --max-increase "$increase" \
        --markdown "$store/report.md" || code=$?
fi
if [ "$code" -ne 0 ] && [ "$code" -ne 3 ]; then
    exit "$code"
fi
if [ -n "$base_command" ]; then
    how="recorded in turn with \`$base_command\`"
else
    how="against the stored runs of \`$baseline\`"
fi
# shellcheck disable=SC2016 # Markdown's quotes
printf '# Performance of `%s`\n\n%s runs at %s Hz, %s.\n\n' "$name" "$runs" "$hz" "$how"
cat "$store/report.md"
if [ -n "$report_only" ]; then
    code=0
fi
exit "$code"
