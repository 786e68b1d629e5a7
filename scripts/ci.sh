#!/usr/bin/env bash
# The lint gate, all of it: format, clippy, documentation, layers, the other platforms,
# a release build. CI calls this and nothing else; run it before a pull request.
# Ends at the first complaint. Needs rustup for the standard libraries of other targets.
set -euo pipefail
cd "$(dirname "$0")/.."

step() {
    printf '\n== %s\n' "$*"
    "$@"
}

# True if the standard library of a target is there, or could be added.
have_target() {
    local libraries
    libraries="$(rustc --print sysroot)/lib/rustlib/$1/lib"
    [[ -d $libraries ]] || { command -v rustup >/dev/null && rustup target add "$1"; }
}

# Documentation lints are errors, here and below.
export RUSTDOCFLAGS="${RUSTDOCFLAGS:-} -Dwarnings"

step cargo fmt --check
step cargo clippy --all-targets --locked -- -D warnings
step cargo doc --no-deps --locked
step cargo test --locked --quiet --test layering

# The other processor of the Linux backend.
target=aarch64-unknown-linux-gnu
if ! have_target "$target"; then
    echo "ci.sh: there is no standard library for $target, and \`rustup target add $target\`" >&2
    echo "ci.sh: did not work (no network, or a toolchain that rustup does not manage)" >&2
    exit 1
fi
step cargo check --locked --target "$target" --all-targets
# macOS has no backend yet, but the rest must compile there.
for target in aarch64-apple-darwin x86_64-apple-darwin; do
    if have_target "$target"; then
        step cargo check --locked --target "$target" --all-targets
    else
        printf '\n== NOT CHECKED: no standard library for %s\n' "$target"
    fi
done
if command -v shellcheck >/dev/null; then
    step shellcheck scripts/*.sh .ci/run
else
    printf '\n== NOT CHECKED: shellcheck is not installed\n'
fi
step cargo build --release --locked
printf '\nci.sh: all of it passed\n'
