"""Readers of stackprof beside the tools that own the formats: totals and the ten largest functions.

Called by scripts/compare-readers.sh, which tells the options.
"""

import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

STACKPROF = os.path.abspath(os.environ.get("STACKPROF", "target/release/stackprof"))
TOP = 10

WORK_C = """
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
volatile double x;
__attribute__((noinline)) void hot(int n) { for (int i = 0; i < n; i++) x += i * 0.5; }
__attribute__((noinline)) void warm(int n) { for (int i = 0; i < n; i++) x *= 1.0001; }
__attribute__((noinline)) void touch(void) { char *p = malloc(32 << 20); memset(p, 1, 32 << 20); free(p); }
void *thread(void *a) { for (int i = 0; i < 60; i++) { hot(3000000); warm(1000000); } return a; }
int main(void) {
    pthread_t p;
    pthread_create(&p, 0, thread, 0);
    pthread_setname_np(p, "pool 3");
    for (int i = 0; i < 30; i++) { hot(3000000); warm(3000000); touch(); }
    return pthread_join(p, 0);
}
"""

WORK_GO = """
package main

import (
	"os"
	"runtime"
	"runtime/pprof"
	"sync"
	"time"
)

var keep [][]byte
var sum float64

//go:noinline
func hot(n int) { for i := 0; i < n; i++ { sum += float64(i) * 0.5 } }

//go:noinline
func allocate(n int) { for i := 0; i < n; i++ { keep = append(keep, make([]byte, 4096)) } }

func main() {
	runtime.SetBlockProfileRate(1)
	runtime.SetMutexProfileFraction(1)
	f, _ := os.Create("cpu.pb.gz")
	pprof.StartCPUProfile(f)
	var lock sync.Mutex
	var all sync.WaitGroup
	for g := 0; g < 4; g++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := 0; i < 20; i++ { lock.Lock(); hot(3000000); allocate(200); lock.Unlock() }
		}()
	}
	go func() { time.Sleep(time.Hour) }()
	all.Wait()
	pprof.StopCPUProfile()
	f.Close()
	for _, kind := range []string{"heap", "allocs", "goroutine", "mutex", "block", "threadcreate"} {
		f, _ := os.Create(kind + ".pb.gz")
		pprof.Lookup(kind).WriteTo(f, 0)
		f.Close()
	}
}
"""

WORK_PY = """
import threading
def hot(n):
    s = 0.0
    for i in range(n): s += i * 0.5
    return s
def warm(n):
    return [i for i in range(n)]
def work():
    for _ in range(25): hot(300000); warm(200000)
t = threading.Thread(target=work, name="pool 3"); t.start(); work(); t.join()
"""


class Skip(Exception):
    """A tool is not there, or cannot run here."""


def run(*command, cwd=None, check=True, env=None):
    """Standard output of a command."""
    if not shutil.which(command[0]):
        raise Skip(f"there is no {command[0]}")
    result = subprocess.run(command, cwd=cwd, capture_output=True, env=env)
    if check and result.returncode != 0:
        raise Skip(f"{' '.join(command)}: {result.stderr.decode(errors='replace').strip()[-200:]}")
    return result.stdout.decode(errors="replace")


def self_of_folded(text):
    """Weight of each leaf."""
    own = collections.Counter()
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        stack, _, count = line.rpartition(" ")
        try:
            own[stack.split(";")[-1]] += float(count)
        except ValueError:
            # A name with a line end, which py-spy does not escape.
            continue
    return own


def ours(path):
    """What stackprof reads, by leaf, and what it says."""
    result = subprocess.run([STACKPROF, "render", str(path), "-o", "-"], capture_output=True)
    if result.returncode != 0:
        return collections.Counter(), result.stderr.decode().strip()
    return self_of_folded(result.stdout.decode()), result.stderr.decode().strip()


def clean(name):
    """A name without what only one of two tools prints."""
    name = re.sub(r"^\[[^\]]*\]$", "?", name.strip())
    name = re.sub(r"^0x[0-9a-f]+$", "?", name)
    # stackcollapse-perf.pl leaves the signatures of Java's methods out.
    name = re.sub(r"^L(?=\w+/)", "", name) if "/" in name else name
    name = name.split("(")[0] if "/" in name else name
    return name.removesuffix("_[k]").removesuffix(" (inline)")


def compare(owner, mine):
    """Totals, and the largest difference of a share among the owner's largest functions, in points."""
    sums = []
    for counts in (owner, mine):
        merged = collections.Counter()
        for name, count in counts.items():
            merged[clean(name)] += count
        sums.append(merged)
    totals = [sum(counts.values()) for counts in sums]
    if not all(totals):
        return totals, None
    # Tools print roots and processes without frames in ways of their own.
    top = [name for name, _ in sums[0].most_common(TOP) if name != "?"]
    worst = max((abs(sums[0][n] / totals[0] - sums[1][n] / totals[1]) * 100 for n in top), default=0.0)
    return totals, worst


def perf_cases(folder):
    """perf record with different events and options; the owner is perf report."""
    (folder / "work.c").write_text(WORK_C)
    run("cc", "-O1", "-g", "-fno-omit-frame-pointer", "-pthread", "-o", "work", "work.c", cwd=folder)
    kinds = {
        "clock -g": ["-e", "cpu-clock", "-F", "997", "-g"],
        "clock, no stacks": ["-e", "cpu-clock", "-F", "997"],
        "task-clock:u -g": ["-e", "task-clock:u", "-F", "499", "-g"],
        "dwarf": ["-e", "cpu-clock", "-F", "199", "--call-graph", "dwarf,4096"],
        "page-faults, frequency": ["-e", "page-faults", "-F", "999", "-g"],
        "page-faults -c 1": ["-e", "page-faults", "-c", "1", "-g"],
        "context-switches": ["-e", "context-switches", "-c", "1", "-g"],
        "two events": ["-e", "cpu-clock,page-faults", "-F", "499", "-g"],
        "sched:sched_switch": ["-e", "sched:sched_switch", "-c", "1", "-g"],
        "cycles": ["-e", "cycles", "-F", "997", "-g"],
    }
    fields = {"clock -g": ["-F", "+srcline"], "dwarf": ["--no-inline"], "context-switches": ["--show-mmap-events"]}
    for kind, options in kinds.items():
        def case(kind=kind, options=options):
            data = folder / "perf.data"
            data.unlink(missing_ok=True)
            run("perf", "record", "-o", str(data), *options, "--", "./work", cwd=folder)
            text = folder / (re.sub(r"\W+", "-", kind) + ".txt")
            text.write_text(run("perf", "script", *fields.get(kind, []), "-i", str(data)))
            report = run("perf", "report", "-i", str(data), "--stdio", "--no-children", "-g", "none", "--no-inline",
                         "-F", "sample,period,sym", "-t", "\t")
            mine, said = ours(text)
            # Of several events the one that begins the text; samples where its period does not vary.
            event = re.search(r"\s([a-z]\S*?):\s", text.read_text())
            event = event and event[1]
            column = 1 if re.search(r"\d samples? in ", said) else 2
            owner, counts = collections.Counter(), False
            for line in report.splitlines():
                if line.startswith("# Samples:"):
                    counts = f"event '{event}'" in line
                found = re.match(r"\s*(\d+)\s*\t\s*(\d+)\s*\t\s*\[.\] (.*)", line)
                if found and counts:
                    owner[found[3]] += int(found[column])
            return owner, mine, said
        yield f"perf {kind}", case


def go_cases(folder):
    """Go's profiles; the owner is go tool pprof."""
    def make():
        if (folder / "cpu.pb.gz").exists():
            return
        (folder / "main.go").write_text(WORK_GO)
        environment = dict(os.environ, GO111MODULE="off", GOCACHE=str(folder / "cache"), HOME=str(folder))
        run("go", "build", "-o", "go-work", "main.go", cwd=folder, env=environment)
        run("./go-work", cwd=folder) if shutil.which("./go-work") else subprocess.run(
            [str(folder / "go-work")], cwd=folder, check=True)
    units = {"cpu": "ns", "heap": "B", "allocs": "B", "mutex": "ns", "block": "ns"}
    for kind in ["cpu", "heap", "allocs", "goroutine", "mutex", "block", "threadcreate"]:
        def case(kind=kind):
            make()
            path = folder / f"{kind}.pb.gz"
            unit = ["-unit=" + units[kind]] if kind in units else []
            environment = dict(os.environ, HOME=str(folder), PPROF_TMPDIR=str(folder))
            top = run("go", "tool", "pprof", "-top", "-symbolize=none", "-nodecount=100000", "-nodefraction=0",
                      "-edgefraction=0", *unit, str(path), cwd=folder, env=environment)
            owner = collections.Counter()
            for line in top.splitlines():
                found = re.match(r"\s*([\d.]+)[a-zA-Z]*\s+[\d.]+%\s+[\d.]+%\s+[\d.]+[a-zA-Z]*\s+[\d.]+%\s+(.*)", line)
                if found:
                    owner[found[2]] += float(found[1])
            return owner, *ours(path)
        yield f"go {kind}", case


def python_cases(folder):
    """py-spy's folded text beside its speedscope file, and austin's text."""
    program = folder / "work.py"
    program.write_text(WORK_PY)
    raw = folder / "py-spy.txt"

    def spy(form, name):
        path = folder / name
        run("py-spy", "record", "-r", "199", "-f", form, "-o", str(path), "--", sys.executable, str(program))
        return path

    def folded():
        path = spy("raw", raw.name)
        return self_of_folded(path.read_text()), *ours(path)

    def speedscope():
        path = spy("speedscope", "py-spy.speedscope.json")
        file = json.loads(path.read_text())
        owner = collections.Counter()
        for profile in file["profiles"]:
            for sample, weight in zip(profile["samples"], profile["weights"]):
                if not sample:
                    owner["?"] += weight
                    continue
                owner[file["shared"]["frames"][sample[-1]]["name"]] += weight
        return owner, *ours(path)

    def austin():
        path = folder / "austin.txt"
        run("austin", "-i", "5000", "-o", str(path), sys.executable, str(program), check=False)
        if not path.exists() or not path.stat().st_size:
            raise Skip("austin finds no interpreter here")
        return self_of_folded(path.read_text()), *ours(path)

    yield "py-spy raw", folded
    yield "py-spy speedscope", speedscope
    yield "austin", austin


def flamegraph_cases(_folder):
    """The perf script texts of FlameGraph; the owner is its stackcollapse-perf.pl."""
    checkout = os.environ.get("FLAMEGRAPH")
    for path in sorted(pathlib.Path(checkout).glob("test/*.txt")) if checkout else []:
        def case(path=path):
            collapsed = run("perl", f"{checkout}/stackcollapse-perf.pl", str(path))
            return self_of_folded(collapsed), *ours(path)
        yield f"FlameGraph {path.stem}", case


def firefox_cases(folder):
    """Our Firefox file: CPU time by thread."""
    def case():
        cli = os.environ.get("PROFILER_CLI", "profiler-cli")
        if not shutil.which(cli):
            raise Skip("there is no profiler-cli (npm: @firefox-devtools/profiler-cli)")
        (folder / "work.c").write_text(WORK_C)
        run("cc", "-O1", "-g", "-pthread", "-o", "work", "work.c", cwd=folder)
        run(STACKPROF, "-q", "--threads", "-o", "f.folded", "-o", "f.firefox.json", "--", "./work", cwd=folder)
        mine = collections.Counter()
        for line in (folder / "f.folded").read_text().splitlines():
            stack, count = line.rsplit(" ", 1)
            mine[re.search(r"\((\d+)\)$", stack.split(";")[1])[1]] += int(count) * 1000 / 997
        session = f"readers-{os.getpid()}"
        run(cli, "load", str(folder / "f.firefox.json"), "--session", session)
        try:
            info = run(cli, "profile", "info", "--all", "--session", session)
        finally:
            run(cli, "stop", session, check=False)
        owner = collections.Counter({tid: float(ms) for tid, ms in re.findall(r"t-\d+: .*\[tid (\d+)\] - ([\d.]+)ms", info)})
        return owner, mine, ""
    yield "our Firefox file, ms by thread", case


def main():
    arguments = sys.argv[1:]
    output = None
    if "-o" in arguments:
        at = arguments.index("-o")
        output = arguments[at + 1]
        del arguments[at:at + 2]
    rows = []
    print("| file | owner's total | ours | ratio | largest difference of a share (points) | said |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for cases in (perf_cases, go_cases, python_cases, flamegraph_cases, firefox_cases):
            here = pathlib.Path(folder) / cases.__name__
            here.mkdir()
            try:
                for name, case in cases(here):
                    if arguments and not any(word in name for word in arguments):
                        continue
                    try:
                        owner, mine, said = case()
                    except Skip as why:
                        print(f"| {name} | SKIP: {why} | | | | |".replace("\n", " "), flush=True)
                        continue
                    (total, our_total), worst = compare(owner, mine)
                    ratio = f"{our_total / total:.4f}" if total else "-"
                    worst = "-" if worst is None else f"{worst:.2f}"
                    remarks = [line for line in said.splitlines() if " in " not in line or "not understood" in line]
                    said = " ".join(remarks).replace("|", "/")[:120]
                    print(f"| {name} | {total:.0f} | {our_total:.0f} | {ratio} | {worst} | {said} |", flush=True)
                    rows.append({"file": name, "owner_total": total, "total": our_total, "share_difference": worst})
            except Skip as why:
                print(f"| {cases.__name__} | SKIP: {why} | | | | |".replace("\n", " "), flush=True)
    if output:
        pathlib.Path(output).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
