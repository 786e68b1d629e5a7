"""Clients that send at a fixed rate and check each answer; what is not right is an error."""

import http.client
import random
import socket
import threading
import time
import zlib

# An answer that took longer than this did not come.
TIMEOUT_S = 20


class Client(threading.Thread):
    """`requests` sent, `errors` among them, the first of these in words, and latencies in seconds."""

    def __init__(self, port, per_s):
        super().__init__(daemon=True)
        self.port, self.pause_s, self.began = port, 1 / per_s, time.monotonic()
        # In words, what the server does: for complaints.
        self.look = str
        self.requests = self.errors = self.starved = 0
        self.gaps = None
        self.complaints, self.latencies = [], []
        self.ends = threading.Event()

    def complain(self, text):
        self.errors += 1
        if len(self.complaints) < 5:
            self.complaints.append(f"after {time.monotonic() - self.began:.0f} s: {text}; {self.look()}")

    def run(self):
        due = time.monotonic()
        while not self.ends.is_set():
            due += self.pause_s
            time.sleep(max(0.0, due - time.monotonic()))
            # A client that fell behind does not catch up in a burst.
            due = max(due, time.monotonic() - 1)
            before = time.monotonic()
            try:
                self.round()
            except (OSError, http.client.HTTPException, ValueError) as error:
                # Of a machine that gave nobody a CPU a server's answer tells nothing.
                if isinstance(error, TimeoutError) and self.gaps and self.gaps.longest_since(before) > TIMEOUT_S / 4:
                    self.starved += 1
                else:
                    self.complain(f"{type(error).__name__}: {error}")
                self.close()
                time.sleep(0.2)
            self.latencies.append(time.monotonic() - before)

    def finish(self):
        self.ends.set()
        self.join(TIMEOUT_S + 5)
        if self.is_alive():
            self.complain("the client did not end: an answer is missing")
        self.close()

    def percentile_ms(self, percent):
        values = sorted(self.latencies)
        return values[min(len(values) - 1, len(values) * percent // 100)] * 1e3 if values else 0.0


class Gaps(threading.Thread):
    """The longest time for which clients themselves got no CPU: no fault of a server's."""

    def __init__(self):
        super().__init__(daemon=True)
        self.longest_s, self.long = 0.0, []

    def run(self):
        while True:
            before = time.monotonic()
            time.sleep(0.05)
            stood_s = time.monotonic() - before - 0.05
            self.longest_s = max(self.longest_s, stood_s)
            if stood_s > 1:
                self.long.append((before, stood_s))

    def longest_since(self, since):
        """The longest of those that ended after then; the one under way is waited for."""
        time.sleep(0.2)
        return max((stood_s for began, stood_s in self.long if began + stood_s >= since), default=0.0)


class Redis(Client):
    """Rounds of ten commands in one packet: values, counters, lists and sorted sets."""

    def __init__(self, port, per_s):
        super().__init__(port, per_s)
        self.random = random.Random(port)
        self.kept, self.count = {}, 0
        self.socket = self.file = None

    def close(self):
        if self.socket:
            self.file.close()
            self.socket.close()
        self.socket = None

    def connect(self):
        self.socket = socket.create_connection(("127.0.0.1", self.port), TIMEOUT_S)
        self.file = self.socket.makefile("rb")

    def reply(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise OSError("the connection ended")
        kind, text = line[:1], line[1:-2]
        if kind == b"*":
            return [self.reply() for _ in range(int(text))]
        if kind == b"$":
            length = int(text)
            return None if length < 0 else self.file.read(length + 2)[:-2]
        return int(text) if kind == b":" else kind + text

    def round(self):
        if not self.socket:
            self.connect()
        key = b"key:%d" % self.random.randrange(2000)
        value = b"%x" % self.random.getrandbits(self.random.choice((64, 1024, 16384)))
        other = self.random.choice(list(self.kept)) if self.kept else key
        self.count += 1
        members = [b"%d" % self.random.randrange(10000) for _ in range(200)]
        wanted = [
            ([b"SET", key, value], b"+OK"),
            ([b"GET", key], value),
            ([b"STRLEN", key], len(value)),
            ([b"GET", other], value if other == key else self.kept.get(other)),
            ([b"INCR", b"counter"], self.count),
            ([b"DEL", b"list"], None),
            ([b"RPUSH", b"list", *members], len(members)),
            ([b"SORT", b"list"], sorted(members, key=int)),
            ([b"LRANGE", b"list", b"0", b"-1"], members),
            ([b"EXISTS", b"none"], 0),
        ]
        packet = b"".join(b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in command)
                          for command, _ in wanted)
        self.socket.sendall(packet)
        for command, right in wanted:
            answer = self.reply()
            self.requests += 1
            if answer != right and command[0] != b"DEL":
                self.complain(f"{command[0].decode()} {command[1].decode()}: {answer!r:.80} is not {right!r:.80}")
        self.kept[key] = value


class Jvm(Client):
    """GET /crc with a seed whose answer is known; a new connection now and then."""

    def __init__(self, port, per_s):
        super().__init__(port, per_s)
        self.random = random.Random(port)
        self.connection = None

    def close(self):
        if self.connection:
            self.connection.close()
        self.connection = None

    def get(self, path):
        if not self.connection:
            self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        self.connection.request("GET", path)
        return self.connection.getresponse().read().decode()

    def round(self):
        seed = self.random.randrange(1, 300)
        answer = self.get(f"/crc?seed={seed}")
        self.requests += 1
        if answer != str(crc(seed)):
            self.complain(f"seed {seed}: {answer[:80]!r}")
        if self.requests % 500 == 0:
            self.close()
            rounds, errors = self.get("/state").split()
            if int(errors):
                self.complain(f"{errors} of {rounds} rounds of the workers were wrong")


CRCS = {}


def crc(seed):
    """What Soak.java answers. Kept, since Python is slow at bytes."""
    if seed not in CRCS:
        value, made = seed, bytearray()
        for _ in range(4000):
            value = (value * 1664525 + 1013904223) & 0xFFFFFFFF
            made.append(value >> 24)
        CRCS[seed] = zlib.crc32(made)
    return CRCS[seed]
