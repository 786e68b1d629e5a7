#!/usr/bin/env bash
# Signs a program so that it may look into others (com.apple.security.cs.debugger): with
# it, an administrator can record what is not protected by SIP without sudo, after a dialog.
#
#   scripts/codesign-macos.sh [PROGRAM]        default: target/release/stackprof
#
# To be done again after each `cargo build` or `cargo run`: even with nothing to compile,
# cargo puts its own, unsigned file back in place. The signature is put on a copy, which
# then replaces the program: a signed program that is changed in place is killed when it
# next starts, and one that runs keeps its file. Prints the command that signs.
set -euo pipefail

fail() {
    echo "codesign-macos.sh: $*" >&2
    exit 1
}

if (($# > 1)) || [[ ${1:-} == -* ]]; then
    echo "usage: scripts/codesign-macos.sh [PROGRAM]" >&2
    exit 2
fi
if (($# == 0)); then
    cd "$(dirname "$0")/.."
fi
program="${1:-target/release/stackprof}"
if ! command -v codesign >/dev/null; then
    fail "there is no \`codesign\`: signing is for macOS only; there, install the Xcode command line tools: xcode-select --install"
fi
if [[ ! -f $program ]]; then
    fail "there is no \`$program\`; build it with \`cargo build --release\`"
fi
# A link is followed: what it names is replaced, not the link.
while [[ -L $program ]]; do
    to="$(readlink "$program")"
    [[ $to == /* ]] || to="$(dirname "$program")/$to"
    program="$to"
done

work="$(mktemp -d "$(dirname "$program")/codesign.XXXXXX")" ||
    fail "cannot write beside \`$program\`; copy it to a directory of yours and sign it there"
trap 'rm -rf "$work"' EXIT
cat >"$work/ent.xml" <<'PLIST'
<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE plist PUBLIC "-//Apple//DTD PLIST 1.0//EN" "http://www.apple.com/DTDs/PropertyList-1.0.dtd">
<plist version="1.0">
<dict>
    <key>com.apple.security.cs.debugger</key>
    <true/>
</dict>
</plist>
PLIST
# The copy has the program's name, which becomes the identifier in the signature.
copy="$work/$(basename "$program")"
cp -p "$program" "$copy"

run() {
    echo "+ $*"
    "$@" || fail "\`$1\` failed with exit code $?; \`$program\` is as it was"
}
run codesign --force --options runtime --sign - --entitlements "$work/ent.xml" "$copy"
run codesign --verify --strict "$copy"
mv -f "$copy" "$program"
echo "signed \`$program\`; sign it again after each \`cargo build\` or \`cargo run\`"
