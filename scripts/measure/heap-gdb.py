#!/usr/bin/env python3
"""Stacks of sampled allocations beside gdb's `bt`: in the very same process, at every sample.

    STACKPROF=path scripts/measure/heap-gdb.py [PROGRAM...]

`stackprof heap` starts gdb, gdb starts the program with the shim, and stops it at each sampled allocation
(heap_gdb_stops.py). Both sides tell a stack as return addresses in files; per stack, the bytes that stackprof estimates must
be what the weights of gdb's stops add up to. So each stop is compared, and none can stand for another. Prints a row for each
program, each stack that differs, and exits 1 if a stack that is called complete is not gdb's. Programs that are not installed
are left out, and said.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections import defaultdict

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "field"))
import pprof  # noqa: E402

SHELL = os.path.basename(os.path.realpath("/bin/sh"))
STACKPROF = os.environ.get("STACKPROF", "stackprof")

DICTS = "import json\nkept = [{'name': str(n), 'values': [n] * 5} for n in range(60000)]\nlen(json.dumps(kept))\n"
ROWS = """create table t(a integer primary key, b text, c text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000) insert into t select i, 'row ' || i, hex(i * 7919) from n;
create index x on t(c);
select count(*), sum(length(b)) from t join (select c as d from t order by c limit 50000) on c = d;
"""
BIG = """#include <iostream>
#include <map>
#include <regex>
int main() { std::map<std::string, int> m; m["a"] = 1; return std::regex_match("a", std::regex("a*")); }
"""
PERL = 'my %h; for my $i (1 .. 60000) { $h{"key $i"} = [1 .. $i % 20]; } print join(",", sort { $a cmp $b } keys %h) =~ tr/k//, "\\n";'


def programs(work):
    """(name, --every, command, which may begin with a variable)"""
    def put(name, text):
        path = os.path.join(work, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path
    repository = os.path.join(work, "repository")
    compiler, multiarch = (
        subprocess.run(["g++", f"-print-{what}"], capture_output=True, text=True, check=False).stdout.strip()
        for what in ("prog-name=cc1plus", "multiarch"))
    return [
        ("python3", "64K", ["/usr/bin/python3", put("dicts.py", DICTS)]),
        ("python3, PYTHONMALLOC=malloc", "128K", ["PYTHONMALLOC=malloc", "/usr/bin/python3", put("dicts.py", DICTS)]),
        ("sqlite3", "32K", ["/usr/bin/sqlite3", ":memory:", f".read {put('rows.sql', ROWS)}"]),
        ("cc1plus", "256K", [compiler, "-quiet", "-imultiarch", multiarch, "-O1", "-o", os.path.join(work, "big.s"), put("big.cc", BIG)]),
        ("git log --stat", "1M", ["/usr/bin/git", "-C", repository, "log", "--stat"]),
        ("perl", "64K", ["/usr/bin/perl", "-e", PERL]),
    ]


def make_repository(place):
    """A deterministic history to look at."""
    def git(*words):
        subprocess.run(["git", "-C", place, *words], check=True, capture_output=True)
    os.makedirs(place)
    git("init", "-q")
    git("config", "user.email", "a@b.invalid")
    git("config", "user.name", "a")
    for round_ in range(40):
        for file in range(20):
            with open(os.path.join(place, f"file{file}"), "w", encoding="utf-8") as out:
                out.write("".join(f"{(line * (file + 3) + round_ * (line % 7)) % 1009}\n" for line in range(1500)))
        git("add", ".")
        git("commit", "-q", "-m", f"round {round_}")


def record(every, command, work):
    """(stacks of stackprof, stops of gdb)"""
    profile, stops = (os.path.join(work, name) for name in ("a.pb.gz", "stops"))
    inner = 'shim=$LD_PRELOAD; unset LD_PRELOAD; HEAP_GDB_SHIM=$shim exec gdb "$@"'
    # gdb starts the program by a shell, which must not allocate much.
    environment = {**os.environ, "HEAP_GDB_STOPS": stops, "LC_ALL": "C", "SHELL": "/bin/sh"}
    if "=" in command[0]:
        variable, value = command[0].split("=")
        environment[variable], command = value, command[1:]
    ran = subprocess.run(
        [STACKPROF, "heap", "-q", "--per-process", "--every", every, "-o", profile, "--", "sh", "-c", inner, "gdb",
         "-nx", "-q", "-batch", "-x", os.path.join(HERE, "heap_gdb_stops.py"), "--args", *command],
        env=environment, capture_output=True, text=True, check=False, timeout=550)
    if not os.path.exists(stops) or not os.path.exists(profile):
        raise SystemExit(f"{command[0]}: {ran.stderr[-2000:]}")
    with open(stops, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    if not rows or rows[-1].get("exit") != 0:
        raise SystemExit(f"{command[0]} did not end well: {ran.stdout[-1000:]} {ran.stderr[-1000:]}")
    return pprof.read(profile, "alloc_space"), rows[:-1]


def bytes_of(text):
    return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]] if text[-1] in "KM" else int(text)


def compare(name, every, command, work):
    stacks, stops = record(every, command, work)
    mean = bytes_of(every)
    ours, theirs, counts = defaultdict(float), defaultdict(float), defaultdict(int)
    names, is_complete, ends = {}, {}, {}
    for value, frames, complete in stacks:
        # The root frame is the process. The shells that start gdb and the program are not compared.
        if SHELL in [frame.module for frame in frames]:
            continue
        key = tuple((frame.module, frame.offset) for frame in frames if frame.module)
        ours[key] += value
        is_complete[key] = complete
        names[key] = [frame.name for frame in frames]
    for stop in stops:
        key = tuple((module, offset) for module, offset, _ in stop["frames"])
        theirs[key] += stop["size"] if mean == 1 else stop["size"] / -math.expm1(-stop["size"] / mean)
        counts[key] += 1
        ends[key] = stop["end"]
        names.setdefault(key, [f"{name} ({module})" for module, _, name in stop["frames"]])
    same = {key for key in theirs if key in ours and abs(theirs[key] - ours[key]) <= counts[key] + 1}
    complete = sum(count for key, count in counts.items() if is_complete.get(key))
    for key in sorted(set(ours) | set(theirs), key=len):
        if key not in same:
            print(f"  differs: {name}: ours {ours.get(key)} (complete: {is_complete.get(key)}), gdb's {theirs.get(key)} of {counts[key]} stops {ends.get(key)}")
            for module, offset in key:
                print(f"    {module}+{offset:#x}")
            print(f"    {' < '.join(names[key])}")
    wrong = sum(1 for key in ours if is_complete[key] and key not in same)
    right = sum(counts[key] for key in same)
    print(f"| {name} | {every} | {len(stops)} | {right} | {100 * complete / max(1, len(stops)):.1f} % | {wrong} |", flush=True)
    return wrong == 0


def main():
    chosen = sys.argv[1:]
    is_right = True
    with tempfile.TemporaryDirectory() as work:
        print("| program | `--every` | sampled allocations | the same as gdb | complete | complete, not gdb's |")
        print("|---|---|---|---|---|---|")
        for name, every, command in programs(work):
            if chosen and name not in chosen:
                continue
            if not os.path.exists(command["=" in command[0]]):
                print(f"{name}: not installed")
                continue
            if name.startswith("git"):
                make_repository(os.path.join(work, "repository"))
            is_right = compare(name, every, command, work) and is_right
    sys.exit(not is_right)


main()
