// CPU use over time: a lane for each thread. Input: samples with times. Output: shares of a CPU by lane and interval, and
// the painted lanes. A thread that waits uses no CPU.

import { WAITING } from "./data.js";

/**
 * @typedef {object} Lane
 * @property {number} thread
 * @property {number} total counts
 * @property {Float64Array} use by interval: 1 is one CPU all the time
 */

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
  const hz = data.sides[data.sides.length - 1].hz;
  for (let at = 0; at < samples.time.length; at++) {
    const thread = roots.thread[samples.root[at]];
    let lane = lanes.get(thread);
    if (!lane) lanes.set(thread, (lane = { thread, total: 0, use: new Float64Array(intervals) }));
    const interval = Math.floor((samples.time[at] - span[0]) / intervalNs);
    if (interval < 0 || interval >= intervals || roots.flags[samples.root[at]] & WAITING) continue;
    lane.use[interval] += samples.value[at];
    lane.total += samples.value[at];
  }
  const list = [...lanes.values()].sort((a, b) => b.total - a.total || a.thread - b.thread);
  const most = list.reduce((all, lane) => lane.use.reduce((a, b) => Math.max(a, b), all), 0);
  // Without a rate the busiest interval is the measure.
  const scale = hz ? 1e9 / hz / intervalNs : 1 / (most || 1);
  for (const lane of list) for (let at = 0; at < intervals; at++) lane.use[at] *= scale;
  return list;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Lane} lane
 * @param {{ left: number, top: number, width: number, height: number }} box
 * @param {{ fill: string, line: string, over: string }} colours
 */
export function paintLane(context, lane, box, colours) {
  const { use } = lane;
  const widthPx = box.width / use.length;
  // More than one CPU: a process whose threads are merged.
  const most = Math.max(1, use.reduce((a, b) => Math.max(a, b), 0));
  context.fillStyle = most > 1.5 ? colours.over : colours.fill;
  context.beginPath();
  for (let at = 0; at < use.length; at++) {
    if (use[at] === 0) continue;
    const height = Math.max(1, Math.min(1, use[at] / (most > 1.5 ? most : 1)) * box.height);
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
