#!/usr/bin/env python3
"""Prints what stackprof answers for each kind of rights, source and target, as the table of docs/linux.md.

usage: scripts/measure/rights.py STACKPROF [--messages]

Rights are set as docker, Podman and Kubernetes set them: capabilities by setpriv, a seccomp filter by
tests/fixtures/deny.c, mount and user namespaces by unshare. Needs root, setpriv, unshare and a C compiler; nothing is
changed outside of the processes that it starts. --messages: also each message, once.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = (
    "chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw sys_chroot mknod audit_write "
    "setfcap"
).split()
MOUNT = ["unshare", "--mount", "--propagation", "private"]
USER, OTHER = 61001, 61002

SPIN = """
#include <stdlib.h>
#include <time.h>
volatile long turns;
__attribute__((noinline)) void burn(clock_t until) { while (clock() < until) for (int i = 0; i < 10000; i++) turns++; }
int main(int count, char **words) { burn(clock() + (clock_t)(atof(words[1]) * CLOCKS_PER_SEC)); return count > 9; }
"""


def capabilities(*added, base=DEFAULT):
    wanted = ",".join(["-all"] + ["+" + name for name in [*base, *added]])
    return ["setpriv", "--bounding-set=" + wanted, "--inh-caps=-all"]


def as_user(number, *options):
    return ["setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups", "--inh-caps=-all", *options]


def rights(deny):
    """Name, and the words before a command that give it these rights."""
    def filtered(calls, errno=1):
        return [deny, str(errno), calls]

    in_user_namespace = [*as_user(USER), "unshare", "--user", "--map-root-user", "--mount"]
    return [
        ("root, no container (or `--privileged`)", []),
        ("a user, no container", as_user(USER)),
        ("root, `docker run`", [*MOUNT, *filtered("perf"), *capabilities()]),
        ("root, Podman (ENOSYS)", [*MOUNT, *filtered("perf", 38), *capabilities()]),
        ("root, a filter without ptrace", [*MOUNT, *filtered("perf,ptrace,readv"), *capabilities()]),
        ("root, `--cap-add PERFMON`", [*MOUNT, *capabilities("perfmon")]),
        ("root, `--cap-add SYS_PTRACE`", [*MOUNT, *filtered("perf"), *capabilities("sys_ptrace")]),
        ("root, Kubernetes `drop: [ALL]`", [*MOUNT, *filtered("perf"), *capabilities(base=[]), "setpriv", "--no-new-privs"]),
        ("a user, `docker run --user`", [*MOUNT, *filtered("perf"), *capabilities(), *as_user(USER)]),
        ("a user, Kubernetes \"restricted\"", [*MOUNT, *filtered("perf"), *capabilities(base=["setuid", "setgid"]), *as_user(USER, "--no-new-privs")]),
        ("root, rootless container", [*in_user_namespace, *filtered("perf")]),
        ("root, rootless, no filter", in_user_namespace),
    ]


LETTERS = [
    ("f", "seccomp filter", r"seccomp filter"),
    ("u", "another user's process", r"belongs to user"),
    ("c", "it holds more capabilities", r"holds capabilities"),
    ("n", "outside of the user namespace", r"user namespace"),
    ("p", "perf_event_paranoid", r"perf_event_paranoid"),
    ("k", "by the kernel, unexplained", r"the kernel refused"),
]


def answer(status, said, wrote):
    """The cell: how it was sampled, or the letter of the reason."""
    source = re.search(r"^  source +(.*)$", said, re.M)
    if status == 0 and source:
        if "burn" not in wrote:
            return "WRONG: no names"
        how = source.group(1)
        return "stops" if how.startswith("ptrace") else "user" if "user code only" in how else "kernel"
    refusal = said.strip().splitlines()[-1] if said.strip() else ""
    for letter, _, pattern in LETTERS:
        if status == 1 and re.search(pattern, refusal):
            return f"– {letter}"
    return f"WRONG: {status} {refusal}"


def main():
    words = sys.argv[1:]
    with_messages = "--messages" in words
    stackprof = next(word for word in words if not word.startswith("--"))
    messages = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        there = lambda name: str(Path(folder, name))
        shutil.copy(stackprof, there("stackprof"))
        Path(there("spin.c")).write_text(SPIN)
        subprocess.run(["cc", "-O1", "-g", "-o", there("spin"), there("spin.c")], check=True)
        subprocess.run(["cc", "-O1", "-o", there("deny"), ROOT / "tests/fixtures/deny.c"], check=True)
        sources = ["auto", "perf", "ptrace"]
        print("| rights | " + " | ".join(f"{target}, {source}" for target in ["command", "own", "other"] for source in sources) + " |")
        print("|---|" + "---|" * 9)
        for name, prefix in rights(there("deny")):
            is_user = "a user" in name
            owner = as_user(OTHER) if is_user else []
            other = subprocess.Popen([*owner, there("spin"), "600"])
            cells = []
            for target in ["command", "own", "other"]:
                for source in sources:
                    out = there("out.folded")
                    Path(out).unlink(missing_ok=True)
                    record = f"{there('stackprof')} --source {source} -o {out}"
                    script = {
                        "command": f"exec {record} -- {there('spin')} 0.2",
                        "own": f"{there('spin')} 600 & p=$!; {record} -d 0.3 --pid $p; s=$?; kill $p; exit $s",
                        "other": f"exec {record} -d 0.3 --pid {other.pid}",
                    }[target]
                    ran = subprocess.run([*prefix, "sh", "-c", script], capture_output=True, text=True, cwd=folder)
                    wrote = Path(out).read_text() if Path(out).exists() else ""
                    cell = answer(ran.returncode, ran.stderr, wrote)
                    cells.append(cell)
                    line = re.sub(r"pid \d+|--pid \d+", "pid N", ran.stderr.strip().splitlines()[-1] if ran.returncode else "")
                    if line:
                        messages.setdefault(line, f"{name}; {target}, {source}")
            other.kill()
            other.wait()
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print("\n" + ", ".join(f"{letter}: {what}" for letter, what, _ in LETTERS))
    if with_messages:
        for line, where in messages.items():
            print(f"\n{where}:\n  {line}")


main()
