"""The stacks of a pprof file that stackprof wrote, with addresses: only what is compared here."""

import gzip
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Frame:
    """A physical frame: its file, where in the file, and the name of its outermost function."""

    module: str
    offset: int
    name: str


def fields(data):
    """(number, value) of a protobuf message: an int or bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
        elif key & 7 == 2:
            size = varint()
            yield key >> 3, data[at:at + size]
            at += size
        else:
            size = 8 if key & 7 == 1 else 4
            yield key >> 3, int.from_bytes(data[at:at + size], "little")
            at += size


def numbers(value):
    """A repeated number, packed or alone."""
    if isinstance(value, int):
        return [value]
    out, shift, current = [], 0, 0
    for byte in value:
        current |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            out.append(current)
            current = shift = 0
    return out


def read(path, value_type=""):
    """[(count, [Frame, innermost first], complete)]; the count is the first value, or that of this type"""
    with gzip.open(path) as file:
        data = file.read()
    strings, functions, mappings, locations, samples, types = [], {}, {}, {}, [], []
    for number, value in fields(data):
        if number == 6:
            strings.append(value.decode(errors="replace"))
        elif number == 1:
            types.append(dict(fields(value))[1])
        elif number in (2, 3, 4, 5):
            part = {}
            for key, what in fields(value):
                part.setdefault(key, []).append(what)
            if number == 2:
                samples.append(part)
            else:
                {3: mappings, 4: locations, 5: functions}[number][part[1][0]] = part
    frames = {}
    for number, part in locations.items():
        mapping = mappings.get(part.get(2, [0])[0], {})
        address = part.get(3, [0])[0]
        module = strings[mapping[5][0]] if 5 in mapping else ""
        # The last line is the function that the others are inlined into.
        lines = [dict(fields(line)) for line in part.get(4, [])]
        names = [strings[functions[line[1]][2][0]] for line in lines if line.get(1) in functions]
        offset = address - mapping.get(2, [0])[0] + mapping.get(4, [0])[0] if module else address
        frames[number] = Frame(os.path.basename(module), offset, names[-1] if names else "")
    out = []
    value = [strings[name] for name in types].index(value_type) if value_type else 0
    for part in samples:
        stack = [frames[number] for value in part.get(1, []) for number in numbers(value) if number in frames]
        labels = {strings[label[1]]: strings[label.get(2, 0)] for label in map(dict, map(fields, part.get(3, [])))}
        out.append((numbers(part[2][0])[value], stack, labels.get("incomplete") != "yes"))
    return out
