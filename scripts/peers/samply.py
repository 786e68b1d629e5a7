"""What samply saved: the Firefox Profiler's form, without names, which its page looks up later.

Only functions of our own program get names here, by `nm`.
"""

import bisect
import gzip
import json
import os

from measure import Trouble, read, run

import pprof
from recordings import Recording

PARANOID = "/proc/sys/kernel/perf_event_paranoid"
# samply 0.13.1 takes each error of perf_event_open for EPERM. Where there are no hardware cycles, as in
# most virtual machines, it so blames the setting above and ends, unless that reads 1: also for root,
# for whom the setting has no meaning. So samply alone sees another file there.
ENTER = 'mount --bind "$0" ' + PARANOID + ' && exec "$@"'


def command(folder):
    """samply's first words: itself, or what makes it begin where it would refuse."""
    if os.geteuid() != 0 or int(read(PARANOID).strip() or 0) <= 1:
        return ["samply"]
    path = f"{folder}/paranoid"
    with open(path, "w", encoding="ascii") as file:
        file.write("1\n")
    return ["unshare", "-m", "sh", "-c", ENTER, path, "samply"]


class Names:
    """Names by address in a file that was built here."""

    def __init__(self, path):
        self.file = os.path.basename(path)
        code, out, err = run(["nm", "--defined-only", path], 30)
        if code != 0:
            raise Trouble(f"nm {self.file}: {err.strip()[-200:]}")
        rows = (line.split() for line in out.splitlines())
        self.rows = sorted((int(row[0], 16), row[2]) for row in rows if len(row) == 3 and row[1] in "tT")
        self.starts = [start for start, _ in self.rows]

    def of(self, library, address):
        at = bisect.bisect_right(self.starts, address) - 1
        return self.rows[at][1] if library == self.file and at >= 0 else ""


def read_profile(path, program):
    """A Recording with names for frames of `program`; others have none."""
    recording, names = Recording(), Names(program)
    with gzip.open(path) as file:
        profile = json.load(file)
    for thread in profile["threads"]:
        frames, functions, stacks = thread["frameTable"], thread["funcTable"], thread["stackTable"]
        libraries = thread["resourceTable"]["lib"]
        known = {}

        def frame(at):
            resource = functions["resource"][frames["func"][at]]
            library = profile["libs"][libraries[resource]]["name"] if resource is not None and resource >= 0 else ""
            return pprof.Frame(library, frames["address"][at], names.of(library, frames["address"][at]))

        for stack, weight in zip(thread["samples"]["stack"], thread["samples"]["weight"]):
            if stack not in known:
                known[stack], at = [], stack
                while at is not None:
                    known[stack].append(frame(stacks["frame"][at]))
                    at = stacks["prefix"][at]
            recording.stacks.append((weight, known[stack]))
            recording.whole += weight
    return recording
