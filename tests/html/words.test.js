// Names, numbers, addresses and colours.

import assert from "node:assert/strict";
import { test } from "node:test";
import { coloursOf, mix } from "../../crates/profile/src/html/colours.js";
import { decode } from "../../crates/profile/src/html/data.js";
import { functionTotals } from "../../crates/profile/src/html/functions.js";
import { Names, isProgram, shortName } from "../../crates/profile/src/html/names.js";
import { change, clip, count, counted, duration, percent } from "../../crates/profile/src/html/numbers.js";
import { select } from "../../crates/profile/src/html/selection.js";
import { addressOf, initialState, keyOfName, nameOfKey, stateOf } from "../../crates/profile/src/html/state.js";
import { buildTree } from "../../crates/profile/src/html/tree.js";
import { profile } from "./page.js";
import { random } from "./random.js";

test("short names leave out arguments and outer namespaces", () => {
  for (const [name, short] of [
    ["main", "main"],
    ["std::vector<int, std::allocator<int> >::push_back(int&&)", "vector::push_back"],
    ["a::b::c::d", "c::d"],
    ["core::ops::function::FnOnce::call_once{{vtable.shim}}", "FnOnce::call_once{{vtable.shim}}"],
    ["<alloc::vec::Vec<T> as core::fmt::Debug>::fmt", "Vec::fmt"],
    ["<a::Interners>::intern::{closure#0}", "Interners::intern::{closure#0}"],
    ["<fn(A) -> B as C>::call", "fn(A) -> B::call"],
    ["<T>", "<T>"],
    ["<", "<"],
    ["operator<(A const&, A const&)", "operator<"],
    ["[libc.so.6+0x1f40]", "[libc.so.6+0x1f40]"],
    ["f(", "f"],
    [">>>", ">>>"],
    ["", ""],
  ]) {
    assert.equal(shortName(name), short);
  }
});

test("a name of any length takes a moment", () => {
  assert.equal(shortName("<(".repeat(50000)).length, 100000);
  assert.ok(shortName("<>::".repeat(499)).length <= 2000);
});

test("libraries are told from programs", () => {
  for (const file of ["libc.so.6", "a.so", "libSystem.B.dylib", "ntdll.dll", "[vdso]", "addon.node"]) assert.ok(!isProgram(file), file);
  for (const file of ["python3", "a.out", "x.sober"]) assert.ok(isProgram(file), file);
});

test("numbers as people read them", () => {
  assert.deepEqual([0, 0.00001, 0.0123, 0.5, 0.9996, 1].map(percent), ["0%", "<0.01%", "1.23%", "50.0%", "99.96%", "100%"]);
  assert.deepEqual([0, 950, 1500, 2.5e6, 9.876e9, 125e9, 7200e9].map(duration), ["0 s", "950 ns", "1.5 µs", "2.5 ms", "9.88 s", "2 min 5 s", "2.0 h"]);
  assert.deepEqual([count(1234567), counted(1, "samples"), counted(1536, "bytes")], ["1,234,567", "1 sample", "1.5 KiB"]);
  assert.deepEqual([change(0, 1), change(1, 0), change(0, 0), change(100, 105), change(100, 50), change(1, 30)], ["new", "gone", "0%", "+5.0%", "-50%", "×30.0"]);
  assert.equal(percent(NaN), "–");
  assert.equal(clip("abcdefghij", 5), "ab…ij");
});

test("an address brings back the state, whatever is in it", () => {
  const rng = random(5);
  for (let round = 0; round < 300; round++) {
    const initial = initialState(round % 2 === 0, 1, true);
    const text = () => Array.from({ length: rng.below(12) }, () => rng.pick([..."ab,~&#=%+ </\"é\u{1f525}0"])).join("");
    const state = {
      ...initial,
      view: rng.pick(["flame", "functions", "callers", "source"]),
      selected: rng.below(3) - 1,
      path: rng.below(2) ? [String(rng.below(99)), `5~-1~p${text()}`] : [],
      query: text(),
      invert: rng.below(2) === 1,
      recursion: rng.below(2) === 1,
      collapsed: rng.below(2) ? [-2, 3] : [],
      threads: rng.below(2) ? [1, 2] : [],
      range: rng.below(2) ? [5, 900000000000] : null,
      colour: rng.pick(["library", "kind", "change"]),
      theme: rng.pick(["auto", "dark"]),
      panel: rng.below(2) === 1,
    };
    assert.deepEqual(stateOf(addressOf(state, initial), initial), state);
  }
});

test("an address says that no moment is chosen where one is at first", () => {
  const initial = { ...initialState(false, 1, true), moment: 5 };
  for (const moment of [-1, 0, 5]) assert.equal(stateOf(addressOf({ ...initial, moment }, initial), initial).moment, moment);
});

test("what an address says wrongly is left as it is", () => {
  const initial = initialState(false, 1, true);
  for (const address of ["#view=x&selected=-7&range=9,1&threads=a&colour=red&invert=2", "#%", "#range=1", "#path=%25E0%25A4%25A", ""]) {
    const { path, ...state } = stateOf(address, initial);
    assert.deepEqual({ ...state, path: [] }, initial, address);
  }
});

test("labels have keys that bring them back", () => {
  const names = new Names(decode(profile([["p;a", 1]])));
  const label = names.label("a~b\n, c", 6, -1);
  assert.equal(nameOfKey(names, keyOfName(names, label)), label);
  assert.equal(nameOfKey(names, "0"), 0);
  assert.equal(nameOfKey(names, "77"), -1);
  assert.equal(nameOfKey(names, "x"), -1);
});

// ---- colours

const channels = (pixel) => [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255];
function luminance(rgb) {
  const [red, green, blue] = rgb.map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
const contrast = (a, b) => (Math.max(luminance(a), luminance(b)) + 0.05) / (Math.min(luminance(a), luminance(b)) + 0.05);

function coloured(by, dark, compares = false) {
  const stacks = Array.from({ length: 12 }, (_, at) => [`p;f${at}@lib${at}.so`, 100 + at, 3 * at * at]);
  stacks.push(["p;k_[k]", 50, 50], ["p;[x.so+0x10]", 9, 9]);
  const data = decode(profile(stacks, compares ? { compare: { measure: "samples", scales: [1, 1], words: "" } } : {}));
  const names = new Names(data);
  const rows = select(data, { threads: null, stacks: "all", range: null, baseRange: null });
  const tree = buildTree(data, names, rows, { mergeRecursion: false, collapsed: new Set(), focus: -1, threads: true });
  const { self } = functionTotals(tree, names.count);
  return { colours: coloursOf(names, tree, by, dark, self, self), tree, names };
}

test("black names can be read on every box", () => {
  for (const dark of [false, true]) {
    for (const by of ["library", "kind", "change"]) {
      const { colours } = coloured(by, dark, by === "change");
      for (const pixel of colours.pixels.subarray(0, colours.faded)) assert.ok(contrast(channels(pixel), [22, 24, 27]) >= 4.5, `${by} ${dark} ${channels(pixel)}`);
    }
  }
});

// Machado, Oliveira and Fernandes 2009, severity 1: what somebody sees who lacks one kind of cone.
const SIGHTS = {
  protanopia: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deuteranopia: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
};
const seen = (sight, rgb) => SIGHTS[sight].map((row) => row.reduce((sum, part, at) => sum + part * rgb[at], 0));
const distance = (a, b) => Math.hypot(...a.map((value, at) => value - b[at]));

test("what grew and what shrank can be told apart with any sight", () => {
  const [grew, neutral, shrank] = [[240, 130, 20], [224, 224, 220], [86, 158, 224]];
  for (const sight of Object.keys(SIGHTS)) {
    for (const strength of [0.3, 0.6, 1]) {
      const [warm, cold] = [mix(neutral, grew, strength), mix(neutral, shrank, strength)].map((rgb) => seen(sight, rgb));
      assert.ok(distance(warm, cold) > 60 * strength, `${sight} ${strength}: ${distance(warm, cold)}`);
    }
  }
});

test("a library keeps its colour when others are left out", () => {
  const { colours, tree, names } = coloured("library", false);
  const at = (text) => [...tree.name].findIndex((name) => names.text(name) === text);
  assert.notEqual(colours.pixels[colours.of(at("f11"))], colours.pixels[colours.of(at("k_[k]"))]);
  const few = new Float64Array(names.count);
  few[tree.name[at("f5")]] = 1;
  const whole = functionTotals(tree, names.count).self;
  const other = coloursOf(names, tree, "library", false, whole, few);
  assert.equal(other.pixels[other.of(at("f5"))], colours.pixels[colours.of(at("f5"))]);
  assert.equal(other.legend.length, 1);
});
