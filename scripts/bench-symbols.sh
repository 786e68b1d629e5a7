#!/usr/bin/env bash
# Time and memory of naming 20,000 distinct addresses of a file in a cold process (warm page
# cache), beside llvm-symbolizer, binutils addr2line and the crates blazesym and addr2line.
#
#   scripts/bench-symbols.sh LARGE_SO DWARF_BINARY [ROUNDS]
#
# The tools run in turn, ROUNDS times (5); printed are the best time, the median, and the
# largest memory of each. Needs: /usr/bin/time, python3, binutils, llvm-symbolizer(-19).
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ $# -lt 2 ]]; then
    echo "usage: scripts/bench-symbols.sh LARGE_SO DWARF_BINARY [ROUNDS]" >&2
    exit 2
fi
rounds=${3:-5}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
stackprof=${STACKPROF:-target/release/stackprof}
[[ -x $stackprof ]] || cargo build --release --locked
peers=${PEERS:-tests/peers/target/release/peers}
[[ -x $peers ]] || cargo build --release --manifest-path tests/peers/Cargo.toml
llvm=$(command -v llvm-symbolizer-19 || command -v llvm-symbolizer)

python3 - "$place" "$stackprof" "$peers" "$llvm" "$rounds" "$1" "$2" <<'PY'
import random, re, statistics, subprocess, sys

place, stackprof, peers, llvm, rounds, large, dwarf = sys.argv[1:]
SEED, COUNT = 7, 20_000

def addresses(path, name):
    out = subprocess.run(["readelf", "-SW", path], capture_output=True, text=True).stdout
    text = re.search(r"\s\.text\s+PROGBITS\s+([0-9a-f]+)\s+\S+\s+([0-9a-f]+)", out)
    start, size = int(text[1], 16), int(text[2], 16)
    found, rng = set(), random.Random(SEED)
    while len(found) < COUNT:
        found.add(start + rng.randrange(size))
    found = sorted(found)
    rng.shuffle(found)
    listed = f"{place}/{name}"
    with open(listed, "w") as file:
        file.writelines(f"{address:#x}\n" for address in found)
    return listed

def tools(path, listed, with_dwarf):
    ours = [stackprof, "dump", "symbols", path, "--addresses", listed]
    rows = {"stackprof": (ours, None), "stackprof, one core": (["taskset", "-c", "0", *ours], None)}
    if with_dwarf:
        rows["stackprof --lines"] = ([*ours, "--lines"], None)
    rows["blazesym"] = ([peers, "blazesym", path, listed], None)
    if with_dwarf:
        rows["blazesym, with lines"] = ([peers, "blazesym-lines", path, listed], None)
    rows["addr2line (crate)"] = ([peers, "addr2line", path, listed], None)
    rows["llvm-symbolizer"] = ([llvm, "--inlines", f"--obj={path}"], listed)
    rows["addr2line (binutils)"] = (["addr2line", "-f", "-i", "-C", "-e", path], listed)
    return rows

def run(command, listed):
    log = f"{place}/time"
    with open(listed or "/dev/null") as stdin:
        timed = ["/usr/bin/time", "-o", log, "-f", "%e %U %S %M", *command]
        subprocess.run(timed, stdin=stdin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    wall, user, system, kilobytes = open(log).read().split()[-4:]
    return float(wall), float(user) + float(system), int(kilobytes)

for name, path, with_dwarf in (("A", large, False), ("B", dwarf, True)):
    listed = addresses(path, name)
    rows = tools(path, listed, with_dwarf)
    seen = {row: [] for row in rows}
    for round in range(int(rounds)):
        for row, (command, stdin) in rows.items():
            # binutils takes many seconds, and once tells as much.
            if "binutils" not in row or round == 0:
                seen[row].append(run(command, stdin))
    print(f"\n{name}: {path.rsplit('/', 1)[-1]}, {COUNT} addresses, seed {SEED}")
    print(f"{'':<24}{'best s':>9}{'median s':>10}{'cpu s':>8}{'peak MB':>9}")
    for row, runs in seen.items():
        walls = [run[0] for run in runs]
        cpu = min(run[1] for run in runs)
        peak = max(run[2] for run in runs) / 1024
        print(f"{row:<24}{min(walls):>9.2f}{statistics.median(walls):>10.2f}{cpu:>8.2f}{peak:>9.0f}")
PY
