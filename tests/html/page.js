// The page as stackprof writes it, put together from the tree: for tests of the page without a build. The order of the modules
// is read from the writer, so there is one list.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { gzipSync } from "node:zlib";

const ROOT = new URL("../../", import.meta.url);
const read = (path) => readFileSync(new URL(path, ROOT), "utf8");

export const MODULES = [...read("crates/profile/src/formats/html/page.rs").matchAll(/^ {4}\("(\w+\.js)", include_str/gm)].map((match) => match[1]);

/** The text of a module. */
export const moduleText = (name) => read(`crates/profile/src/html/${name}`);

/** The one script of the page. */
export function script() {
  let out = '"use strict";\n';
  for (const name of MODULES) {
    out += `// ---- ${name}\n`;
    for (const line of moduleText(name).split("\n").slice(0, -1)) {
      if (!line.startsWith("import ")) out += `${line.replace(/^export /, "")}\n`;
    }
  }
  return `${out}main();\n`;
}

/** The whole page around data in base64. */
export function page(base64) {
  const [style, code] = [read("crates/profile/src/html/style.css"), script()];
  const digest = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;
  const policy =
    `default-src 'none'; script-src ${digest(code)}; style-src ${digest(style)}; require-trusted-types-for 'script'; ` +
    "trusted-types 'none'; base-uri 'none'; form-action 'none'";
  const texts = { POLICY: policy, GENERATOR: "test", STYLE: style, DATA: base64, SCRIPT: code };
  return read("crates/profile/src/html/page.html").replace(/\{([A-Z]+)\}/g, (_, name) => texts[name]);
}

// ---- data

function varint(out, number) {
  let rest = number;
  while (rest >= 0x80) {
    out.push((rest % 128) | 0x80);
    rest = Math.floor(rest / 128);
  }
  out.push(rest);
}

/** Numbers in one of the forms of crates/profile/src/html/bytes.js. */
export function encodeColumn(form, numbers) {
  const out = [];
  let before = 0;
  numbers.forEach((number, index) => {
    if (form === "plain") varint(out, number);
    else if (form === "back") varint(out, index - number);
    else varint(out, number >= before ? (number - before) * 2 : (before - number) * 2 - 1);
    before = number;
  });
  return out;
}

/** The bytes of data: a header, and columns as `[name, form, numbers]`. */
export function encode(header, columns) {
  const list = [];
  const bytes = [];
  for (const [name, form, numbers] of columns) {
    const column = encodeColumn(form, numbers);
    list.push([name, form, numbers.length, column.length]);
    for (const byte of column) bytes.push(byte);
  }
  const json = new TextEncoder().encode(JSON.stringify({ form: 1, ...header, columns: list }));
  const out = new Uint8Array(4 + json.length + bytes.length);
  new DataView(out.buffer).setUint32(0, json.length, true);
  out.set(json, 4);
  out.set(bytes, 4 + json.length);
  return out;
}

const MIB = 1 << 20;

/**
 * Ten seconds of a program: `leak` has a MiB more every 100 ms, `cache` 20 MiB from 1 s on, `burst` 80 MiB from 4.5 s to 5.5 s.
 */
export function memory(more = {}) {
  const rows = [];
  for (let moment = 0; moment <= 100; moment++) {
    rows.push([moment, 0, 0, moment * MIB]);
    if (moment === 10) rows.push([moment, 1, 1, 20 * MIB]);
    if (moment === 45) rows.push([moment, 2, 2, 80 * MIB]);
    if (moment === 56) rows.push([moment, 2, 2, 0]);
  }
  const times = Array.from({ length: 101 }, (_, moment) => moment * 1e8);
  const stacks = [["p;main;leak", 100 * MIB], ["p;main;cache", 20 * MIB], ["p;main;work;burst", 0]];
  return profile(stacks, { header: { unit: "bytes", title: "p: 120.0 MiB in use at the end" }, side: { hz: null, by_thread: false, duration_ns: 1e10 }, inuse: { times, peak: 55, areas: ["leak < main", "cache"], rows }, ...more });
}

export const inPage = (bytes) => gzipSync(bytes).toString("base64");

/**
 * A profile from stacks: `["process;main;f", count]`, or with `base` and `samples` as
 * `{ stack, count, base, thread, incomplete, samples: [ns, ...] }`. A frame may be `name@library`, `name@library:line` or begin
 * with `+` for an inlined one. `more.inuse`: `{ times, peak, areas, rows: [[moment, stack, area, bytes], ...] }`.
 */
export function profile(stacks, more = {}) {
  const strings = [""];
  const number = new Map([["", 0]]);
  const text = (value) => {
    if (!number.has(value)) number.set(value, strings.push(value) - 1);
    return number.get(value);
  };
  const table = () => ({ rows: [], known: new Map() });
  const add = (to, row) => {
    const key = JSON.stringify(row);
    if (!to.known.has(key)) to.known.set(key, to.rows.push(row) - 1);
    return to.known.get(key);
  };
  const [libraries, functions, frames, threads, roots, nodes] = [table(), table(), table(), table(), table(), table()];
  // The top, which has no frame.
  add(nodes, [0, -1]);
  const counts = [];
  const samples = [];
  for (const given of stacks) {
    const one = Array.isArray(given) ? { stack: given[0], count: given[1], base: given[2] } : given;
    const [process, ...names] = one.stack.split(";");
    const [threadName, id] = one.thread || ["", -1];
    const thread = add(threads, [text(process), text(threadName), id + 1]);
    const root = add(roots, [thread, one.incomplete ? 1 : 0]);
    let node = 0;
    for (const name of names) {
      const [, inlined, base, library, line] = /^(\+?)(.*?)(?:@([^:]*))?(?::(\d+))?$/s.exec(name);
      const kind = base.endsWith("_[k]") ? 1 : /^\[.*\+0x/.test(base) ? 3 : 0;
      const fn = add(functions, [text(base), library ? add(libraries, library) + 1 : 0, line ? text(`/src/${library}.c`) : 0, 0, kind]);
      const frame = add(frames, [fn, Number(line || 0), line ? 0x1000 + Number(line) : 0, inlined ? 1 : 0]);
      node = add(nodes, [node, frame]);
    }
    counts.push([root, node, one.count ?? one.samples.length, one.base ?? 0]);
    for (const time of one.samples || []) samples.push([time, root, node, 1]);
  }
  samples.sort((a, b) => a[0] - b[0]);
  const columnsOf = (prefix, fields, rows) => fields.map((field, at) => [`${prefix}.${field}`, "delta", rows.map((row) => row[at])]);
  const compares = more.compare !== undefined;
  const total = (at) => counts.reduce((sum, row) => sum + row[at], 0);
  const side = { name: "a", by_thread: true, hz: 1000, lost: {}, incomplete: {}, total: total(2), idle: false, duration_ns: null, ...more.side };
  const header = {
    title: "test",
    unit: "samples",
    sides: compares ? [{ ...side, name: "base", total: total(3) }, { ...side, name: "new" }] : [side],
    compare: more.compare ?? null,
    strings,
    libraries: libraries.rows.map((name) => ({ name, path: `/lib/${name}`, build_id: "" })),
    sources: more.sources,
    inuse: more.inuse && { peak: more.inuse.peak, areas: more.inuse.areas },
    ...more.header,
  };
  const columns = [
    ...columnsOf("function", ["name", "library", "file", "line", "kind"], functions.rows),
    ...columnsOf("frame", ["function", "line", "address", "inlined"], frames.rows),
    ...columnsOf("thread", ["process", "name", "id"], threads.rows),
    ...columnsOf("root", ["thread", "flags"], roots.rows),
    ["node.parent", "back", nodes.rows.map((row) => row[0])],
    ["node.frame", "plain", nodes.rows.map((row) => Math.max(0, row[1]))],
    ...columnsOf("count", compares ? ["root", "node", "value", "base"] : ["root", "node", "value"], counts),
  ];
  if (samples.length > 0) columns.push(...columnsOf("sample", ["time", "root", "node", "value"], samples));
  if (more.events) columns.push(...columnsOf("event", ["time", "duration", "kind", "thread", "text"], more.events.map(([t, d, words, kind = 0, thread = 0]) => [t, d, kind, thread, text(words)])));
  if (more.inuse) {
    columns.push(["moment.time", "delta", more.inuse.times]);
    columns.push(...columnsOf("inuse", ["moment", "root", "node", "area", "bytes"], more.inuse.rows.map(([moment, stack, area, bytes]) => [moment, counts[stack][0], counts[stack][1], area, bytes])));
  }
  return encode(header, columns);
}
