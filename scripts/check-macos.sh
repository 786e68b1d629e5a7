#!/usr/bin/env bash
# Builds, lints and links stackprof, its tests and its benchmarks for macOS, without a Mac
# and without Apple's SDK. What comes out may load libSystem and nothing else.
#
#   scripts/check-macos.sh            both targets
#   scripts/check-macos.sh --prove    also shows that a call that does not exist fails to link
#   scripts/check-macos.sh --release  links the program as it is released, too: minutes more
#   scripts/check-macos.sh --distro   with Debian's Rust, as where rustup has no targets
#
# Quiet unless something fails; files go below target/macos, and a second run uses them.
set -euo pipefail
cd "$(dirname "$0")/.."

targets=(aarch64-apple-darwin x86_64-apple-darwin)

prove=0
distro=0
release=0
for argument in "$@"; do
    case $argument in
    --prove) prove=1 ;;
    --distro) distro=1 ;;
    --release) release=1 ;;
    *)
        echo "usage: scripts/check-macos.sh [--prove] [--release] [--distro]" >&2
        exit 2
        ;;
    esac
done

# shellcheck source=scripts/setup.sh
. scripts/setup.sh
# All would replace the flags of each target below.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS CARGO_BUILD_TARGET
target_dir="$PWD/target/macos"
stubs="$target_dir/stubs"
export CARGO_TARGET_DIR="$target_dir"
mkdir -p "$stubs/Foundation.framework"
log="$target_dir/check-macos.log"

fail() {
    echo "check-macos.sh: $*" >&2
    exit 1
}

# Runs a command; its output is shown only if it fails.
quietly() {
    if ! "$@" >"$log" 2>&1 </dev/null; then
        cat "$log" >&2
        fail "failed: $*"
    fi
}

# ---- the linker, and what to link against

packages=()
command -v ld64.lld-19 >/dev/null || packages+=(lld-19)
command -v llvm-objdump-19 >/dev/null || packages+=(llvm-19)
command -v python3 >/dev/null || packages+=(python3)
python3 -m pip --version >/dev/null 2>&1 || packages+=(python3-pip)
command -v cc >/dev/null || packages+=(gcc libc6-dev)
if ((${#packages[@]} > 0)); then
    install_packages "${packages[@]}"
fi

# What libSystem exports, as the Zig project ships it: never a list made from our own
# programs, which would verify nothing.
wheel=ziglang==0.15.2
sum=4f96f1402e1950b1764ac6accd0d2b9c1ca197b7783caae5e838fd0a4b474028
sum_is_right() {
    echo "$sum  $1" | sha256sum --check --status 2>/dev/null
}
if ! sum_is_right "$stubs/libSystem.tbd"; then
    download="$(mktemp -d "$target_dir/download.XXXXXX")"
    trap 'rm -rf "$download"' EXIT
    # The wheel for any one system: the list is the same in all.
    quietly python3 -m pip download --quiet --disable-pip-version-check --no-deps \
        --only-binary=:all: --platform manylinux2010_x86_64 --dest "$download" "$wheel"
    quietly python3 -c 'import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel, open(sys.argv[2], "wb") as to:
    to.write(wheel.read("ziglang/lib/libc/darwin/libSystem.tbd"))' \
        "$download"/*.whl "$download/libSystem.tbd"
    sum_is_right "$download/libSystem.tbd" || fail "libSystem.tbd of $wheel is not the known one"
    mv "$download/libSystem.tbd" "$stubs/libSystem.tbd"
    rm -rf "$download"
fi
ln -sf libSystem.tbd "$stubs/libc.tbd"
ln -sf libSystem.tbd "$stubs/libm.tbd"
# Asked for by ctrlc's dependencies, which use nothing of them: -dead_strip_dylibs drops them.
stub() {
    printf -- '--- !tapi-tbd\ntbd-version: 4\ntargets: [ x86_64-macos, arm64-macos ]\ninstall-name: %s\n...\n' \
        "$2" >"$stubs/$1"
}
stub libiconv.tbd /usr/lib/libiconv.2.dylib
stub libobjc.tbd /usr/lib/libobjc.A.dylib
stub Foundation.framework/Foundation.tbd /System/Library/Frameworks/Foundation.framework/Versions/C/Foundation

# ---- the compiler

if ((distro == 0)); then
    for target in "${targets[@]}"; do
        have_target "$target" || distro=1
    done
fi
if ((distro)); then
    use_distro_rust
    export CARGO_TARGET_DIR="$target_dir/distro"
fi

# ---- build

export SDKROOT=/nonexistent
flags=(-Cforce-frame-pointers=yes -Clinker-flavor=ld64.lld -Csplit-debuginfo=unpacked
    "-Clink-arg=-L$stubs" "-Clink-arg=-F$stubs" -Clink-arg=-dead_strip_dylibs)
for target in "${targets[@]}"; do
    name="${target^^}"
    export "CARGO_TARGET_${name//-/_}_LINKER=ld64.lld-19"
    export "CARGO_TARGET_${name//-/_}_RUSTFLAGS=${flags[*]}"
done

# Made once, to be linked; those for x86_64 are also run, by run-macos-build.sh, and some of the tests
# have bounds of CPU time. What is not run need not be optimised.
optimize_for() {
    case $1 in
    x86_64-*) export CARGO_PROFILE_DEV_OPT_LEVEL=1 ;;
    *) export CARGO_PROFILE_DEV_OPT_LEVEL=0 ;;
    esac
}
# Without debug information cargo would strip, with a tool that Debian's Rust lacks.
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_STRIP=none CARGO_INCREMENTAL=0

# One call for both targets, where it can be: with few cores, the end of one fills the gaps of the other.
both=()
for target in "${targets[@]}"; do
    both+=(--target "$target")
done

step() {
    local began=$SECONDS
    quietly cargo "${@:2}"
    printf '%s: %s s\n' "$1" "$((SECONDS - began))"
}

SECONDS=0
step 'clippy, all targets' clippy --locked "${both[@]}" --all-targets -- -D warnings
# For x86_64 benchmarks, too: it is their linking that counts. What a target leaves undefined is the same for
# both processors: for arm64 it is the program that is linked, and the test that asks for every call.
tests_of() {
    tests=(test --locked --no-run --target "$1")
    case $1 in
    x86_64-*) tests+=(--all-targets) ;;
    *) tests+=(--bins --test xnu_links) ;;
    esac
}
# How many programs that makes at least, beside stackprof.
least_of() {
    case $1 in
    x86_64-*) echo 6 ;;
    *) echo 1 ;;
    esac
}
for target in "${targets[@]}"; do
    optimize_for "$target"
    tests_of "$target"
    step "tests for $target" "${tests[@]}"
done
if ((release)); then
    step 'release program' build --locked "${both[@]}" --release --bin stackprof
fi
messages=
for target in "${targets[@]}"; do
    optimize_for "$target"
    tests_of "$target"
    if ! of_target="$(cargo "${tests[@]}" --message-format=json 2>"$log" </dev/null)"; then
        cat "$log" >&2
        fail "cargo built the tests, and then did not say where they are"
    fi
    messages+=$of_target$'\n'
done

# ---- what was built

# The files that match $2, among those that the build of the tests made for target $1.
made() {
    grep -oE "\"[^\"]*/$1/[^\"]*\"" <<<"$messages" | tr -d '"' | grep -E "$2" | sort -u
}

executables() {
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' <<<"$messages" | grep -F "/$1/"
}

loads_only_libsystem() {
    local loads
    loads="$(llvm-objdump-19 --macho --dylibs-used "$1" | sed '1d;s/^[[:space:]]*//;s/ (.*//')"
    [[ $loads == /usr/lib/libSystem.B.dylib ]] || fail "$1 loads: ${loads:-nothing}"
}

# Without the underscore that C's names have in a file.
undefined() {
    llvm-nm-19 --undefined-only --format=just-symbols "$@" 2>"$log" | sed -n 's/^_//p' | sort -u
}

xnu="$(sed 's,//.*,,' src/sources/mach/xnu.rs)"

# The system's functions and variables that src/sources/mach/xnu.rs uses: of what the
# compiled library $1 leaves undefined, the names that stand in that file. So it is the
# compiler that says what is a call, and no list has to be kept.
calls_of_xnu() {
    comm -12 <(undefined "$1") <(grep -oE '[A-Za-z_][A-Za-z_0-9]*' <<<"$xnu" | sort -u)
    # Read by mach2's function of nearly that name, not by the file itself.
    echo mach_task_self_
}

# What the text itself shows to be a call. All of it must be among what the compiler says:
# or else the list would be short, and the check with it.
calls_in_text() {
    {
        tr '\n' ' ' <<<"$xnu" | grep -oE 'extern "C" \{[^}]*\}' | grep -oE '\bfn [a-z_0-9]+'
        grep -oE '\blibc::[a-zA-Z_0-9]+\(' <<<"$xnu"
        tr '\n' ' ' <<<"$xnu" | grep -oE '\buse mach2::[^;]*;' | grep -oE '[a-z_0-9]+ *[,};]'
    } | sed -E 's/^(fn |libc::)//; s/[ ,};(]//g; /_t$/d; s/^mach_task_self$/mach_task_self_/' | sort -u
}

asks_for_every_call() {
    local missing
    missing="$(comm -23 <(sort -u <<<"$calls") <(undefined "$1") | paste -sd ' ')"
    [[ -z $missing ]] || fail "$1 does not ask libSystem for: $missing; use it, or take it out of xnu.rs"
}

for target in "${targets[@]}"; do
    program="$CARGO_TARGET_DIR/$target/debug/stackprof"
    loads_only_libsystem "$program"
    if ((release)); then
        loads_only_libsystem "$CARGO_TARGET_DIR/$target/release/stackprof"
    fi
    mapfile -t others < <(executables "$target")
    ((${#others[@]} >= $(least_of "$target"))) || fail "only ${#others[@]} test programs and benchmarks for $target"
    for other in "${others[@]}"; do
        loads_only_libsystem "$other"
    done

    # What dyld puts in the place of the allocator's functions: pairs of addresses. The build script compiles it,
    # for which Debian's Rust has no standard library of the target.
    if ((distro == 0)); then
        shim="$(find "$CARGO_TARGET_DIR/$target" -path '*/out/heap_shim' -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2-)"
        [[ -n $shim ]] || fail "no heap shim was built for $target"
        # The first is the library itself.
        loads="$(llvm-objdump-19 --macho --dylibs-used "$shim" | sed '1,2d;s/^[[:space:]]*//;s/ (.*//')"
        [[ $loads == /usr/lib/libSystem.B.dylib ]] || fail "$shim loads: ${loads:-nothing}"
        table="$(llvm-objdump-19 --macho --section-headers "$shim" | sed -n 's/^ *[0-9]* __interpose *0*\([0-9a-f]*\) .*/\1/p')"
        [[ $table == 1f0 ]] || fail "$shim has an interposing table of 0x${table:-0} bytes, not of 31 functions"
        # It is linked so that a list without the functions of newer systems will do; all else must be in the list.
        unknown="$(llvm-nm-19 -m --undefined-only "$shim" | grep -vE 'weak external _malloc_(type_|zone_(malloc_with_options|free_definite_size) )' | grep -F 'dynamically looked up' || true)"
        [[ -z $unknown ]] || fail "$shim looks up at run time: $unknown"
        weak="$(llvm-nm-19 -m --undefined-only "$shim" | grep -c 'weak external _malloc_type_' || true)"
        [[ $weak == 14 ]] || fail "$shim imports $weak typed functions weakly, not all 14"
        printf '%s: the heap shim replaces %s functions\n' "$target" "$((0x$table / 16))"
    fi

    library="$(made "$target" '/libstackprof[^/]*\.rlib$')"
    calls="$(calls_of_xnu "$library")"
    unseen="$(comm -13 <(sort -u <<<"$calls") <(calls_in_text) | paste -sd ' ')"
    [[ -z $unseen ]] || fail "xnu.rs names what $library does not call: $unseen"
    # As soon as the program attaches to anything, it must be able to do all of it.
    if undefined "$program" | grep -qx task_for_pid; then
        caller="$program"
    else
        caller="$(made "$target" '/xnu_links-[0-9a-f]+$')"
        [[ -n $caller ]] || fail "tests/xnu_links.rs was not built"
    fi
    asks_for_every_call "$caller"
    printf '%s: stackprof %s bytes; it and %s test programs and benchmarks load libSystem alone\n' \
        "$target" "$(stat -c %s "$program")" "${#others[@]}"
    printf '%s: the %s system calls of xnu.rs are all imported by %s\n' \
        "$target" "$(wc -l <<<"$calls")" "${caller##*/}"

    # One test again, with a call that does not exist; all else is already built.
    if ((prove)); then
        optimize_for "$target"
        if cargo rustc --locked --target "$target" --test xnu_links -- --cfg misspelt >"$log" 2>&1 </dev/null; then
            fail "mach_vm_reed was linked for $target; so this check proves nothing"
        fi
        mapfile -t refused < <(grep -o 'undefined symbol: .*' "$log")
        if ((${#refused[@]} != 1)) || [[ ${refused[0]} != *mach_vm_reed ]]; then
            cat "$log" >&2
            fail "the link failed, but not for mach_vm_reed alone"
        fi
        printf '%s: a misspelt call fails: %s\n' "$target" "${refused[0]}"
    fi
done
printf 'check-macos.sh: all of it linked, %s s\n' "$SECONDS"
