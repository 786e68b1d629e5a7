"""Readers of stackprof beside the tools that own the formats: totals and the ten largest functions.

Called by scripts/compare-readers.sh, which tells the options.
"""

import collections
import json
import pathlib
import re
import sys
import tempfile

from cases import CASES
from tools import NS, Skip, ours

TOP = 10


def clean(name):
    """A name without what only one of two tools prints."""
    name = re.sub(r"^\[\S*\]$|^$", "?", name.strip())
    name = re.sub(r"^0x[0-9a-f]+$", "?", name)
    # stackcollapse-perf.pl leaves the signatures of Java's methods out.
    name = re.sub(r"^L(?=\w+/)", "", name) if "/" in name else name
    name = name.split("(")[0] if "/" in name else name
    return name.removesuffix("_[k]").removesuffix("_[i]").removesuffix(" (inline)")


def compare(owner, mine):
    """The largest difference of a share among the owner's largest functions, in points."""
    sums = []
    for counts in (owner, mine):
        merged = collections.Counter()
        for name, count in counts.items():
            merged[clean(name)] += count
        sums.append(merged)
    totals = [sum(counts.values()) for counts in sums]
    if not all(totals):
        return None
    # Tools print roots and processes without frames in ways of their own.
    top = [name for name, _ in sums[0].most_common(TOP) if name != "?"]
    return max((abs(sums[0][n] / totals[0] - sums[1][n] / totals[1]) * 100 for n in top), default=0.0)


def one(form, name, case):
    """A row of the table."""
    try:
        owner, unit, path, period_ns = case()
    except Skip as why:
        print(f"| {form} | {name} | SKIP: {why} | | | | |".replace("\n", " "), flush=True)
        return None
    mine, our_unit, said = ours(path)
    # Times in ns; where stackprof counts samples of a known length, they are times.
    total = sum(owner.values()) * NS.get(unit, 1)
    our_total = sum(mine.values()) * (period_ns if unit in NS and our_unit == "samples" and period_ns else 1)
    scale = {"millisamples": 1e-3, "microsamples": 1e-6, "nanosamples": 1e-9}.get(our_unit, 1)
    our_total *= scale
    ratio = f"{our_total / total:.4f}" if total else "-"
    worst = compare(owner, mine)
    remarks = [line for line in said.splitlines() if " in " not in line or "not understood" in line]
    said = " ".join(remarks).replace(str(path), path.name).replace("|", "/")[:160]
    shown = "-" if worst is None else f"{worst:.2f}"
    print(f"| {form} | {name} | {total:.0f} | {our_total:.0f} {our_unit} | {ratio} | {shown} | {said} |", flush=True)
    return {"form": form, "file": name, "owner_total": total, "total": our_total, "share_difference": worst}


def main():
    arguments = sys.argv[1:]
    options = {}
    for option in ("-o", "-k"):
        if option in arguments:
            at = arguments.index(option)
            options[option] = arguments[at + 1]
            del arguments[at:at + 2]
    rows = []
    print("| form | file | owner's total | ours | ratio | largest difference of a share (points) | said |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        for form, kinds in CASES.items():
            for cases in kinds:
                here = pathlib.Path(options.get("-k", temporary)) / cases.__name__
                here.mkdir(parents=True, exist_ok=True)
                for name, case in cases(here):
                    if not arguments or any(word in f"{form} {name}" for word in arguments):
                        rows.append(one(form, name, case))
    if "-o" in options:
        pathlib.Path(options["-o"]).write_text(json.dumps([row for row in rows if row], indent=1) + "\n")


if __name__ == "__main__":
    main()
