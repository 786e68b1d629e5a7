#!/usr/bin/env bash
# Flame graphs in a real browser: a recording, comparisons, dark and blue-orange pages, tall ones
# with their root at either end and a profile of 50,000 frames are opened in headless Chromium;
# where they open, zoom, search, reset, tooltips and the time to open are checked. Pictures are
# left in target/graph/.
# Usage: scripts/check-graph.sh; installs Debian's chromium and npm's playwright-core.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

packages=()
command -v chromium >/dev/null || packages+=(chromium)
command -v node >/dev/null || packages+=(nodejs)
command -v npm >/dev/null || packages+=(npm)
# A fixed-width font, in which inferno's script measures names.
[[ -d /usr/share/fonts/truetype/dejavu ]] || packages+=(fonts-dejavu-core)
if ((${#packages[@]} > 0)); then
    install_packages "${packages[@]}"
fi
stackprof=${STACKPROF:-target/release/stackprof}
[[ -n ${STACKPROF:-} ]] || cargo build --release --locked
work=$PWD/target/graph
mkdir -p "$work/npm"
[[ -d $work/npm/node_modules/playwright-core ]] ||
    PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 npm install --silent --no-audit --no-fund --prefix "$work/npm" playwright-core

cat >"$work/base.folded" <<'FOLDED'
work;[incomplete];[libc.so.6+0x27249] 120
work;main;app::log;std::io::Write::write_fmt 500
work;main;app::serve;db::query;core::fmt::write 400
work;main;app::serve;db::query;old_cache::lookup(std::vector<int, std::allocator<int> > const&) 700
work;main;app::serve;db::query;sqlx::row::get<alloc::string::String> 1500
work;main;app::serve;http::parse_request 300
work;main;app::serve;http::parse_request;<&str as core::str::pattern::Pattern>::is_contained_in 900
work;main;app::serve;json::encode 100
work;main;app::serve;json::encode;serde_json::ser::to_vec 2100
work;main;gc::sweep 800
FOLDED
sed -e '/old_cache/d' -e '/to_vec/s/2100/2705/' -e '/sweep/s/800/500/' \
    -e '/parse_request 300/i work;main;app::serve;db::query;new_cache::get 250' "$work/base.folded" >"$work/new.folded"
awk 'BEGIN {
    srand(3)
    for (stack = 0; stack < 2000; stack++) {
        line = sprintf("work;main;module_%02d::a;module_%02d::b", stack / 100, stack / 100)
        for (level = 0; level < 24; level++) line = line sprintf(";leaf_%04d::call_%d<T>", stack, level)
        print line, 10 + int(rand() * 50)
    }
}' >"$work/wide.folded"
# 150 levels, of which a few samples are on the last hundred.
awk 'BEGIN {
    line = "work;main"
    for (level = 0; level < 150; level++) {
        line = line sprintf(";level_%03d::call", level)
        print line, level < 50 ? 100 : 1
    }
    print "work;other 50"
}' >"$work/tall.folded"
sed -e 's/ 100$/ 120/' "$work/tall.folded" >"$work/tall-new.folded"

"$stackprof" demo -q -o "$work/recording.svg"
"$stackprof" render -q "$work/base.folded" -o "$work/base.svg"
"$stackprof" render -q "$work/base.folded" --colors blue-orange -o "$work/blue-orange.svg"
"$stackprof" render -q "$work/base.folded" --dark -o "$work/dark.svg"
"$stackprof" render -q "$work/wide.folded" -o "$work/wide.svg"
"$stackprof" diff -q "$work/base.folded" "$work/new.folded" --absolute -o "$work/diff.svg"
"$stackprof" render -q "$work/tall.folded" -o "$work/tall.svg"
"$stackprof" render -q "$work/tall.folded" --no-inverted -o "$work/tall-bottom.svg"
"$stackprof" diff -q "$work/tall.folded" "$work/tall-new.folded" --no-inverted -o "$work/tall-diff.svg"
node scripts/check-graph.js "$(command -v chromium)" "$work/npm/node_modules/playwright-core" "$work"
