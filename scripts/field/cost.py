"""What a profiler costs a program: rounds without one, with stackprof and with perf, in turn."""

import json
import os
import signal
import statistics
import subprocess
import time

from process import Trouble, send, within

SIDES = ("alone", "stackprof", "perf")
SECONDS_MAX = 120


class Beside:
    """A profiler that runs beside the program for a while; ended when left."""

    def __init__(self, side, stackprof, pids, folder):
        self.children, self.stats = [], []
        argvs = []
        if side == "stackprof":
            # One for all, as perf is.
            self.stats.append(f"{folder}/cost.json")
            words = [word for pid in pids for word in ("--pid", str(pid))]
            argvs.append([stackprof, "-q", "-F", "997", "-d", str(SECONDS_MAX), "-o", f"{folder}/cost.folded",
                          "--stats", self.stats[-1], *words])
        elif side == "perf":
            # Copies 8 KiB of each stack, which is what it does unless told otherwise.
            argvs.append(["perf", "record", "-q", "-e", "cpu-clock", "-F", "997", "--call-graph", "dwarf",
                          "-o", f"{folder}/cost.data", "-p", ",".join(map(str, pids)), "--", "sleep", str(SECONDS_MAX)])
        for argv in argvs:
            self.children.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                                  stderr=subprocess.DEVNULL, start_new_session=True))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self.children:
            # As Ctrl-C does: both write what they have.
            send(child.pid, signal.SIGINT)
        for child in self.children:
            try:
                child.wait(timeout=30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def read(self):
        """The statistics of the recording."""
        out = []
        for path in self.stats:
            try:
                with open(path, encoding="utf-8") as file:
                    out.append(json.load(file))
                os.remove(path)
            except (OSError, ValueError):
                continue
        return out


def rate_by_lines(lines, how, began, ended):
    """Operations per second, from lines (arrival, text) that the program printed in this time."""
    lines = [(when, text) for when, text in lines if began <= when <= ended]
    if not isinstance(how, tuple):
        # Told by the program: its own seconds and rounds.
        found = [how.search(text) for _, text in lines]
        points = [(float(each[1]), float(each[2])) for each in found if each]
    else:
        kind, pattern = how
        found = [(when, pattern.search(text)) for when, text in lines]
        points = [(when, float(each[1])) for when, each in found if each]
        if kind == "each second":
            values = [value for _, value in points]
            return statistics.mean(values) if values else None
    if len(points) < 2 or points[-1][0] <= points[0][0]:
        return None
    return (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])


def one_round(side, stackprof, place, pids_of, seconds):
    """(operations per second, p99 in ms or None, stackprof's statistics)."""
    program, load = place.program, None
    if program.load:
        # Servers may have a process per connection, so the load comes before the profiler.
        load = place.start(place.words(program.cost_load or program.load, round(seconds)), cgroup=False)
        time.sleep(0.2)
    with Beside(side, stackprof, pids_of(), place.dir) as beside:
        time.sleep(0.3)
        began = time.monotonic()
        if load:
            try:
                within(seconds + 60, lambda: not load.alive(), "the end of the load")
            finally:
                load.end()
                place.groups.remove(load)
            said = "\n".join(line for _, line in load.lines)
            rate, p99 = (program.read_cost_load or program.read_load)(said, place)
        else:
            time.sleep(seconds)
            rate, p99 = rate_by_lines(place.group.lines, program.ops, began, time.monotonic()), None
    if rate is None:
        last = [line for _, line in (load or place.group).lines[-2:]]
        raise Trouble(f"no throughput was told: {' / '.join(last)}"[:200])
    return rate, p99, beside.read()


def measure(stackprof, place, pids_of, rounds, seconds):
    """Medians per side, and what stackprof says of its stops."""
    program = place.program
    if not program.load and not program.ops:
        return {"not told": "it tells no throughput"}
    rates, latencies, stats = {side: [] for side in SIDES}, {side: [] for side in SIDES}, []
    for at in range(rounds):
        # Each side comes first as often as the others.
        for side in SIDES[at % 3:] + SIDES[:at % 3]:
            place.restart_if_ended()
            rate, p99, said = one_round(side, stackprof, place, pids_of, seconds)
            rates[side].append(rate)
            if p99 is not None:
                latencies[side].append(p99)
            stats += said
    row = {"rounds": rounds, "seconds": seconds}
    for side in SIDES:
        row[side] = {"rate": statistics.median(rates[side]), "rates": [round(rate, 2) for rate in rates[side]]}
        if latencies[side]:
            row[side]["p99_ms"] = statistics.median(latencies[side])
    for side in SIDES[1:]:
        # Round by round, so that what changes slowly is the same on both sides.
        kept = [with_it / alone for with_it, alone in zip(rates[side], rates["alone"])]
        row[side]["keeps"] = round(100 * statistics.median(kept), 2)
    row["pause"] = pauses(stats)
    return row


def pauses(stats):
    """Medians over recordings of p50 and p99, the longest of all, and the share of CPU time that stood."""
    stats = [each for each in stats if each["stops"]]
    if not stats:
        return {}
    cpu = sum(each["target_cpu_s"] for each in stats)
    return {"p50_us": round(statistics.median(each["pause_ns"]["p50"] for each in stats) / 1e3, 1),
            "p99_us": round(statistics.median(each["pause_ns"]["p99"] for each in stats) / 1e3, 1),
            "max_us": round(max(each["pause_ns"]["max"] for each in stats) / 1e3, 1),
            "stopped": round(100 * sum(each["pause_ns"]["total"] for each in stats) / 1e9 / cpu, 2) if cpu else None}
