#!/usr/bin/env python3
"""Totals of a recording in every format, by readers that are not ours, beside those of `render -o -`.

Usage: scripts/measure/viewers.py PROFILE...

Renders each profile (.otlp keeps the times of samples) into every format and prints a row with the samples that each
file holds. Folded text, Firefox Profiler, speedscope and HTML files are added up here by what docs say of their form;
pprof by `go tool pprof` where it is installed; OTLP by the protocol's own messages where the Python that runs this has
opentelemetry-proto. `-` stands for a reader that is missing, `!` for another total than that of folded stacks. Gates
nothing. STACKPROF is the program to use (target/release/stackprof)."""

import base64
import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
STACKPROF = os.environ.get("STACKPROF", str(ROOT / "target/release/stackprof"))
FORMATS = ("folded", "pprof", "times", "otlp", "firefox", "speedscope", "html", "svg")


def folded(path, _hz):
    return sum(int(line.rsplit(" ", 1)[1]) for line in path.read_text().splitlines())


def pprof(path, _hz):
    """`go tool pprof` knows the sum of all values: `Showing nodes accounting for 5, 100% of 5 total`."""
    if not shutil.which("go"):
        return None
    top = subprocess.run(["go", "tool", "pprof", "-top", "-sample_index=samples", "-nodecount=1", path],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=True).stdout
    return int(re.search(r"of (\d+) total", top)[1])


def otlp(path, _hz):
    try:
        from opentelemetry.proto.profiles.v1development import profiles_pb2
    except ImportError:
        return None
    data = profiles_pb2.ProfilesData.FromString(path.read_bytes())
    profiles = [profile for resource in data.resource_profiles for scope in resource.scope_profiles for profile in scope.profiles]
    return sum(sum(sample.values) for profile in profiles[:1] for sample in profile.samples)


def firefox(path, _hz):
    total = 0
    for thread in json.loads(path.read_text())["threads"]:
        samples = thread["samples"]
        total += sum(weight for weight, stack in zip(samples["weight"], samples["stack"]) if stack is not None)
    return total


def speedscope(path, hz):
    """Weights are milliseconds; an empty stack is a pause."""
    total = 0
    for profile in json.loads(path.read_text())["profiles"]:
        total += sum(weight for weight, stack in zip(profile["weights"], profile["samples"]) if stack)
    return round(total * hz / 1e3, 1) if hz else total


def columns_of(data):
    """Columns of a page by name (docs/html.md, form of the data)."""
    length = int.from_bytes(data[:4], "little")
    header = json.loads(data[4:4 + length])
    at = 4 + length
    columns = {}
    for name, form, count, size in (column if isinstance(column, list) else column.values() for column in header["columns"]):
        values, value, shift = [], 0, 0
        for byte in data[at:at + size]:
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                values.append(value)
                value = shift = 0
        assert len(values) == count, f"{name}: {len(values)} of {count} numbers"
        at += size
        columns[name] = (form, values)
    return columns


def html(path, _hz):
    page = path.read_text()
    data = gzip.decompress(base64.b64decode(re.search(r'id="?profile"?[^>]*>([^<]+)<', page)[1]))
    columns = columns_of(data)
    total = sum(columns["count.value"][1])
    if "sample.value" in columns:
        timed = sum(columns["sample.value"][1])
        if timed != total:
            return f"{total} ({timed} with times)"
    return total


def svg(path, _hz):
    return int(re.search(r"<title>all \(([\d,]+) samples", path.read_text())[1].replace(",", ""))


EXTENSIONS = {"folded": "folded", "pprof": "pb.gz", "times": "times.pb.gz", "otlp": "otlp", "firefox": "firefox.json",
              "speedscope": "speedscope.json", "html": "html", "svg": "svg"}
READERS = {"folded": folded, "pprof": pprof, "times": pprof, "otlp": otlp, "firefox": firefox, "speedscope": speedscope,
           "html": html, "svg": svg}


def row(profile, directory):
    render = [STACKPROF, "render", "-q", profile]
    wanted = sum(int(line.rsplit(" ", 1)[1]) for line in
                 subprocess.run([*render, "-o", "-"], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines())
    files = {name: directory / f"a.{extension}" for name, extension in EXTENSIONS.items()}
    outputs = [word for name, file in files.items() if name != "times" for word in ("-o", file)]
    subprocess.run([*render, *outputs], check=True)
    subprocess.run([*render, "--pprof-timestamps", "-o", files["times"]], check=True)
    hz = json.loads(files["firefox"].read_text())["stackprof"].get("hz")
    cells = [str(wanted)]
    for name in FORMATS:
        total = READERS[name](files[name], hz)
        size = files[name].stat().st_size / 1e6
        mark = "" if total is None or total == wanted else "!"
        cells.append(f"{'-' if total is None else total}{mark} ({size:.2f} MB)")
    return cells


def main():
    profiles = [pathlib.Path(name) for name in sys.argv[1:]]
    if not profiles or any(not profile.is_file() for profile in profiles):
        sys.exit(__doc__)
    print(f"| recording | render -o - | {' | '.join(FORMATS)} |")
    print("|---" * (len(FORMATS) + 2) + "|")
    for profile in profiles:
        with tempfile.TemporaryDirectory() as directory:
            print(f"| {profile.name} | {' | '.join(row(profile, pathlib.Path(directory)))} |", flush=True)


main()
