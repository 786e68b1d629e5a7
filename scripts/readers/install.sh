#!/usr/bin/env bash
# The tools that scripts/compare-readers.sh compares with, as far as package managers have them.
# Usage: scripts/readers/install.sh FOLDER, then `. FOLDER/env`. As root; takes minutes.
# SPEEDSCOPE and FIREFOX_PROFILER are checkouts of these programs' sources, FLAMEGRAPH one of FlameGraph.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1" && cd "$1" || exit 1
folder=$PWD
apt-get install -y golang-go libgoogle-perftools4 default-jdk-headless npm >apt.log 2>&1
python3 -m venv v && v/bin/pip -q install py-spy austin-python 'austin-dist<4' >pip.log 2>&1
# Both checkouts name what they need; only what their readers need is installed.
npm --prefix n install @firefox-devtools/profiler-cli @datadog/pprof esbuild jszip@3.1.5 pako@1.0.6 \
    protobufjs@6.8.8 uint8array-json-parser jfrview@0.2.0 common-tags memoize-immutable mixedtuplemap long \
    source-map photon-colors devtools-reps valibot @lezer/javascript @streamparser/json >npm.log 2>&1
bundle() {
    NODE_PATH=n/node_modules n/node_modules/.bin/esbuild "$here/$1.ts" --bundle --platform=node --target=node20 \
        --outfile="$1.cjs" --loader:.wasm=binary --log-level=error "${@:2}"
}
[ -z "${SPEEDSCOPE:-}" ] || bundle speedscope --alias:speedscope="$SPEEDSCOPE/src"
[ -z "${FIREFOX_PROFILER:-}" ] || bundle firefox --alias:firefox-profiler="$FIREFOX_PROFILER/src" \
    --alias:json-slabs="$here/json-slabs.ts"
for crate in inferno samply; do
    CARGO_BUILD_JOBS=1 CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
        timeout 600 cargo install --locked --root . "$crate" >"$crate.log" 2>&1
done
cat >./env <<END
export PATH="$folder/v/bin:$folder/bin:$folder/n/node_modules/.bin:\$PATH"
export PROFILER_CLI=profiler-cli READERS_BUNDLES="$folder"
END
