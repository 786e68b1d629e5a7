#!/usr/bin/env bash
# How many stacks of stock Debian programs (no frame pointers, no symbols but the dynamic
# ones) reach their thread's first function, by --unwind auto and by --unwind fp.
# Usage: scripts/complete-stacks.sh [SECONDS]; needs python3, sqlite3, xz, perl and ptrace.
# Exits 1 if auto is below 99 % for any of them.
set -euo pipefail
cd "$(dirname "$0")/.."
stackprof=${STACKPROF:-target/release/stackprof}
seconds=${1:-5}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

head -c 60000000 /dev/urandom | od -An -tx1 > "$work/data"
python='
import json, re
while True:
    rows = [{"n": i, "text": "word %d" % (i * 37 % 1000)} for i in range(3000)]
    text = json.dumps(sorted(rows, key=lambda row: row["text"]))
    sum(len(match) for match in re.findall(r"w\w+ (\d+)", text)); json.loads(text)'
# shellcheck disable=SC2016 # for perl to expand
perl='while (1) { my %n; for my $i (1..20000) { my $w = sprintf("%05d", $i * 37 % 9973); $n{$w} .= reverse $w; }
  my $t = join ",", sort { $n{$a} cmp $n{$b} } keys %n; $t =~ s/(\d)(\d)/$2$1/g; }'
sql="with recursive n(i) as (select 1 union all select i + 1 from n where i < 200000000)
  select count(distinct (i * 37) % 9973), sum(length(printf('%d', i))) from n order by 1;"

failed=0
run() {
    local name=$1 how
    shift
    "$@" >/dev/null 2>&1 < /dev/null &
    local pid=$!
    sleep 0.3
    for how in auto fp; do
        timeout 60 "$stackprof" -q -d "$seconds" --unwind "$how" -o "$work/out.folded" \
            --stats "$work/$how.json" --pid "$pid" || true
    done
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    /usr/bin/python3 - "$name" "$work/auto.json" "$work/fp.json" <<'P' || failed=1
import json, sys
def rate(path):
    stats = json.load(open(path))
    whole, torn = stats["stacks_complete"], stats["stacks_incomplete"]
    return 100 * whole / max(1, whole + sum(torn.values())), whole + sum(torn.values()), torn, stats["frames_by_method"]
auto, samples, torn, methods = rate(sys.argv[2])
fp = rate(sys.argv[3])[0]
print(f"{sys.argv[1]:<8} {samples:>6} samples  auto {auto:6.2f} %  fp {fp:6.2f} %  incomplete {torn}  {methods}")
sys.exit(auto < 99)
P
}
run python3 /usr/bin/python3 -c "$python"
run sqlite3 /usr/bin/sqlite3 :memory: "$sql"
run xz /usr/bin/xz -9 -k -c "$work/data"
run perl /usr/bin/perl -e "$perl"
exit $failed
