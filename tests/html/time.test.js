// What is computed from the times of samples: ranges, lanes, the heat map. A program of known phases shows them where they are.

import assert from "node:assert/strict";
import { test } from "node:test";
import { EVENT_GAP, EVENT_LOSS, EVENT_THREAD_END, WAITING, decode } from "../../crates/profile/src/html/data.js";
import { eventsNear, gapsOf } from "../../crates/profile/src/html/events.js";
import { heatOf, heatTime } from "../../crates/profile/src/html/heat.js";
import { lanesOf, ticksOf } from "../../crates/profile/src/html/lanes.js";
import { lowerBound, select } from "../../crates/profile/src/html/selection.js";
import { profile } from "./page.js";

const MS = 1e6;
/** 100 ms of a, 50 ms of b, a pause of 80 ms, over and over; a thread that is busy from 1 s to 2 s. */
function phases() {
  const [a, b, other] = [[], [], []];
  for (let ms = 0; ms < 2300; ms++) {
    if (ms % 230 < 100) a.push(ms * MS);
    else if (ms % 230 < 150) b.push(ms * MS);
    if (ms >= 1000 && ms < 2000) other.push(ms * MS);
  }
  return decode(
    profile(
      [
        { stack: "p;main;a", samples: a, thread: ["main", 1] },
        { stack: "p;main;b", samples: b, thread: ["main", 1] },
        { stack: "p;run", samples: other, thread: ["busy", 2] },
      ],
      { side: { hz: 1000, duration_ns: 2300 * MS } },
    ),
  );
}

test("a range has the samples in it, to the sample", () => {
  const data = phases();
  const rows = (range, baseRange = null) => select(data, { threads: null, stacks: "all", range, baseRange });
  assert.equal(rows([0, 230 * MS]).total, 150);
  assert.equal(rows([100 * MS, 150 * MS]).total, 50);
  assert.equal(rows([150 * MS, 230 * MS]).total, 0);
  assert.equal(rows([0, 2300 * MS]).total, select(data, { threads: null, stacks: "all", range: null, baseRange: null }).total);
  const only = select(data, { threads: new Set([1]), stacks: "all", range: [0, 1500 * MS], baseRange: null });
  assert.equal(only.total, 500);
});

test("two ranges of different length are compared by CPU use", () => {
  const data = phases();
  const rows = select(data, { threads: null, stacks: "all", range: [0, 230 * MS], baseRange: [230 * MS, 690 * MS] });
  assert.equal(rows.total, 150);
  assert.equal(rows.baseTotal, 150);
  assert.deepEqual(rows.scales, [0.5, 1]);
});

test("a pause is a gap in the lane of its thread, and a busy thread is a whole CPU", () => {
  const data = phases();
  const lanes = lanesOf(data, [0, 2300 * MS], 230);
  assert.equal(lanes.length, 2);
  const [main, busy] = [lanes.find((lane) => lane.thread === 0), lanes.find((lane) => lane.thread === 1)];
  for (let at = 0; at < 230; at++) {
    // A sample stands for the millisecond before it, a tenth of an interval.
    assert.ok(Math.abs(main.use[at] - (at % 23 < 15 ? 1 : 0)) < 0.1 + 1e-9, `main ${at}`);
    assert.ok(Math.abs(busy.use[at] - (at >= 100 && at < 200 ? 1 : 0)) < 0.1 + 1e-9, `busy ${at}`);
  }
});

test("a thread uses one CPU at most, however short the intervals are", () => {
  const data = phases();
  for (const intervals of [230, 2300, 3001, 23000]) {
    const lanes = lanesOf(data, [0, 2300 * MS], intervals);
    for (const lane of lanes) assert.ok(lane.most < 1 + 1e-9, `${intervals}: ${lane.most}`);
    // What is between the first sample and the last is there, whole.
    const sum = lanes.reduce((all, lane) => all + lane.use.reduce((a, b) => a + b, 0), 0);
    const samples = lanes.reduce((all, lane) => all + lane.total, 0);
    assert.ok(Math.abs((sum * 2300) / intervals - samples) < 1.1, `${intervals}: ${sum}`);
  }
  // CPU time that is charged late.
  data.samples.value[100] += 7;
  for (const lane of lanesOf(data, [0, 2300 * MS], 2300)) assert.ok(lane.most < 1 + 1e-9, `${lane.most}`);
});

test("a thread that waits uses no CPU", () => {
  const data = phases();
  data.roots.flags[data.samples.root[0]] |= WAITING;
  const lane = lanesOf(data, [0, 2300 * MS], 230).find((one) => one.thread === 0);
  assert.equal(lane.use[0], 0);
});

test("a gap is one of most of its time, and what happened is named near its time", () => {
  const samples = [0, 1, 2].map((ms) => ms * MS);
  const events = [
    [10 * MS, 5 * MS, "lost: about 5 samples: ring full", EVENT_GAP],
    [0, 100 * MS, "lost: about 1 sample: thread ended", EVENT_LOSS],
    [50 * MS, 0, "thread end: io (2)", EVENT_THREAD_END, 1],
    [50 * MS, 0, "thread end: main (1)", EVENT_THREAD_END, 2],
  ];
  const data = decode(profile([{ stack: "p;a", samples, thread: ["main", 1] }], { side: { hz: 1000, duration_ns: 100 * MS }, events }));
  assert.deepEqual(gapsOf(data).map((at) => data.events.time[at]), [10 * MS]);
  const near = (ms, thread = null) => eventsNear(data, ms * MS, MS, thread);
  assert.deepEqual(near(12), ["10 ms lost: about 5 samples: ring full"]);
  assert.deepEqual(near(30), []);
  assert.deepEqual(near(50.5).length, 2);
  assert.deepEqual(near(50.5, 0), ["50 ms thread end: io (2)"]);
});

test("the heat map has what the samples say, and a place in it is its time", () => {
  const data = phases();
  const heat = heatOf(data, 2300 * MS, null);
  assert.equal(heat.counts.reduce((sum, count) => sum + count, 0), data.samples.time.length);
  const box = { left: 10, top: 20, width: 460, height: 100 };
  for (const ms of [0, 100, 1230, 2298]) {
    const column = Math.floor((ms * MS) / heat.columnNs);
    const row = Math.floor((((ms * MS) / heat.columnNs) % 1) * heat.rows + 1e-9);
    const x = box.left + ((column + 0.5) * box.width) / heat.columns;
    const y = box.top + ((row + 0.5) * box.height) / heat.rows;
    assert.ok(Math.abs(heatTime(heat, box, x, y) - ms * MS) <= heat.columnNs / heat.rows, `${ms} ms`);
  }
  const one = heatOf(data, 2300 * MS, new Set([1]));
  assert.equal(one.counts.reduce((sum, count) => sum + count, 0), 1000);
});

test("steps of an axis are round and do not crowd", () => {
  for (const end of [1e3, 5e8, 2.3e9, 6e10, 1e13]) {
    const { ticks, step } = ticksOf([0, end], 1000, 90);
    assert.ok(ticks.length >= 2 && ticks.length <= 12, `${end}: ${ticks.length}`);
    assert.match(step.toExponential(0), /^[125]e/);
  }
});

test("a sorted list is searched for the first that is not below", () => {
  assert.deepEqual([0, 1, 2, 3, 9].map((value) => lowerBound([1, 2, 2, 5], value)), [0, 0, 1, 3, 4]);
});
