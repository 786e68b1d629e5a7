#!/usr/bin/env python3
"""A Debian package from `[package.metadata.deb]` of Cargo.toml, with dpkg-deb alone.

Usage: packaging/deb.py PROGRAM DIRECTORY

PROGRAM is built by `cargo build --profile dist`; the package is written into DIRECTORY and its path printed.
`cargo deb` makes one from the same lines; this needs no program that has to be compiled
first. Only what these lines use is known here; anything else is an error.
"""

import glob
import gzip
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
KNOWN = {"maintainer", "section", "priority", "depends", "license-file", "extended-description", "assets"}
# The binary: where cargo-deb expects it.
BUILT = "target/release/"


def main(program: pathlib.Path, directory: pathlib.Path) -> None:
    package = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]
    deb = package["metadata"]["deb"]
    if unknown := set(deb) - KNOWN:
        sys.exit(f"deb.py: keys of [package.metadata.deb] that it does not know: {', '.join(sorted(unknown))}")
    if deb["depends"] != "$auto":
        sys.exit("deb.py: only `depends = \"$auto\"` is known")
    arch = output("dpkg", "--print-architecture")
    with tempfile.TemporaryDirectory() as made:
        tree = pathlib.Path(made) / "tree"
        for source, target, mode in deb["assets"]:
            for path, name in sources(source, program):
                # As cargo-deb has it: a directory ends with a slash.
                to = tree / target / name if target.endswith("/") else tree / target
                install(path, to, int(mode, 8))
        install(ROOT / deb["license-file"][0], tree / f"usr/share/doc/{package['name']}/copyright", 0o644)
        subprocess.run(["strip", "--strip-unneeded", tree / "usr/bin/stackprof"], check=True)
        size_kib = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file()) // 1024 + 1
        control = tree / "DEBIAN/control"
        control.parent.mkdir()
        control.write_text(
            f"Package: {package['name']}\n"
            f"Version: {package['version']}-1\n"
            f"Architecture: {arch}\n"
            f"Section: {deb['section']}\n"
            f"Priority: {deb['priority']}\n"
            f"Maintainer: {deb['maintainer']}\n"
            f"Installed-Size: {size_kib}\n"
            f"Depends: {', '.join(depends(program))}\n"
            f"Description: {package['description']}\n" + described(deb["extended-description"])
        )
        for path in [tree, *tree.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{package['name']}_{package['version']}-1_{arch}.deb"
        build = ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", tree, path]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    print(path)


def sources(source: str, program: pathlib.Path) -> list[tuple[pathlib.Path, str]]:
    """The files that a line of `assets` stands for, and what they are called in the package."""
    if source.startswith(BUILT):
        return [(program, source.removeprefix(BUILT))]
    found = [(pathlib.Path(path), pathlib.Path(path).name) for path in sorted(glob.glob(str(ROOT / source)))]
    if not found:
        sys.exit(f"deb.py: there is no {source}")
    return found


def install(path: pathlib.Path, to: pathlib.Path, mode: int) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    if "usr/share/man/" in str(to):
        to = to.with_name(to.name + ".gz")
        to.write_bytes(gzip.compress(path.read_bytes(), 9, mtime=0))
    else:
        shutil.copyfile(path, to)
    to.chmod(mode)


def depends(program: pathlib.Path) -> list[str]:
    """The libraries that the program asks for, libc in the newest version of which it uses a symbol."""
    dynamic = output("objdump", "-p", str(program))
    needed = re.findall(r"NEEDED\s+(\S+)", dynamic)
    versions = [tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([0-9.]+)", dynamic)]
    packages = {"libgcc_s.so.1": "libgcc-s1"}
    libc = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1")
    found = {"libc6 (>= " + ".".join(map(str, max(versions))) + ")"}
    for library in needed:
        if library in packages:
            found.add(packages[library])
        elif library not in libc:
            sys.exit(f"deb.py: which package has {library}?")
    return sorted(found)


def described(text: str) -> str:
    return "".join(f" {line}\n" if line.strip() else " .\n" for line in text.strip().splitlines())


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__.split("\n\n")[1])
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
