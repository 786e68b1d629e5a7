"""A load for memcached: sets and gets over 20 connections; prints `RATE OPS P99_MS`."""

import selectors
import socket
import sys
import time

port, seconds = int(sys.argv[1]), float(sys.argv[2])
waiting, times, done = selectors.DefaultSelector(), [], 0
for at in range(20):
    connection = socket.create_connection(("127.0.0.1", port))
    waiting.register(connection, selectors.EVENT_READ, [at, 0.0])
began = time.monotonic()
for entry in list(waiting.get_map().values()):
    entry.data[1] = time.monotonic()
    entry.fileobj.sendall(b"get key0\r\n")
while time.monotonic() - began < seconds:
    for entry, _ in waiting.select(1):
        entry.fileobj.recv(65536)
        now = time.monotonic()
        times.append(now - entry.data[1])
        done += 1
        entry.data[0] += 1
        key = b"key%d" % (entry.data[0] % 1000)
        word = b"set " + key + b" 0 0 100\r\n" + b"x" * 100 + b"\r\n" if entry.data[0] % 4 == 0 else b"get " + key + b"\r\n"
        entry.data[1] = now
        entry.fileobj.sendall(word)
times.sort()
print(f"RATE {done / (time.monotonic() - began):.1f} {1e3 * times[int(len(times) * 0.99)]:.3f}")
