#!/usr/bin/env bash
# Makes the pictures of docs/pictures anew: records a build of Go's encoding/json with its compilers, and
# scripts/docs/words.rs, and takes pictures of their pages in headless Chromium. Look at each before it is committed.
# Usage: scripts/docs/pictures.sh, on a machine that does nothing else; needs perf_event, rustc; installs Debian's golang-go and
# what scripts/check-html.sh installs, into the same place.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

packages=()
command -v chromium >/dev/null || packages+=(chromium)
command -v node >/dev/null || packages+=(nodejs)
command -v npm >/dev/null || packages+=(npm)
command -v go >/dev/null || packages+=(golang-go)
if ((${#packages[@]} > 0)); then
    install_packages "${packages[@]}"
fi
[[ -n ${STACKPROF:-} ]] || cargo build --release --locked
stackprof=$(realpath "${STACKPROF:-target/release/stackprof}")
npm=$PWD/target/html/npm
if [[ ! -d $npm/node_modules/playwright-core ]]; then
    PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 npm install --silent --no-audit --no-fund --prefix "$npm" playwright-core
fi
# A path that says nothing of who made the picture.
place=/tmp/words
mkdir -p "$place"
cp scripts/docs/words.rs "$place"
(
    cd "$place"
    rustc -O -g words.rs
    "$stackprof" -q -o words.html -- ./words 4 >/dev/null
    export GOCACHE=$place/cache
    "$stackprof" -q -o build.html -- go build -a -p 2 -o /dev/null encoding/json
)
node scripts/docs/pictures.js "$(command -v chromium)" "$npm/node_modules/playwright-core" docs/pictures \
    "$place/build.html" "$place/words.html"
ls -l docs/pictures
