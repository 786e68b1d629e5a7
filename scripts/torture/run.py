"""Runs one try: starts the profiler, sends its signals, waits for its end."""

import os
import resource
import select
import shutil
import signal
import subprocess
import time

import outputs
import targets
from folders import remove_all
from judge import Judge
from tries import ENDING, HEAP, LAUNCH

# All threads sleep, and none has been on a CPU for so long: it hangs.
HANGS_S = 12
# The same while the kernel does not let one of them go: CPUs of virtual machines stall for up to a minute (RCU stalls).
HANGS_IN_KERNEL_S = 120
# How long one look may count: where the machine stood still, nobody looked meanwhile.
LOOK_MAX_S = 0.1


class Run(Judge):
    """One try under way."""

    def __init__(self, what, files, target, mach, marker, expected_s):
        self.what, self.files, self.target, self.mach, self.marker = what, files, target, mach, marker
        self.expected_s = expected_s
        self.faults, self.notes, self.answers = [], [], []
        self.shared = self.reader = self.child = None
        self.ending_sent, self.killed, self.stopped_before = [], False, False
        self.phase_of_end = ""

    # ---- what is started

    def where(self):
        return {"disk-full": self.files.full, "read-only": self.files.read_only}.get(self.what.condition, self.files.out)

    def prepare(self):
        what, folder = self.what, self.where()
        for path in (self.files.out, self.files.full, self.files.temporary):
            remove_all(path)
        self.folder, self.watched, self.before = folder, folder, {}
        self.names = list(what.formats)
        if what.kind == "diff":
            self.names = [name for name in ("diff.svg", "diff.json", "diff.md", "diff.folded")][:len(what.formats) + 1]
        elif what.kind == "gate":
            self.names = ["gate.md", "gate.json"]
        elif what.kind.startswith("dump") or what.kind == "gate-baseline":
            self.names = []
        if what.condition == "no-folder":
            self.names[0] = "missing/" + self.names[0]
        if what.stats and what.kind in ("record-perf", "record-ptrace", *LAUNCH):
            self.names.append("stats.json")
        if what.condition == "disk-full":
            with open(os.path.join(folder, "filler"), "wb") as file:
                file.write(bytes(what.amount))
            self.before["filler"] = bytes(what.amount)
        writable = what.condition != "read-only" or not self.files.mounts
        if what.old_files and what.condition not in ("read-only", "no-folder"):
            for name in self.names:
                try:
                    with open(os.path.join(folder, name), "w", encoding="ascii") as file:
                        file.write(outputs.OLD)
                    self.before[name] = outputs.OLD.encode()
                except OSError:
                    # The small disk is that full.
                    if os.path.exists(os.path.join(folder, name)):
                        os.unlink(os.path.join(folder, name))
        if what.condition in ("fifo", "fifo-read") and self.names:
            path = os.path.join(folder, self.names[0])
            if os.path.exists(path):
                os.unlink(path)
            self.before.pop(self.names[0], None)
            os.mkfifo(path)
            if what.condition == "fifo-read":
                self.reader = subprocess.Popen(["head", "-c", str(what.amount), path], stdout=subprocess.DEVNULL,
                                               stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if what.kind == "gate-baseline":
            baseline = os.path.join(folder, "kept")
            self.baseline, self.kept = baseline, {}
            if writable:
                os.mkdir(baseline)
                self.watched = baseline
                if what.old_files and what.condition == "plain":
                    for name in os.listdir(self.files.kept):
                        shutil.copy(os.path.join(self.files.kept, name), baseline)
                        with open(os.path.join(baseline, name), "rb") as file:
                            self.kept[name] = file.read()
        if what.condition == "dev-full" and self.names:
            self.names[0] = "/dev/full"

    def argv(self):
        what, program = self.what, self.files.program
        out = []
        for name in self.names:
            out += ["--stats" if name == "stats.json" else "-o", name]
            if name == "/dev/full":
                out += ["--format", "folded"] if what.kind not in ("diff", "gate", "gate-baseline") else []
        options = list(what.options)
        if what.kind in ("diff", "gate", "gate-baseline") and "/dev/full" in out:
            out = ["-o", "-"] + out[2:]
        if what.kind in ("record-perf", "record-ptrace"):
            return [program, "--source", what.kind[7:], "-p", str(self.target.pid), "-d", str(what.seconds), *options, *out]
        if what.kind in (*LAUNCH, HEAP):
            self.shared = targets.Shared(os.path.join(self.files.work, "launched.map"))
            by = ["heap"] if what.kind == HEAP else ["--source", what.kind[7:]]
            return [program, *by, *options, *out, "--", self.files.self_program, self.shared.path, "run", str(what.run_ms)]
        if what.kind == "launch-names":
            return [program, *options, *out, "--", program, "render", self.files.big, "-q", "-o", "/dev/null", "--format", "svg"]
        if what.kind == "record-sim":
            return [program, "--target", f"sim:{what.sim}", *options, *out]
        if what.kind == "demo":
            return [program, "demo", *options, *out]
        if what.kind == "render":
            return [program, "render", self.files.big, self.files.other, *options, *out]
        if what.kind == "render-stdin":
            return [program, "render", "-", *options, *out]
        if what.kind == "diff":
            return [program, "diff", self.files.big, self.files.other, *options, *out]
        if what.kind == "gate":
            return [program, "gate", "--base", f"{self.files.runs}/base", "--new", f"{self.files.runs}/new", *options, *out]
        if what.kind == "gate-baseline":
            return [program, "gate", "--new", f"{self.files.runs}/new", "--update-baseline", "kept", *options]
        if what.kind == "mach-attach":
            return [self.mach.loader, self.mach.program, "-p", str(self.target.pid), "-d", str(what.seconds), "--max-stop", "100",
                    *options, *out]
        if what.kind == "mach-launch":
            return [self.mach.loader, self.mach.program, *options, *out, "--", self.mach.shares, "2", "1"]
        return [program, "dump", what.kind[5:], "-p", str(self.target.pid), *[option for option in options if option == "-q"]]

    def limit(self):
        """In the child, before the program."""
        what = self.what
        limits = {"address-space": resource.RLIMIT_AS, "data": resource.RLIMIT_DATA, "descriptors": resource.RLIMIT_NOFILE,
                  "file-size": resource.RLIMIT_FSIZE, "file-size-ignored": resource.RLIMIT_FSIZE}
        if what.condition in limits:
            resource.setrlimit(limits[what.condition], (what.amount, what.amount))
        if what.condition == "file-size-ignored":
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        elif what.condition == "file-size":
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        if what.condition == "ignored-hup":
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        if what.condition == "stdout-closed":
            os.close(1)

    def start(self):
        self.prepare()
        self.line = self.argv()
        environment = {**os.environ, "STACKPROF_TORTURE": self.marker, "TMPDIR": self.files.temporary, "RUST_BACKTRACE": "0"}
        if self.mach:
            environment.update(self.mach.environment)
        self.errors = os.path.join(self.files.work, "stderr")
        self.written = os.path.join(self.files.work, "stdout")
        stdin, self.held_pipe = subprocess.DEVNULL, None
        if self.what.kind == "render-stdin":
            reading, self.held_pipe = os.pipe()
            os.write(self.held_pipe, b"main;a 1\nmain;b 2\n")
            stdin = reading
        with open(self.errors, "wb") as errors, open(self.written, "wb") as plain:
            stdout = plain
            if self.what.condition == "dev-full":
                stdout = open("/dev/full", "wb")  # noqa: SIM115
            elif self.what.condition == "pipe-closed":
                reading, stdout = os.pipe()
                os.close(reading)
            self.child = subprocess.Popen(self.line, cwd=self.folder, stdin=stdin, stdout=stdout, stderr=errors, env=environment,
                                          process_group=0, preexec_fn=self.limit, restore_signals=False)
            if self.what.condition == "dev-full":
                stdout.close()
            elif self.what.condition == "pipe-closed":
                os.close(stdout)
        if self.what.kind == "render-stdin":
            os.close(reading)
        self.began = time.monotonic()
        self.pidfd = os.pidfd_open(self.child.pid)

    # ---- while it runs

    def ended(self, seconds=0.0):
        """Waits for its end for so long; true once it is there."""
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(max(0, seconds) * 1000))

    def phase(self):
        """What the profiler is at, from outside."""
        pid = self.child.pid
        if not (self.what.attaches or self.what.launches) or self.what.kind.startswith("mach"):
            return "run"
        try:
            descriptors = [os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            descriptors = []
        traces = any("perf_event" in link for link in descriptors)
        if not traces and self.target:
            traces = any(targets.tracer(self.target.pid, tid) == pid for tid in targets.threads(self.target.pid)[:3])
        if not traces and self.shared and self.shared.started:
            traces = targets.tracer(self.shared.started) == pid
        if traces:
            self.has_traced = True
            return "record"
        return "names-and-files" if getattr(self, "has_traced", False) else "begin"

    def wait_for(self, trigger, share):
        """Until the moment of a signal; false if the profiler ended before."""
        if trigger in ("time", "late"):
            at = share * self.expected_s * 1.1 if trigger == "time" else self.expected_s + 0.5 + share * 0.5
            while (left := self.began + at - time.monotonic()) > 0:
                # What it is at tells later what it was at.
                self.phase()
                if self.ended(min(left, 0.05)):
                    return False
            return not self.ended()
        if trigger == "early":
            return not self.ended(share * 0.012)
        if trigger == "start":
            return not self.ended(share * 0.03)
        if trigger == "after":
            return not self.ended(share * 0.3)
        limit = time.monotonic() + self.expected_s * 1.5 + 1
        while time.monotonic() < limit:
            if trigger == "new-file":
                self.phase()
                try:
                    if any(name.startswith(".") for name in os.listdir(self.watched)):
                        if time.monotonic() - self.began > 0.05 or share < 0.3:
                            return not self.ended(0)
                except OSError:
                    pass
            elif self.phase() == "names-and-files":
                return not self.ended(share * 0.1)
            if self.ended(0.0003):
                return False
        return not self.ended(0)

    def run_delay_s(self):
        """The longest time that one of its threads has waited for a CPU, and how long we have."""
        pid = self.child.pid
        delays = [targets.read(f"/proc/{pid}/task/{tid}/schedstat").split() for tid in targets.threads(pid)]
        own = targets.read("/proc/self/schedstat").split()
        return (max([int(fields[1]) for fields in delays if len(fields) > 1], default=0) + int(own[1])) / 1e9

    def cpu_trace(self):
        """Changes whenever one of its threads was on a CPU; None if one can run."""
        trace = []
        for tid in targets.threads(self.child.pid):
            if targets.state(self.child.pid, tid) == "R":
                return None
            trace.append((tid, targets.read(f"/proc/{self.child.pid}/task/{tid}/schedstat")))
        return trace

    def is_held_by_kernel(self):
        """Whether one of its threads is in an uninterruptible sleep, or exits."""
        return any(targets.state(self.child.pid, tid) in ("D", "X", "Z") for tid in targets.threads(self.child.pid))

    def send(self, name, whom):
        number = getattr(signal, f"SIG{name}")
        self.phase_of_end = self.phase()
        try:
            if whom == "group":
                os.killpg(self.child.pid, number)
            else:
                os.kill(self.child.pid, number)
        except ProcessLookupError:
            return
        # It answers neither: what it held is let go by the kernel.
        self.killed |= name in ("KILL", "QUIT")

    def signals(self):
        for trigger, share, name, whom in self.what.signals:
            if not self.wait_for(trigger, share):
                return
            sent, delay = time.monotonic(), self.run_delay_s()
            self.send(name, whom)
            if name in (*ENDING, "KILL", "QUIT"):
                self.ending_sent.append((name, sent, self.phase_of_end, delay))
            if name == "TSTP":
                self.while_suspended()

    def while_suspended(self):
        """Once the profiler is stopped by Ctrl-Z, nobody stands for it."""
        stopped = targets.until(lambda: self.ended() or all(
            targets.state(self.child.pid, tid) == "T" for tid in targets.threads(self.child.pid)), 5)
        if not stopped or self.ended():
            if not stopped:
                self.notes.append("TSTP did not suspend it")
            return
        # One that was stopped by itself stays so.
        if not self.target or self.stopped_before:
            return
        if not targets.until(lambda: not targets.held(self.target.pid, also_traced=False), 5):
            self.faults.append("stopped while the profiler is suspended: " + "; ".join(targets.held(self.target.pid, also_traced=False)))

    def finish(self):
        """Waits for its end, however busy the machine is; what hangs is killed and told."""
        looked, quiet_s, trace = time.monotonic(), 0.0, ()
        patience_s = HANGS_S + (0 if self.ending_sent else self.what.seconds)
        delay = 0.0
        while not self.ended(0.01):
            delay = max(delay, self.run_delay_s())
            now, before = self.cpu_trace(), looked
            looked = time.monotonic()
            quiet_s += min(looked - before, LOOK_MAX_S)
            if now is None or now != trace:
                trace, quiet_s = now, 0.0
            elif quiet_s > (max(patience_s, HANGS_IN_KERNEL_S) if self.is_held_by_kernel() else patience_s):
                where = targets.read(f"/proc/{self.child.pid}/syscall").split(" ")[0]
                if self.what.condition == "ignored-hup" or not self.ending_sent:
                    why = "without an end in sight"
                else:
                    why = "after " + " and ".join(name for name, *_ in self.ending_sent)
                self.faults.append(f"hangs in system call {where} {why}, phase {self.phase()}")
                os.kill(self.child.pid, signal.SIGKILL)
                self.killed = True
                # Once: what the kernel itself keeps from ending is told, and waited for.
                patience_s = float("inf")
        end = time.monotonic()
        # Of one that is not waited for yet, the main thread's can still be read.
        delay = max(delay, self.run_delay_s())
        self.took_s = end - self.began
        self.code = self.child.wait()
        os.close(self.pidfd)
        if len(self.ending_sent) == 1 and self.ending_sent[0][0] in ENDING and self.what.condition != "ignored-hup" \
                and not any("hangs" in fault for fault in self.faults):
            name, sent, phase, delay_before = self.ending_sent[0]
            # Stopped after it, it could not answer.
            if not set(self.what.names()[self.what.names().index(name):]) & {"TSTP", "STOP"}:
                self.answers.append((name, phase, end - sent, max(0.0, end - sent - max(0.0, delay - delay_before))))

    def do(self):
        """All of it; faults are in `faults` then."""
        self.start()
        if self.what.stop_target:
            self.ended(self.what.stop_share * self.expected_s)
            os.kill(self.target.pid, signal.SIGSTOP)
            self.stopped_before = True
            self.ended(0.05)
            if self.what.stop_share < 0.5:
                os.kill(self.target.pid, signal.SIGCONT)
        self.signals()
        self.finish()
        if self.stopped_before:
            os.kill(self.target.pid, signal.SIGCONT)
        self.judge_end()
        self.judge_files()
        self.judge_launched()
        if self.target:
            self.faults += self.target.judge(self.stopped_before or (self.killed and self.what.ptrace))
