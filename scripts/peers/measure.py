"""Processes that are measured from outside: what they used, when they ended, what a profiler has opened.

Everything runs under tests/fixtures/peers/meter.c, which says why.
"""

import os
import select
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, f"{ROOT}/scripts/field")

# pylint: disable=wrong-import-position
from process import Trouble, read, run, send, within  # noqa: E402  (found by the path above)

# How the fixtures of the tests are built: stacks by frame pointers are possible, and there are inlined functions.
FLAGS = ["-O1", "-g", "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"]
# No profiler here takes as long to begin or, once its target has ended, to write its file.
BEGIN_MAX_S = 20
END_MAX_S = 120


def build(folder):
    """{name: path} of the two C programs."""
    paths = {}
    for name in ("work", "meter"):
        paths[name] = f"{folder}/{name}"
        argv = ["cc", *FLAGS, f"{ROOT}/tests/fixtures/peers/{name}.c", "-o", paths[name]]
        code, out, err = run(argv, 120)
        if code != 0:
            raise Trouble(f"{name}.c is not built (a C compiler with its libraries is needed): {(err or out).strip()[:200]}")
    return paths


def numbers(path):
    """Lines of `key value`."""
    return {key: int(value) for key, value in (line.split() for line in read(path).splitlines())}


def cpu_s(pid):
    """The CPU time of a process until now, without that of its children; None once it has ended."""
    try:
        # What clock_getcpuclockid(3) makes of a process.
        return time.clock_gettime(~pid << 3 | 2)
    except OSError:
        return None


class Metered:
    """A command that runs under the meter."""

    meter = ""

    def __init__(self, argv, report, **options):
        self.argv, self.report = argv, report
        if os.path.exists(report):
            os.remove(report)
        options.setdefault("stdin", subprocess.DEVNULL)
        options.setdefault("stdout", subprocess.DEVNULL)
        self.began = time.monotonic()
        with open(f"{report}.err", "wb") as err:
            self.child = subprocess.Popen([self.meter, report, *argv], stderr=err, start_new_session=True, **options)
        self.ends = os.pidfd_open(self.child.pid)
        try:
            self.pid = within(10, lambda: numbers(report).get("pid"), f"starting {argv[0]}")
        except Trouble:
            self.end()
            raise

    def wait(self, seconds):
        """True if it has ended; as soon as it has, which Popen.wait with a time does not promise."""
        poll = select.poll()
        poll.register(self.ends, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def cpu_s(self):
        return cpu_s(self.pid)

    def used(self, seconds=END_MAX_S, by_signal=False):
        """Waits for its end, which may be that of a signal: {began, ended, cpu_s, peak_mb}."""
        if not self.wait(seconds):
            self.end()
            raise Trouble(f"{self.argv[0]}: not done within {seconds} s")
        self.child.wait()
        found = numbers(self.report)
        if found.get("status", 1) not in ((0, 128 + signal.SIGINT, 128 + signal.SIGTERM) if by_signal else (0,)):
            last = read(f"{self.report}.err").strip()[-200:]
            raise Trouble(f"{' '.join(self.argv)[:120]}: exit code {found.get('status')}: {last}")
        return {"began": found["begin_ns"] / 1e9, "ended": found["end_ns"] / 1e9, "cpu_s": found["cpu_ns"] / 1e9,
                "peak_mb": found["peak_kb"] / 1024}

    def end(self):
        """Ends it, if it has not; and what it holds open."""
        if self.child.poll() is None:
            if getattr(self, "pid", None):
                send(self.pid, signal.SIGTERM)
            if not self.wait(3) and getattr(self, "pid", None):
                send(self.pid, signal.SIGKILL)
            if not self.wait(5):
                self.child.kill()
            self.child.wait()
        for pipe in (self.child.stdin, self.child.stdout):
            if pipe:
                try:
                    pipe.close()
                except OSError:
                    pass
        if self.ends >= 0:
            os.close(self.ends)
            self.ends = -1


def perf_events(pid):
    """How many samplers of the kernel a process has open."""
    count = 0
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                count += os.readlink(f"/proc/{pid}/fd/{name}") == "anon_inode:[perf_event]"
            except OSError:
                pass
    except OSError:
        pass
    return count


def wait_until_attached(profiler, target_pid):
    """Seconds until a profiler had opened all that it opens; it says so in no way that all share.

    A thread of two thousand may take its time, so the number has to stand still for a while.
    """
    last, since, calm_s = 0, time.monotonic(), 0.3
    while True:
        now, count = time.monotonic(), perf_events(profiler.pid)
        if count != last:
            last, since = count, now
        if count and now - since >= calm_s:
            return since - profiler.began
        traced = f"TracerPid:\t{profiler.pid}\n" in read(f"/proc/{target_pid}/status")
        if traced or (not count and now - profiler.began > 3):
            # By ptrace, or in a way that cannot be seen.
            return now - profiler.began
        if profiler.wait(0):
            said = read(f"{profiler.report}.err").strip()[-200:]
            raise Trouble(f"{profiler.argv[0]} ended before its target began: {said}")
        if now - profiler.began > BEGIN_MAX_S:
            raise Trouble(f"{profiler.argv[0]}: not attached within {BEGIN_MAX_S} s")
        time.sleep(0.01)
