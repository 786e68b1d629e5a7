#!/usr/bin/env python3
"""Figures of the code at one or more commits, side by side: lines of code by room (without blank
lines, comments and unit tests), lines of tests and scripts, structs of more than 15 fields, functions of
more than 80 lines, comments that defer to another place, size of ARCHITECTURE.md.

    scripts/measure/code.py [--list] [COMMIT...]        default: HEAD

--list: names these structs and functions, too, with their numbers of fields and lines.

Gates nothing. Circles of files are what tests/circles.rs fails on.
"""

import re
import subprocess
import sys

FIELDS_MAX = 15
LINES_MAX = 80
STRUCTS = f"structs of more than {FIELDS_MAX} fields"
FUNCTIONS = f"functions of more than {LINES_MAX} lines"

DEFERS = re.compile(r"//[/!]? ?(?:.*\b(?:top of this file|as on the other|see above|see below)\b|The same\.?$|As above\.?$)")


def git(*arguments):
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def files(commit):
    """Path and text of each file of the commit that is code, a script or ARCHITECTURE.md."""
    for path in git("ls-tree", "-r", "--name-only", commit).splitlines():
        if re.match(r"(src|tests|scripts|benches)/.*\.(rs|sh|py|js|c|h)$", path) or path in ("ARCHITECTURE.md", ".ci/run"):
            yield path, git("show", f"{commit}:{path}")


def bare(text):
    """Rust without strings and comments, so that braces can be counted; lines stay lines."""
    keep_lines = lambda match: "\n" * match.group().count("\n")
    text = re.sub(r'r(#+)".*?"\1|b?"(?:\\.|[^"\\])*"', lambda m: '""' + keep_lines(m), text, flags=re.S)
    text = re.sub(r"/\*.*?\*/", keep_lines, text, flags=re.S)
    text = re.sub(r"//[^\n]*", "", text)
    return re.sub(r"b?'(?:\\.[^']*|[^'\\])'", "' '", text)


def end_of_block(text, opening):
    """Index behind the brace that closes the one at `opening`."""
    depth = 0
    for match in re.finditer(r"[{}]", text[opening:]):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return opening + match.end()
    return len(text)


def without_tests(text):
    """`bare` text without modules and items for tests."""
    while match := re.search(r"#\[cfg\((?:all\()?test\b[^\n]*\]\s*", text):
        rest = re.compile(r"[^;{]*[;{]").match(text, match.end())
        if not rest:
            return text[: match.start()]
        end = rest.end() if rest.group().endswith(";") else end_of_block(text, rest.end() - 1)
        text = text[: match.start()] + text[end:]
    return text


def is_test_file(path):
    return "/tests/" in path or path.endswith(("/tests.rs", "_tests.rs"))


def room(path):
    parts = path.split("/")
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
    found = {STRUCTS: 0, FUNCTIONS: 0, "comments that defer": 0}
    large = []
    for path, text in files(commit):
        if path == "ARCHITECTURE.md":
            found["bytes of ARCHITECTURE.md"] = len(text.encode())
            continue
        if not path.startswith("src/"):
            part = "lines of " + ("scripts" if path.startswith((".ci", "scripts")) else path.split("/")[0])
            found[part] = found.get(part, 0) + text.count("\n")
            continue
        if not path.endswith(".rs"):
            found["lines of " + room(path)] = found.get("lines of " + room(path), 0) + text.count("\n")
            continue
        found["comments that defer"] += len([line for line in text.splitlines() if DEFERS.search(line)])
        if is_test_file(path):
            continue
        code = without_tests(bare(text))
        lines = sum(1 for line in code.splitlines() if line.strip())
        for name in ("code of " + room(path), "code of src in all"):
            found[name] = found.get(name, 0) + lines
        for kind, name, size in too_large(code):
            found[kind] += 1
            large.append((kind, size, path, name))
    return found, large


def main():
    options = [argument for argument in sys.argv[1:] if argument.startswith("-")]
    if set(options) - {"--list"}:
        sys.exit(__doc__)
    commits = [argument for argument in sys.argv[1:] if argument not in options] or ["HEAD"]
    results = [figures(commit) for commit in commits]
    columns = [found for found, _ in results]
    names = sorted(set().union(*columns))
    width = max(map(len, names))
    print(" " * width, *(f"{commit[:12]:>12}" for commit in commits))
    for name in names:
        print(f"{name:{width}}", *(f"{column.get(name, 0):12}" for column in columns))
    for commit, (_, large) in zip(commits, results if options else []):
        for kind in (STRUCTS, FUNCTIONS):
            print(f"\n{kind}, {commit[:12]}:")
            for _, size, path, name in sorted((row for row in large if row[0] == kind), key=lambda row: (-row[1], row[2:])):
                print(f"{size:5}  {path}  {name}")


main()
