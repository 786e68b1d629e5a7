#!/usr/bin/env bash
# The lint gate: format, clippy, documentation, layers, the other processor of Linux, a
# release build. Run it before a pull request, and check-macos.sh, which does the same for
# macOS. Ends at the first complaint.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

step() {
    printf '\n== %s\n' "$*"
    "$@"
}

# Documentation lints are errors, here and below.
export RUSTDOCFLAGS="${RUSTDOCFLAGS:-} -Dwarnings"

step cargo fmt --check
step cargo clippy --all-targets --locked -- -D warnings
step cargo doc --no-deps --locked
step cargo test --locked --quiet --test layering

# The other processor of the Linux backend.
target=aarch64-unknown-linux-gnu
if have_target "$target"; then
    step cargo check --locked --target "$target" --all-targets
else
    (
        use_distro_rust
        CARGO_TARGET_DIR="$PWD/target/distro" step cargo check --locked --target "$target" --all-targets
    )
fi
if command -v shellcheck >/dev/null; then
    step shellcheck scripts/*.sh .ci/run
elif [[ -n ${STACKPROF_NO_SKIP:-} ]]; then
    echo "ci.sh: shellcheck is not installed; try \`apt-get install shellcheck\`" >&2
    exit 1
else
    printf '\n== NOT CHECKED: shellcheck is not installed\n'
fi
step cargo build --release --locked
printf '\nci.sh: all of it passed\n'
