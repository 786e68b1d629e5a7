#!/usr/bin/env bash
# Can others build and install it? Packs the crate, builds what is in the pack alone,
# compares the oldest compiler that it names with those of the crates below it, makes a Debian
# package, installs it into a root of its own, records with it from there, and removes it.
# Usage: scripts/check-package.sh
# Nothing is installed on this machine but, by name, what is missing of the tools for it.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

step() {
    printf '\n== %s\n' "$*"
}
fail() {
    echo "check-package: $*" >&2
    exit 1
}

packages=()
command -v python3 >/dev/null || packages+=(python3)
command -v dpkg-deb >/dev/null || packages+=(dpkg)
command -v objdump >/dev/null || packages+=(binutils)
if ((${#packages[@]} > 0)); then
    install_packages "${packages[@]}"
fi
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

step "the crate: packed, then built outside of the repository"
# It is built below, where the dependencies that are built already are used again.
cargo package --workspace --locked --no-verify --allow-dirty
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
for crate in "$target"/package/*-"$version".crate; do
    tar -xzf "$crate" -C "$work"
done
(
    cd "$work/stackprof-$version"
    export CARGO_TARGET_DIR="$target"
    # Its lock file names the libraries as crates.io would have it.
    cargo build \
        --config "patch.crates-io.stackprof-profile.path='$work/stackprof-profile-$version'" \
        --config "patch.crates-io.stackprof-unwind.path='$work/stackprof-unwind-$version'"
)

step "the oldest compiler"
msrv=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
cargo metadata --locked --format-version 1 | MSRV="$msrv" python3 -c '
import json, os, sys
number = lambda text: tuple(map(int, text.split("+")[0].split(".")))[:2]
ours, metadata = number(os.environ["MSRV"]), json.load(sys.stdin)
by_id = {node["id"]: node for node in metadata["resolve"]["nodes"]}
packages = {package["id"]: package for package in metadata["packages"]}
# What a build needs; tests may need a newer one.
todo, needed = [metadata["resolve"]["root"]], set()
while todo:
    id = todo.pop()
    if id not in needed:
        needed.add(id)
        todo += [dep["pkg"] for dep in by_id[id]["deps"] if any(kind["kind"] != "dev" for kind in dep["dep_kinds"])]
newer = [p["id"] for p in map(packages.get, needed) if p["rust_version"] and number(p["rust_version"]) > ours]
print(len(needed), "crates, none asks for a newer compiler than", os.environ["MSRV"] if not newer else newer)
sys.exit(bool(newer))
' || fail "a crate needs a newer compiler than rust-version = \"$msrv\" of Cargo.toml"
toolchain=$(rustup toolchain list 2>/dev/null | sed -n "s/^\(${msrv}[^ ]*\).*/\1/p" | head -n 1)
if [[ -n $toolchain ]]; then
    cargo "+$toolchain" check --locked
else
    echo "NOT CHECKED: Rust $msrv is not installed (rustup toolchain install $msrv); clippy's incompatible_msrv was asked by ci.sh"
fi

step "the Debian package"
cargo build --profile dist --locked
if cargo deb --version >/dev/null 2>&1; then
    echo "by cargo-deb"
    deb=$(cargo deb --no-build --profile dist --output "$work/" | tail -n 1)
else
    echo "by packaging/deb.py; cargo-deb, which reads the same lines, is not installed"
    deb=$(packaging/deb.py "$target/dist/stackprof" "$work")
fi
dpkg-deb --info "$deb"
dpkg-deb --contents "$deb" | awk '{ print $1, $2, $3, $6 }'

# A root with nothing in it: what the package depends on is this machine's.
root=$work/root
mkdir -p "$root/var/lib/dpkg/info" "$root/var/lib/dpkg/updates"
touch "$root/var/lib/dpkg/status"
in_root() {
    dpkg --root="$root" --log=/dev/null --force-depends --force-not-root --force-bad-path "$@"
}
in_root --install "$deb"
installed=$root/usr/bin/stackprof
[[ $("$installed" --version) == "stackprof ${crate#stackprof-}" ]] || fail "it is not this version"
for file in usr/share/man/man1/stackprof.1.gz usr/share/man/man1/stackprof-gate.1.gz; do
    gzip -t "$root/$file"
done
for file in bash-completion/completions/stackprof fish/vendor_completions.d/stackprof.fish \
    zsh/vendor-completions/_stackprof doc/stackprof/copyright doc/stackprof/LICENSE-MIT \
    doc/stackprof/third-party-licenses.txt; do
    [[ -s $root/usr/share/$file ]] || fail "the package has no usr/share/$file"
done
"$installed" demo -d 1 -o "$work/demo.pb.gz"
"$installed" -o "$work/loop.folded" -- bash -c 'for ((i = 0; i < 300000; i++)); do :; done'
grep -q '^bash;' "$work/loop.folded" || fail "the recording has no stack of bash"
in_root --remove stackprof
[[ ! -e $installed && ! -e $root/usr/share/man/man1/stackprof.1.gz ]] || fail "files were left behind"

if command -v ruby >/dev/null; then
    step "the Homebrew formula"
    ruby -c packaging/homebrew/stackprof.rb
else
    echo "NOT CHECKED: the Homebrew formula; ruby is not installed"
fi
printf '\ncheck-package.sh: all of it passed\n'
