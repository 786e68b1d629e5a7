#!/usr/bin/env python3
"""What `stackprof heap` adds to the instructions of a program: a cost that other load on the machine does not change.

    STACKPROF=path scripts/measure/heap-instructions.py [--scale N] [--program NAME;...]

valgrind's cachegrind counts the instructions of each program of heap_programs.py once by itself and once under stackprof.
Prints a Markdown table. Needs valgrind and redis, python3, g++ and sqlite3, each as far as it is measured.
"""

import argparse
import os
import re
import tempfile

from heap_programs import programs

STACKPROF = os.environ.get("STACKPROF", "stackprof")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.04)
    parser.add_argument("--program", default="")
    options = parser.parse_args()
    print("| program | instructions, million | with stackprof |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as work:
        counter = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
        recorder = [STACKPROF, "heap", "-q", "-o", f"{work}/a.pb.gz", "--"]
        for program in programs(work, options.scale):
            if options.program and program.name not in options.program.split(";") or not program.is_installed():
                continue
            without, with_ = (
                int(re.search(r"I +refs: +([0-9,]+)", program.run(argv, {"PYTHONHASHSEED": "0"}))[1].replace(",", ""))
                for argv in (counter, [*recorder, *counter]))
            print(f"| {program.name} | {without / 1e6:.0f} | × {with_ / without:.4f} |", flush=True)


main()
