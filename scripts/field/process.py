"""Programs that are started, frozen, stopped and ended: by their own ids, within a time.

A program's processes stand in a cgroup (v2) of their own where the machine lets us make
one, so that all of them are known and can be frozen at once. Elsewhere they are those of
its session, and a moment is held by SIGSTOP alone, which `Group.freezer` tells.
"""

import os
import re
import signal
import subprocess
import threading
import time

UNIFIED = ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")
TICK_S = 0.005


class Trouble(Exception):
    """What kept a program from being measured; becomes its row."""


def within(seconds, question, what):
    """The first true answer to `question`, asked again and again for `seconds`."""
    end = time.monotonic() + seconds
    while True:
        answer = question()
        if answer:
            return answer
        if time.monotonic() >= end:
            raise Trouble(f"{what}: not within {seconds} s")
        time.sleep(TICK_S)


def read(path):
    """A file of /proc or of a cgroup; empty if it went away."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def run(argv, timeout_s, **options):
    """A command that ends: (exit code, stdout, stderr); -1 if it had to be ended."""
    options.setdefault("stdin", subprocess.DEVNULL)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          errors="replace", start_new_session=True, **options) as child:
        try:
            out, err = child.communicate(timeout=timeout_s)
            return child.returncode, out, err
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            try:
                out, err = child.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                # A descendant that left the group may still hold the pipe.
                out, err = "", ""
            return -1, out or "", (err or "") + f"\nnot done within {timeout_s} s"


def stat_fields(pid, tid=None):
    """Fields of /proc/PID/stat after the name: state, ppid, pgrp, session, ..."""
    text = read(f"/proc/{pid}/stat" if tid is None else f"/proc/{pid}/task/{tid}/stat")
    return text.rpartition(")")[2].split()


def cpu_ticks(pid):
    """User and system time of a process in ticks of the clock."""
    fields = stat_fields(pid)
    return int(fields[11]) + int(fields[12]) if len(fields) > 12 else 0


class Cgroup:
    """A cgroup of ours with a freezer, removed at the end."""

    def __init__(self, path):
        self.path = path

    @staticmethod
    def make(name):
        """None where the machine has no freezer of version 2 for us."""
        for root in UNIFIED:
            if not os.path.exists(f"{root}/cgroup.controllers"):
                continue
            path = f"{root}/stackprof-field-{os.getpid()}-{name}"
            try:
                os.mkdir(path)
                if os.path.exists(f"{path}/cgroup.freeze"):
                    return Cgroup(path)
                os.rmdir(path)
            except OSError:
                continue
        return None

    def write(self, file, text):
        with open(f"{self.path}/{file}", "w", encoding="ascii") as out:
            out.write(text)

    def pids(self):
        return [int(pid) for pid in read(f"{self.path}/cgroup.procs").split()]

    def freeze(self, frozen):
        self.write("cgroup.freeze", "1" if frozen else "0")
        word = f"frozen {int(frozen)}"
        within(10, lambda: word in read(f"{self.path}/cgroup.events"), word)

    def remove(self):
        try:
            os.rmdir(self.path)
        except OSError:
            pass


class Group:
    """A started program with all its processes, and the lines that it printed."""

    def __init__(self, name, argv, cwd, env=None, frozen_by_cgroup=True):
        self.cgroup = Cgroup.make(re.sub(r"\W", "-", name)) if frozen_by_cgroup else None
        self.lines = []
        self.known = set()
        if self.cgroup:
            # The shell enters the cgroup before there is a second process or thread.
            enter = f'echo $$ > "{self.cgroup.path}/cgroup.procs" && exec "$@"'
            argv = ["sh", "-c", enter, "sh", *argv]
        self.child = subprocess.Popen(argv, cwd=cwd, env={**os.environ, **(env or {})},
                                      stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, start_new_session=True)
        self.reader = threading.Thread(target=self._listen, daemon=True)
        self.reader.start()

    def _listen(self):
        """Lines with the time at which they came; the last 10,000 are kept."""
        rest = b""
        while True:
            try:
                part = self.child.stdout.read1(65536)
            except (OSError, ValueError):
                return
            if not part:
                return
            now = time.monotonic()
            # Decoders rewrite their line of progress by carriage returns.
            *whole, rest = re.split(rb"[\r\n]", rest[-65536:] + part)
            self.lines.extend((now, line.decode(errors="replace")) for line in whole)
            del self.lines[:-10000]

    @property
    def freezer(self):
        return "cgroup v2" if self.cgroup else "SIGSTOP"

    def pids(self):
        """All processes of the program that are alive."""
        if self.cgroup:
            found = self.cgroup.pids()
        else:
            session = str(self.child.pid)
            found = [int(pid) for pid in os.listdir("/proc") if pid.isdigit()
                     and (stat_fields(pid) + [""] * 4)[3] == session]
        self.known.update(found)
        return [pid for pid in found if (stat_fields(pid) or ["Z"])[0] not in "ZX"]

    def alive(self):
        return self.child.poll() is None

    def freeze(self):
        if self.cgroup:
            self.cgroup.freeze(True)
        else:
            self.stop()

    def stop(self):
        """SIGSTOP for all; the cgroup thaws after it, so no instruction runs in between."""
        pids = self.pids()
        for pid in pids:
            send(pid, signal.SIGSTOP)
        if self.cgroup:
            self.cgroup.freeze(False)
        within(10, lambda: all(stopped(pid) for pid in pids), "stopping all threads")

    def resume(self):
        if self.cgroup:
            self.cgroup.freeze(False)
        for pid in self.pids():
            send(pid, signal.SIGCONT)

    def end(self):
        """Ends every process of the program, and waits for that."""
        try:
            if self.cgroup:
                self.cgroup.freeze(False)
        except (Trouble, OSError):
            pass
        for patience_s, number in ((1.5, signal.SIGTERM), (10, signal.SIGKILL)):
            end = time.monotonic() + patience_s
            for pid in self.pids():
                send(pid, number)
                send(pid, signal.SIGCONT)
            while self.pids() and time.monotonic() < end:
                self.child.poll()
                time.sleep(0.02)
                if number == signal.SIGKILL:
                    for pid in self.pids():
                        send(pid, number)
            if not self.pids():
                break
        try:
            self.child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            pass
        self.reader.join(timeout=2)
        if not self.reader.is_alive():
            self.child.stdout.close()
        if self.cgroup:
            for _ in range(50):
                if not os.path.exists(self.cgroup.path):
                    break
                self.cgroup.remove()
                time.sleep(0.02)


def send(pid, number):
    """A signal for one of ours; it may have ended meanwhile."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def stopped(pid):
    """True if all threads stand (or the process has gone)."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    return all((stat_fields(pid, tid) or ["X"])[0] in "TtZX" for tid in threads)


class Loops:
    """Busy loops beside the program, one per `count`; ended when left."""

    def __init__(self, count):
        self.children = [subprocess.Popen(["sh", "-c", "while :; do :; done"],
                                          stdin=subprocess.DEVNULL, start_new_session=True)
                         for _ in range(count)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self.children:
            child.kill()
            child.wait()
