#!/usr/bin/env python3
"""Figures of recordings whose truth the recorded programs (tests/fixtures) tell: shares, sums, completeness, cost.

Usage: scripts/measure/recordings.py [--source ptrace|perf] [CASE...]

Prints a table for each case (all, unless some are named), one row for each source. Gates nothing: how far a figure is
off depends on the machine and what else it does. Run it on a quiet one, after a change of sampling, weighing or of how
stacks are copied. STACKPROF is the program to use (target/release/stackprof). Root sees everything."""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures"
FLAGS = ["-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"]
HZ = 997
STACKPROF = os.environ.get("STACKPROF", str(ROOT / "target/release/stackprof"))
PLACE = pathlib.Path(tempfile.mkdtemp(prefix="recordings-"))


def build(source, name=None, *flags):
    """The program of a fixture, built once."""
    program = PLACE / (name or source)
    if not program.exists():
        subprocess.run(["cc", *FLAGS, *flags, "-o", program, FIXTURES / f"{source}.c", "-ldl"], check=True)
    return str(program)


class Recorded:
    """What a recording left."""

    def __init__(self, directory, said):
        self.said = said
        self.stats = json.loads((directory / "out.json").read_text())
        self.stacks = []
        for line in (directory / "out.folded").read_text().splitlines():
            stack, count = line.rsplit(" ", 1)
            self.stacks.append((stack.split(";"), int(count)))
        self.hz = self.stats["hz_requested"]
        self.total = sum(count for _, count in self.stacks)
        self.lost = sum(self.stats["samples_lost"].values())

    def count(self, *names, leaf=None):
        """Samples of stacks with one of these functions, or with this leaf."""
        return sum(n for frames, n in self.stacks if any(name in frames for name in names) or frames[-1] == leaf)

    def complete(self):
        return 100 * self.stats["stacks_complete"] / max(1, self.stats["samples"])


def profiler(directory, *options):
    outputs = ["-o", directory / "out.folded", "--stats", directory / "out.json"]
    return [STACKPROF, "-q", *outputs, "--hz", str(HZ), *options]


def launch(options, *command):
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        done = subprocess.run([*profiler(directory, *options), "--", *command], stdout=subprocess.PIPE, text=True, check=True)
        return Recorded(directory, done.stdout.splitlines())


def is_attached(recorder, pid):
    with contextlib.suppress(OSError):
        if re.search(r"TracerPid:\t[1-9]", pathlib.Path(f"/proc/{pid}/status").read_text()):
            return True
    for fd in pathlib.Path(f"/proc/{recorder.pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            if "perf_event" in os.readlink(fd):
                return True
    return False


@contextlib.contextmanager
def attached(options, *command):
    """A fixture that waits for the word, recorded from before its work to behind it; called for what was recorded."""
    target = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    said = []

    def lines(last):
        for line in target.stdout:
            said.append(line.strip())
            if line.startswith(last):
                return

    lines("ready")
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        recorder = subprocess.Popen(profiler(directory, *options, "--pid", str(target.pid)))
        while recorder.poll() is None and not is_attached(recorder, target.pid):
            time.sleep(0.01)
        time.sleep(0.1)

        def finish():
            target.stdin.write("go\n")
            target.stdin.flush()
            lines("done")
            recorder.send_signal(signal.SIGINT)
            if recorder.wait() != 0:
                sys.exit(f"recordings.py: {' '.join(map(str, recorder.args))}: {recorder.returncode}")
            return Recorded(directory, said)

        try:
            yield recorder, finish
        finally:
            target.kill()
            target.wait()


def recorded(options, *command):
    with attached(options, *command) as (_, finish):
        return finish()


def numbers(said, word):
    """The numbers of a line that begins with a word, by the word before each."""
    words = next(line for line in said if line.startswith(word)).split()
    return {name: int(value) for name, value in zip(words, words[1:]) if value.isdigit()}


@contextlib.contextmanager
def busy(count):
    loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def row(*cells):
    print("  " + "  ".join(cells), flush=True)


def of(part, whole):
    return f"{100 * part / max(1e-9, whole):.2f} %"


def summed(r, used_s):
    return f"{(r.total + r.lost) / r.hz:.3f} s ({r.lost / r.hz:.3f} lost) of {used_s:.3f} s"


# ---- the cases, each by one source


def shares(source):
    for name, flags in [("shares", []), ("shares_bare", ["-DBARE_LEAVES", "-momit-leaf-frame-pointer"])]:
        r = launch(["--source", source], build("shares", name, *flags), "5", "20")
        each = (f"{leaf} {of(r.count(leaf=f'leaf_{leaf}'), r.total)}" for leaf in (50, 30, 15, 5))
        row(name, *each, f"complete {r.complete():.2f} %")


def counts(source):
    for threads in ("1", "2", "8", "64"):
        r = recorded(["--source", source], build("threads"), threads, "200" if threads == "64" else "10", "3")
        used_s = numbers(r.said, "process")["cpu_ns"] / 1e9
        row(f"{threads} threads", summed(r, used_s), f"rate {r.stats['hz_achieved'] / HZ:.3f}", f"complete {r.complete():.2f} %")


def wakes(source):
    for loops in (0, 2):
        with busy(loops):
            r = recorded(["--source", source], build("wakes"), "20000", "3")
        truth = numbers(r.said, "work")
        is_call = {name: [name, f"__{name}", f"__libc_{name}"] for name in ("work", "write", "read")}
        found = {name: r.count(*names) for name, names in is_call.items()}
        each = (f"{name} {of(n, sum(found.values()))} (own clock {truth[name] / 100:.1f})" for name, n in found.items())
        row(f"{loops} busy loops", *each)


def feeds(source):
    r = recorded(["--source", source], build("feeds"), "5000", "2000", "3")
    truth = numbers(r.said, "feed")
    row("serve", of(r.count("serve"), r.count("serve", "feed")), f"own clock {of(truth['serve'], truth['serve'] + truth['feed'])}")


def step(source):
    r = launch(["--source", source], build("step"), str(HZ), "4")
    row("first 30 % of each period", of(r.count("first_30"), r.count("first_30", "then_70")))


def trees(source):
    programs = [build("tree", f"tree_{name}", f"-DNAME={name}") for name in ("one", "two")]
    for count, us in (("8", "150000"), ("1000", "3000"), ("1000", "2000")):
        r = launch(["--source", source], build("tree"), count, "2", us, *programs)
        used = numbers(r.said, "children_ns")
        named = sum(n for frames, n in r.stacks if frames[0] != "tree" and "burn_for" in frames) / HZ
        row(f"{count} of {us} us", summed(r, (used["children_ns"] + used["own_ns"]) / 1e9),
            f"named {named:.3f} s of {used['burned_ns'] / 1e9:.3f} s", f"complete {r.complete():.2f} %",
            f"{r.stats['processes_seen']} processes")


def churn(source):
    for arguments in (["4000"], ["1500", "500"]):
        r = recorded(["--source", source, "--threads"], build("churn"), *arguments)
        used_s = numbers(r.said, "process")["cpu_ns"] / 1e9
        brief = sum(n for frames, n in r.stacks if frames[1].startswith("brief ("))
        row(" ".join(arguments), summed(r, used_s), f"complete {r.complete():.2f} %", f"{brief} samples of `brief`",
            f"profiler {r.stats['profiler_cpu_s']:.2f} s")


def sleepers(source):
    """What 2,000 threads that sleep cost beside one and two that run (perf: by ptrace all of them are looked at)."""
    if source == "ptrace":
        return
    for threads in ("1", "2"):
        with attached(["--source", source], build("many"), "2001", threads, "2") as (recorder, finish):
            before = cpu_s(recorder.pid)
            r = finish()
        used_s = numbers(r.said, "process")["cpu_ns"] / 1e9
        row(f"{threads} of 2001 run", summed(r, used_s), f"profiler {r.stats['profiler_cpu_s']:.2f} s, {before:.2f} of them before",
            f"{r.stats['profiler_peak_rss_bytes'] / 1e6:.0f} MB")


def cpu_s(pid):
    return sum(int(path.read_text().split()[0]) for path in pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def wait_for_work(pid, seconds):
    """Until a process has used so much more CPU time."""
    least = cpu_s(pid) + seconds
    while cpu_s(pid) < least:
        time.sleep(0.01)


def waits(source):
    for loops in (0, 2):
        with busy(loops):
            options = ["--source", source, "--hz", "9973", *(["--off-cpu"] if source == "perf" else ["--idle"])]
            r = recorded(options, build("sleeps"), "15", "20")
        for line in r.said:
            if match := re.fullmatch(r"wait (\w+) (\d+) (\d+)", line):
                kind, ms, unsure = match[1], int(match[2]) / 1e6, int(match[3]) / 1e6
                row(f"{loops} busy loops", kind, f"{r.count('wait_in_' + kind) / 9.973:.2f} ms of {ms:.2f} ({unsure:.2f} unsure)")


def copies(source):
    """Stacks that no ordinary copy holds: how many are complete."""
    cases = [("large_frame", "large_frame", ["-fno-stack-clash-protection"], ["2"]),
             ("large_frame", "larger_frame", ["-fno-stack-clash-protection", "-DFRAME_BYTES=150000"], ["2"]),
             ("deep_frame", "deep_frame", ["-fomit-frame-pointer"], ["2"])]
    cases += [("frames", "frames", ["-g"], [kind]) for kind in ("fiber", "context", "below", "moving", "large")]
    cases += [("handlers", "handlers", ["-g"], [kind]) for kind in ("static", "thread", "called", "coroutine", "made")]
    for source_file, name, flags, arguments in cases:
        r = launch(["--source", source], build(source_file, name, *flags), *arguments)
        row(name, *arguments, f"complete {r.complete():.2f} %", str(r.stats["stacks_incomplete"]))


def calls(source):
    """Calls that return late, beside those of the same program unprofiled at the same time."""
    for options in ([], ["--idle"]):
        with attached(["--source", source], build("calls"), "80") as (_, beside), \
             attached(["--source", source, *options], build("calls"), "80") as (_, profiled):
            for line in profiled().said:
                if "late" in line:
                    row(*options, line)
            beside()


def eintr(source):
    """Waits of an epoll server that a stop interrupted: none is the aim."""
    for options in ([], ["--hz", "5000"], ["--hz", "2000", "--idle"]):
        r = recorded(["--source", source, *options], build("epoll"), "15000")
        row(" ".join(options), *(line for line in r.said if line.startswith("events")))


def hotplug(source):
    """A CPU that goes offline and comes back is sampled again (perf, root)."""
    online = pathlib.Path("/sys/devices/system/cpu/cpu1/online")
    if source != "perf" or not online.exists() or not os.access(online, os.W_OK) or not shutil.which("taskset"):
        return row("not here: needs --source perf, root, taskset and a second CPU")
    target = subprocess.Popen(["taskset", "-c", "1", build("shares"), "600"], stdout=subprocess.DEVNULL)
    try:
        with tempfile.TemporaryDirectory() as directory:
            directory = pathlib.Path(directory)
            recorder = subprocess.Popen(profiler(directory, "--source", source, "--pid", str(target.pid)))
            while not is_attached(recorder, target.pid):
                time.sleep(0.01)
            wait_for_work(target.pid, 0.3)
            try:
                online.write_text("0")
                wait_for_work(target.pid, 0.1)
            finally:
                online.write_text("1")
            subprocess.run(["taskset", "-p", "2", str(target.pid)], check=True, stdout=subprocess.DEVNULL)
            wait_for_work(target.pid, 2.5)
            recorder.send_signal(signal.SIGINT)
            recorder.wait()
            r = Recorded(directory, [])
        row(summed(r, r.stats["target_cpu_s"]), f"{r.stats['samples_pushed']} samples")
    finally:
        target.kill()
        target.wait()


BOARDS = [("lm3s6965evb", "m3", "gcc", ["-O2"]), ("mps2-an386", "m4f", "clang", ["-Os"]),
          ("vexpress-a9", "a9", "gcc", ["-O2"]), ("vexpress-a9", "a9t", "clang", ["-O2"])]


def boards(source):
    """Shares of firmware behind QEMU's stub: 40, 30, 20 and 10 %."""
    if source == "perf":
        return
    for machine, board, compiler, flags in BOARDS:
        elf = PLACE / f"{board}.elf"
        subprocess.run([FIXTURES / "boards/build.sh", elf, board, compiler, *flags], check=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        quiet = ["-nic", "none", "-audio", "none", "-display", "none", "-monitor", "none", "-serial", "none"]
        version = subprocess.run(["qemu-system-arm", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
        if tuple(map(int, re.search(r"version (\d+)\.(\d+)", version).groups())) < (8, 2):
            quiet[2:4] = ["-audiodev", "none,id=none"]
        qemu = subprocess.Popen(["qemu-system-arm", "-M", machine, "-icount", "shift=2", *quiet, "-gdb", f"tcp:127.0.0.1:{port}",
                                 "-kernel", elf], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            listens = f":{port:04X} 00000000:0000 0A"
            while listens not in pathlib.Path("/proc/net/tcp").read_text():
                time.sleep(0.01)
            with tempfile.TemporaryDirectory() as directory:
                directory = pathlib.Path(directory)
                options = ["--gdb", f"127.0.0.1:{port}", "--exec", elf, "-d", "5", "--max-stop", "50", "--hz", "200"]
                subprocess.run(profiler(directory, *options), check=True)
                r = Recorded(directory, [])
            all_leaves = r.count(*(f"leaf_{n}" for n in (40, 30, 20, 10)))
            each = (f"{n} {of(r.count(f'leaf_{n}'), all_leaves)}" for n in (40, 30, 20, 10))
            row(machine, *each, f"complete {r.complete():.2f} %")
        finally:
            qemu.kill()
            qemu.wait()


CASES = [shares, counts, wakes, feeds, step, trees, churn, sleepers, waits, copies, calls, eintr, hotplug, boards]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", action="append", choices=["ptrace", "perf"], help="both unless given")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(case.__name__ for case in CASES))
    arguments = parser.parse_args()
    named = {case.__name__: case for case in CASES}
    unknown = [name for name in arguments.cases if name not in named]
    if unknown:
        parser.error(f"no case is named `{unknown[0]}`; there are {', '.join(named)}")
    if not os.access(STACKPROF, os.X_OK):
        parser.error(f"{STACKPROF} is no program; build it with `cargo build --release`, or set STACKPROF")
    try:
        for name in arguments.cases or named:
            for source in arguments.source or ["ptrace", "perf"]:
                print(f"{name}, {source}", flush=True)
                named[name](source)
    finally:
        shutil.rmtree(PLACE)


if __name__ == "__main__":
    main()
