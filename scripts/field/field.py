"""Real programs measured beside peers: see scripts/field.sh, which starts this."""

import argparse
import json
import os
import signal
import sys
import time

import stacks
import programs
from place import ROOT, Place
from process import Loops, Trouble

MEASURES = ("completeness", "shares", "stacks", "cost")


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/field.sh", description=__doc__)
    parser.add_argument("stackprof")
    parser.add_argument("--short", action="store_true", help="few programs, certain assertions, for CI")
    parser.add_argument("--only", default="", help="names of programs, separated by commas")
    parser.add_argument("--measure", default="", help=f"of {','.join(MEASURES)}")
    parser.add_argument("--beside", type=int, choices=(0, 2), help="busy loops beside the shares; both if left out")
    parser.add_argument("--moments", type=int, default=0, help="frozen moments per program")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of cost")
    parser.add_argument("--seconds", type=float, default=0, help="of each recording")
    parser.add_argument("--results", default=f"{ROOT}/target/field/results.json", help="kept between runs")
    parser.add_argument("--table", default="", help="write the Markdown table here")
    parser.add_argument("--no-install", action="store_true")
    options = parser.parse_args()
    options.stackprof = os.path.abspath(options.stackprof)
    options.measure = options.measure.split(",") if options.measure else list(MEASURES)
    unknown = [name for name in options.measure if name not in MEASURES]
    wanted = options.only.split(",") if options.only else []
    unknown += [name for name in wanted if name not in [each.name for each in programs.PROGRAMS]]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; programs: {' '.join(each.name for each in programs.PROGRAMS)}")
    options.programs = [each for each in programs.PROGRAMS
                        if (each.name in wanted if wanted else each.short or not options.short)]
    return options


def measure_stacks(options, place, row):
    program = place.program
    moments = options.moments or (5 if options.short else 30)
    moments = max(2, round(moments * program.moments))
    path = f"{os.path.dirname(options.results)}/stacks-{program.name}.txt"
    if os.path.exists(path):
        os.remove(path)

    def list_to(text):
        with open(path, "a", encoding="utf-8") as file:
            file.write(text + "\n")
    place.begin()
    place.begin_load()
    time.sleep(program.warm_s)
    chosen = [place.busiest(), 0]

    def pids():
        place.keep_load()
        chosen[1] += 1
        if chosen[1] % 8 == 0 or not all(os.path.exists(f"/proc/{pid}") for pid in chosen[0]):
            chosen[0] = place.busiest()
        return chosen[0]
    row["stacks"] = stacks.measure(options.stackprof, place.group, program, pids, moments,
                                   20 if options.short else 240, list_to)
    print("   ", json.dumps(row["stacks"]), flush=True)


def measure(options, program):
    """The row of one program; what went wrong stands in it."""
    row, place = {}, None
    try:
        place = Place(program)
        place.build(not options.no_install)
        for name in options.measure:
            began = time.monotonic()
            try:
                globals()[f"measure_{name}"](options, place, row)
            except (Trouble, OSError) as trouble:
                row[name] = {"trouble": str(trouble)}
                print(f"    {name}: {trouble}", flush=True)
            finally:
                place.end_program()
            print(f"    {name}: {time.monotonic() - began:.0f} s", flush=True)
    except (Trouble, OSError) as trouble:
        row["trouble"] = str(trouble)
        print(f"    {trouble}", flush=True)
    finally:
        if place:
            place.end()
    return row


def load_results(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def main():
    options = arguments()
    # An end by Ctrl-C, or by the time limit of a caller, ends the programs as well.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    os.makedirs(os.path.dirname(options.results), exist_ok=True)
    results = load_results(options.results)
    for program in options.programs:
        print(f"{program.name}", flush=True)
        row = measure(options, program)
        kept = results.setdefault(program.name, {})
        if "trouble" not in row:
            kept.pop("trouble", None)
        kept.update(row)
        with open(f"{options.results}.new", "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
        os.replace(f"{options.results}.new", options.results)


if __name__ == "__main__":
    main()
