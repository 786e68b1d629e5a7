"""What the cases share: running tools, and own weight by function of folded text and of stackprof."""

import collections
import os
import re
import shutil
import subprocess

STACKPROF = os.path.abspath(os.environ.get("STACKPROF", "target/release/stackprof"))
NS = {"nanoseconds": 1, "microseconds": 1e3, "milliseconds": 1e6, "seconds": 1e9}


class Skip(Exception):
    """A tool is not there, or cannot run here."""


def run(*command, cwd=None, check=True, env=None):
    """Standard output of a command."""
    if not shutil.which(command[0]):
        raise Skip(f"there is no {command[0]}")
    result = subprocess.run(command, cwd=cwd, capture_output=True, env=env)
    if check and result.returncode != 0:
        raise Skip(f"{' '.join(command)[:80]}: {result.stderr.decode(errors='replace').strip()[-160:]}")
    return result.stdout.decode(errors="replace")


def self_of_folded(text):
    """Weight of each leaf."""
    own = collections.Counter()
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        stack, _, count = line.rpartition(" ")
        try:
            own[stack.split(";")[-1]] += float(count)
        except ValueError:
            # A name with a line end, which py-spy does not escape.
            continue
    return own


def ours(path):
    """What stackprof reads: by leaf, its unit, and what it says."""
    result = subprocess.run([STACKPROF, "render", str(path), "-o", "-"], capture_output=True)
    said = result.stderr.decode(errors="replace").strip()
    if result.returncode != 0:
        return collections.Counter(), "", said
    unit = re.search(r": \d+ (\S+) in \d+ stack", said)
    return self_of_folded(result.stdout.decode()), unit[1] if unit else "", said
