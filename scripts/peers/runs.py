"""One run of one workload, without a profiler or with one: a flat dict of what was measured."""

import os
import signal
import subprocess
import time

from measure import Metered, Trouble, cpu_s, numbers, read, send, wait_until_attached
from tools import complete_share, own_statistics, pictures
from workloads import Server

import cost
import shares

RUN_MAX_S = 240


def start_told(workload, context, times=1):
    """A program that has said that it is ready, with so many times its work before it."""
    report = f"{context.folder}/target.work"
    if os.path.exists(report):
        os.remove(report)
    target = Metered(workload.command(context.paths, context.rates, times * context.seconds), f"{context.folder}/target",
                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "WORK_REPORT": report})
    try:
        if target.child.stdout.readline() != b"ready\n":
            raise Trouble(f"{workload.name} did not begin: {read(f'{context.folder}/target.err').strip()[-200:]}")
    except BaseException:
        target.end()
        raise
    return target


def go(target):
    """Lets it begin: the time."""
    began = time.monotonic()
    target.child.stdin.write(b"go\n")
    target.child.stdin.close()
    target.child.stdin = None
    return began


def told(workload, tool, context):
    """Attached to before it begins."""
    target, profiler = start_told(workload, context), None
    try:
        row = {}
        if tool:
            profiler = Metered(tool.argv(context.folder, pid=target.pid), f"{context.folder}/profiler")
            row["attach_s"] = wait_until_attached(profiler, target.pid)
        before_s = target.cpu_s() or 0
        began = go(target)
        if not target.wait(RUN_MAX_S):
            raise Trouble(f"{workload.name}: not done within {RUN_MAX_S} s")
        recording_s = profiler.cpu_s() if profiler else None
        used = target.used()
        row.update(wall_s=used["ended"] - began, cpu_s=used["cpu_s"])
        gap = numbers(f"{context.folder}/target.work").get("gap_ns")
        if gap:
            row["gap_ms"] = gap / 1e6
        if profiler:
            finish(workload, tool, context, row, profiler, used["ended"], recording_s, recorded_s=used["cpu_s"] - before_s)
        return row
    finally:
        target.end()
        if profiler:
            profiler.end()


def launched(workload, tool, context):
    """Started by the profiler; it tells its own end and CPU time, since it is not our child."""
    command = workload.command(context.paths, context.rates, context.seconds)
    report = f"{context.folder}/target.work"
    if os.path.exists(report):
        os.remove(report)
    argv = tool.argv(context.folder, command=command) if tool else command
    process = Metered(argv, f"{context.folder}/profiler", env={**os.environ, "WORK_REPORT": report})
    try:
        limit = time.monotonic() + RUN_MAX_S
        while not os.path.exists(report):
            if process.wait(0.002) and not os.path.exists(report):
                process.used()
                raise Trouble(f"{workload.name}: ended without a report")
            if time.monotonic() > limit:
                raise Trouble(f"{workload.name}: not done within {RUN_MAX_S} s")
        recording_s = process.cpu_s() if tool else None
        said = numbers(report)
        row = {"wall_s": said["end_ns"] / 1e9 - process.began, "cpu_s": said["cpu_ns"] / 1e9}
        if tool:
            # What the meter tells of a profiler has the CPU time of what the profiler started in it.
            finish(workload, tool, context, row, process, said["end_ns"] / 1e9, recording_s, row["cpu_s"])
        else:
            process.used()
        return row
    finally:
        process.end()


def server(workload, tool, context):
    """Works while a load runs, and is then ended."""
    place = Server(context.folder)
    target, profiler = Metered(place.argv, f"{context.folder}/target"), None
    try:
        place.ready()
        row = {}
        if tool:
            profiler = Metered(tool.argv(context.folder, pid=target.pid), f"{context.folder}/profiler")
            row["attach_s"] = wait_until_attached(profiler, target.pid)
        before_s = target.cpu_s() or 0
        began, ended, row["ops"], row["p99_ms"] = place.load(context.seconds)
        recording_s = profiler.cpu_s() if profiler else None
        send(target.pid, signal.SIGTERM)
        used = target.used(30)
        row.update(wall_s=ended - began, cpu_s=used["cpu_s"])
        if profiler:
            finish(workload, tool, context, row, profiler, used["ended"], recording_s, recorded_s=used["cpu_s"] - before_s)
        return row
    finally:
        target.end()
        if profiler:
            profiler.end()


def field(workload, tool, context):
    """A program of scripts/field, which never ends: its busiest process is recorded for some seconds."""
    place = context.place
    place.restart_if_ended()
    # Chosen once, so that all profilers see the same process.
    pid = context.chosen if os.path.exists(f"/proc/{context.chosen}") else place.busiest()[0]
    context.chosen = pid
    row, profiler = {}, None
    try:
        if tool:
            profiler = Metered(tool.argv(context.folder, pid=pid), f"{context.folder}/profiler")
            row["attach_s"] = wait_until_attached(profiler, pid)
        before, began = cpu_s(pid), time.monotonic()
        # It tells its rate once a second: a second on each side is lost.
        time.sleep(context.seconds + 1)
        ended, after = time.monotonic(), cpu_s(pid)
        if before is None or after is None:
            raise Trouble(f"{workload.name}: the process that was recorded ended")
        row["ops"] = cost.rate_by_lines(place.group.lines, place.program.ops, began, ended)
        if not row["ops"]:
            raise Trouble(f"{workload.name}: it told no throughput")
        used = (after - before) / (ended - began)
        # What a fixed amount of work would have taken.
        row.update(wall_s=1 / row["ops"], cpu_s=used / row["ops"])
        if profiler:
            recording_s = profiler.cpu_s()
            stop = time.monotonic()
            send(profiler.pid, signal.SIGINT)
            # It has recorded since it was attached, which is longer than what was measured.
            recorded_s = used * (stop - profiler.began - row["attach_s"])
            finish(workload, tool, context, row, profiler, stop, recording_s, recorded_s=recorded_s)
        return row
    finally:
        if profiler:
            profiler.end()


def finish(workload, tool, context, row, profiler, ended, recording_s, children_s=0.0, recorded_s=None):
    """What comes after the end of the target: the file, the picture, and what stands in it."""
    if tool.name == "samply" and not profiler.wait(1):
        # It may wait for a Ctrl-C.
        send(profiler.pid, signal.SIGINT)
    # perf ends by the signal that ended its recording.
    used = profiler.used(by_signal=workload.kind == "field")
    total_s = max(0.0, used["cpu_s"] - children_s)
    recording_s = total_s if recording_s is None else min(recording_s, total_s)
    saved_s = max(0.0, used["ended"] - ended)
    row.update(recording_cpu_s=recording_s, after_cpu_s=total_s - recording_s, recording_peak_mb=used["peak_mb"], saved_s=saved_s)
    made = pictures(tool, context.folder, context.given_up)
    for kind, picture in made.items():
        row[f"{kind}_s"] = saved_s + picture["wall_s"]
        row[f"{kind}_cpu_s"] = picture["cpu_s"]
        row["after_peak_mb"] = max(row.get("after_peak_mb", 0), picture["peak_mb"])
    if "no_inline" in made:
        row["after_cpu_s"] += made["no_inline"]["cpu_s"]
    if not tool.recording:
        # Its picture is there when it ends, and has inlined functions.
        row["inlines_s"] = row["no_inline_s"] = saved_s
    row.update(tool.sizes(context.folder))
    said = own_statistics(context.folder) if tool.name == "stackprof" else {}
    if said:
        row["source"] = said["backend"]
        if said["stops"]:
            row["stood_ms"] = said["stood_ns"] / 1e6
    recording = tool.stacks(context.folder, context.paths)
    if recording and recording.whole:
        expected = tool.counts_per_s * (recorded_s if recorded_s is not None else row["cpu_s"])
        row["counts"] = 100 * recording.whole / expected if expected else 0.0
        # samply's frames have names only in our own program.
        if workload.root or tool.name != "samply":
            row["complete"] = complete_share(recording, workload.root)
        if workload.truth:
            found = shares.under(recording, list(workload.truth))
            row["shares"] = {name: round(share, 3) for name, share in found.items()}
            row["off"] = max(abs(found[name] - truth) for name, truth in workload.truth.items())
    for name in os.listdir(context.folder):
        # The next tool begins without the files of this one.
        if name.startswith(("out.", "perf.data", "samply.json", "stats.json")):
            os.remove(f"{context.folder}/{name}")


KINDS = {"told": told, "launched": launched, "server": server, "field": field}


def one(workload, tool, context):
    return KINDS[workload.kind](workload, tool, context)
