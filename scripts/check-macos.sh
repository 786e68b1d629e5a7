#!/usr/bin/env bash
# Builds, lints and links stackprof, its tests and its benchmarks for macOS, without a Mac
# and without Apple's SDK. What comes out may load libSystem and nothing else.
#
#   scripts/check-macos.sh            both targets
#   scripts/check-macos.sh --prove    also shows that a call that does not exist fails to link
#   scripts/check-macos.sh --distro   with Debian's Rust, as where rustup has no targets
#
# Quiet unless something fails; files go below target/macos, and a second run uses them.
set -euo pipefail
cd "$(dirname "$0")/.."

targets=(aarch64-apple-darwin x86_64-apple-darwin)
# Every function of the system that src/target/mach/xnu.rs names. Each must be asked of
# libSystem by the linked tests: none may have been dropped as unused.
calls=(task_for_pid pid_for_task mach_port_deallocate mach_vm_deallocate task_suspend2
    task_resume2 task_threads task_info thread_info thread_get_state mach_vm_read_overwrite
    mach_vm_region_recurse proc_pidinfo proc_pidpath proc_regionfilename sysctl csops
    sysctlbyname kill geteuid getpid posix_spawnp posix_spawnattr_init
    posix_spawnattr_setsigmask posix_spawnattr_setsigdefault posix_spawnattr_setflags
    posix_spawnattr_destroy _NSGetEnviron waitpid mach_absolute_time mach_timebase_info
    mach_wait_until vm_page_size mach_task_self_ _dyld_get_shared_cache_uuid
    _dyld_get_shared_cache_range)

prove=0
distro=0
for argument in "$@"; do
    case $argument in
    --prove) prove=1 ;;
    --distro) distro=1 ;;
    *)
        echo "usage: scripts/check-macos.sh [--prove] [--distro]" >&2
        exit 2
        ;;
    esac
done

export CARGO_TERM_COLOR=never DEBIAN_FRONTEND=noninteractive
export PATH="$PATH:$HOME/.cargo/bin"
# Both would replace the flags of each target below.
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

install_packages() {
    local as_root=()
    command -v apt-get >/dev/null || fail "needs $*, and there is no apt-get to install them"
    if ((EUID != 0)); then
        as_root=(sudo -n)
    fi
    quietly "${as_root[@]}" apt-get update -qq
    quietly "${as_root[@]}" apt-get install -y -qq --no-install-recommends "$@"
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

# True if the installed compiler has, or can be given, the standard library of a target.
have_target() {
    local libraries
    libraries="$(rustc --print target-libdir --target "$1" 2>/dev/null)" || return 1
    [[ -d $libraries ]] || { command -v rustup >/dev/null && rustup target add "$1" >"$log" 2>&1 </dev/null; }
}

cargo=(cargo)
build_std=()
if ((distro == 0)); then
    for target in "${targets[@]}"; do
        have_target "$target" || distro=1
    done
fi
if ((distro)); then
    # Debian's newer Rust can build the standard library from its source.
    if [[ ! -x /usr/bin/cargo || ! -d /usr/lib/rustlib/src/rust/library || ! -x /usr/bin/cargo-clippy ]]; then
        install_packages rustc-web cargo-web rust-web-src rust-web-clippy
    fi
    export PATH="/usr/bin:$PATH" RUSTC_BOOTSTRAP=1
    unset RUSTUP_TOOLCHAIN
    cargo=(/usr/bin/cargo)
    build_std=('-Zbuild-std=std,panic_unwind,test,proc_macro')
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

run_cargo() {
    local command="$1"
    shift
    "${cargo[@]}" "$command" --locked "${build_std[@]}" --target "$target" "$@"
}

# The programs that a build made, one path a line.
programs() {
    run_cargo "$@" --message-format=json 2>"$log" </dev/null | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p'
}

loads_only_libsystem() {
    local loads
    loads="$(llvm-objdump-19 --macho --dylibs-used "$1" | sed '1d;s/^[[:space:]]*//;s/ (.*//')"
    [[ $loads == /usr/lib/libSystem.B.dylib ]] || fail "$1 loads: ${loads:-nothing}"
}

asks_for_every_call() {
    local asked call
    asked="$(llvm-nm-19 --undefined-only --format=just-symbols "$1")"
    for call in "${calls[@]}"; do
        grep -qxF "_$call" <<<"$asked" || fail "$1 does not call $call: it was not linked"
    done
}

SECONDS=0
for target in "${targets[@]}"; do
    began=$SECONDS
    quietly run_cargo clippy --all-targets -- -D warnings
    quietly run_cargo build --release --bin stackprof
    # Benchmarks too, but not optimised: it is their linking that counts.
    quietly run_cargo test --no-run --all-targets

    program="$CARGO_TARGET_DIR/$target/release/stackprof"
    loads_only_libsystem "$program"
    mapfile -t others < <(programs test --no-run --all-targets)
    ((${#others[@]} > 5)) || fail "only ${#others[@]} test programs and benchmarks for $target"
    links=
    for other in "${others[@]}"; do
        loads_only_libsystem "$other"
        if [[ ${other##*/} == xnu_links-* ]]; then
            links="$other"
        fi
    done
    [[ -n $links ]] || fail "tests/xnu_links.rs was not built"
    asks_for_every_call "$links"
    printf '%s: stackprof %s bytes, %s more programs, libSystem alone, %s s\n' \
        "$target" "$(stat -c %s "$program")" "${#others[@]}" "$((SECONDS - began))"

    if ((prove)); then
        if run_cargo rustc --test xnu_links -- --cfg misspelt >"$log" 2>&1 </dev/null; then
            fail "mach_vm_reed was linked for $target; so this check proves nothing"
        fi
        grep -q 'undefined symbol: _\?mach_vm_reed' "$log" || { cat "$log" >&2; fail "the link failed, but not for mach_vm_reed"; }
        printf '%s: a misspelt call fails: %s\n' "$target" "$(grep -o 'undefined symbol: .*' "$log" | head -n 1)"
    fi
done
printf 'check-macos.sh: all of it linked, %s s\n' "$SECONDS"
