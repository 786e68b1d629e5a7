"""What is recorded: each workload does a fixed amount of work, some seconds without a profiler."""

import os
import time
from dataclasses import dataclass, field

from measure import ROOT, Trouble, run, within

import programs
import servers
from place import free_port

TRUTH = {"leaf_50": 50.0, "leaf_30": 30.0, "leaf_15": 15.0, "leaf_5": 5.0}
SLEEPERS = 2000
DEPTH = 100_000
TREE_JOBS = 300
CPUS = os.cpu_count() or 1
PYTHON = "/usr/bin/python3"


@dataclass
class Workload:
    """One kind of program.

    kind: `told` begins when it gets a line and so is attached to, `launched` is started by the
    profiler, `server` works while a load runs, `field` is a program of scripts/field, which
    tells its throughput.
    """

    name: str
    shows: str
    kind: str = "told"
    argv: list = field(default_factory=list)
    amount: object = None  # (Rates, seconds) -> what stands for {amount}
    root: frozenset = frozenset()  # outermost functions of the program's own; else those of threads
    truth: dict = field(default_factory=dict)
    needs: list = field(default_factory=list)
    one_shot: bool = False  # its stacks are taken once, too, beside debuggers
    shot_s: float = 0.0  # how long it works then, at least: debuggers must not see it end

    def command(self, paths, rates, seconds):
        amount = self.amount(rates, seconds) if self.amount else 0
        values = {"work": paths["work"], "amount": str(max(1, round(amount))), "fixtures": f"{ROOT}/tests/fixtures/peers"}
        return [word.format(**values) for word in self.argv]


class Rates:
    """How fast this machine is, measured once, so that a run takes as long everywhere."""

    def __init__(self, paths):
        code, out, err = run([paths["work"], "rate"], 120)
        if code != 0:
            raise Trouble(f"work rate: exit code {code}: {err.strip()[-200:]}")
        self.rounds = float(out)
        self._python = 0.0

    def python(self):
        """Rounds of loop.py per second of CPU time."""
        if not self._python:
            with_work, without = (self._python_cpu_s(count) for count in (4000, 1))
            self._python = 4000 / max(0.01, with_work - without)
        return self._python

    def _python_cpu_s(self, count):
        before = os.times()
        code, _, err = run([PYTHON, f"{ROOT}/tests/fixtures/peers/loop.py", str(count)], 120)
        after = os.times()
        if code != 0:
            raise Trouble(f"{PYTHON}: exit code {code}: {err.strip()[-200:]}")
        return after.children_user + after.children_system - before.children_user - before.children_system


def own(name, shows, *argv, cpus=1, **more):
    """A mode of work.c."""
    more.setdefault("truth", TRUTH)
    return Workload(name, shows, argv=["{work}", *argv, "{amount}"],
                    amount=lambda rates, seconds: rates.rounds * seconds * cpus, needs=["cc"], **more)


def from_field(name):
    shows = next(each.shows for each in programs.PROGRAMS if each.name == name)
    return Workload(name, f"{shows} (scripts/field)", "field")


WORKERS = frozenset({"worker"})
WORKLOADS = [
    own("busy1", "one busy thread", "busy", "1", root=WORKERS),
    own("busy8", "eight busy threads", "busy", "8", cpus=min(8, CPUS), root=WORKERS, one_shot=True),
    own("asleep", f"{SLEEPERS} threads that sleep, one busy", "asleep", str(SLEEPERS), root=WORKERS | {"sleeper"}, one_shot=True,
        shot_s=8.0),
    Workload("redis", "redis-server under redis-benchmark", "server", needs=["redis-server", "redis-benchmark"]),
    own("deep", f"work at the bottom of {DEPTH} frames", "deep", str(DEPTH), root=WORKERS),
    Workload("python", "stock python3, a loop", argv=[PYTHON, "{fixtures}/loop.py", "{amount}"],
             amount=lambda rates, seconds: rates.python() * seconds, needs=[PYTHON], one_shot=True),
    Workload("tree", f"{TREE_JOBS} shells that each start a short process, two at once", "launched",
             ["{work}", "tree", str(TREE_JOBS), "2", "{amount}"],
             lambda rates, seconds: rates.rounds * seconds / TREE_JOBS / 2, needs=["cc"]),
    # Half a second, however long the others are.
    Workload("short", "a process of half a second", "launched", ["{work}", "alone", "{amount}"],
             lambda rates, _: rates.rounds * 0.5, frozenset({"main"}), TRUTH, ["cc"]),
    *map(from_field, ("go-gob", "dav1d-3", "openmp", "python-numpy", "chromium")),
]


class Server:
    """redis-server on a port of its own; the load is a fixed number of requests."""

    def __init__(self, folder):
        self.port = free_port()
        self.argv = ["redis-server", "--port", str(self.port), "--save", "", "--dir", folder]

    def ready(self):
        within(20, lambda: servers.port_ready(self), "redis-server")

    def load(self, seconds):
        """(when it began, when it ended, operations per second, p99 in ms)"""
        requests = max(5000, round(40_000 * seconds))
        began = time.monotonic()
        code, out, err = run(["redis-benchmark", "-p", str(self.port), "--csv", "-c", "30", "-n", str(requests), "-t", "get,set"], 240)
        ended = time.monotonic()
        rate, p99 = servers.redis_rate(out, None)
        if code != 0 or rate is None:
            raise Trouble(f"redis-benchmark: exit code {code}: {err.strip()[-200:]}")
        return began, ended, rate, p99
