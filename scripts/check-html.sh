#!/usr/bin/env bash
# The HTML page: its modules are type-checked, tested with node, and used in headless Chromium as people use it: mouse, keyboard,
# ranges of time, two profiles, hostile names, 100,000 boxes. Counts are those of `render -o -`. Pictures are left in target/html/.
# Usage: scripts/check-html.sh; installs Debian's chromium and node, npm's typescript and playwright-core.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

packages=()
command -v chromium >/dev/null || packages+=(chromium)
command -v node >/dev/null || packages+=(nodejs)
command -v npm >/dev/null || packages+=(npm)
[[ -d /usr/share/fonts/truetype/dejavu ]] || packages+=(fonts-dejavu-core)
if ((${#packages[@]} > 0)); then
    install_packages "${packages[@]}"
fi
stackprof=${STACKPROF:-target/release/stackprof}
[[ -n ${STACKPROF:-} ]] || cargo build --release --locked
work=$PWD/target/html
mkdir -p "$work/npm"
if [[ ! -d $work/npm/node_modules/playwright-core || ! -d $work/npm/node_modules/typescript ]]; then
    PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1 npm install --silent --no-audit --no-fund --prefix "$work/npm" \
        playwright-core typescript
fi

echo "== types"
node "$work/npm/node_modules/typescript/bin/tsc" -p tests/html/tsconfig.json
echo "== modules"
node --test --test-reporter=spec tests/html/

echo "== in the browser"
# What `render` writes into the page, and as folded stacks.
both() {
    "$stackprof" render -q "${@:2}" -o "$work/$1.html" -o "$work/$1.folded"
}
"$stackprof" demo -q -o "$work/demo.pb.gz"
both recording "$work/demo.pb.gz"
"$stackprof" --target sim:3 --threads --idle -q -o "$work/sim.pb.gz"
both threads "$work/sim.pb.gz"
"$stackprof" --target sim:4 -q -o "$work/other.pb.gz"
if [[ $(uname) == Linux ]]; then
    "$stackprof" heap -q --every 1K -o "$work/heap.html" -o "$work/heap.folded" -- sort -o /dev/null Cargo.lock
fi
cat >"$work/incomplete.folded" <<'FOLDED'
work;[incomplete];[libc.so.6+0x27249] 120
work;main;a;b;a 500
work;main;read_[k] 7
FOLDED
both merged "$work/incomplete.folded"
cat >"$work/diff-base.folded" <<'FOLDED'
work;main;gone 300
work;main;same 500
work;main;grew 100
FOLDED
cat >"$work/diff-new.folded" <<'FOLDED'
work;main;fresh 40
work;main;grew 300
work;main;same 500
FOLDED
"$stackprof" diff -q "$work/diff-base.folded" "$work/diff-new.folded" --absolute -o "$work/diff.html"
{
    cat <<'FOLDED'
p;<img src=x onerror="hacked=1">;</script><script>hacked=1</script> 10
p;"><svg onload=hacked=1>;'-hacked=1-';javascript:hacked=1 7
p;{{constructor.constructor("hacked=1")()}};${hacked=1} 5
p;&lt;b&gt;&amp;;<!--;-->;]]> 3
p;__proto__;constructor;toString;hasOwnProperty 2
FOLDED
    printf 'p;gn\xe2\x80\xaep.exe;a\x1b[31mb\x01;\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d 2\n'
    printf 'p;%s 4\n' "$(head -c 10240 /dev/zero | tr '\0' 'W')"
    printf 'p;%s 4\n' "$(for n in {1..600}; do printf 'std::v<%s, (x)>::' "$n"; done)end"
} >"$work/hostile-names.folded"
"$stackprof" render -q "$work/hostile-names.folded" --title '<img src=x onerror=hacked=1>' -o "$work/hostile.html" \
    -o "$work/hostile.folded"
node tests/html/browser.js "$(command -v chromium)" "$work/npm/node_modules/playwright-core" "$work"
