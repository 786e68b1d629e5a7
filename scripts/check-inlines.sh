#!/usr/bin/env bash
# Inlined functions beside llvm-symbolizer: the chain of functions at 10,000 random addresses
# of the code of a release binary with debug information, stackprof's own unless one is given.
#
#   scripts/check-inlines.sh [BINARY] [SEED]
#
# Prints the seed, each difference and the share that is the same; fails below 99.9 %. Compared
# are mangled names. Two chains are also the same if they differ only in the name of the
# outermost function and the symbol table has both names for its address: the linker folds
# equal functions, and which of their names is shown is anybody's choice (counted apart).
set -euo pipefail
cd "$(dirname "$0")/.."

stackprof=${STACKPROF:-target/release/stackprof}
[[ -x $stackprof ]] || cargo build --release --locked
llvm=$(command -v llvm-symbolizer-19 || command -v llvm-symbolizer) || {
    echo "check-inlines.sh: needs llvm-symbolizer (apt-get install llvm-19)" >&2
    exit 1
}
binary=${1:-}
if [[ -z $binary ]]; then
    CARGO_PROFILE_RELEASE_DEBUG=2 cargo build --release --locked --target-dir target/inlines
    binary=target/inlines/release/stackprof
fi
seed=${2:-$RANDOM}

python3 - "$stackprof" "$llvm" "$binary" "$seed" <<'PY'
import collections, random, re, subprocess, sys, tempfile

stackprof, llvm, binary, seed = sys.argv[1:]
COUNT, WANTED = 10_000, 99.9

def output(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout

text = re.search(r"\s\.text\s+PROGBITS\s+([0-9a-f]+)\s+\S+\s+([0-9a-f]+)", output("readelf", "-SW", binary))
start, size = int(text[1], 16), int(text[2], 16)
rng = random.Random(int(seed))
addresses = [start + rng.randrange(size) for _ in range(COUNT)]
names_at = collections.defaultdict(set)
for line in output("nm", binary).splitlines():
    fields = line.split()
    if len(fields) == 3:
        names_at[fields[2]].add(int(fields[0], 16))
same_place = lambda a, b: bool(names_at[a] & names_at[b])

with tempfile.NamedTemporaryFile("w", suffix=".addresses") as listed:
    listed.writelines(f"{address:#x}\n" for address in addresses)
    listed.flush()
    ours = output(stackprof, "dump", "symbols", binary, "--mangled", "--addresses", listed.name)
    with open(listed.name) as stdin:
        theirs = output(llvm, "--inlines", "--functions=linkage", "--no-demangle", f"--obj={binary}", stdin=stdin)
blocks = lambda text: [block.split("\n") for block in text.rstrip("\n").split("\n\n")]
ours, theirs = blocks(ours), [block[0::2] for block in blocks(theirs)]
assert len(ours) == len(theirs) == COUNT, (len(ours), len(theirs))

# llvm-symbolizer leaves the suffix that ThinLTO appends.
folded = different = inlined = 0
for address, mine, other in zip(addresses, ours, theirs):
    inlined += len(other) > 1
    if mine == other:
        continue
    if mine[:-1] == other[:-1] and same_place(mine[-1], other[-1]):
        folded += 1
        continue
    different += 1
    print(f"{address:#x}\n  stackprof {' <- '.join(mine)}\n  llvm      {' <- '.join(other)}")
share = 100 * (COUNT - different) / COUNT
print(f"seed {seed}: {COUNT} addresses of {binary}, {inlined} with inlined functions")
print(f"{share:.2f}% have the same chain ({folded} of them with another name of a folded function)")
sys.exit(share < WANTED)
PY
