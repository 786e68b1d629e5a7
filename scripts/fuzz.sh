#!/usr/bin/env bash
# Fuzzes what reads bytes of targets and files: builds tests/fuzz with cargo-fuzz (installed if missing)
# and runs each target of tests/support/hostile.rs for SECONDS on one core, at low priority.
#
#   scripts/fuzz.sh [SECONDS] [TARGET...]       default: 180 seconds, all targets
#
# Prints runs, edges covered and what was found; exits 1 if anything was. The inputs that
# found something are in tests/fuzz/target/artifacts, the corpus that grows from run to run
# in tests/fuzz/target/corpus. Seeds that tools write are made here, by `cc` and, where they are installed,
# clang-19, ld64.lld-19, xz and zstd. cargo-fuzz needs flags of the nightly compiler:
# RUSTC_BOOTSTRAP lets a stable one take them.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

seconds=${1:-180}
shift || true
fuzz=tests/fuzz
mapfile -t all < <(sed -n 's|^    ("\([a-z_]*\)", &\[.*|\1|p' tests/support/hostile.rs)
if (($# > 0)); then all=("$@"); fi

if ! cargo fuzz --version >/dev/null 2>&1; then
    cargo install --locked cargo-fuzz
fi
host=$(rustc -vV | sed -n 's/^host: //p')
export RUSTC_BOOTSTRAP=1
cargo fuzz build --fuzz-dir $fuzz --target "$host" hostile
corpus=$fuzz/target/corpus artifacts=$fuzz/target/artifacts
mkdir -p "$artifacts"
for target in "${all[@]}"; do mkdir -p "$corpus/$target"; done

# Small files of the real formats.
seeds() {
    local place version
    place=$(mktemp -d)
    cat >"$place/a.c" <<'C'
static inline __attribute__((always_inline)) int add(int a, int b) { return a * 3 + b; }
__attribute__((noinline)) static int work(int x) { return add(x, x + 1) ^ 5; }
int entry(int argc) { return work(argc) + add(argc, 2); }
C
    local plain=(-O2 -g -nostdlib -static -fno-pie -no-pie '-Wl,-e,entry,-z,max-page-size=64,-z,norelro')
    for version in 4 5; do
        cc "${plain[@]}" "-gdwarf-$version" -o "$place/elf$version" "$place/a.c"
        cc "${plain[@]}" "-gdwarf-$version" -gz=zlib -o "$place/packed$version" "$place/a.c"
    done
    objcopy -O binary --only-section=.eh_frame "$place/elf4" "$place/frames"
    if command -v clang-19 >/dev/null && command -v ld64.lld-19 >/dev/null; then
        clang-19 -target arm64-apple-macos11 -O2 -g -c "$place/a.c" -o "$place/macho.o"
        ld64.lld-19 -arch arm64 -platform_version macos 11 11 -dylib -o "$place/macho" "$place/macho.o"
        # The file itself: `__LINKEDIT` begins at 16 KiB.
        put macho "$place/macho" "$place/macho.o"
        put elf "$place/macho"
        put symtab "$place/macho"
    fi
    if command -v clang-19 >/dev/null; then
        # A structure with an array, in the debug information of 32-bit Arm.
        printf 'struct seed { int a; char name[16]; } it;\n' >"$place/s.c"
        clang-19 --target=arm-none-eabi -g -c "$place/s.c" -o "$place/structure"
        put elf "$place/structure"
    fi
    # As a JIT compiler registers it: an object file that says where its sections were loaded.
    cc -O2 -g -c -o "$place/object.o" "$place/a.c"
    objcopy --change-section-address .text=0x7f0000001000 --change-section-address .eh_frame=0x7f0000002000 \
        "$place/object.o" "$place/loaded"
    put linked "$place/loaded"
    local target
    for target in dwarf symtab elf; do put $target "$place"/elf[45] "$place"/packed[45]; done
    cat "$place/elf4" "$place/elf4" >"$place/pair"
    put debuglink "$place/pair"
    { printf '\0' && cat "$place/frames"; } >"$place/cfi"
    put eh_frame "$place/cfi"
    if command -v xz >/dev/null; then
        { printf '\2' && xz -c "$place/a.c"; } >"$place/xz"
        put unpack "$place/xz"
    fi
    if command -v zstd >/dev/null; then
        { printf '\1' && zstd -qc "$place/a.c"; } >"$place/zstd"
        put unpack "$place/zstd"
    fi
    rm -r "$place"
}

# put TARGET FILE...: adds seeds to a target's corpus.
put() {
    [[ -d $corpus/$1 ]] || return 0
    local file
    for file in "${@:2}"; do cp "$file" "$corpus/$1/seed-${file##*/}"; done
}
seeds

found=0
printf '%-12s %12s %10s %8s %8s\n' target runs runs/s edges found
for target in "${all[@]}"; do
    log=$fuzz/target/$target.log
    before=$(find "$artifacts" -name "$target-*" | wc -l)
    # A finding ends libFuzzer with an error, which the last column tells.
    STACKPROF_FUZZ_TARGET=$target STACKPROF_FUZZ_CORPUS=$corpus/$target \
        nice -n 15 "$fuzz/target/$host/release/hostile" "$corpus/$target" -artifact_prefix="$artifacts/$target-" \
        -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
        >"$log" 2>&1 </dev/null || true
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    rate=$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")
    edges=$(grep -o 'cov: [0-9]*' "$log" | tail -n 1 | grep -o '[0-9]*' || true)
    new=$(($(find "$artifacts" -name "$target-*" | wc -l) - before))
    if [[ -z $runs || $new -gt 0 ]]; then found=1; fi
    printf '%-12s %12s %10s %8s %8s\n' "$target" "${runs:-failed}" "${rate:-}" "${edges:-}" "$new"
done
if ((found)); then
    echo "fuzz.sh: see $fuzz/target/*.log and $artifacts" >&2
fi
exit $found
