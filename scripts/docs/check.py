#!/usr/bin/env python3
"""Runs what README.md, CONTRIBUTING.md and docs/ tell people to type, and checks their links.

Usage: scripts/docs/check.py STACKPROF PROGRAMS

STACKPROF is the built program, PROGRAMS a directory of small programs to record, which every
directory in which commands run gets. Blocks of `sh` and `console` run in the order of their page, in
a directory for each page, so that one may use what an earlier one wrote. `4242` is the number of a
process that works for two seconds. HTML comments directly before a block say how it is to be run:

    <!-- not run: REASON -->                    left out, and listed at the end
    <!-- needs: COMMAND -->                     left out where there is no such command
    <!-- exit code: 3 -->                       the code that is expected; `0 or 3` is one of them
    <!-- run at the root of the repository -->  there instead of in a directory of its own

One that ends with exit code 4, no data, is run again.

Exits 1 if a command failed, a link leads nowhere, a page is in no table of contents, or an option or
a key of JSON is in no page. What is left out for lack of a command fails under STACKPROF_NO_SKIP=1.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINKED = [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "SECURITY.md"]
# For a busy machine that builds everything first; nothing is expected to take as long.
LIMIT_S = 3600
# What stackprof ends with where a busy machine let too little be sampled, or too much was lost: nothing that
# a page says is wrong then, and another run has it.
NO_DATA = 4
TRIES = 3

PRELUDE = """set -eu
process() { ./program 2 >/dev/null 2>&1 & echo $!; }
"""


def main(stackprof: pathlib.Path, programs: pathlib.Path) -> int:
    wrong: list[str] = []
    skipped: list[str] = []
    not_run: list[str] = []
    ran = 0
    for path in LINKED:
        wrong += links(path)
    wrong += contents()
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = pathlib.Path(scratch_name)
        environment, no_sudo = surroundings(scratch, stackprof)
        for page in PAGES:
            place = scratch / "pages" / page.relative_to(ROOT).with_suffix("")
            shutil.copytree(programs, place)
            for block in blocks(page, wrong):
                where = f"{page.relative_to(ROOT)}:{block['line']}"
                if block["not_run"]:
                    not_run.append(f"{where}: {block['not_run']}")
                    continue
                missing = [command for command in block["needs"] if not shutil.which(command)]
                if missing:
                    skipped.append(f"{where}: there is no {missing[0]}")
                    continue
                if no_sudo and "sudo " in block["text"]:
                    skipped.append(f"{where}: {no_sudo}")
                    continue
                ran += 1
                print(f"-- {where}", flush=True)
                said = run(block, ROOT if block["at_root"] else place, environment)
                if said:
                    wrong.append(f"{where}: {said}")
        wrong += yaml_blocks(skipped)
        wrong += options(environment)
        wrong += keys(scratch / "pages/docs")
    for text in not_run:
        print(f"not run: {text}")
    for text in skipped:
        print(f"SKIP: {text}")
    if skipped and os.environ.get("STACKPROF_NO_SKIP") == "1":
        wrong.append("STACKPROF_NO_SKIP is set, but blocks were left out, see above")
    for text in wrong:
        print(f"check-docs: {text}", file=sys.stderr)
    print(f"check-docs: {ran} blocks ran, {len(not_run)} are not to be run, {len(skipped)} skipped, {len(wrong)} wrong")
    return 1 if wrong or not ran else 0


def surroundings(scratch: pathlib.Path, stackprof: pathlib.Path) -> tuple[dict[str, str], str]:
    """What commands run in: stackprof in front, a home directory of their own; and why there is no sudo."""
    bin_dir, home = scratch / "bin", scratch / "home"
    for directory in (bin_dir, home):
        directory.mkdir()
    (bin_dir / "stackprof").symlink_to(stackprof.resolve())
    # What finds its files by the home directory.
    (bin_dir / "python3").symlink_to(sys.executable)
    old_home = pathlib.Path(os.environ.get("HOME", "/"))
    environment = dict(
        os.environ,
        PATH=f"{bin_dir}:{os.environ['PATH']}",
        HOME=str(home),
        CARGO_HOME=os.environ.get("CARGO_HOME", str(old_home / ".cargo")),
        RUSTUP_HOME=os.environ.get("RUSTUP_HOME", str(old_home / ".rustup")),
        CARGO_INSTALL_ROOT=str(scratch / "installed"),
    )
    for name in ("SUDO_UID", "SUDO_GID"):
        environment.pop(name, None)
    if os.geteuid() == 0:
        # Root needs no sudo, and not every machine has one.
        shim, no_sudo = '#!/bin/sh\nexec "$@"\n', ""
    else:
        real = shutil.which("sudo")
        works = real and subprocess.run([real, "-n", "true"], capture_output=True).returncode == 0
        shim = f'#!/bin/sh\nexec {real} -n env PATH="$PATH" "$@"\n'
        no_sudo = "" if works else "sudo asks for a password, or is not there"
    (bin_dir / "sudo").write_text(shim)
    (bin_dir / "sudo").chmod(0o755)
    return environment, no_sudo


def blocks(page: pathlib.Path, wrong: list[str]) -> list[dict]:
    """The blocks of a page that hold commands."""
    found, comments, block = [], [], None
    for number, line in enumerate(page.read_text().splitlines(), 1):
        text = line.strip()
        if block is not None:
            if text == "```":
                if block["language"] in ("sh", "console"):
                    found.append(finished(block))
                elif any(re.match(r"(\$ |(sudo )?stackprof |cargo |scripts/)", line) for line in block["lines"]):
                    wrong.append(f"{page.relative_to(ROOT)}:{block['line']}: commands in a block that is not `sh`")
                block = None
            else:
                block["lines"].append(line)
        elif text.startswith("```"):
            block = {"language": text[3:], "line": number, "lines": [], "comments": comments}
            comments = []
        elif text.startswith("<!--") and text.endswith("-->"):
            comments = [*comments, text[4:-3].strip()]
        else:
            comments = []
    if block is not None:
        wrong.append(f"{page.relative_to(ROOT)}:{block['line']}: a block without an end")
    return found


def finished(block: dict) -> dict:
    lines = block["lines"]
    if block["language"] == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    block |= {"text": "\n".join(lines), "not_run": "", "needs": [], "codes": [0], "at_root": False}
    for comment in block["comments"]:
        kind, _, value = comment.partition(": ")
        if kind == "not run" and value:
            block["not_run"] = value
        elif kind == "needs":
            block["needs"].append(value)
        elif kind == "exit code":
            block["codes"] = [int(code) for code in value.split(" or ")]
        elif comment == "run at the root of the repository":
            block["at_root"] = True
        else:
            sys.exit(f"check-docs: line {block['line']}: a comment that says nothing: {comment}")
    return block


def run(block: dict, place: pathlib.Path, environment: dict[str, str]) -> str:
    """What went wrong, or nothing."""
    before = set(place.iterdir())
    script = PRELUDE + re.sub(r"\b4242\b", '"$(process)"', block["text"])
    try:
        for left in reversed(range(TRIES)):
            done = subprocess.run(
                ["bash", "-c", script], cwd=place, env=environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=LIMIT_S,
            )
            if done.returncode != NO_DATA or NO_DATA in block["codes"] or not left:
                break
            print(f"   once more, no data: {done.stdout.strip().splitlines()[-1:]}", flush=True)
    except subprocess.TimeoutExpired:
        return f"not done after {LIMIT_S} s:\n{block['text']}"
    finally:
        if block["at_root"]:
            for path in set(place.glob("stackprof-*.svg")) - before:
                path.unlink()
    if done.returncode not in block["codes"]:
        expected = " or ".join(map(str, block["codes"]))
        return f"exit code {done.returncode}, {expected} expected:\n{block['text']}\n---\n{done.stdout}---"
    return ""


def yaml_blocks(skipped: list[str]) -> list[str]:
    """What does not parse of the blocks of YAML; left out where there is no parser."""
    try:
        import yaml
    except ImportError:
        skipped.append("blocks of YAML: there is no PyYAML (python3-yaml)")
        return []
    wrong = []
    for page in PAGES:
        for block in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(), re.M | re.S):
            try:
                yaml.safe_load(block)
            except yaml.YAMLError as error:
                wrong.append(f"{page.relative_to(ROOT)}: YAML: {error}")
    return wrong


def links(page: pathlib.Path) -> list[str]:
    """Links of a page to files or headings that are not there, and those that leave the book."""
    wrong, docs = [], ROOT / "docs"
    if not page.exists():
        return []
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    text = re.sub(r"`[^`\n]*`", "", text)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        name = f"{page.relative_to(ROOT)}: link to `{target}`"
        if re.match(r"[a-z]+:", target):
            continue
        file, _, heading = urllib.parse.unquote(target).partition("#")
        to = (page.parent / file).resolve() if file else page
        if not to.exists():
            wrong.append(f"{name}: there is no such file")
        elif heading and heading not in headings(to):
            wrong.append(f"{name}: there is no such heading")
        elif docs in page.parents and docs not in to.parents:
            wrong.append(f"{name}: leads out of the book, which has only docs/")
    return wrong


def headings(page: pathlib.Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    titles = re.findall(r"^#+ (.*)$", text, flags=re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def contents() -> list[str]:
    """Pages that docs/SUMMARY.md, the table of contents of the book, does not have exactly once."""
    summary = ROOT / "docs/SUMMARY.md"
    listed = re.findall(r"\]\(([^)]+)\)", summary.read_text())
    there = [str(path.relative_to(ROOT / "docs")) for path in PAGES if ROOT / "docs" in path.parents]
    there.remove("SUMMARY.md")
    return [f"docs/SUMMARY.md: `{page}` stands there {listed.count(page)} times" for page in there if listed.count(page) != 1]


def options(environment: dict[str, str]) -> list[str]:
    """Options of the help that no page has."""
    pages = "\n".join(page.read_text() for page in PAGES)
    wrong = []
    for command in ("record", "heap", "demo", "dump", "render", "diff", "gate", "completions"):
        shown = subprocess.run(["stackprof", "help", command], env=environment, capture_output=True, text=True)
        if shown.returncode != 0:
            wrong.append(f"`stackprof help {command}`: {shown.stderr}")
        for option in re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", shown.stdout, flags=re.M):
            if not re.search(re.escape(option) + r"(?![a-z-])", pages) and option not in ("--help", "--version"):
                wrong.append(f"{option} of `stackprof help {command}` is in no page")
    return sorted(set(wrong))


def keys(pages: pathlib.Path) -> list[str]:
    """Keys of the files that the examples wrote and docs/json.md does not have, and the other way round."""
    text = (ROOT / "docs/json.md").read_text()
    known = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]*)`", text))))
    wrong = []
    written = {
        "stats": pages / "json/stats.json",
        "diff": pages / "diff/diff.json",
        "gate": pages / "gate/gate.json",
    }
    for kind, path in written.items():
        if not path.exists():
            wrong.append(f"docs/json.md: no example wrote {path.name}, whose keys were to be compared")
            continue
        value = json.loads(path.read_text())
        for key in sorted(keys_of(value) - known):
            wrong.append(f"docs/json.md: the key `{key}` of {kind} is missing")
        if kind == "stats":
            table = text.split("## A comparison")[0]
            rows = re.findall(r"^\| (`.*?) \|", table, flags=re.M)
            told = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
            for key in sorted(told - set(value)):
                wrong.append(f"docs/json.md: `{key}` is no key of {kind}")
    return wrong


def keys_of(value: object) -> set[str]:
    """The names of keys, at all depths; those of counters by reason are text for people."""
    if isinstance(value, list):
        return set().union(*(keys_of(item) for item in value))
    if not isinstance(value, dict):
        return set()
    found = set()
    for key, item in value.items():
        found.add(key)
        if key not in ("stacks_incomplete", "frames_by_method", "samples_lost"):
            found |= keys_of(item)
    return found


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__.split("\n\n")[1])
    sys.exit(main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
