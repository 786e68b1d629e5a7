"""The soak of scripts/soak.sh: four recordings at once, of servers whose clients check each answer."""

import argparse
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import clients

SOURCES = ("perf", "ptrace")
# Of 30 minutes the first 5 are those in which tables fill.
SETTLED_SHARE = 25 / 30
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def status_kib(pid):
    """VmRSS and RssAnon of a process in KiB; None after its end."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            lines = dict(line.split(":", 1) for line in file if ":" in line)
        return int(lines["VmRSS"].split()[0]), int(lines["RssAnon"].split()[0])
    except (OSError, KeyError):
        return None


def cpu_s(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    except OSError:
        return None


class Pair:
    """A server, its client, and the profiler that records it by one source."""

    def __init__(self, name, source, place):
        self.name, self.source, self.place = name, source, place
        self.port = free_port()
        if name == "redis":
            argv = ["redis-server", "--port", str(self.port), "--save", "", "--bind", "127.0.0.1", "--dir", place]
        else:
            argv = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-Dsun.net.httpserver.nodelay=true", "-cp", place, "Soak", str(self.port)]
        with open(f"{self.path}-server.log", "w", encoding="utf-8") as log:
            self.server = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self.client = self.profiler = None
        self.memory, self.cpu = [], 0.0

    @property
    def path(self):
        return os.path.join(self.place, f"{self.name}-{self.source}")

    def start_client(self, per_s, gaps):
        end = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                break
            except OSError:
                if time.monotonic() > end or self.server.poll() is not None:
                    raise SystemExit(f"soak: {self.name} does not listen; see {self.path}-server.log") from None
                time.sleep(0.1)
        kind = clients.Redis if self.name == "redis" else clients.Jvm
        self.client = kind(self.port, per_s)
        self.client.look, self.client.gaps = self.look, gaps
        self.client.start()

    def look(self):
        """State, CPU time and time waited for a CPU of the server, and how busy the machine is."""
        try:
            with open(f"/proc/{self.server.pid}/stat", encoding="utf-8") as file:
                state = file.read().rpartition(")")[2].split()[0]
            with open(f"/proc/{self.server.pid}/schedstat", encoding="utf-8") as file:
                used_ns, waited_ns = file.read().split()[:2]
            return (f"server {state}, used {int(used_ns) / 1e9:.1f} s, waited for a CPU {int(waited_ns) / 1e9:.1f} s, "
                    f"load {os.getloadavg()[0]:.0f}")
        except OSError:
            return "no server"

    def start_profiler(self, program, seconds):
        with open(f"{self.path}-profiler.log", "w", encoding="utf-8") as log:
            self.profiler = subprocess.Popen(
                [program, "--source", self.source, "-p", str(self.server.pid), "-d", str(seconds), "-v",
                 "-o", f"{self.path}.folded", "-o", f"{self.path}.svg", "--stats", f"{self.path}.json"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def measure(self, since):
        used = cpu_s(self.profiler.pid)
        kib = status_kib(self.profiler.pid)
        if kib:
            self.memory.append((time.monotonic() - since, *kib))
            self.cpu = used or self.cpu

    def end(self):
        for process in (self.profiler, self.server):
            if process and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def spread(values):
    """Median, and the least and the most in per cent of it."""
    middle = statistics.median(values)
    return middle, (min(values) / middle - 1) * 100, (max(values) / middle - 1) * 100


def report(pairs, seconds):
    print("| target | source | requests | errors | p99 ms | samples | lost % | profiler CPU % | RSS MiB | last "
          f"{seconds * SETTLED_SHARE / 60:.1f} min | anonymous MiB | last {seconds * SETTLED_SHARE / 60:.1f} min | peak MiB |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    errors = 0
    for pair in pairs:
        client = pair.client
        settled = [row for row in pair.memory if seconds - seconds * SETTLED_SHARE <= row[0] <= seconds]
        cells = ["?"] * 4
        if settled:
            cells = []
            for column in (1, 2):
                middle, least, most = spread([row[column] for row in settled])
                cells += [f"{middle / 1024:.1f}", f"{least:+.1f} to {most:+.1f} %"]
        try:
            with open(f"{pair.path}.json", encoding="utf-8") as file:
                stats = json.load(file)
        except (OSError, ValueError):
            stats = {}
        lost = sum(stats.get("samples_lost", {}).values())
        samples = stats.get("samples", 0)
        print(f"| {pair.name} | {pair.source} | {client.requests} | {client.errors} | {client.percentile_ms(99):.1f} | {samples} | "
              f"{100 * lost / max(1, samples + lost):.2f} | {100 * pair.cpu / seconds:.2f} | {' | '.join(cells)} | "
              f"{stats.get('profiler_peak_rss_bytes', 0) / (1 << 20):.1f} |")
        errors += client.errors
    print()
    for pair in pairs:
        if pair.client.complaints:
            print(f"{pair.name} {pair.source}: " + "; ".join(pair.client.complaints))
        if pair.profiler.returncode != 0:
            print(f"{pair.name} {pair.source}: the profiler ended with {pair.profiler.returncode}; see {pair.path}-profiler.log")
        print(f"{pair.name} {pair.source}: RSS MiB each 1/10: "
              + " ".join(f"{row[1] / 1024:.1f}" for row in pair.memory[::max(1, len(pair.memory) // 10)])
              + "; anonymous: " + " ".join(f"{row[2] / 1024:.1f}" for row in pair.memory[::max(1, len(pair.memory) // 10)]))
    return errors


def main():
    parser = argparse.ArgumentParser(prog="scripts/soak.sh", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--every", type=float, default=10, metavar="SECONDS", help="between two readings of memory (default: 10)")
    parser.add_argument("--only", default="", metavar="TARGET-SOURCE,...", help="redis-perf, redis-ptrace, jvm-perf, jvm-ptrace")
    parser.add_argument("--keep", action="store_true", help="leave profiles, statistics and logs where they are")
    parser.add_argument("stackprof")
    arguments = parser.parse_args()
    program, seconds = os.path.realpath(arguments.stackprof), arguments.minutes * 60
    place = tempfile.mkdtemp(prefix="stackprof-soak-")
    here = os.path.dirname(os.path.abspath(__file__))
    subprocess.run(["javac", "-d", place, os.path.join(here, "Soak.java")], check=True)
    chosen = [pair for pair in arguments.only.split(",") if pair]
    pairs = []
    try:
        for name in ("redis", "jvm"):
            for source in SOURCES:
                if not chosen or f"{name}-{source}" in chosen:
                    pairs.append(Pair(name, source, place))
        gaps = clients.Gaps()
        gaps.start()
        for pair in pairs:
            pair.start_client(80 if pair.name == "redis" else 50, gaps)
        # The JVM compiles most of what it will in its first seconds.
        time.sleep(5)
        for pair in pairs:
            pair.start_profiler(program, seconds)
        since = time.monotonic()
        print(f"soak: {len(pairs)} recordings of {arguments.minutes:g} minutes; files in {place}", flush=True)
        while any(pair.profiler.poll() is None for pair in pairs):
            for pair in pairs:
                pair.measure(since)
            if time.monotonic() - since > seconds + 300:
                print("soak: a profiler did not end within five minutes after its time")
                break
            time.sleep(min(arguments.every, max(0.2, seconds / 20)))
        for pair in pairs:
            if pair.server.poll() is not None:
                pair.client.complain(f"the server ended with {pair.server.returncode}")
            pair.client.finish()
    finally:
        for pair in pairs:
            pair.end()
    errors = report(pairs, seconds)
    print(f"clients themselves stood for at most {gaps.longest_s:.2f} s, and {sum(pair.client.starved for pair in pairs)} "
          f"requests timed out then, which are no errors; load {os.getloadavg()[2]:.0f}")
    if not arguments.keep and not errors and all(pair.profiler.returncode == 0 for pair in pairs):
        shutil.rmtree(place, ignore_errors=True)
    print(f"soak: {errors} client errors")
    sys.exit(errors > 0)


if __name__ == "__main__":
    main()
