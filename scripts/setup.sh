# Sourced by the scripts here and by .ci/run: installing packages, and compilers for
# other targets. Prints nothing unless it installs or fails.
# shellcheck shell=bash

export DEBIAN_FRONTEND=noninteractive CARGO_TERM_COLOR=never
# A proxy of cargo may be installed where only login shells look.
export PATH="$PATH:${HOME:-/root}/.cargo/bin"

# install_packages PACKAGE...: through apt-get; as root, or with a sudo that asks nothing.
install_packages() {
    local as_root=() apt_log
    if ! command -v apt-get >/dev/null; then
        echo "there is no apt-get here; install what Debian calls: $*" >&2
        return 1
    fi
    if ((EUID != 0)); then
        as_root=(sudo -n)
    fi
    echo "installing: $*"
    apt_log="$(mktemp)"
    if ! {
        "${as_root[@]}" apt-get update -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=600 &&
            "${as_root[@]}" apt-get install -y -qq -o Acquire::Retries=3 -o DPkg::Lock::Timeout=600 --no-install-recommends "$@"
    } >"$apt_log" 2>&1 </dev/null; then
        cat "$apt_log" >&2
        rm -f "$apt_log"
        echo "apt-get did not install: $*" >&2
        return 1
    fi
    rm -f "$apt_log"
}

# True if the installed compiler has, or can be given, the standard library of a target.
have_target() {
    local libraries
    libraries="$(rustc --print target-libdir --target "$1" 2>/dev/null)" || return 1
    [[ -d $libraries ]] || { command -v rustup >/dev/null && rustup target add "$1" >/dev/null 2>&1 </dev/null; }
}

# Makes `cargo` compile for any target, from here on: where rustup may not download,
# Debian's newer Rust builds the standard library from its source.
use_distro_rust() {
    if [[ ! -x /usr/bin/cargo || ! -d /usr/lib/rustlib/src/rust/library || ! -x /usr/bin/cargo-clippy ]]; then
        install_packages rustc-web cargo-web rust-web-src rust-web-clippy || return 1
    fi
    export PATH="/usr/bin:$PATH" RUSTC_BOOTSTRAP=1 CARGO_UNSTABLE_BUILD_STD=std,panic_unwind,test,proc_macro
    unset RUSTUP_TOOLCHAIN
}
