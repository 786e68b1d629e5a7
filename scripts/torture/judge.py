"""What one try has left: how the profiler ended, files, processes, and the program that it had started."""

import os
import re
import signal
import time

import outputs
import targets
from tries import ATTACH

GOOD_CODES = (0, 1, 2, 3, 4)


class Judge:
    """The part of a run after the end of its profiler; faults and notes are those of the run."""

    def no_memory(self):
        return self.what.condition in ("address-space", "data")

    def judge_end(self):
        text = targets.read(self.errors)
        if self.no_memory() and "sys/pal/unix/stack_overflow.rs" in text:
            # A thread that gets no stack for its handler of stack overflows: not ours to catch, and
            # the runtime then waits for itself where it finds no memory to say so.
            self.notes.append("the runtime of Rust had no memory for a thread")
            self.faults = [fault for fault in self.faults if "without an end in sight" not in fault]
            if self.code in (101, -signal.SIGABRT, -signal.SIGKILL):
                return
        elif "panicked at" in text or "fatal runtime error" in text or self.code == 101:
            self.faults.append("panic: " + text[-300:].replace("\n", " "))
        if self.what.condition == "ignored-hup" and self.what.kind in ATTACH and self.code == 0 \
                and {name for name, *_ in self.ending_sent} == {"HUP"} and self.took_s < self.what.seconds:
            self.faults.append(f"ended after {self.took_s:.2f} of {self.what.seconds} s by HUP, which it was started to ignore (nohup)")
        sent = {int(getattr(signal, f"SIG{name}")) for name, *_ in self.ending_sent}
        if self.killed:
            sent.add(9)
        code = self.code
        # Where a second signal ends the profiler at once, the code may be that of Ctrl-C whatever it was.
        if code in GOOD_CODES or -code in sent or code - 128 in sent or (code == 130 and len(self.ending_sent) > 1):
            return
        if code == -signal.SIGXFSZ and self.what.condition == "file-size":
            return
        if code == -signal.SIGABRT and "memory allocation of" in text and self.no_memory():
            self.notes.append("aborted: no memory")
            return
        if self.what.condition in ("address-space", "data", "descriptors") and code in (127, 126) or "error while loading shared" in text:
            self.notes.append("not even loaded")
            return
        # The kernel or the loader found no room for the program itself.
        if self.no_memory() and self.what.amount < 1 << 27 and code in (-9, -11) and not text:
            self.notes.append("not even loaded")
            return
        if self.what.condition == "pipe-closed" and code == -signal.SIGPIPE:
            return
        self.faults.append(f"ended with {code}: {text.strip()[-200:]}")

    def marked(self):
        """Processes of this try that are left; the launched ones are ours now."""
        return targets.marked(f"STACKPROF_TORTURE={self.marker}\0".encode())

    def reap(self):
        """Takes what was left to us; a child that nobody waits for is no zombie of the profiler's."""
        known = {self.child.pid, self.target.pid if self.target else 0, self.reader.pid if self.reader else 0}
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) not in known:
                fields = targets.read(f"/proc/{name}/stat").rpartition(")")[2].split()
                if len(fields) > 1 and int(fields[1]) == os.getpid():
                    try:
                        os.waitpid(int(name), os.WNOHANG)
                    except ChildProcessError:
                        pass

    def judge_launched(self):
        """The command goes on without its profiler, and comes to its end."""
        quiet, last = time.monotonic(), None
        while True:
            left = self.marked()
            self.reap()
            if not left:
                break
            tasks = [f"/proc/{pid}/task/{tid}" for pid in left for tid in targets.threads(pid)]
            trace = [(task, targets.read(f"{task}/schedstat")) for task in tasks]
            # One that waits for a CPU gets on as soon as it has one.
            if trace != last or any(") R " in targets.read(f"{task}/stat") for task in tasks):
                quiet, last = time.monotonic(), trace
            if time.monotonic() - quiet > 10:
                self.faults.append("left running: " + "; ".join(
                    f"{pid} {targets.read(f'/proc/{pid}/comm').strip()} {targets.state(pid)} traced by {targets.tracer(pid)}" for pid in left))
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                targets.until(lambda: (self.reap(), not self.marked())[1], 10)
                break
            time.sleep(0.01)
        if not self.shared:
            return
        shared, group = self.shared, any(whom == "group" for *_, whom in self.what.signals)
        # TERM and HUP are handed on to the command, which decides.
        group |= bool({"TERM", "HUP"} & {name for name, *_ in self.ending_sent})
        limited = self.what.condition in ("address-space", "data", "descriptors", "file-size", "file-size-ignored")
        if shared.wrong and not limited:
            self.faults.append(f"the launched program saw: {shared.text()}")
        if shared.interrupted and not (self.killed and self.what.ptrace) and not group:
            self.faults.append(f"{shared.interrupted} calls of the launched program interrupted: {shared.text()[-300:]}")
        if shared.started and not shared.ended and not group and not limited:
            self.faults.append("the launched program did not come to its end")
        shared.close()

    def allowed(self, name):
        return name in self.names or (name == "kept" and self.what.kind == "gate-baseline")

    def judge_files(self):
        if self.reader:
            self.reader.kill()
            self.reader.wait()
        if self.held_pipe is not None:
            os.close(self.held_pipe)
        self.faults += outputs.judge(self.folder, self.allowed, self.before, self.killed)
        if self.code == 0:
            # What says that all went well has written all.
            for name in self.names:
                path = os.path.join(self.folder, name)
                if not os.path.exists(path):
                    self.faults.append(f"exit code 0, and there is no {name}")
                elif name in self.before and outputs.same(path, self.before[name]):
                    self.faults.append(f"exit code 0, and {name} is the old one")
            if self.what.kind.startswith("dump") and self.what.condition == "plain":
                text = targets.read(self.written)
                if not text.endswith("\n"):
                    self.faults.append(f"exit code 0, and half of a listing of {len(text)} bytes")
        if self.what.kind == "gate-baseline" and os.path.isdir(self.baseline):
            self.faults += outputs.judge(self.baseline, lambda name: re.fullmatch(r"base-\d{3}\.pb\.gz", name), self.kept,
                                         self.killed)
            old = sum(outputs.same(os.path.join(self.baseline, name), data) for name, data in self.kept.items())
            if 0 < old < len(self.kept):
                self.notes.append("a baseline of old and new recordings")
        self.faults += outputs.judge(self.files.temporary, lambda name: False, {})
