#!/usr/bin/env bash
# Does `stackprof render` read files of other tools as these tools themselves do?
# Usage: scripts/compare-readers.sh [-o FILE.json] [-k FOLDER] [CASE...]
# Makes real files with perf, Go, Node, Java, py-spy, austin, samply, speedscope and the Firefox Profiler, and
# takes those of their tests (FLAMEGRAPH, INFERNO, SPEEDSCOPE, FIREFOX_PROFILER: checkouts). For each: the owner's total and
# ten largest functions by their own weight, ours, and the largest difference of a share. Also our own files
# in those tools. -k keeps the files; CASE is part of a form or a name.
# scripts/readers/install.sh installs the tools. Prints a Markdown table and SKIP for what is not there.
# Gates nothing: figures depend on the machine. STACKPROF is the program (target/release/stackprof).
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 scripts/readers/compare.py "$@"
