// The tree, its options, what is computed from it and where its boxes are; beside the same done the plain way with strings.

import assert from "node:assert/strict";
import { test } from "node:test";
import { decode } from "../../crates/profile/src/html/data.js";
import { byInstruction, functionTotals, heaviest, neighboursOf, placesOf, threadsOf } from "../../crates/profile/src/html/functions.js";
import { layOut, neighbour, nodeAt, nodeOfPath, pathOf } from "../../crates/profile/src/html/layout.js";
import { KERNEL_LIBRARY, Names } from "../../crates/profile/src/html/names.js";
import { matchNames, matchedCounts, nextMatch } from "../../crates/profile/src/html/search.js";
import { select } from "../../crates/profile/src/html/selection.js";
import { instructionRows } from "../../crates/profile/src/html/source.js";
import { buildTree, calleesTree, invertTree, outermostNodes } from "../../crates/profile/src/html/tree.js";
import { profile } from "./page.js";
import { namesOf, random, randomStacks } from "./random.js";

const ALL = { threads: null, stacks: "all", range: null, baseRange: null };
const PLAIN = { mergeRecursion: false, collapsed: new Set(), focus: -1, threads: true };

function open(stacks, more = {}, filter = {}, options = {}) {
  const data = decode(profile(stacks, more));
  const names = new Names(data);
  const rows = select(data, { ...ALL, ...filter });
  return { data, names, rows, tree: buildTree(data, names, rows, { ...PLAIN, ...options }) };
}

/** Folded lines of a tree: what ends at each node. */
function folded({ names, tree }, values = tree.self) {
  const lines = new Map();
  for (let node = 0; node < tree.count; node++) {
    if (values[node] === 0) continue;
    const line = pathOf(tree, node).map((name) => names.text(name)).join(";");
    lines.set(line, (lines.get(line) || 0) + values[node]);
  }
  return lines;
}

/** The same of stacks; `change` is done to the names of each. */
function expected(stacks, change = (names) => names, count = (one) => one.count) {
  const lines = new Map();
  for (const one of stacks) {
    const names = change(namesOf(one));
    if (names === null || count(one) === 0) continue;
    lines.set(names.join(";"), (lines.get(names.join(";")) || 0) + count(one));
  }
  return lines;
}

const sorted = (map) => [...map].sort((a, b) => (a[0] < b[0] ? -1 : 1));
const same = (one, other) => assert.deepEqual(sorted(one), sorted(other));
const id = (names, text) => [...Array(names.count).keys()].find((name) => names.text(name) === text);

function rounds(check) {
  for (let seed = 1; seed <= 40; seed++) {
    const rng = random(seed);
    check(randomStacks(rng, 1 + rng.below(60)), rng);
  }
}

test("a tree has the stacks of the profile", () => {
  rounds((stacks) => same(folded(open(stacks)), expected(stacks)));
});

test("threads are a level, or are not", () => {
  const stacks = [
    { stack: "p;a", count: 1, thread: ["x", 1] },
    { stack: "p;a", count: 2, thread: ["y", 2] },
    { stack: "p;a", count: 4, thread: ["y", 2], incomplete: true },
  ];
  same(folded(open(stacks)), new Map([["p;x (1);a", 1], ["p;y (2);a", 2], ["p;y (2);[incomplete];a", 4]]));
  same(folded(open(stacks, {}, {}, { threads: false })), new Map([["p;a", 3], ["p;[incomplete];a", 4]]));
  same(folded(open(stacks, {}, { threads: new Set([0]) })), new Map([["p;x (1);a", 1]]));
  same(folded(open(stacks, {}, { stacks: "incomplete" })), new Map([["p;y (2);[incomplete];a", 4]]));
});

test("totals are the sums of what is below", () => {
  rounds((stacks) => {
    const { tree, rows } = open(stacks);
    const below = tree.self.slice();
    for (let node = tree.count - 1; node >= 0; node--) if (tree.parent[node] >= 0) below[tree.parent[node]] += below[node];
    assert.deepEqual([...tree.total], [...below]);
    assert.equal(rows.total, stacks.reduce((sum, one) => sum + one.count, 0));
  });
});

test("merged recursion leaves each function once in a path", () => {
  const merged = (names) => {
    const path = [];
    for (const name of names) {
      const at = path.indexOf(name);
      if (at >= 0) path.length = at + 1;
      else path.push(name);
    }
    return path;
  };
  // Functions of one name in two libraries are two: one library here.
  rounds((stacks) => {
    const one = stacks.map((stack) => ({ ...stack, stack: stack.stack.replace(/@[^;]*/g, "") }));
    same(folded(open(one, {}, {}, { mergeRecursion: true })), expected(one, merged));
  });
});

test("a collapsed library is one frame for all that stand together", () => {
  const { data, names, rows } = open([["p;a@x.so;b@x.so;c@y.so;a@x.so", 3], ["p;d_[k];e_[k]", 2]]);
  const collapsed = (keys) => folded({ names, tree: buildTree(data, names, rows, { ...PLAIN, collapsed: new Set(keys) }) });
  same(collapsed([0]), new Map([["p;x.so;c;x.so", 3], ["p;d_[k];e_[k]", 2]]));
  same(collapsed([KERNEL_LIBRARY]), new Map([["p;a;b;c;a", 3], ["p;[kernel]", 2]]));
});

test("a focus keeps what the function is on, from it on", () => {
  rounds((stacks) => {
    const plain = stacks.map((stack) => ({ ...stack, stack: stack.stack.replace(/@[^;]*/g, "") }));
    const { names } = open(plain);
    const focus = id(names, "f3");
    if (focus === undefined) return;
    const from = (list) => (list.includes("f3") ? list.slice(list.indexOf("f3")) : null);
    same(folded(open(plain, {}, {}, { focus })), expected(plain, from));
  });
});

test("inverted, each path is there the other way round", () => {
  rounds((stacks) => {
    const { names, tree, rows } = open(stacks);
    const inverted = invertTree(tree, null, false, 0);
    same(folded({ names, tree: inverted }), expected(stacks, (list) => list.reverse()));
    let total = 0;
    for (let node = 0; node < inverted.count; node++) if (inverted.parent[node] < 0) total += inverted.total[node];
    assert.equal(total, rows.total);
  });
});

test("what is too light for an inverted tree still counts for what it calls", () => {
  const { names, tree } = open([["p;a;x", 1], ["p;b;x", 99]]);
  const inverted = invertTree(tree, null, false, 5);
  same(folded({ names, tree: inverted }), new Map([["x", 1], ["x;b;p", 99]]));
});

test("self and total of functions count recursion once", () => {
  rounds((stacks) => {
    const plain = stacks.map((stack) => ({ ...stack, stack: stack.stack.replace(/@[^;]*/g, "") }));
    const { names, tree } = open(plain);
    const totals = functionTotals(tree, names.count);
    for (let name = 0; name < names.count; name++) {
      const text = names.text(name);
      const sum = (holds) => plain.filter((one) => holds(namesOf(one))).reduce((all, one) => all + one.count, 0);
      assert.equal(totals.self[name], sum((list) => list.at(-1) === text), text);
      assert.equal(totals.total[name], sum((list) => list.includes(text)), text);
    }
  });
});

test("callers and callees of a function add up to it", () => {
  rounds((stacks) => {
    const { names, tree } = open(stacks);
    const totals = functionTotals(tree, names.count);
    for (let name = 0; name < names.functions; name++) {
      if (totals.total[name] === 0) continue;
      const seeds = outermostNodes(tree, name);
      assert.equal(seeds.reduce((sum, seed) => sum + seed.value, 0), totals.total[name]);
      const callees = calleesTree(tree, name);
      assert.equal(callees.total[0], totals.total[name]);
      assert.equal(invertTree(tree, seeds, false, 0).total[0], totals.total[name]);
      const { callers } = neighboursOf(tree, name);
      assert.equal(callers.reduce((sum, [, value]) => sum + value, 0), totals.total[name]);
    }
  });
});

test("lines and addresses of a function", () => {
  const { data, rows, names } = open([["p;a@x.so:3;a@x.so:5", 2], ["p;a@x.so:3", 4], ["p;a@x.so:5;b@x.so:9", 8]]);
  assert.deepEqual(placesOf(data, rows, id(names, "a"), "line"), [
    { key: 3, self: 4, total: 6, base: 0 },
    { key: 5, self: 2, total: 8, base: 0 },
  ]);
  assert.deepEqual(placesOf(data, rows, id(names, "b"), "address").map((place) => place.key), [0x1009]);
});

test("threads of a function", () => {
  const { data, rows, names } = open([
    { stack: "p;a;b", count: 1, thread: ["x", 1] },
    { stack: "p;a", count: 5, thread: ["y", 2] },
  ]);
  assert.deepEqual(threadsOf(data, rows, id(names, "a")).map(({ thread, total }) => [thread, total]), [[1, 5], [0, 1]]);
  assert.deepEqual(threadsOf(data, rows, id(names, "b")).map(({ thread, total }) => [thread, total]), [[0, 1]]);
  assert.equal(threadsOf(data, rows, -1).length, 2);
});

test("a comparison has two counts for each node, scaled alike", () => {
  const compare = { measure: "seconds", scales: [2, 1], words: "" };
  const all = open([["p;a", 10, 3], ["p;gone", 0, 4], ["p;new", 5, 0]], { compare });
  same(folded(all), new Map([["p;a", 10], ["p;new", 5]]));
  same(folded(all, all.tree.baseSelf), new Map([["p;a", 6], ["p;gone", 8]]));
  assert.deepEqual([all.rows.total, all.rows.baseTotal], [15, 14]);
  // A box is as wide as the mean, so what is gone has one.
  const layout = layOut(all.tree);
  assert.equal(layout.width, 14.5);
  assert.equal(layout.levels[1].length, 3);
});

test("boxes lie in their callers, beside each other, and are found again", () => {
  rounds((stacks, rng) => {
    const { tree } = open(stacks);
    const layout = layOut(tree);
    for (const [depth, level] of layout.levels.entries()) {
      let end = 0;
      for (const node of level) {
        const [left, right] = [layout.left[node], layout.left[node] + layout.size[node]];
        assert.ok(left >= end - 1e-9);
        end = right;
        const parent = tree.parent[node];
        if (parent >= 0) assert.ok(left >= layout.left[parent] && right <= layout.left[parent] + layout.size[parent] + 1e-9);
        assert.equal(nodeAt(layout, depth, left + layout.size[node] * rng.part()), node);
        assert.equal(layout.depth[node], depth);
      }
    }
    assert.equal(nodeAt(layout, 0, layout.width + 1), -1);
    assert.equal(nodeAt(layout, 99, 0), -1);
    for (let node = 0; node < tree.count; node++) assert.equal(nodeOfPath(tree, pathOf(tree, node)), node);
  });
});

test("the keyboard goes to caller, heaviest callee and neighbours", () => {
  const { names, tree } = open([["p;a;x", 1], ["p;a;y", 5], ["p;b", 3]]);
  const layout = layOut(tree);
  const text = (node) => names.text(tree.name[node]);
  const p = layout.levels[0][0];
  const a = neighbour(layout, p, "child");
  assert.equal(text(a), "a");
  assert.equal(text(neighbour(layout, a, "child")), "y");
  assert.equal(text(neighbour(layout, a, "after")), "b");
  assert.equal(neighbour(layout, a, "before"), a);
  assert.equal(neighbour(layout, a, "parent"), p);
  assert.equal(neighbour(layout, p, "parent"), p);
});

test("search by text and expression, and the share that it matches", () => {
  const { names, tree } = open([["p;Alpha@x.so;beta@y.so", 3], ["p;beta@y.so;Alpha@x.so", 4], ["p;k_[k]", 8]]);
  const found = (query) => {
    const { matched, error } = matchNames(names, query);
    return error !== "" ? "error" : matched === null ? null : matchedCounts(tree, matched).value;
  };
  assert.equal(found("alpha"), 7);
  assert.equal(found("ALPHA"), 0);
  assert.equal(found("Alpha"), 7);
  assert.equal(found("/^(alpha|k)/"), 15);
  assert.equal(found("/^beta$"), 7);
  // What stands on another match is counted once.
  assert.equal(found("/alpha|beta/"), 7);
  assert.equal(found("lib:y.so"), 7);
  assert.equal(found("kind:kernel"), 8);
  assert.equal(found("/(/"), "error");
  assert.equal(found("  "), null);
  assert.equal(found("a.*b"), 0);
});

test("the heaviest of many are those that sorting finds", () => {
  const rng = random(9);
  for (let round = 0; round < 50; round++) {
    const weights = Array.from({ length: rng.below(60) }, () => rng.below(9));
    const sorted = weights.map((_, at) => at).filter((at) => weights[at] > 0).sort((a, b) => weights[b] - weights[a] || a - b);
    assert.deepEqual(heaviest(weights.length, (at) => weights[at], 7), sorted.slice(0, 7));
  }
});

test("matches are visited in turn", () => {
  const { names, tree } = open([["p;a;x", 1], ["p;b;x", 5]]);
  const layout = layOut(tree);
  const { matched } = matchNames(names, "x");
  const first = nextMatch(layout, matched, -1, 1);
  const second = nextMatch(layout, matched, first, 1);
  assert.notEqual(first, second);
  assert.equal(nextMatch(layout, matched, second, 1), first);
  assert.equal(nextMatch(layout, matched, first, -1), second);
});

test("a path of 65,536 frames is no trouble", () => {
  const { names, tree } = open([[`p${";f".repeat(65536)}`, 2]]);
  assert.equal(functionTotals(tree, names.count).total[id(names, "f")], 2);
  assert.equal(layOut(tree).levels.length, 65537);
  assert.equal(invertTree(tree, null, true, 0).count, 2);
});

test("counts inside of an instruction are those of the instruction", () => {
  const place = (key, self, total) => ({ key, self, total, base: 0 });
  const places = [place(0, 9, 9), place(16, 1, 1), place(20, 0, 2), place(23, 0, 4), place(24, 3, 3), place(90, 0, 5)];
  const instructions = [{ address: 16 }, { address: 19 }, { address: 24 }];
  const found = byInstruction(places, instructions);
  // The first one lies in front of the function: it is in none of them.
  assert.deepEqual([...found.values()].map(({ key, self, total }) => [key, self, total]), [[16, 1, 1], [19, 0, 6], [24, 3, 8]]);
  assert.equal(byInstruction([], instructions).size, 0);
  assert.equal(byInstruction(places, []).size, 0);
});

test("an inlined function shows the instructions that it became, a function all of its own", () => {
  const place = (key, total) => ({ key, self: 0, total, base: 0 });
  const data = {
    functions: { library: [0, 0, 1] },
    instructions: { function: [0, 0, 0, 2], address: [0x10, 0x14, 0x18, 0x14], text: [0, 1, 2, 3] },
    strings: ["push", "add", "ret", "other library"],
  };
  const texts = ({ rows }) => rows.map(({ text }) => text);
  assert.deepEqual(texts(instructionRows(data, 0, [place(0x15, 3)])), ["push", "add", "ret"]);
  const inlined = instructionRows(data, 1, [place(0x14, 2), place(0x18, 1)]);
  assert.deepEqual(texts(inlined), ["add", "ret"]);
  assert.deepEqual([...inlined.byAddress.values()].map(({ total }) => total), [2, 1]);
  // Beyond what is listed there are addresses.
  const beyond = instructionRows(data, 1, [place(0x14, 2), place(0x90, 1)]);
  assert.deepEqual([texts(beyond), beyond.rows.map(({ address }) => address)], [["", ""], [0x14, 0x90]]);
});
