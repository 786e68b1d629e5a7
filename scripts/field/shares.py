"""Self shares: which function runs, by stackprof, by perf and by the program itself."""

import collections
import re

from judge import bare

# Where a shared name says only that code was made at run time.
MADE = "[made at run time]"


def plain(name):
    """Aliases of one function have one name: __GI___libc_write, __write and write."""
    name = bare(name)
    name = re.sub(r"^(runtime\..*|.*)\.abi0$", r"\1", name)
    return re.sub(r"^_+", "", re.sub(r"^_*(GI_+|libc_|vdso_)+", "", name)) or name


def is_file(module):
    return bool(module) and not module.startswith(("[", "//", "perf-", "zero", "dev", "anon", "memfd", "inst_")) \
        and "(deleted)" not in module or module == "[vdso]"


def place(frame):
    """The name under which a frame's time is added up, as its own profiler sees it."""
    if frame.name and not frame.name.startswith("["):
        return plain(frame.name.removesuffix("@plt")) if not frame.name.endswith("@plt") else f"[{frame.module}]"
    return f"[{frame.module}]" if is_file(frame.module) else MADE


def self_shares(recording, name_of):
    """{name: percent}, of the innermost frames."""
    sums = collections.Counter()
    for count, stack in recording.stacks:
        if stack:
            sums[name_of(stack[0])] += count
    whole = sum(sums.values()) or 1
    return {name: 100 * count / whole for name, count in sums.items()}


def names_by_address(recordings):
    """How stackprof names addresses: between the first and last that it saw of a function.

    perf may have another name for the same code (a symbol without a size takes all that
    follows it), which is no difference of shares.
    """
    ranges = {}
    for recording in recordings:
        for _, stack in recording.stacks:
            for frame in stack[:1]:
                if is_file(frame.module):
                    key = (frame.module, frame.name if frame.name else "?")
                    low, high = ranges.get(key, (frame.offset, frame.offset))
                    ranges[key] = (min(low, frame.offset), max(high, frame.offset))
    by_module = collections.defaultdict(list)
    for (module, name), (low, high) in ranges.items():
        by_module[module].append((high - low, low, high, name))
    for entries in by_module.values():
        entries.sort()

    def name_of(frame):
        for _, low, high, name in by_module.get(frame.module, ()):
            if low <= frame.offset <= high:
                return place(type(frame)(frame.module, frame.offset, name))
        return place(frame)
    return name_of


def merged(recordings):
    one = type(recordings[0])()
    for recording in recordings:
        one.stacks += recording.stacks
        one.complete += recording.complete
        one.whole += recording.whole
    return one


def compare(ours, theirs, least=1.0):
    """The rows that either says to be `least` percent, largest difference first."""
    rows = [(name, ours.get(name, 0.0), theirs.get(name, 0.0)) for name in {*ours, *theirs}]
    rows = [row for row in rows if max(row[1:]) >= least]
    rows.sort(key=lambda row: (-abs(row[1] - row[2]), row[0]))
    return [[name, round(a, 2), round(b, 2)] for name, a, b in rows]


def under(recording, names):
    """Shares of those of the named functions that are innermost, of all time in any of them."""
    sums = collections.Counter()
    for count, stack in recording.stacks:
        for frame in stack:
            name = plain(frame.name)
            if name in names:
                sums[name] += count
                break
    whole = sum(sums.values()) or 1
    return {name: 100 * sums[name] / whole for name in names}
