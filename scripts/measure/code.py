#!/usr/bin/env python3
"""Figures of the code at one or more commits, side by side. First the size of the house: lines of code in
src and crates, Rust files that are not tests, lines of code that tests, `pub(in …)`. Then lines of code by
room, structs of more than 15 fields, functions of more than 80 lines, comments that defer to another
place, size of ARCHITECTURE.md.

    scripts/measure/code.py [--size | --list] [COMMIT...]        default: HEAD~1 HEAD

--size: the size of the house only.
--list: names these structs and functions, too, with their numbers of fields and lines.

Lines of code are lines that are neither blank nor comments. Tests are what only `cfg(test)` compiles, also
files and all that they declare; simulated worlds (modules `sim`, `sim_…` and `simulated_…`), though a target
`sim:SEED` is in the program; tests/ and scripts/.

Gates nothing.
"""

import io
import posixpath
import re
import subprocess
import sys
import tarfile
import tokenize

FIELDS_MAX = 15
LINES_MAX = 80
STRUCTS = f"structs of more than {FIELDS_MAX} fields"
FUNCTIONS = f"functions of more than {LINES_MAX} lines"
SIZE = [
    CODE := "code in src and crates",
    FILES := "Rust files that are not tests",
    TESTS := "code of unit tests, tests/ and scripts",
    PUB_IN := "pub(in …)",
]

DEFERS = re.compile(r"//[/!]? ?(?:.*\b(?:top of this file|as on the other|see above|see below)\b|The same\.?$|As above\.?$)")
PARTS = re.compile(r"(?:src|crates|tests|scripts|benches)/.*\.(?:rs|sh|py|js|ts|c|h|cpp|S|java|cs|go)|ARCHITECTURE\.md|\.ci/run")
SIMULATED = re.compile(r"/(?:sim|sim_\w+|simulated_\w+)(?:/|\.rs$)")
LITERALS = re.compile(
    r'//[^\n]*|/\*.*?\*/|[bc]?r(#*)".*?"\1|(?P<path>path = )?[bc]?"(?:\\.|[^"\\])*"'
    r"|b?'(?:\\.[^'\n]*|[^'\\\n])'",
    re.S,
)
ATTRIBUTES = r"(?:#\[(?:[^\[\]]|\[[^\]]*\])*\]\s*)*"
FOR_TESTS = re.compile(ATTRIBUTES + r"#\[cfg\((?:all\()?test\b[^\n]*\]\s*" + ATTRIBUTES)
MODULE = re.compile(r"(" + ATTRIBUTES + r")(?:pub(?:\([^)]*\))? )?mod (\w+)\s*([;{])|[{}]")


def files(commit):
    """Text by path of each file of the commit that is code, a script or ARCHITECTURE.md."""
    tar = subprocess.run(["git", "archive", commit], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        return {
            member.name: archive.extractfile(member).read().decode()
            for member in archive
            if member.isfile() and PARTS.fullmatch(member.name)
        }


def bare(text):
    """Rust without strings and comments, so that braces can be counted; lines stay lines, also those of strings."""

    def blank(match):
        text = match.group()
        if match.group("path"):
            return text
        if text[0] == "/":
            return "\n" * text.count("\n")
        return re.sub(r'.+', '""', text) if '"' in text else "' '"

    return LITERALS.sub(blank, text)


def end_of_block(text, opening):
    """Index behind the brace that closes the one at `opening`."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, opening):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.end()
    return len(text)


def end_of_item(text, start):
    """Index behind the item, field or statement that begins at `start`."""
    depth = 0
    for match in re.compile(r"->|=>|[()\[\]<>{};,]").finditer(text, start):
        token = match.group()
        if token in ("(", "[", "<"):
            depth += 1
        elif token in (")", "]", ">"):
            depth -= 1
        elif token == "{" and depth == 0:
            return end_of_block(text, match.start())
        elif token in (";", ",") and depth == 0:
            return match.end()
        elif token == "}":
            return match.start()
    return len(text)


def without_tests(text):
    """`bare` text without modules and items for tests."""
    while match := FOR_TESTS.search(text):
        text = text[: match.start()] + text[end_of_item(text, match.end()) :]
    return text


def declared(path, text):
    """Files that the modules of `bare` text may be in."""
    folder, name = posixpath.split(path)
    own = folder if name in ("mod.rs", "lib.rs", "main.rs") else posixpath.join(folder, name[: -len(".rs")])
    inline = []
    depth = 0
    for match in MODULE.finditer(text):
        attributes, module, end = match.groups()
        if end == ";":
            if at := re.search(r'\[path = "([^"]*)"', attributes):
                base = posixpath.join(own if inline else folder, *(name for _, name in inline))
                yield posixpath.normpath(posixpath.join(base, at.group(1)))
            else:
                base = posixpath.join(own, *(name for _, name in inline), module)
                yield from (base + ".rs", base + "/mod.rs")
        elif match.group() == "}":
            depth -= 1
            if inline and inline[-1][0] == depth:
                inline.pop()
        else:
            if end:
                inline.append((depth, module))
            depth += 1


def compiled(sources):
    """Paths of `sources` (bare text by path) that are compiled into the program or a library."""
    all_declared = {child for path, text in sources.items() for child in declared(path, text)}
    roots = [path for path in sources if path not in all_declared]
    found = set()
    while roots:
        path = roots.pop()
        if path in sources and path not in found:
            found.add(path)
            roots += declared(path, without_tests(sources[path]))
    return found


def lines_of(text):
    return sum(1 for line in text.splitlines() if line.strip())


def lines_of_python(text):
    """Lines that hold anything but comments and documentation strings."""
    lines, begins = set(), True
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            begins = True
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER):
            if not (begins and token.type == tokenize.STRING):
                lines.update(range(token.start[0], token.end[0] + 1))
            begins = False
    return len(lines)


def lines_of_code(path, text):
    """Lines that are neither blank nor comments."""
    if path.endswith(".rs"):
        return lines_of(bare(text))
    if path.endswith(".py"):
        return lines_of_python(text)
    if path.endswith(".sh") or path == ".ci/run":
        return sum(1 for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    # Comments behind code do not count, and those of C that begin a line end one.
    return lines_of(re.sub(r"^\s*(?://[^\n]*|/\*.*?\*/[ \t]*$)", "", text, flags=re.S | re.M))


def room(path):
    parts = path.split("/")
    if parts[0] == "crates":
        return "/".join(parts[:2])
    if len(parts) == 2:
        return "src/*.rs"
    return "/".join(parts[:3]) if parts[1] == "sources" and len(parts) > 3 else "/".join(parts[:2])


def too_large(code):
    """Kind, name and size of each struct and function above the limits."""
    for match in re.finditer(r"\bstruct (\w+)[^;{(]*\{", code):
        body = code[match.end() : end_of_block(code, match.end() - 1)]
        fields = len(re.findall(r"^\s*(?:pub(?:\([^)]*\))? )?\w+: ", body, re.M))
        if fields > FIELDS_MAX:
            yield STRUCTS, match.group(1), fields
    for match in re.finditer(r"\bfn (\w+)[^;{]*\{", code):
        lines = code[match.start() : end_of_block(code, match.end() - 1)].count("\n") + 1
        if lines > LINES_MAX:
            yield FUNCTIONS, match.group(1), lines


def figures(commit):
    """Figures of a commit by name, and what is too large: kind, size, path and name."""
    found = dict.fromkeys([*SIZE, STRUCTS, FUNCTIONS, "comments that defer"], 0)
    large = []

    def add(lines, *names):
        for name in names:
            found[name] = found.get(name, 0) + lines

    texts = files(commit)
    house = {path: text for path, text in texts.items() if re.match(r"src/|crates/[^/]+/(?!tests/|benches/)", path)}
    program = compiled({path: bare(text) for path, text in house.items() if path.endswith(".rs")})
    for path, text in texts.items():
        lines = lines_of_code(path, text)
        if path == "ARCHITECTURE.md":
            found["bytes of ARCHITECTURE.md"] = len(text.encode())
        elif path not in house:
            part = re.search(r"(?:^|/)(tests|benches)/", path)
            part = part.group(1) if part else "scripts"
            add(lines, "code of " + part, *([] if part == "benches" else [TESTS]))
        elif not path.endswith(".rs"):
            add(lines, "code of " + room(path), CODE)
        else:
            found["comments that defer"] += len([line for line in text.splitlines() if DEFERS.search(line)])
            found[PUB_IN] += bare(text).count("pub(in ")
            if path not in program or SIMULATED.search(path):
                add(lines, TESTS, "code of simulated worlds" if SIMULATED.search(path) else "code of unit tests")
                continue
            code = without_tests(bare(text))
            add(lines - lines_of(code), TESTS, "code of unit tests")
            add(lines_of(code), "code of " + room(path), CODE)
            found[FILES] += 1
            for kind, name, size in too_large(code):
                found[kind] += 1
                large.append((kind, size, path, name))
    return found, large


def main():
    options = [argument for argument in sys.argv[1:] if argument.startswith("-")]
    if set(options) - {"--list", "--size"}:
        sys.exit(__doc__)
    commits = [argument for argument in sys.argv[1:] if argument not in options] or ["HEAD~1", "HEAD"]
    results = [figures(commit) for commit in commits]
    columns = [found for found, _ in results]
    names = SIZE + ([] if "--size" in options else sorted(set().union(*columns) - set(SIZE)))
    width = max(map(len, names))
    print(" " * width, *(f"{commit[:12]:>12}" for commit in commits))
    for name in names:
        print(f"{name:{width}}", *(f"{column.get(name, 0):12}" for column in columns))
    for commit, (_, large) in zip(commits, results if "--list" in options else []):
        for kind in (STRUCTS, FUNCTIONS):
            print(f"\n{kind}, {commit[:12]}:")
            for _, size, path, name in sorted((row for row in large if row[0] == kind), key=lambda row: (-row[1], row[2:])):
                print(f"{size:5}  {path}  {name}")


main()
