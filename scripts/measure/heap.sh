#!/bin/sh
# What `stackprof heap` costs and how near its estimates are: prints figures for docs/heap.md.
#
#   STACKPROF=path scripts/measure/heap.sh [RUNS]
#
# Programs that are not installed are left out, and said. Runs alternate: without, with.
set -eu
stackprof=${STACKPROF:-stackprof}
runs=${1:-5}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

cat > "$work/mallocs.c" <<'C'
#include <pthread.h>
#include <stdlib.h>
static void *work(void *argument) {
    for (int i = 0; i < 5000000; i++) {
        volatile char *block = malloc(16 + i % 2000);
        block[0] = 1;
        free((void *)block);
    }
    return argument;
}
int main(void) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], 0, work, 0);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], 0);
    return 0;
}
C
cc -O2 -pthread -o "$work/mallocs" "$work/mallocs.c"
cat > "$work/dicts.py" <<'P'
kept = []
for number in range(300000):
    kept.append({"name": str(number), "values": [number] * 5})
    if number % 3 == 0:
        kept.pop()
P
cat > "$work/big.cc" <<'P'
#include <map>
#include <regex>
#include <string>
#include <vector>
int main() { std::map<std::string, std::vector<int>> m; m["a"].push_back(1); return std::regex_match("a", std::regex("a*")); }
P
cat > "$work/rows.sql" <<'P'
create table t(a integer primary key, b text, c text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 200000) insert into t select i, 'row ' || i, hex(i * 7919) from n;
create index x on t(c);
select count(*), sum(length(b)) from t join (select c as d from t order by c limit 50000) on c = d;
P

# Wall-clock milliseconds of a command, output away.
measure() {
    begin=$(date +%s%N)
    "$@" > "$work/out" 2> "$work/err" || { echo "failed: $*" >&2; cat "$work/err" >&2; return 1; }
    echo $((($(date +%s%N) - begin) / 1000000))
}

median() { sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }

compare() {
    name=$1
    shift
    if ! command -v "$1" > /dev/null; then
        echo "$name: $1 is not installed"
        return
    fi
    : > "$work/without" && : > "$work/with"
    run=0
    while [ "$run" -lt "$runs" ]; do
        measure "$@" >> "$work/without"
        measure "$stackprof" heap -q -o "$work/a.pb.gz" --stats "$work/stats.json" -- "$@" >> "$work/with"
        run=$((run + 1))
    done
    without=$(median < "$work/without")
    with=$(median < "$work/with")
    python3 - "$name" "$without" "$with" "$work/stats.json" << 'P'
import json, sys
name, without, with_ = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
stats = json.load(open(sys.argv[4]))
heap = stats["heap"]
incomplete = sum(stats["stacks_incomplete"].values())
complete = 100 * stats["stacks_complete"] / max(1, stats["stacks_complete"] + incomplete)
error = 196 * heap["alloc_space_error"] / max(1, heap["alloc_space"])
print(f"{name}: {without} ms without, {with_} ms with (×{with_ / max(1, without):.2f}), {heap['samples']} samples, "
      f"{complete:.1f}% complete, {heap['samples_lost']} lost, allocated {heap['alloc_space'] / 2**20:.1f} MiB ±{error:.1f}%, "
      f"stackprof {stats['profiler_cpu_s']:.2f} s CPU, {stats['recording_peak_rss_bytes'] / 2**20:.0f} MiB")
P
}

compare "malloc and free in 8 threads" "$work/mallocs"
compare "python3, dicts" python3 "$work/dicts.py"
compare "python3, dicts, malloc" env PYTHONMALLOC=malloc python3 "$work/dicts.py"
compare "C++ compile" g++ -O1 -c -o "$work/big.o" "$work/big.cc"
compare "sqlite3" sqlite3 ":memory:" ".read $work/rows.sql"

# Exact beside estimated, by the fixture whose leaks are known.
cc -g -O1 -pthread -o "$work/leaks" "$here/../../tests/fixtures/leaks.c"
for every in 1 1K 4K; do
    "$stackprof" heap -q --every "$every" -o "$work/a.pb.gz" --stats "$work/stats.json" -- "$work/leaks" > /dev/null
    python3 - "$every" "$work/stats.json" << 'P'
import json, sys
heap = json.load(open(sys.argv[2]))["heap"]
print(f"leaks, --every {sys.argv[1]}: in use {heap['inuse_space']} ± {1.96 * heap['inuse_space_error']:.0f} bytes, "
      f"{heap['inuse_objects']} blocks")
P
done
