#!/usr/bin/env python3
"""The licences of all code of others that is linked into stackprof, and the rules for dependencies.

Usage: scripts/licenses.py [--check]

Writes packaging/third-party-licenses.txt and packaging/debian/copyright from Cargo.lock and the sources of the
crates in it, which cargo downloads if they are not there. With --check nothing is written: it fails if a file
is not what would be written, or if a dependency breaks a rule of deny.toml (licences, duplicates, sources).
`cargo deny check` reads the same rules; this needs nothing but cargo and Python 3.11.
"""

import json
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIST = ROOT / "packaging/third-party-licenses.txt"
DEBIAN = ROOT / "packaging/debian/copyright"
REWRITE = "scripts/licenses.py"
# In crates that may be taken under one of several licences, the first of these is what we take.
PREFERRED = ["MIT", "Apache-2.0", "Zlib", "BSD-2-Clause", "0BSD", "CDDL-1.0"]
# Files with texts of licences and notices; a name that tells a licence is taken for that one only.
TEXTS = re.compile(r"(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)", re.IGNORECASE)
NAMED = {"MIT": r"MIT", "Apache-2.0": r"APACHE", "Zlib": r"ZLIB", "BSD-2-Clause": r"BSD", "0BSD": r"0BSD", "CDDL-1.0": r"CDDL"}
OTHERS = re.compile(r"MIT|APACHE|ZLIB|BSD|CDDL|0BSD|UNLICENSE|LLVM|BOOST|THIRD", re.IGNORECASE)
# Apache-2.0 asks for its text once, whoever it comes from.
OUR_TEXTS = {"Apache-2.0": "LICENSE-APACHE", "MIT": "LICENSE-MIT"}

STANDARD_LIBRARY = """\
The Rust standard library is linked into the program. Copyright (c) The Rust Project contributors, licensed
under MIT or Apache-2.0 (https://github.com/rust-lang/rust). With it come compiler_builtins (MIT or
Apache-2.0, parts of LLVM under Apache-2.0 WITH LLVM-exception) and addr2line, adler2, cfg-if, gimli,
hashbrown, libc, memchr, miniz_oxide, object, rustc-demangle and unwinding code, all under MIT or Apache-2.0.
"""

# The line of a text that names who holds the copyright.
HOLDER = re.compile(r"\s*Copyright\s+(?=\(c\)|[\d\[])(\(c\)\s*)?", re.IGNORECASE)

DEBIAN_HEAD = f"""\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: stackprof
Comment: Made by {REWRITE}; not edited by hand. The program contains the Rust standard
 library and the crates that are listed here by name and version.

Files: *
Copyright: the authors of stackprof
License: MIT or Apache-2.0
 The texts of both are /usr/share/doc/stackprof/LICENSE-MIT and
 /usr/share/doc/stackprof/LICENSE-APACHE.

Files: rust-standard-library/*
Copyright: The Rust Project contributors
License: MIT or Apache-2.0

License: MIT
 The texts, each with the names of those who hold the copyright, are in
 /usr/share/doc/stackprof/third-party-licenses.txt.
"""

CDDL = """\
inferno draws the flame graphs. It is under the CDDL 1.0, and so is the script that it puts into each SVG that
stackprof writes (flamegraph.js, from Brendan Gregg's FlameGraph). Its source: https://crates.io/crates/inferno,
in the version listed here, unchanged. What stackprof adds to a picture is under stackprof's own licences.
"""


def main(check: bool) -> None:
    deny = tomllib.loads((ROOT / "deny.toml").read_text())
    targets = [target if isinstance(target, str) else target["triple"] for target in deny["graph"]["targets"]]
    packages, linked = {}, set()
    for target in targets:
        for package in metadata(target):
            packages[package["name"], package["version"]] = package
        linked |= of_program(target)
    linked = {key for key in linked if packages[key]["source"] is not None}
    problems = broken_rules(deny, packages)
    files = {LIST: document(sorted(linked), packages, problems), DEBIAN: debian(sorted(linked), packages)}
    if problems:
        sys.exit("\n".join(f"licenses.py: {problem}" for problem in problems))
    for path, text in files.items():
        if not check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"licenses.py: {path.relative_to(ROOT)} is not what Cargo.lock asks for; run {REWRITE}")
    print(f"licenses.py: {len(linked)} crates in the program, {len(packages) - 1} dependencies within the rules")


def metadata(target: str) -> list[dict]:
    """The packages that a build, a test or a benchmark for a target uses."""
    found = json.loads(cargo("metadata", "--locked", "--format-version", "1", "--filter-platform", target))
    used = {node["id"] for node in found["resolve"]["nodes"]}
    return [package for package in found["packages"] if package["id"] in used]


def of_program(target: str) -> set[tuple[str, str]]:
    """Name and version of what is linked into the program: no tests, build scripts or macros."""
    tree = cargo("tree", "--locked", "-e", "normal,no-proc-macro", "--target", target, "--prefix", "none", "-f", "{p}")
    words = [line.split() for line in tree.splitlines() if line.strip()]
    return {(name, version.removeprefix("v")) for name, version, *_ in words}


def cargo(*arguments: str) -> str:
    run = subprocess.run(["cargo", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if run.returncode != 0:
        sys.exit(f"licenses.py: cargo {arguments[0]} failed; its message is above")
    return run.stdout


# ---- rules


def broken_rules(deny: dict, packages: dict) -> list[str]:
    problems = []
    allowed = set(deny["licenses"]["allow"])
    extra = {rule["crate"]: set(rule["allow"]) for rule in deny["licenses"].get("exceptions", [])}
    for (name, version), package in sorted(packages.items()):
        if package["source"] is None:
            continue
        here = allowed | extra.get(name, set())
        expression = package["license"] or ""
        if not satisfied(expression, here):
            problems.append(f"{name} {version}: licence `{expression}` is not allowed by deny.toml")
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    registries = set(deny["sources"]["allow-registry"])
    for package in lock:
        source = package.get("source")
        if source is not None and source.removeprefix("registry+") not in registries:
            problems.append(f"{package['name']} {package['version']}: source {source} is not allowed by deny.toml")
        elif source is not None and "checksum" not in package:
            problems.append(f"{package['name']} {package['version']}: Cargo.lock has no checksum of it")
    banned = {rule["crate"] for rule in deny["bans"].get("deny", [])}
    skipped = {rule["crate"].split("@")[0] for rule in deny["bans"].get("skip", [])}
    by_name = {}
    for name, version in packages:
        by_name.setdefault(name, []).append(version)
        if name in banned:
            problems.append(f"{name} {version} is banned by deny.toml")
    for name, versions in sorted(by_name.items()):
        if len(versions) > 1 and name not in skipped and deny["bans"]["multiple-versions"] == "deny":
            problems.append(f"{name} is there in versions {', '.join(sorted(versions))}; deny.toml allows one")
    return problems


def choices(expression: str) -> list[list[str]]:
    """The ways to satisfy an expression, each a list of licences that hold together."""
    tokens = re.findall(r"[()]|[^\s()/]+|/", expression)
    at = 0

    def any_of() -> list[list[str]]:
        nonlocal at
        ways = all_of()
        while at < len(tokens) and tokens[at] in ("OR", "/"):
            at += 1
            ways = ways + all_of()
        return ways

    def all_of() -> list[list[str]]:
        nonlocal at
        ways = one()
        while at < len(tokens) and tokens[at] == "AND":
            at += 1
            ways = [left + right for right in one() for left in ways]
        return ways

    def one() -> list[list[str]]:
        nonlocal at
        token = tokens[at]
        at += 1
        if token == "(":
            ways = any_of()
            at += 1
            return ways
        if at < len(tokens) and tokens[at] == "WITH":
            token += " WITH " + tokens[at + 1]
            at += 2
        return [[token]]

    return any_of() if tokens else []


def satisfied(expression: str, allowed: set[str]) -> bool:
    return any(allowed.issuperset(way) for way in choices(expression))


# ---- the list


def document(linked: list, packages: dict, problems: list[str]) -> str:
    out = [
        "Code of others in stackprof\n",
        "===========================\n\n",
        f"Made from Cargo.lock by {REWRITE}; not edited by hand. Crates that are linked into the program on\n",
        "Linux or macOS, with the licence that each states, then the texts of those under which stackprof takes them.\n\n",
    ]
    texts: dict[str, list[str]] = {}
    for key in linked:
        package = packages[key]
        name = f"{key[0]} {key[1]}"
        out.append(f"{name}: {package['license']}\n")
        taken = chosen(package["license"])
        for text in texts_of(package, taken):
            texts.setdefault(text, []).append(name)
        if not taken:
            problems.append(f"{name}: which licence of `{package['license']}` is taken? add it to PREFERRED")
    out += ["\n", STANDARD_LIBRARY, "\n", CDDL]
    for text, names in sorted(texts.items(), key=lambda item: (item[1], item[0])):
        out += ["\n", "-" * 80, "\n", ", ".join(names), "\n\n", text, "\n"]
    return "".join(out)


def debian(linked: list, packages: dict) -> str:
    """The copyright file of the Debian package, in its machine-readable form."""
    out = [DEBIAN_HEAD]
    for key in linked:
        package = packages[key]
        taken = chosen(package["license"])
        holders = [line for text in texts_of(package, taken) for line in text.splitlines() if HOLDER.match(line)]
        holders = [HOLDER.sub("", line).strip() for line in holders] or package["authors"] or ["the authors"]
        out.append(
            f"\nFiles: {key[0]}-{key[1]}/*\n"
            f"Copyright: {(chr(10) + ' ').join(dict.fromkeys(holders))}\n"
            f"License: {' and '.join(taken)}\n"
        )
        if "CDDL-1.0" in taken:
            out.append("Comment: Its script is in each SVG that stackprof writes; see\n")
            out.append(" /usr/share/doc/stackprof/third-party-licenses.txt.\n")
    for licence in sorted({name for key in linked for name in chosen(packages[key]["license"])}):
        if licence != "MIT":
            out.append(f"\nLicense: {licence}\n The text is in /usr/share/doc/stackprof/third-party-licenses.txt.\n")
    return "".join(out)


def chosen(expression: str) -> list[str]:
    ways = [way for way in choices(expression) if set(way) <= set(PREFERRED)]
    return min(ways, key=lambda way: [PREFERRED.index(name) for name in way], default=[])


def texts_of(package: dict, taken: list[str]) -> list[str]:
    """The texts of the licences under which a crate is taken, as the crate has them."""
    directory = pathlib.Path(package["manifest_path"]).parent
    files = sorted(path for path in directory.iterdir() if path.is_file() and TEXTS.match(path.name))
    texts = []
    for licence in taken:
        named = [path for path in files if re.search(NAMED[licence], path.name, re.IGNORECASE)]
        plain = [path for path in files if not OTHERS.search(path.name)]
        # All of Apache-2.0's texts are one; MIT's differ in who holds the copyright.
        if licence == "Apache-2.0" or not (named or plain):
            own = (ROOT / OUR_TEXTS[licence]).read_text() if licence in OUR_TEXTS else ""
            if licence == "MIT":
                authors = ", ".join(re.sub(r"\s*<.*?>", "", author) for author in package["authors"])
                own = re.sub(r"Copyright.*", f"Copyright (c) {authors or 'the authors of ' + package['name']}", own, count=1)
            texts.append(normal(own))
        else:
            texts += [normal(path.read_text(errors="replace")) for path in named or plain]
    notices = [path for path in files if path.name.upper().startswith("NOTICE")]
    return list(dict.fromkeys(texts + [normal(path.read_text(errors="replace")) for path in notices]))


def normal(text: str) -> str:
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").replace("\f", "").split("\n")]
    return "\n".join(lines).strip("\n") + "\n"


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__.split("\n\n")[1])
    main(bool(sys.argv[1:]))
