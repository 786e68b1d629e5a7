"""Self shares: which function runs, by stackprof, by perf and by the program itself."""

import bisect
import collections
import functools
import re
import statistics

from judge import bare

# Where a shared name says only that code was made at run time.
MADE = "[made at run time]"
# All that is in none of the functions that a program tells its shares of.
REST = "the rest"
# Its functions have the names of those that they take the time of.
CLOCKS = "clocks.so"


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
    follows it), which is no difference of shares. What lies between two functions that were
    seen is one of the two: perf tells which, unless it has a third name.
    """
    ranges = {}
    for recording in recordings:
        for _, stack in recording.stacks:
            for frame in stack[:1]:
                if is_file(frame.module):
                    key = (frame.module, frame.name)
                    low, high = ranges.get(key, (frame.offset, frame.offset))
                    ranges[key] = (min(low, frame.offset), max(high, frame.offset))
    by_module = collections.defaultdict(list)
    for (module, name), (low, high) in ranges.items():
        by_module[module].append((low, high, name))
    for entries in by_module.values():
        entries.sort()

    def name_of(frame):
        entries = by_module.get(frame.module, [])
        around = [(high - low, name) for low, high, name in entries if low <= frame.offset <= high]
        if around:
            return place(type(frame)(frame.module, frame.offset, min(around)[1]))
        at = bisect.bisect_left(entries, (frame.offset,))
        beside = [place(type(frame)(frame.module, frame.offset, name)) for _, _, name in entries[max(at - 1, 0):at + 1]]
        return place(frame) if not beside or place(frame) in beside else beside[0]
    return functools.cache(name_of)


def merged(recordings):
    one = type(recordings[0])()
    for recording in recordings:
        one.stacks += recording.stacks
        one.complete += recording.complete
        one.whole += recording.whole
    return one


def compare(ours, theirs, least=1.0):
    """[[name, ours, theirs, chance]] of what either says to be `least` percent, largest difference first.

    Both are lists, one recording of each round, {name: percent}: shares are means over the rounds. Chance is how far
    the mean of the differences of the rounds may be from none at all, 95 of 100 times; None of fewer than three rounds.
    """
    rows = []
    for name in set().union(*ours, *theirs):
        pairs = [(a.get(name, 0.0), b.get(name, 0.0)) for a, b in zip(ours, theirs)]
        mine, other = (statistics.fmean(side) for side in zip(*pairs))
        if max(mine, other) >= least:
            rows.append([name, round(mine, 2), round(other, 2), chance([a - b for a, b in pairs])])
    return sorted(rows, key=lambda row: (-abs(row[1] - row[2]), row[0]))


# Student's t, two-sided, 95 %, by degrees of freedom; from ten on 2.2 and less.
T_95 = {2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}


def chance(differences):
    """Half the width of the interval of the mean of what rounds differ by."""
    rounds = len(differences)
    if rounds < 3:
        return None
    return round(T_95.get(rounds - 1, 2.2) * statistics.stdev(differences) / rounds ** 0.5, 2)


def under(recording, names):
    """Shares of those of the named functions that are innermost, of all time in any of them, or of all with [`REST`]."""
    sums = collections.Counter()
    for count, stack in recording.stacks:
        inside = (plain(frame.name) for frame in stack if frame.module != CLOCKS)
        name = next((name for name in inside if name in names), REST)
        sums[name] += count if name in names else 0
    whole = sum(sums.values()) or 1
    return {name: 100 * sums[name] / whole for name in names}
