#!/usr/bin/env bash
# Does `stackprof render` read files of other tools as these tools themselves do?
# Usage: scripts/compare-readers.sh [-o FILE.json] [CASE...]
# Makes real files with perf, Go, py-spy and austin, and takes those of FlameGraph's test folder
# (FLAMEGRAPH, a checkout of it). For each: the owner's total and ten largest functions by their own
# weight, ours, and the largest difference of a share. Our Firefox file: CPU time by thread as the
# Firefox Profiler's command line tool has it (PROFILER_CLI) and the recording's.
# Prints a Markdown table and SKIP for what is not installed. Gates nothing: figures depend on the
# machine. STACKPROF is the program (target/release/stackprof).
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 scripts/readers/compare.py "$@"
