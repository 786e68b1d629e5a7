#!/usr/bin/env python3
"""What heap profilers cost: a program's time and memory, and the time until there is a result. Prints a Markdown table.

    STACKPROF=path scripts/measure/heap-cost.py [-n ROUNDS] [--program NAME;...] [--tool NAME;...] [-o FILE.json]

In each round each program runs by itself and under each tool, in an order that changes from round to round. Times are
medians of the ratios to the run of the same round without a profiler: of jemalloc and tcmalloc with that allocator, not
profiled. Behind them is the quartile distance of the ratios: what differs by less is equal.

    wall     of the program, from its start to its end; of a server, of the requests
    CPU      of program and profiler, all processes, until the result
    memory   peak of the program's anonymous and shared memory that is resident, above that without a profiler
    profiler the same of the profiler's own processes while the program runs; pages of files are not counted
    result   seconds from the program's end until there is something to read: a picture or a table

Needs Linux and root (chrt), and from Debian: heaptrack valgrind libjemalloc2 libjemalloc-dev google-perftools
libgoogle-perftools-dev redis-server redis-tools sqlite3 g++ python3; for memray: MEMRAY=path of a `memray` that Debian's python3
runs. What is not installed is left out, and said. Slow tools run once.
"""

import argparse
import glob
import json
import os
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from heap_programs import free_port, output_of, programs

STACKPROF = os.environ.get("STACKPROF", "stackprof")
MEMRAY = os.environ.get("MEMRAY", "memray")
LIBRARIES = f"/usr/lib/{output_of('gcc', '-print-multiarch')}"
JEMALLOC, TCMALLOC = f"{LIBRARIES}/libjemalloc.so.2", f"{LIBRARIES}/libtcmalloc.so.4"
TIMEOUT_S = 150


class Tool:
    """How a program is run, and what makes a result of what was recorded."""

    def __init__(self, name, base="none", prefix=(), environment=None, result=None, needs=(), is_slow=False, only=""):
        self.name, self.base, self.prefix = name, base, list(prefix)
        self.environment, self.result = environment or {}, result
        self.needs, self.is_slow, self.only = needs, is_slow, only

    def is_for(self, program):
        return program.name.startswith(self.only)


def last(pattern):
    return max(glob.glob(pattern), key=os.path.getmtime)


def tools(work):
    memray_python = os.path.join(os.path.dirname(MEMRAY), "python3")
    return [
        Tool("none"),
        Tool("stackprof", prefix=[STACKPROF, "heap", "-q", "-o", f"{work}/sp.svg", "--"], needs=[STACKPROF]),
        Tool("heaptrack", prefix=["heaptrack", "-o", f"{work}/ht", "--"], needs=["heaptrack"], is_slow=True,
             result=lambda program: ["heaptrack_print", "-f", last(f"{work}/ht*")]),
        Tool("jemalloc", environment={"LD_PRELOAD": JEMALLOC}, needs=[JEMALLOC]),
        Tool("jemalloc, prof", base="jemalloc", needs=[JEMALLOC, "jeprof"],
             environment={"LD_PRELOAD": JEMALLOC, "MALLOC_CONF": f"prof:true,lg_prof_sample:19,prof_final:true,prof_prefix:{work}/je"},
             result=lambda program: ["jeprof", "--text", program.executable, last(f"{work}/je*.heap")]),
        Tool("tcmalloc", environment={"LD_PRELOAD": TCMALLOC}, needs=[TCMALLOC]),
        Tool("tcmalloc, sampling", base="tcmalloc", needs=[TCMALLOC],
             environment={"LD_PRELOAD": TCMALLOC, "TCMALLOC_SAMPLE_PARAMETER": "524288"}),
        Tool("tcmalloc, HEAPPROFILE", base="tcmalloc", needs=[TCMALLOC, "google-pprof"], is_slow=True,
             environment={"LD_PRELOAD": TCMALLOC, "HEAPPROFILE": f"{work}/tc"},
             result=lambda program: ["google-pprof", "--text", program.executable, last(f"{work}/tc*.heap")]),
        Tool("memray", prefix=[memray_python, "-m", "memray", "run", "-q", "-f", "--native", "-o", f"{work}/memray.bin"],
             needs=[MEMRAY, memray_python], is_slow=True, only="python3",
             result=lambda program: [memray_python, "-m", "memray", "flamegraph", "-f", "-o", f"{work}/memray.html", f"{work}/memray.bin"]),
        Tool("valgrind dhat", prefix=["valgrind", "--tool=dhat", f"--dhat-out-file={work}/dhat.out"], needs=["valgrind"], is_slow=True),
    ]


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def family(root):
    """A process and its descendants."""
    out = [root]
    for pid in out:
        for task in glob.glob(f"/proc/{pid}/task/*/children"):
            out += [int(child) for child in read(task).split()]
    return out


def memory_kib(pid):
    """What is resident and of no file: the kernel cannot take it back."""
    return sum(int(line.split()[1]) for line in read(f"/proc/{pid}/status").splitlines() if line.startswith(("RssAnon", "RssShmem")))


class Watch:
    """The program among the processes of a tool: when it ran, and the peaks of its memory and of the others'."""

    def __init__(self, root, program):
        self.root, self.program = root, program
        self.begin_s = self.end_s = None
        self.pid, self.program_kib, self.others_kib = None, 0, {}

    def is_program(self, pid):
        try:
            executable = os.readlink(f"/proc/{pid}/exe")
        except OSError:
            return False
        return executable == self.program.executable or "/dhat-" in executable

    def run(self, is_ended):
        while self.pid is None and not is_ended():
            self.pid = next(filter(self.is_program, family(self.root)), None)
            time.sleep(0.001)
        stat = read(f"/proc/{self.pid}/stat").rpartition(")")[2].split()
        if not stat:
            return
        # The 22nd field: when it was started, in ticks of 10 ms since the boot.
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[19]) / os.sysconf("SC_CLK_TCK")
        self.begin_s = time.monotonic() - age_s
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            self.end_s = time.monotonic()
            return
        while not select.select([handle], [], [], 0.01)[0]:
            if time.monotonic() > self.begin_s + TIMEOUT_S:
                os.killpg(self.root, signal.SIGKILL)
            self.program_kib = max(self.program_kib, memory_kib(self.pid))
            for pid in family(self.root):
                if pid != self.pid:
                    self.others_kib[pid] = max(self.others_kib.get(pid, 0), memory_kib(pid))
        self.end_s = time.monotonic()
        os.close(handle)


class Missed(Exception):
    """The machine was too busy for the watch."""


def clean(work):
    for path in glob.glob(f"{work}/*"):
        if os.path.basename(path).startswith(("ht", "je", "tc", "memray", "dhat", "sp.")):
            os.remove(path)


def once(program, tool, work):
    """What one run took, in seconds and KiB."""
    clean(work)
    argv = program.argv
    if program.port:
        program.port = free_port()
        argv = [*argv, str(program.port)]
    if tool.name == "memray":
        argv = argv[1:]
    environment = {**os.environ, **program.environment, **tool.environment}
    with open(f"{work}/output", "wb") as output:
        root = subprocess.Popen(["chrt", "-r", "5", *tool.prefix, *argv], env=environment, stdout=output, stderr=output, start_new_session=True)
        load_s = []
        loader = threading.Thread(target=lambda: load_s.append(program.load())) if program.port else None
        if loader:
            loader.start()
        watch = Watch(root.pid, program)
        ended = threading.Event()
        usage = []

        def wait():
            usage.append(os.wait4(root.pid, 0)[1:])
            ended.set()
        waiter = threading.Thread(target=wait)
        waiter.start()
        watch.run(ended.is_set)
        if not ended.wait(TIMEOUT_S):
            raise RuntimeError(f"{tool.name} did not end")
        waiter.join()
        root.returncode = 0
        if loader:
            loader.join()
    status, used = usage[0]
    if not status and watch.end_s is None:
        raise Missed
    if status:
        raise RuntimeError(f"status {status}: {read(f'{work}/output')[-600:]}")
    cpu_s = used.ru_utime + used.ru_stime
    if tool.result:
        before = os.times()
        with open(f"{work}/result", "wb") as result:
            subprocess.run(["chrt", "-r", "5", *tool.result(program)], stdout=result, stderr=result, check=True)
        after = os.times()
        cpu_s += after.children_user + after.children_system - before.children_user - before.children_system
    return {"wall_s": load_s[0] if load_s else watch.end_s - watch.begin_s, "cpu_s": cpu_s, "program_kib": watch.program_kib,
            "profiler_kib": sum(watch.others_kib.values()), "result_s": time.monotonic() - watch.end_s}


def median(rows, key):
    return statistics.median(row[key] for row in rows.values())


def ratio(mine, base, key):
    ratios = [mine[round_][key] / base[round_][key] for round_ in mine if round_ in base]
    if not ratios:
        return ""
    if len(ratios) < 4:
        return f"× {statistics.median(ratios):.2f}"
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"× {middle:.3f} ±{(high - low) / 2:.3f}"


def print_rows(program, rows, all_tools):
    none = rows["none"]
    for tool in all_tools:
        if not rows.get(tool.name) or not rows.get(tool.base):
            continue
        mine, base = rows[tool.name], rows[tool.base]
        if tool.name == "none":
            print(f"| {program.name} | none | {median(none, 'wall_s'):.2f} s | {median(none, 'cpu_s'):.2f} s "
                  f"| {median(none, 'program_kib') / 1024:.0f} MiB | | |")
            continue
        added = (median(mine, "program_kib") - median(base, "program_kib")) / 1024
        print(f"| {program.name} | {tool.name} | {ratio(mine, base, 'wall_s')} | {ratio(mine, base, 'cpu_s')} | {added:+.1f} MiB "
              f"| {median(mine, 'profiler_kib') / 1024:.0f} MiB | {median(mine, 'result_s'):.2f} s |", flush=True)


def versions():
    found = {"kernel": output_of("uname", "-r"), "stackprof": output_of(STACKPROF, "--version"), "heaptrack": output_of("heaptrack", "--version"),
             "valgrind": output_of("valgrind", "--version"), "memray": output_of(MEMRAY, "--version")}
    for package in ("libjemalloc2", "libgoogle-perftools4", "redis-server", "python3", "sqlite3", "cpp-12"):
        found[package] = output_of("dpkg-query", "-W", "-f", "${Version}", package)
    return ", ".join(f"{name} {text.split()[-1]}" for name, text in found.items() if text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--rounds", type=int, default=5)
    parser.add_argument("--slow-rounds", type=int, default=1)
    parser.add_argument("--program", default="")
    parser.add_argument("--tool", default="")
    parser.add_argument("--scale", type=float, default=1.0, help="of the programs' work")
    parser.add_argument("-o", "--output")
    options = parser.parse_args()
    # Watches programs that run at priority 5.
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))
    kept = {}
    with tempfile.TemporaryDirectory() as work:
        all_tools = []
        for tool in tools(work):
            missing = [need for need in tool.needs if not shutil.which(need) and not os.path.exists(need)]
            if missing:
                print(f"{tool.name}: there is no {', '.join(missing)}", file=sys.stderr)
            elif not options.tool or tool.name in ["none", *options.tool.split(";")]:
                all_tools.append(tool)
        print(f"{os.cpu_count()} processors; {versions()}\n")
        print("| program | profiler | wall | CPU | memory | profiler | result |\n|---|---|---|---|---|---|---|")
        for program in programs(work, options.scale):
            if options.program and program.name not in options.program.split(";"):
                continue
            if not program.is_installed():
                print(f"{program.name}: not installed", file=sys.stderr)
                continue
            rows = {tool.name: {} for tool in all_tools if tool.is_for(program)}
            given_up = set()
            for round_ in range(options.rounds):
                shift = round_ % len(all_tools)
                for tool in all_tools[shift:] + all_tools[:shift]:
                    if tool.name not in rows or tool.name in given_up or tool.is_slow and len(rows[tool.name]) >= options.slow_rounds:
                        continue
                    try:
                        rows[tool.name][round_] = once(program, tool, work)
                    except Missed:
                        print(f"{program.name}, {tool.name}: ended before it was seen; round {round_} is left out", file=sys.stderr)
                    except (RuntimeError, subprocess.CalledProcessError, ValueError) as error:
                        given_up.add(tool.name)
                        print(f"{program.name}, {tool.name}: {error}", file=sys.stderr)
            print_rows(program, rows, all_tools)
            kept[program.name] = rows
            if options.output:
                with open(options.output, "w", encoding="utf-8") as file:
                    json.dump(kept, file)


main()
