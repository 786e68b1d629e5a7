"""Inside gdb: stops a board at random moments, takes gdb's own backtrace, lets go of the stub without letting
the board run, and has stackprof look at the same stop, after which it runs on. One line of JSON for each stop
is added to RESULTS. Of boards with tasks each instruction of a task switch is looked at, too."""

import json
import os
import random
import re
import subprocess
import sys
import time

import gdb

sys.path.insert(0, "scripts/gdb-stacks")
import truth  # noqa: E402

ELF, PORT, BUILD = os.environ["ELF"], os.environ["PORT"], os.environ["BUILD"]
STOPS = int(os.environ["STOPS"])
SWITCH_STEPS = int(os.environ.get("SWITCH_STEPS", "100"))
PLACE = f"127.0.0.1:{PORT}"
FRAME = re.compile(r"\s+#(\d+)\s+(0x[0-9a-f]+)\s+(\S+)\s+(.*)")
THREAD = re.compile(r"thread (\d+) \((.*)\) (\S+?)(, (?:incomplete|no stack): .*)?$")
ENTRIES_MAX = 200


def connect():
    for attempt in range(100):
        try:
            gdb.execute(f"target remote {PLACE}", to_string=True)
            return
        except gdb.error:
            if attempt == 99:
                raise
            time.sleep(0.05)


def by_gdb():
    """(address, name) of each frame, the innermost first; inlined functions have the address of whom
    they are in."""
    frames = []
    frame = gdb.newest_frame()
    while frame is not None and len(frames) < ENTRIES_MAX:
        name = frame.name() or "??"
        if frame.type() == gdb.SIGTRAMP_FRAME and name == "??":
            name = truth.EXCEPTION
        frames.append((frame.pc(), name))
        try:
            frame = frame.older()
        except gdb.error:
            break
    return frames


def by_stackprof():
    """By thread: its name, whether it is complete, and (address, name) of its frames."""
    said = subprocess.run(
        [os.environ["STACKPROF"], "dump", "stacks", "--gdb", PLACE, "--exec", ELF],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    threads = []
    for line in said.stdout.splitlines():
        if match := THREAD.match(line):
            threads.append({"name": match[2], "complete": match[4] is None, "why": match[4], "frames": [], "how": []})
        elif (match := FRAME.match(line)) and threads:
            threads[-1]["frames"].append((int(match[2], 16), match[4]))
            threads[-1]["how"].append(match[3])
    if not threads:
        raise gdb.GdbError(f"stackprof: {said.stderr}")
    return threads


def names(frames):
    return truth.whole([name for _, name in frames])


def compare(kind):
    gdbs = by_gdb()
    pc = gdbs[0][0]
    gdb.execute("disconnect", to_string=True)
    threads = by_stackprof()
    # Of a board with tasks, the one that runs.
    ours = next((thread for thread in threads if thread["frames"] and thread["frames"][0][0] == pc), None)
    result = {"build": BUILD, "kind": kind, "gdb": names(gdbs), "gdb_right": truth.is_right(names(gdbs))}
    # Saved tasks have no second opinion but what the firmware can do.
    others = [thread for thread in threads if thread is not ours]
    wrong = [thread for thread in others if thread["complete"] and not truth.is_right([n for _, n in thread["frames"]])]
    result["others"] = len(others)
    result["others_complete"] = sum(thread["complete"] for thread in others)
    result["others_wrong"] = [names(thread["frames"]) for thread in wrong]
    if ours is None:
        result.update(ours=None, complete=False, same=False, right=False, why=f"nothing at {pc:#x}")
    else:
        right = truth.is_right([name for _, name in ours["frames"]])
        same = names(gdbs) == names(ours["frames"])
        result.update(ours=names(ours["frames"]), complete=ours["complete"], same=same, right=right)
        result.update(why=ours["why"], how=ours["how"])
    with open(os.environ["RESULTS"], "a", encoding="utf-8") as results:
        results.write(json.dumps(result) + "\n")


def main():
    for setting in ("pagination off", "confirm off", "backtrace past-main on", "backtrace limit 200"):
        gdb.execute(f"set {setting}")
    seed = int(os.environ.get("SEED", "1"))
    choice = random.Random(f"{seed} {BUILD}")
    # Its start is over.
    time.sleep(0.2)
    for _ in range(STOPS):
        time.sleep(choice.uniform(0.001, 0.02))
        connect()
        compare("random")
    if not BUILD.startswith("rtos"):
        return
    for step in range(SWITCH_STEPS):
        connect()
        gdb.execute("tbreak *(&PendSV_Handler)", to_string=True)
        gdb.execute("continue", to_string=True)
        if step:
            gdb.execute(f"stepi {step}", to_string=True)
        compare("switch")


main()
