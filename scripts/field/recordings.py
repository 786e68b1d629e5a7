"""Recordings of a running program by stackprof and by perf, read into stacks with counts."""

import json
import os
import re
from dataclasses import dataclass, field

import judge
import pprof
from process import Trouble, run


@dataclass
class Recording:
    """[(count, [pprof.Frame, innermost first])], and stackprof's statistics."""

    stacks: list = field(default_factory=list)
    stats: dict = field(default_factory=dict)
    complete: float = 0.0
    whole: float = 0.0

    @property
    def taken(self):
        """How many stacks stand for the counts: fewer where the rate gave way to --max-stop."""
        if self.stats.get("backend") == "perf_event":
            return min(self.whole, self.stats.get("samples_pushed", 0))
        stops = [self.stats.get(key, 0) for key in ("stops", "stops_let_go", "stops_not_on_cpu")]
        return min(self.whole, stops[0] - stops[1] - stops[2])


def by_stackprof(stackprof, pid, seconds, folder, hz=997, more=()):
    """Complete is what stackprof calls complete. What happens in the kernel counts where it was called."""
    out, stats = f"{folder}/sp.pb.gz", f"{folder}/sp.json"
    argv = [stackprof, "-q", "--no-kernel", "-F", str(hz), "-d", str(seconds), "-o", out, "--stats", stats,
            "--pid", str(pid), *more]
    for _ in range(5):
        code, _, err = run(argv, seconds + 60)
        # Nothing was sampled: on a busy machine a program may get no CPU for that long.
        if code != 4:
            break
    if code != 0:
        raise Trouble(f"stackprof: exit code {code}: {err.strip()[-200:]}")
    recording = Recording()
    with open(stats, encoding="utf-8") as file:
        recording.stats = json.load(file)
    for count, stack, complete in pprof.read(out):
        recording.stacks.append((count, stack))
        recording.whole += count
        recording.complete += count if complete else 0
    os.remove(out)
    os.remove(stats)
    return recording


def by_perf(pid, seconds, folder, hz, dwarf):
    """Complete is a chain whose outermost frame is a function in which threads begin.

    Only user space is unwound: what happens in the kernel counts where it was called.
    """
    data = f"{folder}/perf.data"
    graph = ["--call-graph", "dwarf,65528" if dwarf else "fp"]
    argv = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(hz), *graph, "--user-callchains", "-m", "4M",
            "-o", data, "-p", str(pid), "--", "sleep", str(seconds)]
    code, _, err = run(argv, seconds + 60)
    if code != 0:
        raise Trouble(f"perf record: exit code {code}: {err.strip()[-200:]}")
    script = ["perf", "script", "-i", data, "-F", "tid,ip,sym,dso", "--no-inline", "--max-stack", "2000"]
    code, text, err = run(script, 240)
    os.remove(data)
    if code != 0:
        raise Trouble(f"perf script: exit code {code}: {err.strip()[-200:]}")
    return parse_perf(text)


def parse_perf(text):
    recording, stack = Recording(), []

    def done():
        if not stack:
            return
        recording.stacks.append((1, list(stack)))
        recording.whole += 1
        if judge.ends_at_root_by([frame.name for frame in stack]):
            recording.complete += 1
        stack.clear()
    for line in text.splitlines():
        # `            13f7 work (/tmp/field/pp)`; the address is an offset in the file.
        frame = re.match(r"\s+([0-9a-f]+) (.*) \(([^()]*(?:\([^()]*\))?[^()]*)\)$", line)
        if frame:
            name = re.sub(r"\+0x[0-9a-f]+$", "", frame[2])
            stack.append(pprof.Frame(os.path.basename(frame[3]), int(frame[1], 16), name))
        else:
            done()
    done()
    return recording
