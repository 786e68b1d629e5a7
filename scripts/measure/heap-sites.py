#!/usr/bin/env python3
"""How often the intervals of `stackprof heap` hold: 30 known sites, real runs.

    STACKPROF=path scripts/measure/heap-sites.py [RUNS [EVERY]]     default: 20 runs, 16K

Compiles C programs with 30 sites together (the table of leaks has ten rows), each of which leaves a known number of blocks of 16 B to 16 MiB in use: plain,
grown by realloc, half of them freed by another thread, from four threads. Runs it under `stackprof heap` and
compares the rows of the table of leaks with the truth. A site without a row counts as a miss if its bytes are
above what an unsampled site may hold at 95 % (3 intervals). Prints the sites and the share inside; gates nothing.
"""
import os, re, subprocess, sys, tempfile

STACKPROF = os.environ.get("STACKPROF", "stackprof")
RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 20
EVERY = sys.argv[2] if len(sys.argv) > 2 else "16K"
SIZES = [16, 24, 48, 100, 256, 700, 1500, 4096, 9000, 20000, 65536, 200000, 1 << 20, 4 << 20, 16 << 20]
# Sites of a program: with the rows of pthread_create and main at most ten.
ROWS = 6
UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def sites():
    """(name, size, blocks, way) of each site: about 100 KiB to 3 MiB, larger blocks two of them."""
    found = []
    for at, size in enumerate(SIZES):
        for part in range(2):
            blocks = max(2, (200_000 << (at % 5)) // size) & ~1
            way = ("plain", "realloc", "freed", "thread")[(2 * at + part) % 4]
            found.append((f"site_{2 * at + part:02}", size, blocks, way))
    return found


def source(sites):
    text = ["#include <pthread.h>", "#include <stdlib.h>", "static void **volatile kept[64];"]
    calls, threads = [], []
    for at, (name, size, blocks, way) in enumerate(sites):
        total = blocks * 2 if way == "freed" else blocks
        first = max(1, size // 8)
        get = (
            f"void *p = malloc({first}); p = realloc(p, {max(1, size // 2)}); p = realloc(p, {size});"
            if way == "realloc"
            else f"void *p = malloc({size});"
        )
        text.append(
            f"__attribute__((noinline)) static void {name}(void) {{ void **all = kept[{at}]; "
            f"for (int i = 0; i < {total}; i++) {{ {get} all[i] = p; }} __asm__ volatile(\"\" ::: \"memory\"); }}"
        )
        calls.append(f"kept[{at}] = calloc({total}, sizeof(void *));")
        if way == "thread":
            text.append(f"static void *{name}_run(void *a) {{ {name}(); return a; }}")
            threads.append(f"pthread_create(&t[n++], 0, {name}_run, 0);")
        else:
            calls.append(f"{name}();")
        if way == "freed":
            text.append(
                f"static void *{name}_free(void *a) {{ for (int i = 0; i < {total}; i += 2) free(kept[{at}][i]); return a; }}"
            )
            threads.append(f"pthread_create(&t[n++], 0, {name}_free, 0);")
    text.append("int main(void) { pthread_t t[64]; int n = 0;")
    text += calls + threads
    text.append("while (n) pthread_join(t[--n], 0); return 0; }")
    return "\n".join(text)


def number(text):
    found = re.fullmatch(r"([\d,.]+)\s*(\w*)", text.strip())
    return float(found[1].replace(",", "")) * UNITS[found[2]]


def interval(cell):
    """The ends of `1.4 MiB ±8.9%` or `268.5 KiB (202.5 KiB–349.0 KiB)`, with room for the rounding of the text."""
    if "(" in cell:
        low, high = cell[cell.index("(") + 1 : cell.index(")")].split("–")
        return number(low) * 0.999, number(high) * 1.001
    value, _, percent = cell.partition("±")
    share = float(percent.strip(" %") or 0) / 100
    return number(value) * (1 - share - 0.001), number(value) * (1 + share + 0.001)


def rows(text):
    table = text[text.index("\n  leaked") :].split("\n")[2:] if "\n  leaked" in text else []
    for line in table:
        cells = re.split(r"\s{2,}", line.strip())
        if len(cells) == 3:
            yield cells[2], interval(cells[0]), interval(cells[1])


def main():
    known = sites()
    inside = {"bytes": 0, "blocks": 0}
    by_site = {name: [0, 0] for name, *_ in known}
    every = number(re.sub("([KM])$", r" \1iB", EVERY))
    with tempfile.TemporaryDirectory() as place:
        programs = []
        for at in range(0, len(known), ROWS):
            program = os.path.join(place, f"sites-{at}")
            with open(program + ".c", "w") as out:
                out.write(source(known[at : at + ROWS]))
            subprocess.run(["cc", "-O1", "-pthread", "-o", program, program + ".c"], check=True)
            programs.append(program)
        for _ in range(RUNS):
            shown = {}
            for program in programs:
                command = [STACKPROF, "heap", "--every", EVERY, "-o", os.path.join(place, "a.pb.gz"), "--", program]
                run = subprocess.run(command, text=True, capture_output=True, check=True, env={**os.environ, "COLUMNS": "200"})
                if "  missing " in run.stderr:
                    print(run.stderr)
                shown |= {name: (in_bytes, in_blocks) for name, in_bytes, in_blocks in rows(run.stderr)}
            for name, size, blocks, _ in known:
                truth = size * blocks
                if name in shown:
                    (low, high), (few, many) = shown[name]
                    holds = low <= truth <= high, few <= blocks <= many
                else:
                    holds = (truth <= 3 * every,) * 2
                for at, kind in enumerate(inside):
                    inside[kind] += holds[at]
                    by_site[name][at] += holds[at]
    print(f"{'site':8} {'size':>9} {'blocks':>7} way      bytes blocks inside, of {RUNS}")
    for name, size, blocks, way in known:
        print(f"{name:8} {size:9} {blocks:7} {way:8} {by_site[name][0]:5} {by_site[name][1]:6}")
    cases = RUNS * len(known)
    for kind, held in inside.items():
        print(f"{kind}: {held} of {cases} inside ({100 * held / cases:.1f} %)")


main()
