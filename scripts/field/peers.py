"""Stacks of a stopped process by stackprof and by debuggers, as {thread: Stack}."""

import os
import re
from dataclasses import dataclass, field

from process import Trouble, run

HERE = os.path.dirname(os.path.abspath(__file__))
FRAMES_MAX = 400


@dataclass
class Stack:
    """Addresses from the innermost frame outward; the first is a pc, the rest return addresses."""

    addresses: list = field(default_factory=list)
    names: list = field(default_factory=list)
    methods: list = field(default_factory=list)
    thread_name: str = ""
    incomplete: str = ""  # stackprof's reason
    unseen: bool = False  # stackprof has no stack of it
    end: str = ""  # a debugger's
    top: tuple = ()  # the stack pointer and rbp, as gdb tells them


def by_stackprof(stackprof, pid, timeout_s=60):
    code, out, err = run([stackprof, "dump", "stacks", "--no-inline", "--pid", str(pid)], timeout_s)
    if code != 0:
        raise Trouble(f"dump stacks: exit code {code}: {err.strip()[-200:]}")
    return parse_dump(out)


def parse_dump(text):
    """`thread TID (NAME) STATE[, incomplete: WHY]`, then `#NUMBER ADDRESS METHOD NAME[  (MODULE)]`."""
    stacks, stack = {}, None
    for line in text.splitlines():
        head = re.match(r"thread (\d+) \((.*)\) (\w+)(?:, (.*))?$", line)
        frame = re.match(r"\s+#(\d+)\s+(0x[0-9a-f]+)\s+(\S+)\s+(.*)", line)
        if head:
            why = head[4] or ""
            stack = Stack(thread_name=head[2], incomplete=why.removeprefix("incomplete: "), unseen=why == "not stopped")
            stacks[int(head[1])] = stack
        elif frame and stack is not None and int(frame[1]) == len(stack.addresses):
            stack.addresses.append(int(frame[2], 16))
            stack.methods.append(frame[3])
            # The module of a library's function is no part of its name.
            stack.names.append(re.sub(r"  \([^()]*\)$", "", frame[4]))
    return stacks


def by_gdb(pid, timeout_s=90):
    settings = ["set pagination off", "set debuginfod enabled off", "set auto-load off",
                "set backtrace past-main on", "set print thread-events off"]
    argv = ["gdb", "-nx", "-q", "-batch", *(word for each in settings for word in ("-iex", each)),
            "-p", str(pid), "-x", f"{HERE}/gdb_stacks.py"]
    _, out, err = run(argv, timeout_s, env={**os.environ, "FIELD_FRAMES_MAX": str(FRAMES_MAX)})
    stacks, stack = {}, None
    for line in out.splitlines():
        head = re.match(r"thread (\d+)$", line)
        frame = re.match(r"(0x[0-9a-f]+) (.*)$", line)
        if head:
            stack = stacks.setdefault(int(head[1]), Stack())
        elif stack is not None and frame:
            stack.addresses.append(int(frame[1], 16))
            stack.names.append(frame[2])
        elif stack is not None and line.startswith("end "):
            stack.end = line[4:]
        elif stack is not None and line.startswith("top "):
            stack.top = tuple(int(word, 16) for word in line.split()[1:])
    if not stacks:
        raise Trouble(f"gdb: no stacks: {err.strip()[-200:]}")
    return stacks


def by_eu_stack(pid, timeout_s=60):
    _, out, err = run(["eu-stack", "-q", "-n", str(FRAMES_MAX), "-p", str(pid)], timeout_s)
    stacks, stack = {}, None
    for line in out.splitlines():
        head = re.match(r"TID (\d+):$", line)
        frame = re.match(r"#\d+\s+(0x[0-9a-f]+)", line)
        if head:
            stack = stacks.setdefault(int(head[1]), Stack())
        elif stack is not None and frame:
            stack.addresses.append(int(frame[1], 16))
            stack.names.append("")
    for tid, why in re.findall(r"dwfl_thread_getframes tid (\d+) at \S+ in \S*: (.*)", err):
        stacks.setdefault(int(tid), Stack()).end = why
    return stacks


def by_hotspot(pid, timeout_s=90):
    """The physical Java frames as HotSpot's own walker finds them, without native ones.

    It prints a pc per frame; methods inlined into one have the same.
    """
    agent = "jdk.hotspot.agent"
    argv = ["java", "-XX:TieredStopAtLevel=1", "--add-modules", agent,
            "--add-exports", f"{agent}/sun.jvm.hotspot.tools=ALL-UNNAMED", f"{HERE}/JavaFrames.java", str(pid)]
    _, out, err = run(argv, timeout_s)
    stacks, stack = {}, None
    for line in out.splitlines():
        head = re.search(r"nid=(?:0x([0-9a-f]+)|(\d+)) ", line) if line.startswith('"') else None
        frame = re.match(r" - (\S+?)\(.*\bpc=(0x[0-9a-f]+)", line)
        if head:
            stack = stacks.setdefault(int(head[1], 16) if head[1] else int(head[2]), Stack())
        elif stack is not None and frame:
            pc = int(frame[2], 16)
            if not stack.addresses or stack.addresses[-1] != pc:
                stack.addresses.append(pc)
                stack.names.append(frame[1])
    if not stacks:
        raise Trouble(f"the agent of HotSpot: no stacks: {(out + err).strip()[-200:]}")
    return stacks
