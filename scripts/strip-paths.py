#!/usr/bin/env python3
"""Takes the paths of one machine out of pprof files, so that they can be kept in a repository.

Usage: strip-paths.py DIRECTORY FILE.pb.gz...

Strings lose DIRECTORY/ wherever it stands, and what is before the name of a package in paths
of cargo's registry. Everything else of the files stays as it is (field 6 of the message Profile
is the table of strings: profile.proto of the pprof project).
"""
import gzip, os, re, sys

def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]; at += 1
        value |= (byte & 127) << shift; shift += 7
        if byte < 128:
            return value, at

def encode(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128); value >>= 7
    return bytes(out + bytes([value]))

here = os.fsencode(sys.argv[1]).rstrip(b"/") + b"/"
for path in sys.argv[2:]:
    data, out, at = gzip.open(path).read(), bytearray(), 0
    while at < len(data):
        start = at
        key, at = varint(data, at)
        if key & 7 == 0:
            _, at = varint(data, at)
        elif key & 7 == 2:
            size, at = varint(data, at)
            text = data[at:at + size]; at += size
            if key >> 3 == 6:
                text = re.sub(rb"^/\S*/registry/src/[^/]*/", b"", text.replace(here, b""))
                out += encode(key) + encode(len(text)) + text
                continue
        else:
            sys.exit(f"{path}: unexpected wire type {key & 7}")
        out += data[start:at]
    with open(path, "wb") as file:
        file.write(gzip.compress(bytes(out), 9, mtime=0))
