// CPU use over time: a lane for each thread. Input: samples with times. Output: shares of a CPU by lane and interval, and
// the painted lanes. A thread that waits uses no CPU.

import { WAITING } from "./data.js";

/**
 * @typedef {object} Lane
 * @property {number} thread
 * @property {number} total counts
 * @property {Float64Array} use by interval: 1 is one CPU all the time
 * @property {number} most of `use`
 */

/** Lanes with more are of processes whose threads are merged: they have a scale of their own. */
export const OVER = 1.5;

/**
 * @param {import("./data.js").Data} data
 * @param {[number, number]} span nanoseconds
 * @param {number} intervals
 * @returns {Lane[]} the busiest first
 */
export function lanesOf(data, span, intervals) {
  const { samples, roots } = data;
  if (!samples) return [];
  /** @type {Map<number, Lane>} */
  const lanes = new Map();
  const intervalNs = (span[1] - span[0]) / intervals;
  const { hz } = data.sides[data.sides.length - 1];
  for (let at = 0; at < samples.time.length; at++) {
    const thread = roots.thread[samples.root[at]];
    let lane = lanes.get(thread);
    if (!lane) lanes.set(thread, (lane = { thread, total: 0, use: new Float64Array(intervals), most: 0 }));
    const end = (samples.time[at] - span[0]) / intervalNs;
    if (end < 0 || end >= intervals || roots.flags[samples.root[at]] & WAITING) continue;
    const value = samples.value[at];
    lane.total += value;
    if (hz) spread(lane.use, end - (value * 1e9) / hz / intervalNs, end);
    else lane.use[Math.floor(end)] += value;
  }
  const list = [...lanes.values()].sort((a, b) => b.total - a.total || a.thread - b.thread);
  for (const lane of list) {
    // A sample may stand for CPU time that came before the one before it; a thread still has one CPU.
    if (hz && data.threads.id[lane.thread] >= 0) lane.use.forEach((use, at) => (lane.use[at] = Math.min(1, use)));
    lane.most = lane.use.reduce((a, b) => Math.max(a, b), 0);
  }
  if (hz) return list;
  // Without a rate the busiest interval is the measure.
  const most = list.reduce((all, lane) => Math.max(all, lane.most), 0) || 1;
  for (const lane of list) {
    lane.most /= most;
    for (let at = 0; at < intervals; at++) lane.use[at] /= most;
  }
  return list;
}

/**
 * A sample stands for the time before it, which may be that of several intervals: a thread never uses more than one CPU.
 * @param {Float64Array} use
 * @param {number} from in intervals
 * @param {number} to
 */
function spread(use, from, to) {
  for (let at = Math.max(0, Math.floor(from)); at <= to; at++) use[at] += Math.min(at + 1, to) - Math.max(at, from);
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Lane} lane
 * @param {{ left: number, top: number, width: number, height: number }} box
 * @param {{ fill: string, line: string, over: string }} colours
 */
export function paintLane(context, lane, box, colours) {
  const { use, most } = lane;
  const widthPx = box.width / use.length;
  context.fillStyle = most > OVER ? colours.over : colours.fill;
  context.beginPath();
  for (let at = 0; at < use.length; at++) {
    if (use[at] === 0) continue;
    const height = Math.max(1, Math.min(1, use[at] / (most > OVER ? most : 1)) * box.height);
    context.rect(box.left + at * widthPx, box.top + box.height - height, Math.ceil(widthPx), height);
  }
  context.fill();
  context.fillStyle = colours.line;
  context.fillRect(box.left, box.top + box.height, box.width, 1);
}

/**
 * Steps of an axis that are round in seconds, at least `leastPx` apart.
 * @param {[number, number]} span
 * @param {number} widthPx
 * @param {number} leastPx
 */
export function ticksOf(span, widthPx, leastPx) {
  const most = Math.max(1, Math.floor(widthPx / leastPx));
  const rough = (span[1] - span[0]) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough) || rough;
  const ticks = [];
  for (let index = Math.ceil(span[0] / step); index * step <= span[1]; index++) ticks.push(index * step);
  return { ticks, step };
}
