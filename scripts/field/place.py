"""Where one program lives while it is measured: its folder, port, processes; all goes at the end."""

import os
import re
import shutil
import socket
import tempfile
import time

from process import Group, Trouble, cpu_ticks, read, run, within

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SOURCES = f"{ROOT}/tests/fixtures/field"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def install(packages):
    """By apt, as the other scripts do; a program that is not to be had is a row that says so."""
    argv = ["bash", "-c", '. scripts/setup.sh; install_packages "$@"', "bash", *packages]
    code, out, err = run(argv, 900, cwd=ROOT)
    if code != 0:
        raise Trouble(f"not installed: {' '.join(packages)}: {(err or out).strip().splitlines()[-1:]}")


def missing_packages(program):
    """What is not there, of what a program needs by its commands and, if dpkg knows, by packages."""
    commands = all(shutil.which(word) for word in program.needs)
    if commands and not shutil.which("dpkg"):
        return []
    return [] if commands and not program.build else [
        package for package in program.packages if run(["dpkg", "-s", package], 30)[0] != 0]


class Place:
    """One program's folder, port, processes and load."""

    def __init__(self, program, cgroup=True):
        self.program = program
        self.cgroup = cgroup
        # Sockets in it need a short path, and other users have to reach it.
        self.dir = tempfile.mkdtemp(prefix="field-", dir="/tmp")
        os.chmod(self.dir, 0o755)
        self.port = free_port()
        self.groups = []
        self.group = None
        self.load = None

    def words(self, argv, seconds=5):
        values = {"dir": self.dir, "src": SOURCES, "here": HERE, "port": str(self.port), "seconds": str(seconds)}
        return [re.sub(r"\{(dir|src|here|port|seconds)\}", lambda found: values[found[1]], word) for word in argv]

    def build(self, may_install):
        program = self.program
        if not all(shutil.which(word) for word in program.needs):
            if not may_install:
                raise Trouble(f"not installed: {' '.join(program.packages)}")
            install(program.packages)
        for argv in program.build:
            code, out, err = run(self.words(argv), 300)
            if code != 0:
                raise Trouble(f"not built: {(err or out).strip().splitlines()[:1]}")
        if program.prepare:
            program.prepare(self)

    def start(self, argv, env=None, cgroup=True):
        group = Group(self.program.name, argv, self.dir, env, cgroup)
        self.groups.append(group)
        return group

    def begin(self):
        """Starts the program, and its load for as long as the program lives."""
        # What it leaves in a folder for such goes with ours.
        env = {"TMPDIR": self.dir, **self.program.env}
        self.group = self.start(self.words(self.program.command), env, self.cgroup)
        if self.program.ready:
            within(60, lambda: not self.group.alive() or self.program.ready(self), "starting")
        else:
            time.sleep(self.program.ready_s)
        if not self.group.alive():
            said = " / ".join(line for _, line in self.group.lines[-3:])
            raise Trouble(f"ended by itself: {said}"[:300])

    def begin_load(self, seconds=100000):
        """Until it makes the program work."""
        if self.program.load:
            before = self.cpu_ticks()
            self.load = self.start(self.words(self.program.load, seconds), cgroup=False)
            within(60, lambda: not self.load.alive() or self.cpu_ticks() > before + 5, "work for the program")

    def cpu_ticks(self):
        return sum(map(cpu_ticks, self.group.pids()))

    def keep_load(self):
        """A load that is done begins again."""
        if self.load and not self.load.alive():
            self.end_load()
            self.begin_load()

    def end_load(self):
        if self.load:
            self.load.end()
            self.groups.remove(self.load)
            self.load = None

    def restart_if_ended(self):
        if not self.group.alive():
            self.group.end()
            self.groups.remove(self.group)
            self.begin()
            time.sleep(self.program.warm_s)

    def busiest(self):
        """The processes to profile: those that use most CPU time, of those that are named."""
        def sums():
            return {pid: cpu_ticks(pid) for pid in self.group.pids()
                    if not self.program.pids or re.fullmatch(self.program.pids, read(f"/proc/{pid}/comm").strip())}
        order = []
        for _ in range(20):
            before = sums()
            time.sleep(0.4)
            after = sums()
            used = {pid: after[pid] - before.get(pid, 0) for pid in after}
            order = sorted(used, key=lambda pid: (-used[pid], -after[pid]))
            # On a busy machine none may have had its turn yet.
            if order and used[order[0]] > 0:
                break
        if not order:
            raise Trouble("no process to profile")
        return order[:self.program.pids_max]

    def end_program(self):
        """Ends program and load; the folder stays for the next start."""
        for group in reversed(self.groups):
            group.end()
        self.groups, self.group, self.load = [], None, None

    def end(self):
        self.end_program()
        shutil.rmtree(self.dir, ignore_errors=True)
