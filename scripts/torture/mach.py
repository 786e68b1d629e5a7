"""The macOS build of the profiler over the Mach kernel of tests/darwin, and a program for it to record."""

import os
import signal
import subprocess

import targets


class Mach:
    """What scripts/run-macos-build.sh --build has made."""

    def __init__(self, root):
        self.work = os.path.join(root, "target/macos/run")
        self.loader = os.path.join(self.work, "darwin-run")
        self.shares = os.path.join(self.work, "shares")
        self.program = next((path for path in (
            os.path.join(root, f"target/macos/{between}x86_64-apple-darwin/debug/stackprof") for between in ("", "distro/"))
            if os.path.exists(path)), "")
        self.environment = {"DARWIN_RUN_SYSTEM": self.work, "DARWIN_RUN_REPORT": ""}
        for path in (self.loader, self.shares, self.program):
            if not os.path.exists(path):
                raise SystemExit(f"torture.sh: there is no `{path}`; try `scripts/run-macos-build.sh --build`")


class MachTarget:
    """Two busy threads of a Mach-O program: free, and using CPU time."""

    def __init__(self, mach, environment):
        self.child = subprocess.Popen([mach.loader, mach.shares, "3"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL, env={**environment, **mach.environment}, process_group=0)
        self.pid = self.child.pid
        if not targets.until(lambda: self.used() > 10):
            raise RuntimeError("the Mach-O program did not start")

    def used(self):
        """CPU time of its threads, in ticks."""
        fields = targets.read(f"/proc/{self.pid}/stat").rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12]) if fields else 0

    def judge(self, _may_interrupt):
        if self.child.poll() is not None:
            return [f"the target ended with {self.child.returncode}"]
        if not targets.until(lambda: not targets.held(self.pid), 15):
            return ["a task is left suspended: " + "; ".join(targets.held(self.pid))]
        before = self.used()
        if not targets.until(lambda: self.used() > before + 2):
            return ["the target uses no CPU time any more"]
        return []

    def end(self):
        self.kill()
        return []

    def kill(self):
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()
