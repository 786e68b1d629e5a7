"""Run by gdb: the stack of every allocation that the heap shim samples in a program, one JSON object a line.

Environment: HEAP_GDB_SHIM (what LD_PRELOAD is to be in the program), HEAP_GDB_STOPS (the file written).
A line is {"size", "frames": [[file, offset, name], ...], "end"}: innermost frame first, without inlined and tail calls; why gdb
stopped walking, if something failed. The last line is {"exit": the exit code, if there is one}.
"""

import json
import os
import re
import struct

import gdb

SIZES = {1: ["rdi"], 2: ["rdi", "rsi"], 3: ["rsi"], 4: ["rsi", "rdx"], 5: ["rdx"], 6: ["rsi"], 7: ["rsi"], 8: ["rdi"], 9: ["rdi"]}
# `RingHeader::write` in src/heap_shim/shared_memory.rs, and the least that a record of an allocation takes.
WRITE, ALLOCATION_MIN = 128, 128
FRAMES_MAX = 3000


def register(name):
    return int(gdb.parse_and_eval(f"(unsigned long)${name}"))


class Maps:
    """What is mapped where."""

    def __init__(self):
        self.rows = []
        with open(f"/proc/{gdb.selected_inferior().pid}/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                parts = line.split(None, 5)
                low, high = (int(part, 16) for part in parts[0].split("-"))
                self.rows.append((low, high, int(parts[2], 16), parts[5].strip() if len(parts) > 5 else ""))

    def place(self, address):
        for low, high, offset, path in self.rows:
            if low <= address < high:
                return [os.path.basename(path), address - low + offset]
        return None

    def start(self, pattern):
        return next((low for low, _, offset, path in self.rows if offset == 0 and re.search(pattern, path)), None)


class Places:
    """Addresses as files and offsets; reads the maps again for those that are new."""

    def __init__(self):
        self.maps, self.known = Maps(), {}

    def of(self, address):
        if address not in self.known:
            found = self.maps.place(address)
            if not found:
                self.maps = Maps()
                found = self.maps.place(address)
            self.known[address] = found or ["", address]
        return self.known[address]


def slow_path():
    """The address that all entry points of the shim jump to when an allocation may be sampled."""
    text = gdb.execute(f"x/12i {entry('malloc'):#x}", to_string=True)
    # The first jump is the allocator's, through memory.
    found = re.search(r"jmp +(0x[0-9a-f]+)", text)
    if not found:
        raise gdb.GdbError(f"no jump to the slow path in malloc:\n{text}")
    return int(found[1], 16)


def entry(name):
    """Of a function of the shim, read from the file's dynamic symbols: those of libraries loaded later are not asked."""
    maps = Maps()
    base = maps.start(r"/heap\.so$")
    path = next(path for low, _, _, path in maps.rows if low == base)
    text = os.popen(f"nm -D --defined-only '{path}'").read()
    return base + int(re.search(rf"^([0-9a-f]+) T {name}$", text, re.M)[1], 16)


def written():
    """Bytes that were ever reserved in this process's ring: 0 before there is one."""
    pid = gdb.selected_inferior().pid
    base = Maps().start(rf"/ring\.{pid}\.\d+( \(deleted\))?$")
    if base is None:
        return 0
    return struct.unpack("<Q", bytes(gdb.selected_inferior().read_memory(base + WRITE, 8)))[0]


def size():
    product = 1
    for name in SIZES[register("rax") & 0xFFFFFFFF]:
        product *= register(name)
    return product


def stack(places):
    frames, end = [], ""
    try:
        # The first is in the shim.
        frame = gdb.newest_frame().older()
        while frame is not None and len(frames) < FRAMES_MAX:
            if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
                # Of the call, as stackprof writes it.
                frames.append([*places.of(frame.pc() - 1), frame.name() or ""])
            why = frame.unwind_stop_reason()
            if why != gdb.FRAME_UNWIND_NO_REASON:
                end = gdb.frame_stop_reason_string(why)
            frame = frame.older()
    except gdb.error as error:
        end = str(error)
    return {"frames": frames, "end": end}


def is_running():
    return bool(gdb.selected_inferior().pid) and bool(gdb.selected_inferior().threads())


def exit_code():
    value = gdb.convenience_variable("_exitcode")
    return None if value is None else int(value)


def main():
    for line in ("set pagination off", "set confirm off", "set disable-randomization on",
                 "set debuginfod enabled off", "set backtrace limit unlimited", "set backtrace past-main on",
                 "set backtrace past-entry off", "set print thread-events off", "set print inferior-events off",
                 "handle all nostop noprint pass", "handle SIGTRAP stop noprint nopass", "unset environment LINES",
                 "unset environment COLUMNS", f"set environment LD_PRELOAD {os.environ['HEAP_GDB_SHIM']}",
                 "set breakpoint pending on", "catch load heap\\.so"):
        gdb.execute(line, to_string=True)
    gdb.execute("run", to_string=True)
    gdb.execute("delete", to_string=True)
    slow = slow_path()
    gdb.Breakpoint(f"*{slow:#x}", internal=True)
    places = None
    with open(os.environ["HEAP_GDB_STOPS"], "w", encoding="utf-8") as file:
        while True:
            gdb.execute("continue", to_string=True)
            if not is_running():
                break
            if register("pc") != slow:
                continue
            places = places or Places()
            row = {"size": size(), **stack(places)}
            before, caller = written(), gdb.newest_frame().older()
            sp = int(caller.read_register("sp"))
            back = gdb.Breakpoint(f"*{caller.pc():#x}", internal=True)
            back.condition = f"$sp == {sp:#x}"
            gdb.execute("continue", to_string=True)
            back.delete()
            if written() - before >= ALLOCATION_MIN:
                file.write(json.dumps(row) + "\n")
        file.write(json.dumps({"exit": exit_code()}) + "\n")


main()
