"""Signals at random moments, full disks and short limits: whom do they harm, and what do they leave?

Each try is drawn from the seed and its number, and judged by itself: targets that check themselves run on, with no
thread stopped or traced; no file is left or half; the profiler ends, without a panic, a zombie or an orphan.
"""

import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import folders
import mach
import run
import targets
from tries import ATTACH, ENDING, KINDS, Try

CI_SEED, CI_TRIES, CI_MACH_TRIES = 31, 144, 12
# After so many tries a target ends, and tells what it saw.
TARGET_TRIES = 25
PR_SET_CHILD_SUBREAPER = 36
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def arguments_of(argv):
    parser = argparse.ArgumentParser(prog="scripts/torture.sh", description=__doc__.strip(),
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ci", action="store_true",
                        help=f"{CI_TRIES} tries of seed {CI_SEED}; how long answers took fails nothing")
    parser.add_argument("--tries", type=int, default=3000)
    parser.add_argument("--seed", type=int, help="default: drawn, and printed")
    parser.add_argument("--try", type=int, dest="only", metavar="K", help="this one alone, with all it said")
    parser.add_argument("--kind", help="only tries of this kind: " + ", ".join(dict.fromkeys(KINDS)))
    parser.add_argument("--jobs", type=int, default=4, help="tries at once (default: 4; most of a try is waiting)")
    parser.add_argument("--mach", action="store_true", help="the macOS build over a simulated Mach kernel, instead of Linux")
    parser.add_argument("--keep", action="store_true", help="leave the folders of work")
    parser.add_argument("--share", help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("stackprof")
    options = parser.parse_args(argv)
    if options.ci:
        options.seed = CI_SEED if options.seed is None else options.seed
        options.tries = CI_MACH_TRIES if options.mach else CI_TRIES
    if options.seed is None:
        options.seed = int(time.time()) % 1_000_000
    options.stackprof = os.path.realpath(options.stackprof)
    return options


# ---- one worker

class Worker:
    """Does every N-th try in a folder of its own."""

    def __init__(self, options, work):
        self.options, self.work = options, work
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.self_program = os.path.join(os.path.dirname(work), "self")
        self.files = folders.Files(work, options.stackprof, self.self_program, mounts_work())
        self.mach = mach.Mach(ROOT) if options.mach else None
        self.target, self.target_tries, self.targets = None, 0, 0
        self.expected = {}

    def fresh_target(self):
        if self.target and self.target_tries < TARGET_TRIES:
            return []
        faults = self.target.end() if self.target else []
        environment = {**os.environ, "STACKPROF_TORTURE": "target"}
        self.target = None
        if self.mach:
            self.target = mach.MachTarget(self.mach, environment)
        else:
            self.target = targets.Target(self.self_program, os.path.join(self.work, "target.map"), environment, self.targets % 3 == 2)
        self.target_tries = 0
        self.targets += 1
        return faults

    def expected_s(self, what):
        """How long a try of this kind takes here without signals: measured once, so that moments are drawn over all of it."""
        length = what.seconds if what.kind in ATTACH else what.run_ms / 1000 if what.shared_program else 0
        known = targets.read(os.path.join(self.options.work, f"expected-{what.kind}"))
        if known:
            self.expected[what.kind] = float(known)
        if what.kind not in self.expected:
            plain = Try(what.seed, what.number, self.options.mach)
            plain.signals, plain.condition, plain.amount, plain.stop_target = [], "plain", 0, False
            if what.kind == "render-stdin":
                return 0.3
            trial = run.Run(plain, self.files, self.target if what.attaches else None, self.mach, f"{os.getpid()}-plain", 1)
            trial.do()
            # What does nothing here even when left alone, tries nothing.
            # Code 3 is a gate's, 4 of a target that got no CPU in that time.
            if trial.code not in (0, 3, 4):
                trial.faults.append(f"ended with {trial.code} where nothing disturbed it: {targets.read(trial.errors).strip()[-300:]}")
            self.undisturbed = [f"without signals: {fault}" for fault in trial.faults]
            self.expected[what.kind] = max(0.02, trial.took_s - length)
            with open(os.path.join(self.options.work, f"expected-{what.kind}"), "w", encoding="ascii") as file:
                file.write(str(self.expected[what.kind]))
        return length + self.expected[what.kind]

    def one(self, number):
        what = Try(self.options.seed, number, self.options.mach)
        what.shared_program = what.kind.startswith("launch-p")
        self.undisturbed = []
        earlier = self.fresh_target()
        self.target_tries += 1
        expected = self.expected_s(what)
        trial = run.Run(what, self.files, self.target if what.attaches else None, self.mach, f"{os.getpid()}-{number}", expected)
        try:
            trial.do()
        except Exception:  # noqa: BLE001 - whatever goes wrong here is told with its try
            trial.faults.append("torture.sh itself: " + traceback.format_exc(limit=-2))
            if trial.child and trial.child.poll() is None:
                trial.child.kill()
                trial.child.wait()
        if any("target" in fault or "stopped" in fault for fault in trial.faults):
            self.target.kill()
            self.target = None
        trial.faults += self.undisturbed
        trial.faults += [f"at the end of a target: {fault}" for fault in earlier]
        if self.options.only is not None:
            print("command:", " ".join(trial.line))
            print(f"ended with {trial.code} after {trial.took_s:.3f} s, expected {expected:.3f} s; answers: {trial.answers}")
            print(targets.read(trial.errors))
        return {"number": number, "kind": what.kind, "condition": what.condition, "words": what.words(), "faults": trial.faults,
                "notes": trial.notes, "answers": trial.answers, "signals": what.names(),
                "cut": bool(trial.ending_sent)}

    def close(self):
        # Of a try that was broken off: its profiler, and what that had started.
        for pid in targets.marked(f"STACKPROF_TORTURE={os.getpid()}-".encode()):
            os.kill(pid, signal.SIGKILL)
        faults = self.target.end() if self.target else []
        self.files.unmount()
        return faults


def mounts_work():
    """Whether we are in a mount namespace of our own (torture.sh tells)."""
    return os.environ.get("STACKPROF_TORTURE_MOUNTS") == "1"


def numbers(options):
    if options.only is not None:
        return [options.only]
    if options.kind:
        return [number for number in range(options.tries * len(KINDS))
                if Try(options.seed, number, options.mach).kind == options.kind][:options.tries]
    return list(range(options.tries))


def work(options):
    index, of = (int(part) for part in options.share.split("/"))
    folder = os.path.join(options.work, str(index))
    os.makedirs(folder)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    worker = Worker(options, folder)
    with open(os.path.join(options.work, f"results-{index}"), "w", encoding="utf-8") as results:
        try:
            for number in numbers(options)[index::of]:
                results.write(json.dumps(worker.one(number)) + "\n")
                results.flush()
        finally:
            faults = worker.close()
        if faults:
            results.write(json.dumps({"number": -1, "kind": "target", "condition": "plain", "words": "the last target of a worker",
                                      "faults": faults, "notes": [], "answers": [], "signals": [], "cut": False}) + "\n")


# ---- all of them

def collect(folder):
    found = []
    for name in os.listdir(folder):
        if name.startswith("results-"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                found += [json.loads(line) for line in file if line.endswith("\n")]
    return sorted(found, key=lambda result: result["number"])


def percentile(values, percent):
    values = sorted(values)
    return values[min(len(values) - 1, len(values) * percent // 100)]


def is_slow(answer):
    return answer[3] > 1.0


def failed(result, options):
    return bool(result["faults"]) or (not options.ci and any(is_slow(answer) for answer in result["answers"]))


def count(results, word):
    return sum(any(word in fault for fault in result["faults"]) for result in results)


def report(results, options):
    def table(title, key, names):
        print(f"\n{title:<20}{'tries':>7}{'failed':>8}{'stopped':>9}{'left':>6}{'half':>6}{'hangs':>7}{'panics':>8}{'signalled':>11}")
        for name in names:
            rows = [result for result in results if result[key] == name]
            if rows:
                print(f"{name:<20}{len(rows):>7}{sum(failed(row, options) for row in rows):>8}{count(rows, 'stopped'):>9}"
                      f"{count(rows, 'left: '):>6}{count(rows, 'half: '):>6}{count(rows, 'hangs'):>7}{count(rows, 'panic'):>8}"
                      f"{sum(row['cut'] for row in rows):>11}")
    table("kind", "kind", dict.fromkeys(result["kind"] for result in results))
    table("condition", "condition", sorted({result["condition"] for result in results}))
    answers = [answer for result in results for answer in result["answers"]]
    if answers:
        print(f"\n{'answer to one':<16}{'phase':<18}{'times':>7}{'p50 s':>8}{'p99 s':>8}{'max s':>8}{'max on CPU or asleep s':>25}")
        for name in ENDING:
            for phase in ("begin", "record", "names-and-files", "run"):
                rows = [answer for answer in answers if answer[0] == name and answer[1] == phase]
                if rows:
                    wall = [row[2] for row in rows]
                    print(f"{name:<16}{phase:<18}{len(rows):>7}{percentile(wall, 50):>8.2f}{percentile(wall, 99):>8.2f}{max(wall):>8.2f}"
                          f"{max(row[3] for row in rows):>25.2f}")
        slow = [(result, answer) for result in results for answer in result["answers"] if is_slow(answer)]
        print(f"answers of more than 1 s, waits for a CPU left out: {len(slow)} of {len(answers)}")
        for result, answer in slow[:20]:
            print(f"  {answer[0]} in {answer[1]}: {answer[3]:.2f} s; try {result['number']}: {result['words']}")
    notes = {}
    for result in results:
        for note in result["notes"]:
            notes[note] = notes.get(note, 0) + 1
    for note, times in sorted(notes.items()):
        print(f"note: {note}: {times}")
    bad = [result for result in results if failed(result, options)]
    how = " --mach" if options.mach else ""
    for result in bad[:60]:
        print(f"\nFAIL {result['words']}")
        for fault in result["faults"] or ["slow answer"]:
            print(f"     {fault[:600]}")
        print(f"     scripts/torture.sh{how} --seed {options.seed} --try {result['number']}")
    if len(bad) > 60:
        print(f"\nand {len(bad) - 60} more")
    print(f"\n{len(results) - len(bad)} passed, {len(bad)} failed")
    return len(bad)


def main():
    options = arguments_of(sys.argv[1:])
    # Whoever starts this may ignore them (nohup does, and `&` in a script: SIGINT), which a profiler inherits: one
    # that comes before its handlers stand is lost.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT, signal.SIGTSTP):
        signal.signal(number, signal.SIG_DFL)
    if options.share:
        work(options)
        return 0
    jobs = 1 if options.only is not None else max(1, min(options.jobs, options.tries))
    folder = tempfile.mkdtemp(prefix="stackprof-torture-")
    subprocess.run(["cc", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror", "-o", os.path.join(folder, "self"),
                    os.path.join(ROOT, "scripts/torture/self.c")], check=True)
    print(f"torture: seed {options.seed}, {len(numbers(options))} tries{' over Mach' if options.mach else ''}, {jobs} at once"
          + ("" if mounts_work() else "; NOT TRIED: full disks and read-only ones, which need root's mounts"), flush=True)
    workers = [subprocess.Popen([sys.executable, "-B", os.path.abspath(__file__), *sys.argv[1:-1], "--seed", str(options.seed),
                                 "--share", f"{index}/{jobs}", "--work", folder, options.stackprof]) for index in range(jobs)]
    began, told = time.monotonic(), time.monotonic()
    try:
        while any(worker.poll() is None for worker in workers):
            time.sleep(0.2)
            if not options.ci and time.monotonic() - told > 60:
                told = time.monotonic()
                done = collect(folder)
                print(f"{told - began:.0f} s: {len(done)} tries, {sum(failed(result, options) for result in done)} failed", flush=True)
    except KeyboardInterrupt:
        for worker in workers:
            worker.terminate()
    for worker in workers:
        worker.wait()
    results = collect(folder)
    missing = set(numbers(options)) - {result["number"] for result in results}
    print(f"torture: {len(results)} tries in {time.monotonic() - began:.0f} s")
    bad = report(results, options)
    if missing:
        print(f"torture: {len(missing)} tries were not made, from {min(missing)} on", file=sys.stderr)
    if not options.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if bad or missing else 0


if __name__ == "__main__":
    sys.exit(main())
