"""stackprof beside other profilers, in alternating rounds: see scripts/bench-peers.sh, which starts this."""

import argparse
import json
import os
import platform
import shutil
import signal
import sys
import tempfile

from measure import ROOT, Metered, Trouble, build, run
import oneshot
import report
import runs
import tools
from workloads import WORKLOADS, Rates

import programs
from place import Place

# The check: what a working comparison shows on any machine, however busy.
CHECKED = ("busy1", "tree", "short")
CHECK_OFF_MAX = 15.0
CHECK_COMPLETE_MIN = 80.0


class Context:
    """What all runs of a workload share."""

    def __init__(self, folder, paths, rates, seconds):
        self.folder, self.paths, self.rates, self.seconds = folder, paths, rates, seconds
        self.given_up = set()  # (tool, kind of picture) that took too long
        self.place, self.chosen = None, 0  # of scripts/field


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/bench-peers.sh", description=__doc__)
    parser.add_argument("-o", "--output", default="", help="save all that was measured as JSON")
    parser.add_argument("--workload", default="", help="names, separated by commas: " + " ".join(each.name for each in WORKLOADS))
    parser.add_argument("--tool", default="", help="names, separated by commas: stackprof, `perf -g`, `perf dwarf`, samply, "
                        "and, for stacks taken once, eu-stack, `eu-stack -i`, gdb; all if left out")
    parser.add_argument("--seconds", type=float, default=0, help="of CPU time that a workload takes by itself (3)")
    parser.add_argument("--check", action="store_true", help="does it work? One round of half a second, stackprof and perf")
    options = parser.parse_args()
    try:
        options.rounds = int(os.environ.get("ROUNDS", "9"))
    except ValueError:
        options.rounds = 0
    if options.rounds < 1:
        parser.error(f"ROUNDS={os.environ['ROUNDS']}: expected a whole number from 1 on")
    wanted = options.workload.split(",") if options.workload else []
    unknown = [name for name in wanted if name not in [each.name for each in WORKLOADS]]
    options.stackprof = os.path.abspath(os.environ.get("STACKPROF", f"{ROOT}/target/release/stackprof"))
    options.tools = {tool.name: tool for tool in tools.all_tools(options.stackprof)}
    options.shots = oneshot.commands(options.stackprof)
    chosen = [name.strip() for name in options.tool.split(",")] if options.tool else []
    if chosen:
        unknown += [name for name in chosen if name not in (*options.tools, *options.shots)]
        options.tools = {name: tool for name, tool in options.tools.items() if name in chosen}
        options.shots = {name: argv for name, argv in options.shots.items()
                         if name in chosen or "stackprof" in chosen and name.startswith("stackprof")}
        if not any(name in chosen for name in options.shots):
            options.shots = {}  # not asked for: stackprof alone would be beside nothing
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)} (--help lists workloads and tools)")
    if options.check:
        options.rounds = 1
        wanted = wanted or CHECKED
        options.tools = {name: tool for name, tool in options.tools.items() if name != "samply"}
        options.shots = {}
    options.seconds = options.seconds or (0.5 if options.check else 3)
    options.workloads = [each for each in WORKLOADS if not wanted or each.name in wanted]
    return options


def rotated(names, at):
    """Each comes first as often as the others."""
    at %= len(names)
    return names[at:] + names[:at]


def rounds_of(workload, names, rounds, once, part):
    """Fills part["rounds"] with {name: what was measured}; a tool that failed is not asked again."""
    failed = set()
    for at in range(rounds):
        rows = {}
        for name in rotated(names, at):
            if name in failed:
                continue
            try:
                rows[name] = once(name)
            except (Trouble, OSError) as trouble:
                failed.add(name)
                part["troubles"][name] = str(trouble)[:300]
                print(f"    {name}: {trouble}", file=sys.stderr)
        part["rounds"].append(rows)
        told = ", ".join(f"{name} {rows[name]['wall_s']:.3g} s" for name in rows)
        print(f"    {workload.name}, round {at + 1} of {rounds}: {told}", file=sys.stderr, flush=True)
        if report.BASE in failed:
            break


def begin_field(workload, context):
    """A program of scripts/field at work."""
    program = next(each for each in programs.PROGRAMS if each.name == workload.name)
    context.place = Place(program, cgroup=False)
    context.place.build(may_install=True)
    context.place.begin()


def measure(workload, options, context):
    """{"rounds": [...], "troubles": {...}, "shots": {...}} of one workload."""
    part = {"shows": workload.shows, "rounds": [], "troubles": {}}
    missing = [name for name in workload.needs if not shutil.which(name)]
    if missing:
        part["troubles"]["SKIP"] = f"there is no {', '.join(missing)}"
        return part
    context.given_up = set()
    try:
        if workload.kind == "field":
            begin_field(workload, context)
        usable = {name: tool.unusable() for name, tool in options.tools.items()}
        part["troubles"].update({name: f"SKIP: {why}" for name, why in usable.items() if why})
        names = [report.BASE, *(name for name, why in usable.items() if not why)]
        rounds_of(workload, names, options.rounds,
                  lambda name: runs.one(workload, options.tools.get(name), context), part)
    except (Trouble, OSError) as trouble:
        part["troubles"]["SKIP"] = str(trouble)[:300]
    finally:
        if context.place:
            context.place.end()
            context.place, context.chosen = None, 0
    for name, kind in sorted(context.given_up):
        part["troubles"][f"{name}, {kind}"] = f"not done within {tools.PICTURE_MAX_S} s, and not tried again"
    if workload.one_shot and options.shots:
        shots = {"rounds": [], "troubles": {}}
        usable = {name: oneshot.unusable(argv) for name, argv in options.shots.items()}
        shots["troubles"].update({name: f"SKIP: {why}" for name, why in usable.items() if why})
        names = [report.BASE, *(name for name, why in usable.items() if not why)]
        rounds_of(workload, names, options.rounds,
                  lambda name: oneshot.one(workload, name, options.shots.get(name), context), shots)
        part["shots"] = shots
    return part


def show(workload, part):
    """The Markdown of one workload."""
    print(report.section(f"{workload.name}: {workload.shows}", part, report.COLUMNS))
    if "shots" in part:
        print(report.section(f"{workload.name}: all stacks once", part["shots"], report.SHOTS))
    sys.stdout.flush()


def versions(options):
    """{name: the first line that each tool says of itself}"""
    found = {}
    for argv in ([options.stackprof, "--version"], ["perf", "--version"], ["samply", "--version"], ["eu-stack", "--version"], ["gdb", "--version"]):
        if shutil.which(argv[0]):
            found[os.path.basename(argv[0])] = run(argv, 20)[1].strip().split("\n")[0]
    return found


def complaints(results):
    """What the check finds wrong; nothing in it depends on how busy the machine is."""
    found = []
    for name, part in results.items():
        found += [f"{name}: {tool}: {text}" for tool, text in part["troubles"].items() if not text.startswith("SKIP: ")]
        rows = part["rounds"][0] if part["rounds"] else {}
        for tool, row in rows.items():
            if tool == report.BASE:
                continue
            lacks = [key for key in ("wall_ratio", "cpu_ratio", "recording_cpu_s", "inlines_s", "svg_mb", "counts") if key not in row]
            found += [f"{name}: {tool}: {', '.join(lacks)} not measured"] if lacks else []
            if "off" in row and row["off"] > CHECK_OFF_MAX:
                found.append(f"{name}: {tool}: shares are {row['off']:.1f} points off")
            if name != "tree" and row.get("complete", 100) < CHECK_COMPLETE_MIN:
                found.append(f"{name}: {tool}: {row['complete']:.1f} % of its stacks are complete")
        if report.OURS[0] not in rows:
            found.append(f"{name}: stackprof was not measured")
    return found


def main():
    options = arguments()
    # An end by Ctrl-C, or by the time limit of a caller, ends what was started as well.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    results = {}
    folder = tempfile.mkdtemp(prefix="peers-")
    try:
        paths = build(folder)
        Metered.meter = paths["meter"]
        rates = Rates(paths)
        system = f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}, {platform.machine()}, {os.cpu_count()} CPUs"
        said = versions(options)
        print(f"{'; '.join(said.values())}. {system}. Medians of {options.rounds} rounds.\n", flush=True)
        for workload in options.workloads:
            part = results[workload.name] = measure(workload, options, Context(folder, paths, rates, options.seconds))
            show(workload, part)
            if options.output:
                # After each, so that a run that is ended has not measured for nothing.
                with open(f"{options.output}.new", "w", encoding="utf-8") as file:
                    json.dump({"versions": said, "system": system, "seconds": options.seconds, "workloads": results}, file, indent=1)
                os.replace(f"{options.output}.new", options.output)
    except Trouble as trouble:
        print(f"bench-peers: {trouble}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    wrong = complaints(results) if options.check else []
    if wrong:
        print("\n".join(["bench-peers: it does not work:", *wrong]), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
