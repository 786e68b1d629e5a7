"""What one try does, drawn from a seed and its number alone."""

import random

# Kind of a try; each has a line in the report.
ATTACH = ("record-perf", "record-ptrace")
LAUNCH = ("launch-perf", "launch-ptrace")
HEAP = "launch-heap"
KINDS = (
    *ATTACH, *LAUNCH, "render", "record-sim", *ATTACH, *LAUNCH, "diff", "dump-threads", *ATTACH, "gate", "dump-stacks",
    "launch-names", HEAP, *ATTACH, "render-stdin", HEAP, "dump-images", *LAUNCH, "gate-baseline", "dump-symbols", "demo",
)
ENDING = ("INT", "TERM", "HUP")
FORMATS = ("out.svg", "out.folded", "out.pb.gz", "out.pprof", "out.speedscope.json", "out.firefox.json")


class Try:
    """Drawn: kind, condition, options, and signals as (trigger, share, name, whom)."""

    def __init__(self, seed, number, mach=False):
        rng = random.Random(f"{seed} {number}")
        self.seed, self.number = seed, number
        self.kind = rng.choice(("mach-attach", "mach-attach", "mach-launch")) if mach else KINDS[number % len(KINDS)]
        self.ptrace = self.kind in ("record-ptrace", "launch-ptrace", "dump-stacks")
        self.launches = self.kind.startswith("launch") or self.kind in ("mach-launch", "demo")
        self.attaches = self.kind in ATTACH or self.kind.startswith("dump") or self.kind == "mach-attach"
        self.seconds = rng.choice((0.1, 0.3, 0.3, 0.7))
        self.sim = rng.randrange(1, 1000)
        self.formats = rng.sample(FORMATS, rng.choice((1, 1, 2, 3)))
        if self.kind == HEAP:
            # Where nothing is in use at the end, folded stacks have no line, which looks like half a file.
            self.formats = [name if name != "out.folded" else "out.svg" for name in self.formats]
            self.formats = sorted(set(self.formats))
        self.old_files = rng.random() < 0.5
        self.stats = rng.random() < 0.3
        self.options = []
        if self.kind in ATTACH + LAUNCH:
            self.options += ["-F", str(rng.choice((97, 997, 997, 4999)))]
            for option in ("--threads", "--idle", "--per-process", "--no-kernel", "--lines"):
                if rng.random() < 0.2:
                    self.options.append(option)
            if self.kind in ATTACH and rng.random() < 0.5:
                self.options.append("--children")
            if self.kind in LAUNCH and rng.random() < 0.2:
                self.options.append("--no-children")
            if self.kind == "record-perf" and "--idle" not in self.options and rng.random() < 0.2:
                self.options.append("--off-cpu")
        if self.kind == HEAP and rng.random() < 0.5:
            self.options += ["--every", "1"]
        if rng.random() < 0.4:
            self.options.append("-q")
        self.run_ms = rng.choice((50, 200, 500))
        self.condition, self.amount = self.draw_condition(rng)
        self.signals = self.draw_signals(rng)
        # The target itself is stopped and continued meanwhile, which must stay its own affair.
        self.stop_target = self.kind in ATTACH and rng.random() < 0.06
        self.stop_share = rng.random()

    def draw_condition(self, rng):
        writes = not self.kind.startswith("dump") and self.kind != "gate-baseline"
        choices = ["plain"] * 9 + ["memory", "descriptors", "stdout-closed", "file-size", "ignored-hup"]
        if writes:
            choices += ["disk-full", "disk-full", "file-size", "read-only", "fifo", "fifo", "fifo-read", "dev-full", "no-folder"]
        else:
            choices += ["disk-full", "file-size"] if self.kind == "gate-baseline" else ["dev-full", "pipe-closed"]
        if self.kind.startswith("mach"):
            # What the loader itself needs of these is not the program's.
            choices = ["plain"] * 4 + ["disk-full", "fifo", "read-only", "stdout-closed"]
        condition = rng.choice(choices)
        amount = {
            "memory": lambda: int(2 ** rng.uniform(22, 29)),
            "descriptors": lambda: rng.randrange(3, 41),
            "file-size": lambda: int(2 ** rng.uniform(0, 18)),
            "disk-full": lambda: rng.randrange(0, 65536, 4096),
            "fifo-read": lambda: rng.choice((1, 100, 1 << 30)),
        }.get(condition, lambda: 0)()
        if condition == "memory":
            condition = rng.choice(("address-space", "data"))
        if condition == "file-size" and rng.random() < 0.5:
            condition = "file-size-ignored"
        return condition, amount

    def draw_signals(self, rng):
        """A list of (trigger, share, signal, whom): shares are of the expected length, or of the gap to the one before."""
        # "early": a command is being started, or is not yet.
        trigger = rng.choice(("time", "time", "time", "start", "early", "early", "names", "new-file"))
        whom = "group" if self.kind in (*LAUNCH, HEAP) and rng.random() < 0.15 else "profiler"
        pattern = rng.choice((
            ["KILL"], ["KILL"], ["TERM"], ["TERM"], ["INT"], ["INT"], ["HUP"], ["HUP"], ["TSTP", "CONT"], ["TSTP", "CONT"],
            ["STOP", "CONT"], ["QUIT"], [], "pair", "pair", "pair"))
        if pattern == "pair":
            one, other = (rng.choice((["KILL"], ["TERM"], ["INT"], ["HUP"], ["TSTP", "CONT"], ["STOP", "CONT"], ["TSTP"], ["STOP"]))
                          for _ in range(2))
            pattern = one + other
        # A group that is stopped stops the command's children, too, which it would have to expect.
        if "TSTP" in pattern or "STOP" in pattern:
            whom = "profiler"
        if self.condition == "ignored-hup":
            pattern = ["HUP"]
            whom = "profiler"
        steps = []
        for index, name in enumerate(pattern):
            steps.append((trigger if index == 0 else "after", rng.random(), name, whom))
        # Without one of these a stopped one stays stopped, and one that waits for a reader waits.
        stops = [index for index, name in enumerate(pattern) if name in ("TSTP", "STOP")]
        if stops and "CONT" not in pattern[stops[-1]:]:
            steps.append(("after", rng.random(), "CONT", "profiler"))
        ends = {"KILL", "INT", "TERM"} if self.condition == "ignored-hup" else {"KILL", *ENDING}
        if (self.condition == "fifo" or self.kind == "render-stdin") and not set(pattern) & ends:
            steps.append(("late" if self.condition == "fifo" else "after", rng.random(), rng.choice(("INT", "TERM")), "profiler"))
        return steps

    def names(self):
        return [name for _, _, name, _ in self.signals]

    def words(self):
        signals = "+".join(self.names()) or "none"
        first = f" at {self.signals[0][0]} {self.signals[0][1]:.2f}" if self.signals else ""
        amount = f" {self.amount}" if self.amount else ""
        return f"{self.kind}, {self.condition}{amount}, signals {signals}{first}"
