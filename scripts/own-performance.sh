#!/usr/bin/env bash
# stackprof watches its own cost with itself: two of its benchmarks, the trie and naming of
# addresses, are recorded and gated against the baselines in profiles/.
# Usage: scripts/own-performance.sh [--update] [RUNS]
# Only reports: the baselines are of one machine, and say little about another. What fails
# it is a recording or a gate that does not work. --update replaces the baselines
# of what did not get slower; delete a folder to accept that it did.
set -euo pipefail
cd "$(dirname "$0")/.."

update=()
if [[ ${1:-} == --update ]]; then
    update=(--update)
    shift
fi
runs=${1:-7}
[[ -n ${STACKPROF:-} ]] || cargo build --release --locked
# The names of benchmarks' files change with every build, those of their processes must not.
mkdir -p target/own-performance
cargo bench --locked --no-run --bench trie --bench symbol --message-format=json-render-diagnostics |
    sed -n 's/.*"name":"\(trie\|symbol\)".*"executable":"\([^"]*\)".*/\1 \2/p' |
    while read -r name executable; do
        cp "$executable" "target/own-performance/bench-$name"
    done
# What the trie's benchmark says of its times means nothing while it is recorded.
watch() {
    local left code=4
    # 4: no data, since a busy machine lost too much of a recording; another one may have it.
    for ((left = 3; left > 0 && code == 4; left--)); do
        code=0
        scripts/perf-regression.sh --report-only --runs "$runs" ${update[@]+"${update[@]}"} \
            --baseline "profiles/$1" -- "target/own-performance/bench-$1" "${@:2}" || code=$?
    done
    return "$code"
}
watch trie --no-times
watch symbol
if ((${#update[@]})); then
    python3 scripts/strip-paths.py "$PWD" profiles/trie/*.pb.gz profiles/symbol/*.pb.gz
fi
