#!/usr/bin/env bash
# Are the documents true? Runs every command of README.md, CONTRIBUTING.md and docs/, follows their
# links, compares the options and the keys of JSON with those of the program, and builds the
# book where mdbook is installed. scripts/docs/check.py says how blocks are marked.
# Usage: scripts/check-docs.sh
# STACKPROF is the program to use (target/release/stackprof, which is built).
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

packages=()
command -v cc >/dev/null || packages+=(gcc libc6-dev)
command -v python3 >/dev/null || packages+=(python3)
if ((${#packages[@]} > 0)); then
    install_packages "${packages[@]}"
fi
stackprof=${STACKPROF:-}
if [[ -z $stackprof ]]; then
    cargo build --release --locked
    stackprof=${CARGO_TARGET_DIR:-target}/release/stackprof
fi

programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
cc -O1 -g scripts/docs/program.c -o "$programs/program"
cp "$programs/program" "$programs/prog-old"
cc -O1 -g -DSLOWER scripts/docs/program.c -o "$programs/prog-new"

python3 scripts/docs/check.py "$stackprof" "$programs"

if command -v mdbook >/dev/null; then
    mdbook build --dest-dir "$programs/book"
    test -s "$programs/book/recording.html"
else
    echo "SKIP: the book is not built: mdbook is not installed (cargo install mdbook); its links and its table of contents were checked"
fi
