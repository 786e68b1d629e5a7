"""The stacks of all threads, once, by stackprof and by debuggers, as their users type it."""

import re
import shutil

from measure import Metered, Trouble, numbers
from runs import RUN_MAX_S, go, start_told

import judge

SHOT_MAX_S = 90


def commands(stackprof):
    gdb = ["set pagination off", "set debuginfod enabled off", "set backtrace past-main on", "set print thread-events off"]
    return {
        "stackprof dump stacks": [stackprof, "dump", "stacks", "--pid"],
        "eu-stack": ["eu-stack", "-p"],
        # With inlined functions, which stackprof and gdb show, too.
        "eu-stack -i": ["eu-stack", "-i", "-p"],
        # Its -p comes last.
        "gdb": ["gdb", "-nx", "-q", "-batch", *(word for each in gdb for word in ("-iex", each)), "-ex", "thread apply all bt", "-p"],
    }


def names_by_thread(name, text):
    """[[names, innermost first]] of all threads."""
    found = []
    for line in text.splitlines():
        # stackprof says how it found a frame before its name, gdb writes `in` there and arguments behind.
        way = r"\w+\s+" if name.startswith("stackprof") else "(?:in )?"
        frame = re.match(rf"\s*#\d+\s+(?:0x[0-9a-f]+\s+{way})?([^\s(][^(]*)?", line)
        if re.match(r"(TID \d+:|[Tt]hread \d+ )", line):
            found.append([])
        elif frame and found:
            found[-1].append((frame[1] or "").strip().removesuffix(" - 1"))
    return found


def one(workload, name, argv, context):
    """The target's time, and what the tool took; without a tool only the first."""
    target, tool = start_told(workload, context, times=max(2, workload.shot_s / context.seconds)), None
    out = f"{context.folder}/shot.out"
    try:
        row = {}
        began = go(target)
        if argv:
            # At work, and with most of it to come: some take a second for 2,000 threads.
            target.wait(context.seconds / 8)
            with open(out, "wb") as file:
                tool = Metered([*argv, str(target.pid)], f"{context.folder}/shot", stdout=file)
                used = tool.used(SHOT_MAX_S)
            row.update(tool_s=used["ended"] - used["began"], tool_cpu_s=used["cpu_s"], tool_peak_mb=used["peak_mb"])
            with open(out, encoding="utf-8", errors="replace") as file:
                found = names_by_thread(name, file.read())
            row["threads"] = len(found)
            if not found:
                raise Trouble(f"{name}: no stacks")
            whole = sum(any(each in workload.root for each in names) if workload.root
                        else judge.ends_at_root_by(names) or "main" in names for names in found)
            # The first thread of our own programs is not a worker.
            row["complete"] = 100 * min(1, whole / max(1, len(found) - bool(workload.root)))
        if not target.wait(RUN_MAX_S):
            raise Trouble(f"{workload.name}: not done within {RUN_MAX_S} s")
        used = target.used()
        row.update(wall_s=used["ended"] - began, cpu_s=used["cpu_s"])
        gap = numbers(f"{context.folder}/target.work").get("gap_ns")
        if gap:
            row["gap_ms"] = gap / 1e6
        return row
    finally:
        target.end()
        if tool:
            tool.end()


def unusable(argv):
    return "" if shutil.which(argv[0]) else f"there is no {argv[0]}"
