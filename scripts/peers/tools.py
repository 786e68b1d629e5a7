"""The profilers: how each records, what it takes until there is a picture, and what stands in its file."""

import glob
import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass

import samply
from measure import Metered, Trouble

import judge
import pprof
from recordings import Recording

HZ = 997
# A picture that takes longer is not waited for, and not asked for again in this workload.
PICTURE_MAX_S = 150


@dataclass
class Tool:
    """One way to record."""

    name: str
    program: str
    options: list
    recording: str = ""  # what it saves; stackprof keeps its recording in memory
    counts_per_s: float = HZ  # of CPU time; in perf's folded stacks a count is a nanosecond

    def argv(self, folder, pid=None, command=None):
        """The command that records a process, or starts one."""
        program = samply.command(folder) if self.name == "samply" else [self.program]
        options = [word.format(dir=folder) for word in self.options]
        if command is not None:
            return [*program, *options, "--", *command]
        return [*program, *options, "--pid" if self.name == "stackprof" else "-p", str(pid)]

    def unusable(self):
        """Why it cannot be measured here; empty if it can."""
        if not shutil.which(self.program):
            return f"there is no {self.program}"
        if self.recording == "perf.data" and not all(map(shutil.which, ("inferno-collapse-perf", "inferno-flamegraph"))):
            return "there is no inferno-collapse-perf or inferno-flamegraph"
        return ""

    def sizes(self, folder):
        """Megabytes of what it saved and of its picture."""
        found = {}
        if self.recording:
            found["recording_mb"] = sum(os.path.getsize(path) for path in glob.glob(f"{folder}/{self.recording}*")) / 1e6
        if os.path.exists(f"{folder}/out.svg"):
            found["svg_mb"] = os.path.getsize(f"{folder}/out.svg") / 1e6
        return found

    def stacks(self, folder, paths):
        """A Recording of its own output, names only; None if there is none that can be read."""
        if self.name == "samply":
            return samply.read_profile(f"{folder}/{self.recording}", paths["work"])
        return folded(f"{folder}/out.folded")


# The folded stacks beside the picture are for what is compared here, and cost some milliseconds.
# perf counts CPU time as well, so that both take the same samples, and where virtual machines have no cycles.
def all_tools(stackprof):
    perf = ["record", "-q", "-e", "cpu-clock", "-F", str(HZ), "-o", "{dir}/perf.data"]
    return [
        Tool("stackprof", stackprof, ["-q", "-F", str(HZ), "-o", "{dir}/out.svg", "-o", "{dir}/out.folded",
                                      "--stats", "{dir}/stats.json"]),
        Tool("perf -g", "perf", [*perf, "-g"], "perf.data", 1e9),
        Tool("perf dwarf", "perf", [*perf, "--call-graph", "dwarf"], "perf.data", 1e9),
        Tool("samply", "samply", ["record", "--save-only", "--no-open", "--rate", str(HZ), "-o", "{dir}/samply.json.gz"],
             "samply.json.gz"),
    ]


def folded(path):
    """A file of folded stacks, whose first frames name the process."""
    recording = Recording()
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            stack, _, count = line.rstrip("\n").rpartition(" ")
            frames = [pprof.Frame("", 0, name.removesuffix("_[k]").removesuffix("_[i]")) for name in reversed(stack.split(";")[1:])]
            recording.stacks.append((float(count), frames))
            recording.whole += float(count)
    return recording


def complete_share(recording, root):
    """Percent of counts whose stack has the program's own outermost function, or ends where threads begin.

    The same rule for all tools, not what they say of themselves.
    """
    if not recording or not recording.whole:
        return None
    good = 0
    for count, stack in recording.stacks:
        names = [frame.name for frame in stack]
        if any(name in root for name in names) if root else judge.ends_at_root_by(names):
            good += count
    return 100 * good / recording.whole


def picture(tool, folder, inlines):
    """perf's way to a flame graph: {wall_s, cpu_s, peak_mb}, the peak of its largest process."""
    script = ["perf", "script", "-i", f"{folder}/perf.data", *([] if inlines else ["--no-inline"])]
    steps = [script, ["inferno-collapse-perf"], ["tee", f"{folder}/out.folded"], ["inferno-flamegraph"]]
    running, began = [], time.monotonic()
    try:
        with open(f"{folder}/out.svg", "wb") as svg:
            previous = subprocess.DEVNULL
            for at, argv in enumerate(steps):
                last = at == len(steps) - 1
                step = Metered(argv, f"{folder}/step{at}", stdin=previous, stdout=svg if last else subprocess.PIPE)
                running.append(step)
                if previous != subprocess.DEVNULL:
                    previous.close()
                previous = step.child.stdout
        left = [step.used(max(0.01, PICTURE_MAX_S + began - time.monotonic())) for step in reversed(running)]
    finally:
        for step in running:
            step.end()
    return {"wall_s": max(each["ended"] for each in left) - began, "cpu_s": sum(each["cpu_s"] for each in left),
            "peak_mb": max(each["peak_mb"] for each in left)}


def pictures(tool, folder, given_up):
    """{"no_inline": ..., "inlines": ...} of a tool that makes none by itself."""
    made = {}
    if tool.recording != "perf.data":
        return made
    # Without inlined functions last: whose folded stacks are then read.
    for kind, inlines in (("inlines", True), ("no_inline", False)):
        if (tool.name, kind) in given_up:
            continue
        try:
            made[kind] = picture(tool, folder, inlines)
        except Trouble as trouble:
            if "not done within" not in str(trouble):
                raise
            given_up.add((tool.name, kind))
    return made


def own_statistics(folder):
    """What stackprof says of its recording."""
    try:
        with open(f"{folder}/stats.json", encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}
