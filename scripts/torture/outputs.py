"""Whether what a profiler left is whole: each format by its own end, and no name but those asked for."""

import gzip
import json
import os
import re
import stat
import xml.etree.ElementTree

OLD = "this was here before\n" * 3


def whole(name, data):
    """None, or what is wrong with the content of a file of that name."""
    if not data:
        return "is empty"
    try:
        if name.endswith(".folded") or name.endswith(".txt"):
            if not data.endswith(b"\n"):
                return "ends within a line"
            for line in data.splitlines():
                if not re.search(rb" [0-9.]+$", line):
                    return f"has the line {line[:60]!r}"
        elif name.endswith(".svg"):
            if not data.rstrip().endswith(b"</svg>"):
                return "does not end with </svg>"
            if len(data) < 2_000_000:
                xml.etree.ElementTree.fromstring(data)
        elif name.endswith(".gz") or name.endswith(".pprof"):
            if not gzip.decompress(data):
                return "unpacks to nothing"
        elif name.endswith(".json"):
            json.loads(data)
        elif not data.endswith(b"\n"):
            return "ends within a line"
    except (ValueError, OSError, EOFError, xml.etree.ElementTree.ParseError) as error:
        return f"is half: {type(error).__name__}: {error}"
    return None


def same(path, data):
    """Whether it is a file with that content."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read() == data


def is_replacement(name, data, before):
    """Whether it is a whole output that was to replace one: no system call gives a file without a name that of another,
    so it has a temporary one until `rename`."""
    return re.fullmatch(r"\.stackprof-\d+-[0-9a-f]{16}\.tmp", name) and any(whole(old, data) is None for old in before)


def judge(folder, allowed, before, killed=False):
    """What is wrong in a folder. `allowed`: a function of a name; `before`: names and their old contents; `killed`: by a
    signal that leaves the profiler no time to remove anything."""
    found = []
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        mode = os.lstat(path).st_mode
        if name not in before and not allowed(name):
            if killed and stat.S_ISREG(mode):
                with open(path, "rb") as file:
                    if is_replacement(name, file.read(), before):
                        continue
            found.append(f"left: {name} of {os.lstat(path).st_size} bytes")
            continue
        if not stat.S_ISREG(mode):
            continue
        with open(path, "rb") as file:
            data = file.read()
        if name in before and data == before[name]:
            continue
        if name in before and not allowed(name):
            found.append(f"{name} has changed, which nobody asked for")
            continue
        fault = whole(name, data)
        if fault:
            found.append(f"half: {name} of {len(data)} bytes {fault}")
    for name in before:
        if not os.path.lexists(os.path.join(folder, name)):
            found.append(f"{name} is gone")
    return found
