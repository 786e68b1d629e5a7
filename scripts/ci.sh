#!/usr/bin/env bash
# The lint gate: files at the root, format, clippy, documentation, layers, licences, the other
# processor of Linux, a release build. Run it before a pull request, and check-macos.sh, which does the
# same for macOS. Ends at the first complaint.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

step() {
    printf '\n== %s\n' "$*"
    "$@"
}

# Whatever else a tool leaves at the root of the repository is not to be committed.
expected_at_the_root() {
    local name names unexpected=0
    names=$(git ls-files | cut -d/ -f1 | sort -u)
    while read -r name; do
        case $name in
        .cargo | .ci | .config | .github | .gitignore | .rustfmt.toml) ;;
        ARCHITECTURE.md | CHANGELOG.md | CONTRIBUTING.md | README.md | SECURITY.md | LICENSE-*) ;;
        Cargo.lock | Cargo.toml | book.toml | build.rs | deny.toml | rust-toolchain.toml) ;;
        benches | crates | docs | packaging | profiles | scripts | src | tests) ;;
        *)
            echo "ci.sh: \`$name\` at the root of the repository is not expected; remove it, or name it in ci.sh" >&2
            unexpected=1
            ;;
        esac
    done <<<"$names"
    return "$unexpected"
}
step expected_at_the_root

# Documentation lints are errors, here and below.
export RUSTDOCFLAGS="${RUSTDOCFLAGS:-} -Dwarnings"

step cargo fmt --check
step cargo clippy --all-targets --locked -- -D warnings
step cargo doc --no-deps --locked
step cargo test --locked --quiet --test layering
# What the packages say of the code of others, and the rules of deny.toml.
step scripts/licenses.py --check
if cargo deny --version >/dev/null 2>&1; then
    step cargo deny --locked check bans licenses sources
fi

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
    step shellcheck scripts/*.sh scripts/*/*.sh .ci/run
elif [[ -n ${STACKPROF_NO_SKIP:-} ]]; then
    echo "ci.sh: shellcheck is not installed; try \`apt-get install shellcheck\`" >&2
    exit 1
else
    printf '\n== NOT CHECKED: shellcheck is not installed\n'
fi
step cargo build --release --locked
printf '\nci.sh: all of it passed\n'
