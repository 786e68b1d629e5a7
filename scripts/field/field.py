"""Real programs measured beside peers: see scripts/field.sh, which starts this."""

import argparse
import json
import math
import os
import platform
import signal
import sys
import time

import cost
import programs
import recordings
import shares
import stacks
import table
from place import ROOT, Place, install, missing_packages
from process import Loops, Trouble, run

MEASURES = ("completeness", "shares", "stacks", "cost")
# The short form: enough stacks for a share, and how far it may be from pp's own truth, in
# points and beside what chance adds. Threads that were ready but not running once made it 25 to
# 70 points with two loops beside it.
SAMPLES_MIN = 300
SHARE_OFF_MAX = 10.0
COMPARED = ("identical", "explained", "flagged", "invented", "suspect", "wrong")


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/field.sh", description=__doc__)
    parser.add_argument("stackprof")
    parser.add_argument("--short", action="store_true", help="few programs, certain assertions, for CI")
    parser.add_argument("--only", default="", help="names of programs, separated by commas")
    parser.add_argument("--measure", default="", help=f"of {','.join(MEASURES)}")
    parser.add_argument("--beside", type=int, choices=(0, 2), help="busy loops beside the shares; both if left out")
    parser.add_argument("--moments", type=int, default=0, help="frozen moments per program")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of shares and of cost")
    parser.add_argument("--seconds", type=float, default=0, help="of each recording")
    parser.add_argument("--results", default=f"{ROOT}/target/field/results.json", help="kept between runs")
    parser.add_argument("--table", default="", help="write the Markdown table here")
    parser.add_argument("--freezer", choices=("auto", "stop"), default="auto",
                        help="stop: moments by SIGSTOP alone, as where there is no cgroup v2")
    parser.add_argument("--no-install", action="store_true")
    options = parser.parse_args()
    options.stackprof = os.path.abspath(options.stackprof)
    options.measure = options.measure.split(",") if options.measure else list(MEASURES[:3] if options.short else MEASURES)
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
    begin(place)
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


def measure_completeness(options, place, row):
    """Shares of counts whose stack is complete: stackprof at 997 Hz, perf with all of the stack it can copy."""
    seconds = options.seconds or (2 if options.short else 4)
    begin(place)
    pid = place.busiest()[0]
    source = ["--source", place.program.source]
    parts = [recordings.by_stackprof(options.stackprof, pid, seconds, place.dir, more=source)]
    while options.short and sum(part.taken for part in parts) < SAMPLES_MIN and len(parts) < 8:
        # Beside other work the program gets few of the CPU's seconds, and so few samples.
        parts.append(recordings.by_stackprof(options.stackprof, pid, seconds, place.dir, more=source))
    ours = shares.merged(parts)
    row["completeness"] = {"stackprof": percent(ours), "samples": ours.whole, "taken": sum(part.taken for part in parts),
                           "incomplete": parts[0].stats.get("stacks_incomplete", {})}
    if not options.short:
        place.restart_if_ended()
        pid = pid if os.path.exists(f"/proc/{pid}") else place.busiest()[0]
        # The share does not depend on the rate, the size of the recording does: 64 KiB a sample.
        perf = recordings.by_perf(pid, seconds, place.dir, 199, dwarf=True)
        row["completeness"].update(perf=percent(perf), perf_samples=perf.whole)
    print("   ", json.dumps(row["completeness"]), flush=True)


def percent(recording):
    return round(100 * recording.complete / recording.whole, 2) if recording.whole else None


def begin(place):
    place.begin()
    place.begin_load()
    time.sleep(place.program.warm_s)


def measure_shares(options, place, row):
    """Self shares in alternating recordings; with busy loops beside them, again."""
    program = place.program
    seconds = options.seconds or (5 if options.short or program.own_shares else 4)
    begin(place)
    row["shares"] = {}
    for loops in (options.beside,) if options.beside is not None else (0, 2):
        with Loops(loops):
            ours, theirs, truth, truth_of_perf = [], [], [], []
            for _ in range(8 if options.short else options.rounds or 3):
                if options.short and any(truth) and sum(each.taken for each in ours) >= SAMPLES_MIN * 3:
                    break
                place.restart_if_ended()
                place.keep_load()
                pid = place.busiest()[0]
                began = time.monotonic()
                ours.append(recordings.by_stackprof(options.stackprof, pid, seconds, place.dir))
                truth.append(own_shares(place, began, time.monotonic()))
                if not options.short:
                    place.keep_load()
                    pid = pid if os.path.exists(f"/proc/{pid}") else place.busiest()[0]
                    began = time.monotonic()
                    theirs.append(recordings.by_perf(pid, seconds, place.dir, 997, dwarf=False))
                    truth_of_perf.append(own_shares(place, began, began + seconds))
            row["shares"][str(loops)] = share_row(ours, theirs, truth, truth_of_perf)
            print("   ", json.dumps(row["shares"][str(loops)])[:600], flush=True)


def own_shares(place, began, ended):
    """What the program itself says of this time, if it does.

    It prints once a second, of the second before. Undisturbed it spends its time otherwise
    than while it is stopped, so only seconds that were recorded whole count.
    """
    lines = list(place.group.lines)
    said = [line for (before, _), (when, line) in zip(lines, lines[1:]) if began + 0.3 < before and when < ended - 0.2]
    return place.program.own_shares(said) if place.program.own_shares else None


def share_row(ours, theirs, truth, truth_of_perf):
    all_ours = shares.merged(ours)
    counts = sum(each.whole for each in ours)
    lost = sum(sum(each.stats.get("samples_lost", {}).values()) for each in ours)
    expected = sum(each.stats["target_cpu_s"] * each.stats["hz_requested"] for each in ours)
    row = {"counts": counts, "taken": sum(each.taken for each in ours), "lost": lost, "counts_by_cpu": round(counts / expected, 4) if expected else None}
    if theirs:
        # By one rule for both: what stackprof leaves without a name inside another function's addresses is no difference.
        name_of = shares.names_by_address(ours)
        all_theirs = shares.merged(theirs)
        by_round = [[shares.self_shares(each, name_of) for each in side] for side in (ours, theirs)]
        row["perf"] = shares.compare(*by_round)[:8]
        row["perf_truth"] = beside_truth(all_theirs, truth_of_perf)
    row["truth"] = beside_truth(all_ours, truth)
    return {key: value for key, value in row.items() if value != []}


def beside_truth(recording, truth):
    """[[name, share in the recording, share by the program itself]]"""
    truth = [each for each in truth if each]
    if not truth:
        return []
    means = {name: sum(each[name] for each in truth) / len(truth) for name in truth[0]}
    found = shares.under(recording, list(means))
    return [[name, round(found[name], 2), round(means[name], 2)] for name in means]


def measure_cost(options, place, row):
    """Throughput and latency with and without, in alternating rounds."""
    begin(place)
    # The load belongs to each round.
    place.end_load()
    row["cost"] = cost.measure(options.stackprof, place, place.busiest, options.rounds or 5, options.seconds or 3)
    print("   ", json.dumps(row["cost"]), flush=True)


def told(trouble):
    """The words of what went wrong for the table: where the project lies here is nobody's business."""
    return str(trouble).replace(f"{ROOT}/", "")


def measure(options, program):
    """The row of one program; what went wrong stands in it."""
    row, place = {}, None
    try:
        place = Place(program, options.freezer == "auto")
        place.build(not options.no_install)
        for name in options.measure:
            began = time.monotonic()
            if options.short and name == "shares" and not program.own_shares:
                continue
            try:
                globals()[f"measure_{name}"](options, place, row)
            except (Trouble, OSError) as trouble:
                row[name] = {"trouble": told(trouble)}
                print(f"    {name}: {trouble}", flush=True)
            finally:
                place.end_program()
            print(f"    {name}: {time.monotonic() - began:.0f} s", flush=True)
    except (Trouble, OSError) as trouble:
        row["trouble"] = told(trouble)
        print(f"    {trouble}", flush=True)
    finally:
        if place:
            place.end()
    return row


def where(options):
    """What was measured, on what."""
    _, version, _ = run([options.stackprof, "--version"], 10)
    system = f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}, {platform.machine()}, {os.cpu_count()} CPUs"
    return f"{version.strip()}, {time.strftime('%Y-%m-%d')}, {system}."


def load_results(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def chance(percent, stacks):
    """Points that a share of so few stacks may be off: four standard deviations."""
    return 4 * math.sqrt(max(0, percent * (100 - percent)) / max(1, stacks))


def complaints(program, row):
    """What the short form finds wrong with a row; nothing in it depends on how busy the machine is."""
    found = [f"{name}: {part['trouble']}" for name, part in row.items() if isinstance(part, dict) and "trouble" in part]
    if "trouble" in row:
        return [row["trouble"]]
    reasons = row.get("stacks", {}).get("reasons", {})
    found += [f"{count} stacks {reason}" for reason, count in reasons.items()
              if reason.startswith(("wrong", "suspect"))]
    if "reasons" in row.get("stacks", {}) and not any(kind in row["stacks"]["classes"] for kind in COMPARED):
        found.append(f"no stack was compared: {reasons}")
    part = row.get("completeness", {})
    complete = part.get("stackprof", program.floor)
    if complete is None or complete < program.floor - chance(program.floor, part.get("taken", 0)):
        found.append(f"{complete} % of its counts ({part.get('taken')} stacks) are complete, not {program.floor} %")
    for loops, part in row.get("shares", {}).items():
        for name, ours, truth in part.get("truth", [["no truth was told", 0, 100]]) if isinstance(part, dict) else []:
            if abs(ours - truth) > SHARE_OFF_MAX + chance(truth, part["taken"]):
                found.append(f"{name} with {loops} loops beside it: {ours} % of the time, {truth} % by its own truth")
    return found


def show_listing(path):
    """The stacks in question, as far as a log should hold them."""
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            print(file.read(6000))


def main():
    options = arguments()
    # An end by Ctrl-C, or by the time limit of a caller, ends the programs as well.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    os.makedirs(os.path.dirname(options.results), exist_ok=True)
    results, wrong = load_results(options.results), []
    missing = sorted({package for program in options.programs for package in missing_packages(program)})
    if missing and not options.no_install:
        try:
            # At once, which is faster; what is not to be had is then told program by program.
            install(missing)
        except Trouble as trouble:
            print(trouble, flush=True)
    for program in options.programs:
        print(f"{program.name}", flush=True)
        row = measure(options, program)
        wrong += [f"{program.name}: {what}" for what in (complaints(program, row) if options.short else [])]
        kept = results.setdefault(program.name, {})
        if "trouble" not in row:
            kept.pop("trouble", None)
        kept.update(row)
        with open(f"{options.results}.new", "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)
        os.replace(f"{options.results}.new", options.results)
        if options.table:
            table.write(options.table, programs.PROGRAMS, results, where(options))
    if wrong:
        for program in sorted({what.split(":")[0] for what in wrong}):
            show_listing(f"{os.path.dirname(options.results)}/stacks-{program}.txt")
        print("\n".join(["field: wrong:", *wrong]))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
