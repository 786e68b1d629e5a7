// What was in use over time: areas, moments, axis. A program of known memory shows it where it was.

import assert from "node:assert/strict";
import { test } from "node:test";
import { areaAt, areasOf, byteTicks } from "../../crates/profile/src/html/areas.js";
import { decode } from "../../crates/profile/src/html/data.js";
import { select } from "../../crates/profile/src/html/selection.js";
import { inOrder, initialState } from "../../crates/profile/src/html/state.js";
import { memory } from "./page.js";

const MIB = 1 << 20;
const all = { threads: null, stacks: "all", range: null, baseRange: null };

test("areas have what their callers had, and the rest is the rest", () => {
  const data = decode(memory());
  const areas = areasOf(data.inuse, data.nodes.count);
  assert.deepEqual(areas.names, ["leak < main", "cache", "all others"]);
  assert.equal(areas.most, (55 + 20 + 80) * MIB);
  assert.equal(data.inuse.peak, areas.total.indexOf(areas.most));
  for (const [moment, ...expected] of [[0, 0, 0, 0], [9, 9, 0, 0], [45, 45, 20, 80], [56, 56, 20, 0], [100, 100, 20, 0]]) {
    assert.deepEqual(areas.bytes.map((area) => area[moment] / MIB), expected, `moment ${moment}`);
  }
  assert.deepEqual([10, 60, 70, 120, 160].map((mib) => areaAt(areas, 50, mib * MIB)), [0, 1, 2, 2, -1]);
});

test("a moment has what was in use at it, also of what is freed at the end", () => {
  const data = decode(memory());
  const at = (moment, baseMoment = -1, more = {}) => select(data, { ...all, ...more, moment, baseMoment });
  assert.equal(at(-1).total, 120 * MIB);
  assert.equal(at(100).total, 120 * MIB);
  assert.equal(at(50).total, 150 * MIB);
  assert.equal(at(0).total, 0);
  assert.equal(at(5).root.length, 1);
  assert.equal(at(50, -1, { stacks: "incomplete" }).total, 0);
  // Whichever of the two was chosen first, the earlier one is the base.
  for (const [moment, baseMoment] of [[50, 20], [20, 50]]) {
    const ordered = inOrder({ ...initialState(false, 1, true), moment, baseMoment });
    const grown = at(ordered.moment, ordered.baseMoment);
    assert.deepEqual([grown.total, grown.baseTotal], [150 * MIB, 40 * MIB]);
  }
  for (const [moment, baseMoment] of [[-1, 50], [50, -1], [7, 7]]) {
    const ordered = inOrder({ ...initialState(false, 1, true), moment, baseMoment });
    assert.deepEqual([ordered.moment, ordered.baseMoment], [moment, baseMoment]);
  }
});

test("a profile without a history has no moments", () => {
  const data = decode(memory({ inuse: undefined }));
  assert.equal(data.inuse, null);
  assert.equal(select(data, { ...all, moment: 3 }).total, 120 * MIB);
});

test("an axis of bytes has round steps", () => {
  assert.deepEqual(byteTicks(155 * MIB, 130, 26).map((tick) => tick / MIB), [0, 32, 64, 96, 128]);
  assert.deepEqual(byteTicks(0, 130, 26), [0]);
  assert.ok(byteTicks(2 ** 52, 130, 26).length <= 6);
});
