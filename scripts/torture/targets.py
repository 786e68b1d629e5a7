"""Targets that check themselves (self.c), seen through the file that they share with us."""

import mmap
import os
import signal
import struct
import subprocess
import time

# Offsets of `struct map` in self.c.
BEATS_MAX = 32
SIZE = 6 * 8 + BEATS_MAX * 8 + BEATS_MAX * 16 + 8 + 2048
# Nothing that goes well waits so long, on however busy a machine: each poll sees whether it is asleep.
PATIENCE_S = 90


def read(path):
    """A file of /proc; empty if it went away."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def threads(pid):
    try:
        return [int(tid) for tid in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def state(pid, tid=None):
    """The letter of /proc/PID/stat; empty if it is gone."""
    text = read(f"/proc/{pid}/stat" if tid is None else f"/proc/{pid}/task/{tid}/stat")
    return text.rpartition(")")[2].split()[0] if text else ""


def tracer(pid, tid=None):
    text = read(f"/proc/{pid}/status" if tid is None else f"/proc/{pid}/task/{tid}/status")
    _, _, rest = text.partition("TracerPid:")
    return int(rest.split()[0]) if rest else 0


def held(pid, also_traced=True):
    """Threads that stand, or that somebody traces, in words; empty if all are free."""
    found = []
    for tid in threads(pid):
        letter, by = state(pid, tid), tracer(pid, tid)
        if letter in ("t", "T") or (also_traced and by):
            found.append(f"thread {tid} is {letter}, traced by {by}")
    return found


def marked(text):
    """Processes that have this in their environment, and are no zombies."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if text in file.read() + b"\0" and state(name) not in ("Z", "X", ""):
                    found.append(int(name))
        except OSError:
            continue
    return found


def until(question, patience_s=PATIENCE_S):
    """The first true answer; None if there was none for so long."""
    end = time.monotonic() + patience_s
    while True:
        answer = question()
        if answer:
            return answer
        if time.monotonic() >= end:
            return None
        time.sleep(0.005)


class Shared:
    """The file that a target writes to."""

    def __init__(self, path):
        self.path = path
        with open(path, "wb") as file:
            file.write(bytes(SIZE))
        with open(path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), SIZE)

    def word(self, index):
        return struct.unpack_from("Q", self.map, index * 8)[0]

    ready = property(lambda self: self.word(0))
    wrong = property(lambda self: self.word(1))
    interrupted = property(lambda self: self.word(2))
    started = property(lambda self: self.word(3))
    ended = property(lambda self: self.word(4))

    def beats(self):
        return [self.word(6 + index) for index in range(self.word(5))]

    def beat_name(self, index):
        at = 6 * 8 + BEATS_MAX * 8 + index * 16
        return self.map[at:at + 16].rstrip(b"\0").decode()

    def text(self):
        at = 6 * 8 + BEATS_MAX * 24
        length = struct.unpack_from("Q", self.map, at)[0]
        return self.map[at + 8:at + 8 + min(length, 2048)].rstrip(b"\0").decode(errors="replace").strip()

    def advances(self):
        """Waits until each thread has got on; the names of those that have not."""
        before = self.beats()
        last = []

        def all_moved():
            last[:] = [index for index, (old, new) in enumerate(zip(before, self.beats())) if new == old]
            return not last
        until(all_moved)
        return [self.beat_name(index) for index in last]

    def close(self):
        self.map.close()
        os.unlink(self.path)


class Target:
    """A program of self.c that serves until its standard input is closed; in a storm of forks, execs and threads or not."""

    def __init__(self, program, path, environment, storm):
        self.shared = Shared(path)
        self.child = subprocess.Popen([program, path, "serve", *(["storm"] if storm else [])], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL, env=environment, process_group=0)
        self.pid = self.child.pid
        if not until(lambda: self.shared.ready):
            raise RuntimeError("the target did not start")
        self.interrupted_before = 0

    def judge(self, may_interrupt):
        """What is wrong with it now; waits until it is free and each thread has advanced."""
        found = []
        if self.child.poll() is not None:
            return [f"the target ended with {self.child.returncode}: {self.shared.text()}"]
        if not until(lambda: not held(self.pid), 15):
            found.append("stopped: " + "; ".join(held(self.pid)))
        else:
            stand = self.shared.advances()
            if stand:
                found.append("threads of the target do not advance: " + ", ".join(stand))
        if self.shared.wrong:
            found.append(f"the target saw: {self.shared.text()}")
        interrupted = self.shared.interrupted
        if interrupted > self.interrupted_before and not may_interrupt:
            found.append(f"{interrupted - self.interrupted_before} calls of the target interrupted: {self.shared.text()[-300:]}")
        self.interrupted_before = interrupted
        return found

    def end(self):
        """Lets it end by itself; what its exit code says."""
        os.kill(self.pid, signal.SIGCONT)
        self.child.stdin.close()
        found = []
        try:
            code = self.child.wait(PATIENCE_S)
            if code != 7:
                found.append(f"the target ended with {code}: {self.shared.text()}")
        except subprocess.TimeoutExpired:
            found.append("the target does not end: " + "; ".join(held(self.pid)))
            self.child.kill()
            self.child.wait()
        self.shared.close()
        return found

    def kill(self):
        self.child.kill()
        self.child.wait()
        self.child.stdin.close()
        self.shared.close()
