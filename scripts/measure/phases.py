#!/usr/bin/env python3
"""How far the phases of a program whose clock tells them (tests/fixtures/phases.c) lie from where outputs show them, in periods.

Usage: scripts/measure/phases.py [--source ptrace|perf] [--hz N] [ROUNDS]

Prints for the data of .html, .firefox.json, .speedscope.json, .otlp (if Python has opentelemetry-proto) and for cuts
(render --from --to) the median and the largest distance of a
boundary. Gates nothing: on a busy machine a thread gets no CPU for parts of its phases, unless this runs under `chrt -r 5`.
STACKPROF is the program to use (target/release/stackprof)."""

import argparse
import base64
import collections
import gzip
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/fixtures"
STACKPROF = os.environ.get("STACKPROF", str(ROOT / "target/release/stackprof"))
FLAGS = ["-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-pthread"]
PHASES = ("phase_a", "phase_b", "phase_c")

Sample = collections.namedtuple("Sample", "since_ns at_ns phase")


def varints(data, form, count):
    """The numbers of a column of an HTML page (docs/html.md)."""
    numbers, at, before = [], 0, 0
    for index in range(count):
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if form == "delta":
            number = before + (-(number >> 1) - 1 if number & 1 else number >> 1)
        elif form == "back":
            number = index - number
        before = number
        numbers.append(number)
    return numbers


def html_samples(path):
    """The samples of a page that are of a phase, and when its recording began (Unix time)."""
    text = path.read_text()
    packed = text.split('id="profile">', 1)[1].split("</script>", 1)[0]
    data = gzip.decompress(base64.b64decode(packed + "=" * (-len(packed) % 4)))
    length = int.from_bytes(data[:4], "little")
    header, at, columns = json.loads(data[4 : 4 + length]), 4 + length, {}
    for name, form, count, size in header["columns"]:
        columns[name] = varints(data[at : at + size], form, count)
        at += size
    side = header["sides"][0]
    period_ns = 1e9 / side["hz"]

    def phase(node):
        while node:
            name = header["strings"][columns["function.name"][columns["frame.function"][columns["node.frame"][node]]]]
            if name in PHASES:
                return name
            node = columns["node.parent"][node]
        return None

    of = {node: phase(node) for node in set(columns["sample.node"])}
    rows = zip(columns["sample.time"], columns["sample.node"])
    return [Sample(at_ns - period_ns, at_ns, of[node]) for at_ns, node in rows if of[node]], side["time_unix_ns"]


def firefox_samples(path):
    """The same of a file for the Firefox Profiler."""
    file = json.loads(path.read_text())
    shared, samples = file.get("shared", {}), []
    for thread in file["threads"]:
        strings = thread.get("stringArray") or shared["stringArray"]
        tables = {**shared, **{key: value for key, value in thread.items() if value}}
        stacks, frames, functions = tables["stackTable"], tables["frameTable"], tables["funcTable"]

        def phase(stack):
            while stack is not None:
                name = strings[functions["name"][frames["func"][stacks["frame"][stack]]]]
                if name in PHASES:
                    return name
                stack = stacks["prefix"][stack]
            return None

        rows = thread["samples"]
        times = rows.get("time")
        if times is None:
            times, now = [], 0.0
            for delta in rows["timeDeltas"]:
                now += delta
                times.append(now)
        for at_ms, stack, cpu_us in zip(times, rows["stack"], rows["threadCPUDelta"]):
            name = phase(stack)
            if name:
                samples.append(Sample(at_ms * 1e6 - (cpu_us or 0) * 1e3, at_ms * 1e6, name))
    return samples, file["stackprof"]["time_unix_ns"]


def speedscope_samples(path):
    """The same of a file for speedscope, whose weights follow each other from 0 on."""
    file = json.loads(path.read_text())
    names, samples = [frame["name"] for frame in file["shared"]["frames"]], []
    unit_ns = {"nanoseconds": 1, "microseconds": 1e3, "milliseconds": 1e6, "seconds": 1e9}
    for profile in file["profiles"]:
        at, factor = profile["startValue"], unit_ns[profile["unit"]]
        for stack, weight in zip(profile["samples"], profile["weights"]):
            at += weight
            name = next((names[frame] for frame in stack if names[frame] in PHASES), None)
            if name:
                samples.append(Sample((at - weight) * factor, at * factor, name))
    return samples, file["stackprof"]["time_unix_ns"]


def otlp_samples(path):
    """The same of an OTLP file, read by OpenTelemetry's own package (pip install opentelemetry-proto)."""
    from opentelemetry.proto.profiles.v1development import profiles_pb2

    data = profiles_pb2.ProfilesData.FromString(path.read_bytes())
    tables, samples = data.dictionary, []
    profile = data.resource_profiles[0].scope_profiles[0].profiles[0]

    def phase(sample):
        for location in tables.stack_table[sample.stack_index].location_indices:
            for line in tables.location_table[location].lines:
                name = tables.string_table[tables.function_table[line.function_index].name_strindex]
                if name in PHASES:
                    return name
        return None

    begin_ns = profile.time_unix_nano
    for sample in profile.samples:
        name = phase(sample)
        for at_ns in sample.timestamps_unix_nano if name else ():
            samples.append(Sample(at_ns - begin_ns - profile.period, at_ns - begin_ns, name))
    return samples, begin_ns


def distances(samples, truth, period_ns):
    """How far the first and the last sample of each phase lie from its boundaries, in periods."""
    found = []
    for name, begun_ns, ended_ns in truth:
        near = [one for one in samples if one.phase == name and begun_ns - 2e7 < one.at_ns < ended_ns + 2e7]
        if near:
            found.append(abs(min(one.since_ns for one in near) - begun_ns) / period_ns)
            found.append(abs(max(one.at_ns for one in near) - ended_ns) / period_ns)
        else:
            found += [float("inf")] * 2
    return found


def cut_distances(path, truth, hz):
    """What a cut at a phase's boundaries has of others, and lacks of it, in samples, which are periods."""
    found = []
    for name, begun_ns, ended_ns in truth:
        times = ["--from", f"{max(0, begun_ns):.0f}ns", "--to", f"{ended_ns:.0f}ns"]
        done = subprocess.run([STACKPROF, "render", "-q", path, *times, "-o", "-"], stdout=subprocess.PIPE, text=True, check=True)
        counts = collections.Counter()
        for line in done.stdout.splitlines():
            stack, count = line.rsplit(" ", 1)
            counts[next((phase for phase in PHASES if phase in stack.split(";")), "other")] += int(count)
        found.append(sum(counts.values()) - counts[name])
        found.append(abs(counts[name] - (ended_ns - begun_ns) * hz / 1e9))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", choices=("ptrace", "perf"), default="perf")
    parser.add_argument("--hz", type=int, default=997)
    parser.add_argument("rounds", nargs="?", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        program = place / "phases"
        subprocess.run(["cc", *FLAGS, "-o", program, FIXTURES / "phases.c"], check=True)
        files = [place / f"out.{form}" for form in ("html", "firefox.json", "speedscope.json", "otlp")]
        outputs = [word for file in files for word in ("-o", file)]
        command = [STACKPROF, "-q", "--source", options.source, "--hz", str(options.hz), *outputs, "--"]
        said = subprocess.run([*command, program, str(options.rounds)], stdout=subprocess.PIPE, text=True, check=True).stdout
        lines = [line.split() for line in said.splitlines()]
        offset_ns = next(int(line[1]) for line in lines if line[0] == "offset")
        phases = [(line[0], int(line[1]), int(line[2])) for line in lines if line[0] in PHASES]
        period_ns = 1e9 / options.hz
        print(f"{len(phases)} phases, {options.source}, {options.hz} Hz: distance of boundaries in periods")
        readers = {"html": html_samples, "firefox": firefox_samples, "speedscope": speedscope_samples, "otlp": otlp_samples}
        for (name, read), file in zip(readers.items(), files):
            try:
                samples, began_unix_ns = read(file)
            except ImportError as missing:
                print(f"  {name:10} not read: {missing}")
                continue
            zero_ns = began_unix_ns - offset_ns
            truth = [(phase, begun_ns - zero_ns, ended_ns - zero_ns) for phase, begun_ns, ended_ns in phases]
            show(name, distances(samples, truth, period_ns))
            if name == "firefox":
                show("cuts", cut_distances(file, truth, options.hz))


def show(name, found):
    print(f"  {name:10} median {statistics.median(found):5.2f}  largest {max(found):5.2f}  of {len(found)}")


if __name__ == "__main__":
    main()
