"""The results as one Markdown table, with the meaning of its columns."""

HEAD = """# Real programs beside peers

Written by `scripts/field.sh`; do not edit. {where}

* **complete**: share of counts whose stack reaches its thread's first function, in percent: stackprof's complete stacks at 997 Hz, and for
  `perf record --call-graph dwarf,65528` the samples whose outermost frame is a function in which threads begin (`_start`, `clone3`,
  `runtime.goexit`, …).
* **shares off**: the largest difference, in points, between the share of a function of at least 1 % by stackprof and by `perf record -e cpu-clock`, kernel
  time counted for the function that called the kernel; alone, and beside two busy loops. Behind ±: the 95 % error of the mean over alternating
  rounds. For pp, rust-threads and redis-clocks the reference is what the program itself prints; perf's own difference in brackets.
* **stacks**: threads at frozen moments (cgroup v2 freezer; then SIGSTOP, thaw, eu-stack and gdb: no instruction of the program runs in between), compared
  address by address. *same*: equal to a debugger's from end to end. *explained*: no debugger agrees, and their error is certain (they end early, show a
  frame that is not a return address, or the program's own truth says so). *flagged*: stackprof reports it as incomplete; *invented* of those: a frame
  that a debugger refutes. *suspect*: complete, and nothing explains the difference. **wrong**: complete, and refuted by the program's own truth, its runtime
  (HotSpot's agent), or the place where it ends. Not counted: threads that got a signal as they were stopped.
* **keeps**: throughput with the profiler at 997 Hz, in percent of that without, median of alternating rounds; perf with `--call-graph dwarf` (8 KiB of
  stack). **p99**: latency reported by the load generator, without / stackprof / perf.
* **pause**: of one stop, p50 / p99 / longest; **stood**: the share of the program's CPU time for which it was stopped.

"""
COLUMNS = ["program", "what it is", "complete: stackprof", "perf dwarf", "shares off: alone", "2 loops", "moments",
           "stacks", "same", "explained", "flagged", "invented", "suspect", "wrong", "keeps: stackprof", "perf dwarf",
           "p99 ms", "pause µs", "stood %"]


def number(value, form="{:.1f}"):
    return "" if value is None else form.format(value)


def off(row):
    """The largest difference, and the function."""
    if not row:
        return ""
    if row.get("truth"):
        mine = max(abs(a - b) for _, a, b in row["truth"])
        perf = max((abs(a - b) for _, a, b in row.get("perf_truth", [])), default=None)
        return f"{mine:.1f}" + (f" ({perf:.1f})" if perf is not None else "")
    if not row.get("perf"):
        return ""
    name, a, b, *chance = row["perf"][0]
    by_chance = f" ± {chance[0]:.1f}" if chance and chance[0] is not None else ""
    return f"{abs(a - b):.1f}{by_chance} `{name.replace('|', chr(92) + '|')[:40]}`"


def cells(program, row):
    """One line of the table, by column."""
    if "trouble" in row:
        return [program.name, program.shows, row["trouble"].replace("|", "/")[:120]] + [""] * (len(COLUMNS) - 3)
    complete, shares = row.get("completeness", {}), row.get("shares", {})
    stacks, cost = row.get("stacks", {}), row.get("cost", {})
    kinds = stacks.get("classes", {})
    moved = kinds.get("moved", 0) + kinds.get("unseen", 0)
    compared = [str(kinds.get(kind, 0)) for kind in ("identical", "explained", "flagged", "invented", "suspect", "wrong")]
    keeps = [number(cost.get(side, {}).get("keeps")) for side in ("stackprof", "perf")]
    p99 = [number(cost.get(side, {}).get("p99_ms"), "{:.2f}") for side in ("alone", "stackprof", "perf")]
    pause = cost.get("pause", {})
    pauses = " / ".join(number(pause.get(key), "{:.0f}") for key in ("p50_us", "p99_us", "max_us"))
    out = [program.name, program.shows, number(complete.get("stackprof")), number(complete.get("perf")),
           off(shares.get("0")), off(shares.get("2")), str(stacks.get("moments", "")),
           str(stacks["stacks"] - moved) if "stacks" in stacks else "",
           *(compared if kinds else [""] * 6), *keeps, " / ".join(p99) if any(p99) else "",
           pauses if pause else "", number(pause.get("stopped"), "{:.1f}")]
    troubles = [f"{name}: {part['trouble']}" for name, part in row.items() if isinstance(part, dict) and "trouble" in part]
    if troubles:
        out[1] += " (" + "; ".join(troubles).replace("|", "/")[:160] + ")"
    return out


def write(path, programs, results, where):
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * 2 + "--:|" * (len(COLUMNS) - 2)]
    sums = {}
    for program in programs:
        row = results.get(program.name)
        if row is None:
            continue
        lines.append("| " + " | ".join(cells(program, row)) + " |")
        stacks = row.get("stacks", {})
        sums["moments"] = sums.get("moments", 0) + stacks.get("moments", 0)
        for kind, count in stacks.get("classes", {}).items():
            sums[kind] = sums.get(kind, 0) + count
    compared = sum(count for kind, count in sums.items() if kind not in ("moments", "moved", "unseen"))
    kinds = ("identical", "explained", "flagged", "invented", "suspect", "wrong")
    told = ", ".join(f"{sums.get(kind, 0)} {kind}" for kind in kinds)
    text = HEAD.format(where=where) + "\n".join(lines) + (
        f"\n\nIn all {sums.get('moments', 0)} moments and {compared} thread stacks: {told}; "
        f"{sums.get('moved', 0) + sums.get('unseen', 0)} not counted.\n")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
