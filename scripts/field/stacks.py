"""Frozen moments: the same stacks by stackprof and by debuggers, address by address."""

import collections
import random
import time

import judge
import peers
from codebytes import Code
from process import Trouble


def at_moment(stackprof, group, program, pids):
    """Stacks of the chosen processes at one moment: [(pid, ours, debuggers, runtime's, facts of the code)]."""
    found = []
    group.freeze()
    try:
        ours = {pid: peers.by_stackprof(stackprof, pid) for pid in pids}
        group.stop()
        for pid in pids:
            theirs, runtime = {}, {}
            for name, ask in (("eu-stack", peers.by_eu_stack), ("gdb", peers.by_gdb)):
                try:
                    theirs[name] = ask(pid)
                except Trouble as trouble:
                    theirs[name] = {}
                    print(f"    {trouble}", flush=True)
            if program.runtime == "java":
                runtime = peers.by_hotspot(pid)
            code = Code(pid)
            facts = code.facts([stack for stacks in (ours[pid], *theirs.values(), runtime) for stack in stacks.values()])
            found.append((pid, ours[pid], theirs, runtime, facts))
    finally:
        group.resume()
    return found


def measure(stackprof, group, program, pids_of, moments, seconds_max, list_to):
    """Counts by class and reason, for at most `moments` and `seconds_max`."""
    chance = random.Random(7)
    classes, reasons = collections.Counter(), collections.Counter()
    done, failed, began = 0, 0, time.monotonic()
    while done < moments and time.monotonic() - began < seconds_max:
        time.sleep(chance.uniform(0.02, 0.2))
        try:
            found = at_moment(stackprof, group, program, pids_of())
        except Trouble as trouble:
            failed += 1
            print(f"    moment failed: {trouble}", flush=True)
            if failed > 3 or not group.alive():
                raise
            continue
        done += 1
        for pid, ours, theirs, runtime, facts in found:
            for tid, stack in ours.items():
                verdict, reason = judge_thread(program, tid, stack, theirs, runtime, facts)
                classes[verdict] += 1
                reasons[f"{verdict}: {reason}"] += 1
                if verdict in ("suspect", "wrong", "invented") and reasons[f"{verdict}: {reason}"] <= 20:
                    debuggers = {name: stacks[tid] for name, stacks in theirs.items() if tid in stacks}
                    physical = runtime.get(tid)
                    physical = list(zip(physical.addresses, physical.names)) if physical else None
                    list_to(f"{program.name}: {verdict}: {reason}\n"
                            f"moment {done}, pid {pid}, thread {tid} ({stack.thread_name})\n"
                            f"{judge.listing(stack, debuggers, physical)}\n")
    return {"moments": done, "failed_moments": failed, "freezer": group.freezer,
            "stacks": sum(classes.values()), "classes": dict(classes), "reasons": dict(reasons)}


def judge_thread(program, tid, stack, theirs, runtime, facts):
    debuggers = {name: stacks[tid] for name, stacks in theirs.items() if tid in stacks}
    physical = runtime[tid].addresses if tid in runtime else None
    verdict, reason = judge.judge(stack, debuggers, program.truth_of(stack.thread_name), physical, facts)
    if verdict == "suspect" and not all(theirs.values()):
        # The debugger that had no time, or failed, might have been the one that agrees.
        return "unseen", "a debugger showed nothing of the process"
    return verdict, reason
