#!/usr/bin/env python3
"""Bytes by function, estimated by `stackprof heap`, beside heaptrack's totals of all allocations. Prints Markdown tables.

    STACKPROF=path scripts/measure/heap-totals.py [-n RUNS] [--every SIZE] [--scale N] [--program NAME;...] [-v]

heaptrack runs each program once and writes every allocation with its stack; from these, the bytes that each function and its
callees allocated are added up, and what was not freed at the end. stackprof runs it RUNS times. Large are functions with at
least 2 % of all bytes. Compared with heaptrack are

    functions   each large function in each run: within 1.96 standard errors, which follow from heaptrack's sizes and --every?
    total       of each run, with what it says it lost: within the ± that stackprof states?
    in use      the same of what is in use at the end

95 % are expected to be within. Functions without a name are left out, and so is what heaptrack's own libraries allocate before
the program begins. -v lists each function. From Debian: heaptrack zstd redis-server redis-tools sqlite3 g++ python3.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import defaultdict

from heap_programs import programs

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "field"))
import pprof  # noqa: E402

STACKPROF = os.environ.get("STACKPROF", "stackprof")
LARGE = 0.02
SEED = {"PYTHONHASHSEED": "0"}


class Truth:
    """What heaptrack saw: bytes by function, and in use at the end; and the variance of an estimate of them."""

    def __init__(self, path, mean):
        strings, ips, traces, allocations = [""], [()], [(0, 0)], []
        counts, live = defaultdict(int), defaultdict(int)
        text = subprocess.run(["zstd", "-dcq", path], stdout=subprocess.PIPE, check=True).stdout.decode(errors="replace")
        for line in text.splitlines():
            kind, _, rest = line.partition(" ")
            if kind == "+":
                counts[rest] += 1
                live[rest] += 1
            elif kind == "-":
                live[rest] -= 1
            elif kind == "s":
                strings.append(rest.partition(" ")[2])
            elif kind == "i":
                # The function, its file and line; then those that are inlined into it.
                parts = [int(part, 16) for part in rest.split()]
                ips.append(frozenset(strings[name] for name in parts[2::3]))
            elif kind == "t":
                ip, parent = (int(part, 16) for part in rest.split())
                traces.append((ip, parent))
            elif kind == "a":
                size, trace = (int(part, 16) for part in rest.split())
                allocations.append((size, trace))
        names = [frozenset()]
        for ip, parent in traces[1:]:
            names.append(names[parent] | ips[ip])
        self.bytes, self.variance = defaultdict(int), defaultdict(float)
        self.live_bytes, self.total_bytes, self.count = 0, 0, 0
        for index, count in counts.items():
            size, trace = allocations[int(index, 16)]
            if not size or "_dl_init" in names[trace]:
                continue
            self.total_bytes += size * count
            self.live_bytes += size * live[index]
            self.count += count
            missed = math.exp(-size / mean)
            for name in names[trace]:
                self.bytes[name] += size * count
                self.variance[name] += count * size * size * missed / (1 - missed)


def estimate(program, every, work):
    """(bytes by function, statistics) of a run."""
    profile, stats = f"{work}/a.pb.gz", f"{work}/stats.json"
    program.run([STACKPROF, "heap", "-q", "--every", every, "-o", profile, "--stats", stats, "--"], SEED)
    found = defaultdict(int)
    for value, frames, _ in pprof.read(profile, "alloc_space"):
        for name in {frame.name for frame in frames}:
            found[name] += value
    with open(stats, encoding="utf-8") as file:
        return found, json.load(file)["heap"]


def is_within(ours, truth, error):
    return abs(ours - truth) <= max(1.96 * error, 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--runs", type=int, default=5)
    parser.add_argument("--every", default="512K")
    parser.add_argument("--scale", type=float, default=0.2)
    parser.add_argument("--program", default="")
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    unit = {"K": 1 << 10, "M": 1 << 20}.get(options.every[-1], 1)
    mean = int(options.every.rstrip("KM")) * unit
    sums = [0] * 6
    print("| program | bytes, heaptrack | allocations | functions within | total within | in use within |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as work:
        for program in programs(work, options.scale):
            if options.program and program.name not in options.program.split(";"):
                continue
            if not program.is_installed():
                print(f"{program.name}: not installed", file=sys.stderr)
                continue
            try:
                program.run(["heaptrack", "-o", f"{work}/ht"], SEED)
            except SystemExit as failure:
                print(f"heaptrack, {failure}", file=sys.stderr)
                continue
            truth = Truth(f"{work}/ht.zst", mean)
            os.remove(f"{work}/ht.zst")
            row, lost = [0] * 6, 0
            runs = [estimate(program, options.every, work) for _ in range(options.runs)]
            known = set().union(*(found for found, _ in runs))
            large = [name for name in truth.bytes if name in known and truth.bytes[name] >= LARGE * truth.total_bytes]
            for found, stats in runs:
                # Which functions allocated what was lost is not known.
                is_whole = not stats["samples_lost"]
                lost += not is_whole
                for name in sorted(large, key=truth.bytes.get, reverse=True) if is_whole else []:
                    error = math.sqrt(truth.variance[name])
                    fits = is_within(found[name], truth.bytes[name], error)
                    row[0] += fits
                    row[1] += 1
                    if options.verbose:
                        print(f"    {name}: {truth.bytes[name]}, ours {found[name]} ± {1.96 * error:.0f}, {'inside' if fits else 'outside'}")
                for at, name, right in ((2, "alloc_space", truth.total_bytes), (4, "inuse_space", truth.live_bytes)):
                    # Where nothing was sampled, up to three intervals may be: exp(-3) is 5 %.
                    error = stats[f"{name}_error"] if stats[name] else 3 * mean / 1.96
                    ours = stats[name] + (stats["samples_lost_bytes"] if name == "alloc_space" else 0)
                    fits = is_within(ours, right, error)
                    row[at] += fits
                    if options.verbose:
                        print(f"    {name}: {right}, ours {ours} ± {1.96 * error:.0f}, {'inside' if fits else 'outside'}")
            row[3] = row[5] = options.runs
            sums = [left + right for left, right in zip(sums, row)]
            parts = [f"{row[at]} of {row[at + 1]}" for at in (0, 2, 4)]
            if lost:
                parts[0] += f" ({lost} runs lost samples)"
            print(f"| {program.name} | {truth.total_bytes / 2**20:.1f} MiB | {truth.count} | {' | '.join(parts)} |", flush=True)
    parts = [f"{sums[at]} of {sums[at + 1]} ({100 * sums[at] / max(1, sums[at + 1]):.1f} %)" for at in (0, 2, 4)]
    print(f"| all | | | {' | '.join(parts)} |")


main()
