"""How long a board stands for one stack, and how many a second there are: stackprof beside gdb in batch mode
(`gdb -batch -ex 'target remote' -ex bt -ex detach`), over QEMU's stub on loopback, in turns.

    python3 scripts/gdb-stacks/cost.py FIRMWARE.elf PORT ROUNDS

The board's own timer tells how long it ran: its interrupts are counted in `ticks` of the firmware, which is read
before and after, and how many of them a second has is found out first. STACKPROF names the program."""

import os
import re
import socket
import statistics
import subprocess
import sys
import time

ELF, PORT, ROUNDS = sys.argv[1], sys.argv[2], int(sys.argv[3])
PLACE = f"127.0.0.1:{PORT}"
SECONDS = 4
GDB_STACKS = 12


class Stub:
    """Reads a word of the board's memory; the board runs on afterwards."""

    def __init__(self):
        self.socket = socket.create_connection(("127.0.0.1", int(PORT)))
        self.file = self.socket.makefile("rwb", buffering=0)

    def ask(self, body):
        total = sum(body.encode()) & 255
        self.file.write(f"${body}#{total:02x}".encode())
        while True:
            while self.file.read(1) != b"$":
                pass
            answer = b""
            while (byte := self.file.read(1)) != b"#":
                answer += byte
            self.file.read(2)
            self.file.write(b"+")
            # QEMU tells of the stop that a connection makes.
            if not answer.startswith(b"T") or body == "?":
                return answer.decode()


def address_of(name):
    symbols = subprocess.run(["nm", ELF], capture_output=True, text=True, check=True).stdout
    return int(re.search(rf"^([0-9a-f]+) \w {name}$", symbols, re.M)[1], 16)


TICKS = address_of("ticks")


def ticks():
    """The board's count, and when that was."""
    stub = Stub()
    stub.ask("qSupported")
    count = int.from_bytes(bytes.fromhex(stub.ask(f"m{TICKS:x},4")), "little")
    stub.ask("D")
    stub.socket.close()
    return count, time.monotonic()


def stood(work, per_second):
    """What `work` gives, and how many seconds of its time the board stood."""
    before, begun = ticks()
    result = work()
    after, ended = ticks()
    return result, max(ended - begun - (after - before) / per_second, 0), ended - begun


def by_stackprof(most):
    command = [os.environ["STACKPROF"], "--gdb", PLACE, "--exec", ELF, "-d", str(SECONDS), "--max-stop", str(most)]
    command += ["-o", "/dev/null", "--format", "folded", "--stats", "-"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    stops = re.search(r'"stops": ?(\d+)', said.stdout)
    return int(stops[1])


def by_gdb():
    command = ["gdb-multiarch", "-q", "-nx", "-batch", "-ex", f"target remote {PLACE}", "-ex", "bt", "-ex", "detach", ELF]
    for _ in range(GDB_STACKS):
        subprocess.run(command, capture_output=True, timeout=60, check=True)
    return GDB_STACKS


def main():
    first, begun = ticks()
    time.sleep(5)
    last, ended = ticks()
    per_second = (last - first) / (ended - begun)
    ways = {
        "stackprof": lambda: by_stackprof(5),
        "stackprof --max-stop 50": lambda: by_stackprof(50),
        "gdb -batch": by_gdb,
    }
    found = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, work in ways.items():
            stops, stood_s, took_s = stood(work, per_second)
            found[way].append((1000 * stood_s / stops, stops / took_s, 100 * stood_s / took_s))
    print(f"{per_second:.2f} ticks a second")
    print(f"{'':24} {'ms per stack':>12} {'stacks/s':>9} {'stood':>7}   medians of {ROUNDS} rounds")
    for way, rounds in found.items():
        ms, rate, share = (statistics.median(column) for column in zip(*rounds))
        print(f"{way:24} {ms:12.2f} {rate:9.1f} {share:6.1f}%")


main()
