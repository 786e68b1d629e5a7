"""The files, each made by the tool that owns its form or taken from that tool's own tests.

A case is a name and a function that gives the owner's own weight by function, its unit, the file, and the
length of a sample in ns where the owner counts time and stackprof samples.
"""

import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from programs import WORK_C, WORK_GO, WORK_JAVA, WORK_JS, WORK_PY
from tools import STACKPROF, Skip, run, self_of_folded

# kind: options of perf record, of perf script.
PERF = {
    "cpu-clock -g, srcline": (["-e", "cpu-clock", "-F", "997", "-g"], ["-F", "+srcline"]),
    "cpu-clock, no stacks": (["-e", "cpu-clock", "-F", "997"], []),
    "task-clock:u -g": (["-e", "task-clock:u", "-F", "499", "-g"], []),
    "dwarf": (["-e", "cpu-clock", "-F", "199", "--call-graph", "dwarf,4096"], ["--no-inline"]),
    "page-faults, frequency": (["-e", "page-faults", "-F", "999", "-g"], []),
    "page-faults -c 1, -d, addr": (["-e", "page-faults", "-c", "1", "-g", "-d"], ["-F", "+addr"]),
    "page-faults -d, no stacks, addr": (["-e", "page-faults", "-c", "1", "-d"], ["-F", "+addr"]),
    "context-switches, all records": (
        ["-e", "context-switches", "-c", "1", "-g"],
        ["--show-mmap-events", "--show-task-events", "--show-switch-events", "--header"],
    ),
    "two events": (["-e", "cpu-clock,page-faults", "-F", "499", "-g"], []),
    "sched:sched_switch": (["-e", "sched:sched_switch", "-c", "1", "-g"], []),
    "sched:sched_switch, no stacks": (["-e", "sched:sched_switch", "-c", "1"], ["-F", "comm,tid,cpu,time,event,trace,ip,sym,dso"]),
    "cycles": (["-e", "cycles", "-F", "997", "-g"], []),
    "--per-thread": (["-e", "cpu-clock", "-F", "997", "-g", "--per-thread", "-k", "CLOCK_MONOTONIC"], ["-F", "+misc,+tod"]),
    "-a": (["-e", "cpu-clock", "-F", "499", "-g", "-a"], ["-F", "+cpu,+symoff", "--ns"]),
    "registers": (["-e", "cpu-clock", "-F", "499", "-g", "-I"], ["-F", "+iregs"]),
    "registers, no stacks": (["-e", "cpu-clock", "-F", "499", "-I"], ["-F", "+iregs,+symoff"]),
    "srccode": (["-e", "cpu-clock:u", "-F", "199", "-g"], ["-F", "+srccode,+srcline"]),
    "no names of events": (["-e", "cpu-clock", "-F", "499", "-g"], ["-F", "comm,tid,time,ip,sym"]),
    "relative time": (["-e", "cpu-clock", "-F", "499", "-g"], ["--reltime", "-F", "comm,pid,tid,time,ip,sym,dso"]),
}


def file_name(kind, ending):
    return re.sub(r"\W+", "-", kind).strip("-") + ending


def make_c(folder):
    if not (folder / "work").exists():
        (folder / "work.c").write_text(WORK_C)
        run("cc", "-O1", "-g", "-fno-omit-frame-pointer", "-pthread", "-o", "work", "work.c", cwd=folder)


def perf_report(data, event, column):
    """What perf report has of an event: samples (1) or sums of periods (2)."""
    report = run("perf", "report", "-i", str(data), "--stdio", "--no-children", "-g", "none", "--no-inline",
                 "-F", "sample,period,sym", "-t", "\t")
    own, counts = collections.Counter(), False
    for line in report.splitlines():
        if line.startswith("# Samples:"):
            counts = event is None or f"event '{event}'" in line
        found = re.match(r"\s*(\d+)\s*\t\s*(\d+)\s*\t\s*\[.\] (.*)", line)
        if found and counts:
            own[found[3]] += int(found[column])
    return own


def perf_cases(folder):
    """perf record with events and options; the owner is perf report."""
    for kind, (record, script) in PERF.items():
        def case(kind=kind, record=record, script=script):
            make_c(folder)
            data, text = folder / "perf.data", folder / file_name(kind, ".txt")
            data.unlink(missing_ok=True)
            run("perf", "record", "-o", str(data), *record, "--", "./work", cwd=folder)
            text.write_text(run("perf", "script", *script, "-i", str(data)))
            # Of several events the one that begins the text; samples where its period does not vary.
            first = re.search(r":\s+(?:\d+ )?([a-z]\S*?):\s", re.sub("(?m)^#.*\n|.*PERF_RECORD.*\n", "", text.read_text()))
            event = first[1] if first and "," in record[1] else None
            periods = perf_report(data, event, 2)
            samples = perf_report(data, event, 1)
            varies = len({round(periods[n] / samples[n]) for n in samples if samples[n]}) > 1
            has_periods = not any(option.startswith("comm") for option in script)
            return (periods if varies and has_periods else samples), "", text, None
        yield f"perf {kind}", case


def raw(path, folder):
    """Unit of the value that go tool pprof shows, and the period in ns."""
    environment = dict(os.environ, HOME=str(folder), PPROF_TMPDIR=str(folder))
    text = run("go", "tool", "pprof", "-raw", "-symbolize=none", str(path), env=environment)
    types = re.search(r"^Samples:\n(.*)$", text, re.M)[1].split()
    shown = next((kind for kind in types if kind.endswith("[dflt]")), types[-1]).removesuffix("[dflt]")
    period = re.search(r"^PeriodType: \S+ nanoseconds\n.*?^Period: (\d+)", text, re.M | re.S)
    return shown.split("/")[1], int(period[1]) if period else None


def pprof_top(path, folder):
    """The own weight that go tool pprof shows."""
    unit, period = raw(path, folder)
    short = {"nanoseconds": ["-unit=ns"], "microseconds": ["-unit=ns"], "bytes": ["-unit=B"]}.get(unit, [])
    environment = dict(os.environ, HOME=str(folder), PPROF_TMPDIR=str(folder))
    top = run("go", "tool", "pprof", "-top", "-symbolize=none", "-nodecount=1000000", "-nodefraction=0",
              "-edgefraction=0", *short, str(path), cwd=folder, env=environment)
    own = collections.Counter()
    for line in top.splitlines():
        found = re.match(r"\s*(-?[\d.]+)[a-zA-Z]*\s+[\d.]+%\s+[\d.]+%\s+-?[\d.]+[a-zA-Z]*\s+[\d.]+%\s+(.*)", line)
        if found:
            own[found[2]] += float(found[1])
    # Samples without frames have no line.
    total = re.search(r"accounting for .* of ([\d.]+)[a-zA-Z]* total", top)
    if total and float(total[1]) > sum(own.values()):
        own["?"] += float(total[1]) - sum(own.values())
    return own, "nanoseconds" if unit == "microseconds" else unit, path, period


def make_go(folder):
    if not (folder / "cpu.pb.gz").exists():
        (folder / "main.go").write_text(WORK_GO)
        environment = dict(os.environ, GO111MODULE="off", GOCACHE=str(folder / "cache"), HOME=str(folder))
        run("go", "build", "-o", "go-work", "main.go", cwd=folder, env=environment)
        subprocess.run([str(folder / "go-work")], cwd=folder, check=True)


def pprof_cases(folder):
    """pprof of Go, of what go tool pprof makes, of gperftools, Node and pprof-rs; the owner is go tool pprof."""
    def of_go(kind):
        make_go(folder)
        return pprof_top(folder / f"{kind}.pb.gz", folder)

    def made(name, *command):
        def case():
            make_go(folder)
            environment = dict(os.environ, HOME=str(folder), PPROF_TMPDIR=str(folder))
            path = folder / name
            run("go", "tool", "pprof", "-proto", "-symbolize=none", "-output", str(path), *command, cwd=folder,
                env=environment)
            return pprof_top(path, folder)
        return case

    def gperftools():
        make_c(folder)
        library = next(pathlib.Path("/usr/lib").glob("*/libprofiler.so*"), None)
        if not library:
            raise Skip("there is no libprofiler (google-perftools)")
        subprocess.run(["./work"], cwd=folder, check=True, stderr=subprocess.DEVNULL,
                       env=dict(os.environ, LD_PRELOAD=str(library), CPUPROFILE=str(folder / "gperf.prof")))
        environment = dict(os.environ, HOME=str(folder), PPROF_TMPDIR=str(folder))
        path = folder / "gperftools.pb.gz"
        run("go", "tool", "pprof", "-proto", "-output", str(path), "work", "gperf.prof", cwd=folder, env=environment)
        return pprof_top(path, folder)

    def node(kind):
        modules = os.environ.get("READERS_BUNDLES")
        if not modules:
            raise Skip("there is no @datadog/pprof (READERS_BUNDLES)")
        (folder / "node.js").write_text(
            "const p = require('@datadog/pprof'), fs = require('fs'), kind = process.argv[2];" + WORK_JS.replace(
                "\nwork();", """
kind == 'heap' ? p.heap.start(65536, 64) : p.time.start({intervalMicros: 2000, durationMillis: 60000});
work();
const profile = kind == 'heap' ? p.heap.profile() : p.time.stop();
p.encode(profile).then(bytes => fs.writeFileSync(process.argv[3], bytes));
"""))
        path = folder / f"node-{kind}.pb.gz"
        run("node", "node.js", kind, str(path), cwd=folder,
            env=dict(os.environ, NODE_PATH=f"{modules}/n/node_modules"))
        return pprof_top(path, folder)

    def rust():
        path = os.environ.get("PPROF_RS")
        if not path:
            raise Skip("no file of pprof-rs (PPROF_RS)")
        return pprof_top(pathlib.Path(path), folder)

    for kind in ["cpu", "heap", "allocs", "goroutine", "mutex", "block", "threadcreate"]:
        yield f"go {kind}", lambda kind=kind: of_go(kind)
    yield "go tool pprof -proto, two merged", made("merged.pb.gz", "cpu.pb.gz", "cpu.pb.gz")
    yield "go tool pprof -proto, alloc_objects", made("objects.pb.gz", "-sample_index=alloc_objects", "heap.pb.gz")
    yield "go tool pprof -proto, focus", made("focus.pb.gz", "-focus=hot", "cpu.pb.gz")
    yield "gperftools", gperftools
    yield "node time", lambda: node("time")
    yield "node heap", lambda: node("heap")
    yield "pprof-rs", rust


def bundle(name):
    """A program that install.sh made of an owner's sources."""
    path = pathlib.Path(os.environ.get("READERS_BUNDLES", "/")) / f"{name}.cjs"
    if not path.exists():
        raise Skip(f"there is no {name}.cjs (scripts/readers/install.sh)")
    return str(path)


def speedscope(path, export=None):
    """What speedscope reads of a file; with `export`, of what it exports."""
    if export:
        run("node", bundle("speedscope"), str(path), str(export))
        path = export
    told = json.loads(run("node", bundle("speedscope"), str(path)))
    return collections.Counter(told["own"]), told["unit"], path, None


def python_files(folder):
    """What py-spy and austin write, by name."""
    program = folder / "work.py"
    program.write_text(WORK_PY)

    def spy(form, name, *options):
        path = folder / name
        run("py-spy", "record", "-r", "199", "-f", form, *options, "-o", str(path), "--", sys.executable, str(program))
        return path

    def austin(*options):
        path = folder / file_name("austin" + "".join(options), ".txt")
        run("austin", "-i", "5000", *options, "-o", str(path), sys.executable, str(program), check=False)
        if not path.exists() or not path.stat().st_size:
            raise Skip("austin finds no interpreter here")
        return path
    return spy, austin


def node_cpuprofile(folder):
    if not (folder / "node.cpuprofile").exists():
        (folder / "cpu.js").write_text(WORK_JS)
        run("node", "--cpu-prof", "--cpu-prof-name=node.cpuprofile", "cpu.js", cwd=folder)
    return folder / "node.cpuprofile"


def java_jfr(folder):
    if not (folder / "work.jfr").exists():
        (folder / "Work.java").write_text(WORK_JAVA)
        run("javac", "Work.java", cwd=folder)
        run("java", "-XX:StartFlightRecording:filename=work.jfr,settings=profile", "-cp", ".", "Work", cwd=folder)
    return folder / "work.jfr"


def perf_text(folder):
    if not (folder / "perf.txt").exists():
        make_c(folder)
        run("perf", "record", "-o", "p.data", "-e", "cpu-clock", "-F", "997", "-g", "./work", cwd=folder)
        (folder / "perf.txt").write_text(run("perf", "script", "-i", "p.data", cwd=folder))
    return folder / "perf.txt"


def speedscope_cases(folder):
    """speedscope files of py-spy and stackprof, and what speedscope exports; the owner is speedscope's importer."""
    spy, austin = python_files(folder)

    def exported(make, name):
        return lambda: speedscope(make(), folder / f"{name}.speedscope.json")

    def of_stackprof(*options):
        make_c(folder)
        run(STACKPROF, "-q", *options, "-o", "own.speedscope.json", "--", "./work", cwd=folder)
        own, unit, path, _ = speedscope(folder / "own.speedscope.json")
        return own, unit, path, 1e9 / 997

    def go(kind):
        make_go(folder)
        return folder / f"{kind}.pb.gz"

    yield "py-spy speedscope", lambda: speedscope(spy("speedscope", "spy.speedscope.json"))
    yield "py-spy speedscope, threads and lines", lambda: speedscope(
        spy("speedscope", "spy-threads.speedscope.json", "--threads", "--idle"))
    yield "speedscope of node --cpu-prof", exported(lambda: node_cpuprofile(folder), "node")
    yield "speedscope of go cpu", exported(lambda: go("cpu"), "go-cpu")
    yield "speedscope of go heap", exported(lambda: go("heap"), "go-heap")
    yield "speedscope of perf script", exported(lambda: perf_text(folder), "perf")
    yield "speedscope of py-spy raw", exported(lambda: spy("raw", "spy.txt"), "spy-raw")
    yield "speedscope of Java Flight Recorder", exported(lambda: java_jfr(folder), "java")
    yield "speedscope of our pprof", lambda: exported(lambda: own_file(folder, "pb.gz"), "own-pprof")()
    yield "stackprof --threads", lambda: of_stackprof("--threads")
    yield "stackprof --idle", lambda: of_stackprof("--idle")
    checkout = pathlib.Path(os.environ.get("SPEEDSCOPE", "/nowhere")) / "sample/profiles"
    for path in sorted(checkout.glob("speedscope/*/*.json")):
        yield f"speedscope's {path.parent.name}/{path.name}", lambda path=path: speedscope(path)


def own_file(folder, ending, *options):
    make_c(folder)
    run(STACKPROF, "-q", *options, "-o", f"own.{ending}", "--", "./work", cwd=folder)
    return folder / f"own.{ending}"


def folded_cases(folder):
    """Folded text of py-spy, austin, FlameGraph and inferno; the owner's figures are sums of its lines, or speedscope's."""
    spy, austin = python_files(folder)
    flamegraph = pathlib.Path(os.environ.get("FLAMEGRAPH", "/nowhere"))

    def text(path):
        return self_of_folded(path.read_text()), "", path, None

    def folded_by(name, *command, of=None):
        path = folder / file_name(name, ".folded")
        path.write_text(run(*command, *([str(of)] if of else [])))
        return text(path)

    yield "py-spy raw", lambda: text(spy("raw", "spy.txt"))
    yield "py-spy raw, threads", lambda: text(spy("raw", "spy-threads.txt", "--threads", "--idle"))
    yield "austin", lambda: text(austin())
    yield "austin, cpu time only", lambda: text(austin("-s"))
    yield "inferno-collapse-perf", lambda: folded_by("inferno", "inferno-collapse-perf", of=perf_text(folder))
    yield "inferno-collapse-perf --all", lambda: folded_by(
        "inferno-all", "inferno-collapse-perf", "--all", "--addrs", of=perf_text(folder))
    yield "stackcollapse-perf.pl", lambda: folded_by(
        "collapse", "perl", f"{flamegraph}/stackcollapse-perf.pl", of=perf_text(folder))
    yield "stackcollapse-perf.pl --all --tid", lambda: folded_by(
        "collapse-all", "perl", f"{flamegraph}/stackcollapse-perf.pl", "--all", "--tid", of=perf_text(folder))
    yield "stackcollapse.pl (dtrace)", lambda: folded_by(
        "dtrace", "perl", f"{flamegraph}/stackcollapse.pl", of=flamegraph / "example-dtrace-stacks.txt")
    yield "stackprof", lambda: text(own_file(folder, "folded", "--threads", "--idle"))
    checkout = pathlib.Path(os.environ.get("SPEEDSCOPE", "/nowhere")) / "sample/profiles"
    for path in sorted(checkout.glob("stackcollapse/*.txt")):
        yield f"speedscope's {path.name}", lambda path=path: speedscope(path)
    for path in sorted(flamegraph.glob("test/results/*-collapsed-all.txt")):
        yield f"FlameGraph {path.stem}", lambda path=path: text(path)


def flamegraph_cases(_folder):
    """Texts of perf script of FlameGraph's and speedscope's tests; the owner is stackcollapse-perf.pl.

    It leaves out the last event where no blank line follows, and multiplies equal periods.
    """
    flamegraph = os.environ.get("FLAMEGRAPH", "/nowhere")
    texts = sorted(pathlib.Path(flamegraph).glob("test/*.txt"))
    texts += sorted(pathlib.Path(os.environ.get("SPEEDSCOPE", "/nowhere")).glob("sample/profiles/linux-perf/*.txt"))
    for path in texts:
        yield f"text {path.stem}", lambda path=path: (
            self_of_folded(run("perl", f"{flamegraph}/stackcollapse-perf.pl", str(path))), "", path, None)


def inferno_data():
    """Inputs and results of inferno's own tests (INFERNO is a checkout)."""
    data = pathlib.Path(os.environ.get("INFERNO", "/nowhere")) / "tests/data"
    if not data.is_dir():
        raise Skip("no checkout of inferno (INFERNO)")
    return data


def inferno_perf_cases(_folder):
    """perf script text of inferno's tests; the owner is what inferno-collapse-perf makes of it there."""
    try:
        data = inferno_data() / "collapse-perf"
    except Skip as why:
        def skipped(why=why):
            raise why
        yield "inferno's tests", skipped
        return
    for result in sorted(data.glob("results/*-collapsed.txt")):
        path = data / f"{result.stem.removesuffix('-collapsed')}.txt"
        if path.exists():
            yield f"inferno's {path.stem}", lambda path=path, result=result: (
                self_of_folded(result.read_text()), "", path, None)


def inferno_folded_cases(_folder):
    """Folded text that inferno makes of DTrace, sample, VTune, xctrace and others, or draws; the owner's figures are
    sums of its lines."""
    try:
        data = inferno_data()
    except Skip as why:
        def skipped(why=why):
            raise why
        yield "inferno's tests", skipped
        return
    for path in sorted([*data.glob("collapse-*/results/*"), *data.glob("flamegraph/*/*.txt")]):
        text = path.read_text()
        # The palette and attributes of names are no stacks, as little as lines that inferno refuses.
        if path.suffix in (".txt", ".folded") and self_of_folded(text) and "\t" not in text:
            yield f"inferno's {path.relative_to(data)}", lambda path=path, text=text: (
                self_of_folded(text), "", path, None)


def load(cli, path, environment):
    """Starts profiler-cli's daemon, which is not awaited by itself on a busy machine."""
    # Of a run that was cut off.
    run(cli, "stop", "readers", env=environment, check=False)
    run(cli, "load", str(path), "--session", "readers", env=environment, check=False)
    for _ in range(60):
        status = run(cli, "thread", "list", "--json", "--session", "readers", env=environment, check=False)
        if status.strip():
            return
        time.sleep(1)
    run(cli, "stop", "readers", check=False, env=environment)
    raise Skip("profiler-cli loads nothing")


def profiler_cli(path, folder):
    """Own weight by function as the Firefox Profiler's command line tool has it, all threads together."""
    cli = os.environ.get("PROFILER_CLI", "profiler-cli")
    if not shutil.which(cli):
        raise Skip("there is no profiler-cli (npm: @firefox-devtools/profiler-cli)")
    environment = dict(os.environ, PROFILER_CLI_SESSION_DIR=str(folder / "sessions"))
    load(cli, path, environment)
    try:
        threads = json.loads(run(cli, "thread", "list", "--json", "--session", "readers", env=environment))
        own, unit = collections.Counter(), ""
        for thread in threads["threads"]:
            functions = json.loads(run(cli, "thread", "functions", "--thread", thread["threadHandle"], "--json",
                                       "--include-idle", "--session", "readers", env=environment))
            unit = "milliseconds" if functions.get("weightType") == "tracing-ms" else unit
            for function in functions["functions"]:
                own[function["name"]] += function["selfSamples"]
    finally:
        run(cli, "stop", "readers", check=False, env=environment)
    return own, unit, path, None


def firefox_cases(folder):
    """Files that samply, stackprof and the Firefox Profiler itself save; the owner is profiler-cli."""
    def saved(make, name):
        def case():
            path = folder / name
            run("node", bundle("firefox"), str(make()), str(path))
            return profiler_cli(path, folder)
        return case

    def samply(*options):
        make_c(folder)
        path = folder / "samply.json.gz"
        run("samply", "record", "--save-only", *options, "-o", str(path), "--", "./work", cwd=folder)
        return path

    def fixture(name):
        path = pathlib.Path(os.environ.get("FIREFOX_PROFILER", "/nowhere")) / "src/test/fixtures/upgrades" / name
        if not path.exists():
            raise Skip("no checkout of the Firefox Profiler (FIREFOX_PROFILER)")
        return path

    yield "stackprof", lambda: profiler_cli(own_file(folder, "firefox.json", "--threads"), folder)
    yield "stackprof --idle", lambda: profiler_cli(own_file(folder, "firefox.json", "--threads", "--idle"), folder)
    yield "samply", lambda: profiler_cli(samply(), folder)
    yield "samply, unnamed", lambda: profiler_cli(samply("--unstable-presymbolicate"), folder)
    yield "Firefox Profiler of samply", saved(samply, "of-samply.json")
    yield "Firefox Profiler of stackprof", saved(lambda: own_file(folder, "firefox.json", "--threads"), "of-stackprof.json")
    yield "Firefox Profiler of perf script, slabs", saved(lambda: perf_text(folder), "perf.jslb")
    yield "Firefox Profiler of node --cpu-prof", saved(lambda: node_cpuprofile(folder), "node.json")
    for name in ["simple-perf.txt.gz", "graphviz.perf.gz", "flamegraph.txt", "processed-1.json", "processed-3.json",
                 "simpleperf-cpu-clock.trace.gz", "hello.cjs-20231120T211435.cpuprofile", "dhat.json.gz",
                 "art-trace-regular.trace.gz"]:
        for ending in ["json", "jslb"]:
            yield f"Firefox Profiler of {name} as {ending}", saved(
                lambda name=name: fixture(name), f"{name}.{ending}")
    yield "our Firefox file, ms by thread", lambda: cpu_by_thread(folder)


def cpu_by_thread(folder):
    """CPU time by thread of our Firefox file, as folded text of a recording."""
    own_file(folder, "folded", "--threads", "-o", "cpu.firefox.json")
    cli = os.environ.get("PROFILER_CLI", "profiler-cli")
    environment = dict(os.environ, PROFILER_CLI_SESSION_DIR=str(folder / "sessions"))
    load(cli, folder / "cpu.firefox.json", environment)
    try:
        info = run(cli, "profile", "info", "--all", "--session", "readers", env=environment)
    finally:
        run(cli, "stop", "readers", check=False, env=environment)
    # Folded text of threads alone, so that the leaf is the thread.
    text = re.sub(r"(?m)^[^;]*;([^;]*)[^\n]* (\d+)$", r"\1 \2", (folder / "own.folded").read_text())
    (folder / "threads.folded").write_text(text)
    own = collections.Counter()
    for name, tid, ms in re.findall(r"t-\d+: (.*) \[tid (\d+)\] - ([\d.]+)ms", info):
        own[f"{name} ({tid})"] += float(ms) * 1e6
    return own, "nanoseconds", folder / "threads.folded", 1e9 / 997


def output_cases(folder):
    """Our own files in the tools that own their forms."""
    yield "our pprof in go tool pprof", lambda: pprof_top(own_file(folder, "pb.gz", "--threads"), folder)
    yield "our pprof in speedscope", lambda: (*speedscope(own_file(folder, "pb.gz"))[:3], 1e9 / 997)
    yield "our folded text in speedscope", lambda: speedscope(own_file(folder, "folded"))


CASES = {
    "perf script": [perf_cases, flamegraph_cases, inferno_perf_cases],
    "pprof": [pprof_cases],
    "speedscope": [speedscope_cases],
    "firefox": [firefox_cases],
    "folded": [folded_cases, inferno_folded_cases],
    "outputs": [output_cases],
}
