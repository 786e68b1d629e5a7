#!/usr/bin/env bash
# Large folded input beside inferno's own tools: 1 GB and 300 MB of folded stacks to a flame
# graph, and the difference of two profiles of 200 MB. Median of the wall-clock times, of the
# CPU times and of the peak memory; the tools run in turn, so that other load meets all. What
# they write is thrown away, since the disk's time differs more than theirs.
# Usage: scripts/bench-render.sh [ROUNDS]; needs python3 and 3 GB in $TMPDIR.
# Exits 1 if stackprof is slower or takes more than 400 MB.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

rounds=${1:-5}
stackprof=${STACKPROF:-target/release/stackprof}
[[ -n ${STACKPROF:-} ]] || cargo build --release --locked
inferno=${INFERNO:-target/inferno/bin}
[[ -x $inferno/inferno-flamegraph ]] || cargo install --quiet inferno --version 0.12.8 --root target/inferno
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Stacks as a thread leaves them that calls and returns: each is the one before with its
# innermost 1, 2, ... frames replaced, 10 on average, in the order of their lines.
cat >"$work/make.py" <<'PYTHON'
import random, sys

path, stacks, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
DEPTH, NAMES = 50, 20_000
shape, counts = random.Random(7), random.Random(seed)
parts = ["core::ops::function", "alloc::vec::Vec<T>", "hash::map", "<impl Iterator for Chain>", "json::de", "http"]
names = [f"f{n:05}::{parts[n % len(parts)]}::m{n % 97}" for n in range(NAMES)]
stack, kept = [0] * DEPTH, 0
with open(path, "w") as out:
    for _ in range(stacks):
        while kept > 0 and stack[kept] > NAMES - 40:
            kept -= 1
        stack[kept] += 1 + shape.randrange(30 if kept else 3)
        for level in range(kept + 1, DEPTH):
            stack[level] = shape.randrange(400)
        out.write("work;" + ";".join([names[n] for n in stack]) + f" {1 + counts.randrange(9)}\n")
        kept = DEPTH - 1
        while kept > 0 and shape.random() > 0.1:
            kept -= 1
PYTHON
python3 "$work/make.py" "$work/large.folded" 700000 1
python3 "$work/make.py" "$work/middle.folded" 210000 1
python3 "$work/make.py" "$work/base.folded" 140000 1
python3 "$work/make.py" "$work/new.folded" 140000 2
ls -l "$work"/*.folded

python3 - "$stackprof" "$inferno" "$work" "$rounds" <<'PYTHON'
import os, statistics, subprocess, sys, time

stackprof, inferno, work, rounds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
LIMIT_MB = 400
file = lambda name: os.path.join(work, name)
for name in ("ours.svg", "ours.folded"):
    os.symlink(os.devnull, file(name))
render = lambda name: {
    "stackprof render": [stackprof, "render", "-q", file(name), "-o", file("ours.svg")],
    "inferno-flamegraph": [f"{inferno}/inferno-flamegraph", file(name)],
}
CASES = {
    "large.folded to SVG": render("large.folded"),
    "middle.folded to SVG": render("middle.folded"),
    "base.folded, new.folded to folded difference": {
        "stackprof diff": [stackprof, "diff", "-q", "--no-normalize", file("base.folded"), file("new.folded"), "-o", file("ours.folded")],
        "inferno-diff-folded": [f"{inferno}/inferno-diff-folded", file("base.folded"), file("new.folded")],
    },
}

def run(command):
    begun = time.monotonic()
    with open(os.devnull, "w") as out:
        child = subprocess.Popen(command, stdout=out)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = 0
    assert status == 0, f"{' '.join(command)} ended with {status}"
    return time.monotonic() - begun, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000

failed = False
for case, commands in CASES.items():
    measured = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            measured[name].append(run(command))
    print(f"\n{case}, median of {rounds}, load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    print(f"{'':<22}{'seconds':>9}{'CPU s':>9}{'peak MB':>9}")
    medians = {name: [statistics.median(column) for column in zip(*runs)] for name, runs in measured.items()}
    for name, (wall, cpu, peak) in medians.items():
        print(f"{name:<22}{wall:>9.2f}{cpu:>9.2f}{peak:>9.0f}")
    ours, theirs = medians.values()
    holds = ours[0] <= theirs[0] and ours[2] <= LIMIT_MB
    failed |= not holds
    print(f"{'PASS' if holds else 'FAIL'} not slower than inferno, at most {LIMIT_MB} MB")
sys.exit(failed)
PYTHON
