// Which counts are looked at: those of some threads, of incomplete stacks, of a range of time, of what was in use at a moment, or two
// ranges or moments that are compared. Everything else in the page is computed from the rows that this returns.

import { INCOMPLETE } from "./data.js";

/**
 * @typedef {object} Filter
 * @property {Set<number> | null} threads indexes into `data.threads`; null is all
 * @property {"all" | "incomplete" | "complete"} stacks
 * @property {[number, number] | null} range nanoseconds since the recording began
 * @property {[number, number] | null} baseRange the range that `range` is compared with
 * @property {number} [moment] index of the moment, or -1 for the counts of the profile
 * @property {number} [baseMoment] the moment that it is compared with, or -1
 */

/**
 * Rows of counts. `base` is there if two profiles, or two ranges, are compared; both are scaled so that equal numbers are
 * equal work.
 * @typedef {object} Rows
 * @property {Int32Array} root
 * @property {Int32Array} node
 * @property {Float64Array} value
 * @property {Float64Array | null} base
 * @property {number} total
 * @property {number} baseTotal
 * @property {[number, number]} scales by which counts of base and new were multiplied
 */

/**
 * @param {import("./data.js").Data} data
 * @param {Filter} filter
 * @returns {Rows}
 */
export function select(data, filter) {
  const passes = rootsThatPass(data, filter);
  const { samples } = data;
  if (samples && filter.range) return selectRange(samples, passes, filter.range, filter.baseRange);
  const { moment = -1, baseMoment = -1 } = filter;
  if (data.inuse && moment >= 0) return selectMoments(data.inuse, data.nodes.count, passes, moment, baseMoment);
  const { counts } = data;
  const [baseScale, scale] = data.compare ? data.compare.scales : [1, 1];
  let length = 0;
  for (let row = 0; row < counts.root.length; row++) length += passes[counts.root[row]];
  const rows = emptyRows(length, counts.base !== null);
  rows.scales = [baseScale, scale];
  let at = 0;
  for (let row = 0; row < counts.root.length; row++) {
    if (!passes[counts.root[row]]) continue;
    rows.root[at] = counts.root[row];
    rows.node[at] = counts.node[row];
    rows.value[at] = counts.value[row] * scale;
    if (rows.base && counts.base) rows.base[at] = counts.base[row] * baseScale;
    at++;
  }
  return summed(rows);
}

/**
 * By root: 1 if its stacks are looked at.
 * @param {import("./data.js").Data} data
 * @param {Filter} filter
 */
function rootsThatPass(data, filter) {
  const { roots } = data;
  const passes = new Uint8Array(roots.count);
  for (let root = 0; root < roots.count; root++) {
    const incomplete = (roots.flags[root] & INCOMPLETE) !== 0;
    const rightStacks = filter.stacks === "all" || incomplete === (filter.stacks === "incomplete");
    passes[root] = rightStacks && (!filter.threads || filter.threads.has(roots.thread[root])) ? 1 : 0;
  }
  return passes;
}

/**
 * @param {import("./data.js").Samples} samples
 * @param {Uint8Array} passes
 * @param {[number, number]} range
 * @param {[number, number] | null} baseRange
 */
function selectRange(samples, passes, range, baseRange) {
  const ranges = baseRange ? [range, baseRange] : [range];
  const spans = ranges.map(([from, to]) => [lowerBound(samples.time, from), lowerBound(samples.time, to)]);
  let length = 0;
  for (const [from, to] of spans) for (let at = from; at < to; at++) length += passes[samples.root[at]];
  const rows = emptyRows(length, baseRange !== null);
  // Ranges of different length are compared by CPU use.
  const scale = baseRange ? (range[1] - range[0]) / Math.max(1, baseRange[1] - baseRange[0]) : 1;
  rows.scales = [scale, 1];
  let row = 0;
  spans.forEach(([from, to], isBase) => {
    for (let at = from; at < to; at++) {
      if (!passes[samples.root[at]]) continue;
      rows.root[row] = samples.root[at];
      rows.node[row] = samples.node[at];
      if (isBase && rows.base) rows.base[row] = samples.value[at] * scale;
      else rows.value[row] = samples.value[at];
      row++;
    }
  });
  return summed(rows);
}

/**
 * What was in use at a moment, and at another one if that is not -1.
 * @param {import("./data.js").Inuse} inuse
 * @param {number} nodes how many there are
 * @param {Uint8Array} passes
 * @param {number} moment
 * @param {number} baseMoment
 */
function selectMoments(inuse, nodes, passes, moment, baseMoment) {
  // By place: its row, and the last row of `inuse` up to each of the moments.
  /** @type {Map<number, [number, number]>} */
  const places = new Map();
  const until = lowerBound(inuse.moment, Math.max(moment, baseMoment) + 1);
  for (let at = 0; at < until; at++) {
    if (!passes[inuse.root[at]]) continue;
    const place = inuse.root[at] * nodes + inuse.node[at];
    let latest = places.get(place);
    if (!latest) places.set(place, (latest = [-1, -1]));
    if (inuse.moment[at] <= moment) latest[0] = at;
    if (inuse.moment[at] <= baseMoment) latest[1] = at;
  }
  const bytes = (/** @type {number} */ at) => (at < 0 ? 0 : inuse.bytes[at]);
  const kept = [...places.values()].filter(([now, base]) => bytes(now) > 0 || bytes(base) > 0);
  const rows = emptyRows(kept.length, baseMoment >= 0);
  kept.forEach(([now, base], row) => {
    rows.root[row] = inuse.root[Math.max(now, base)];
    rows.node[row] = inuse.node[Math.max(now, base)];
    rows.value[row] = bytes(now);
    if (rows.base) rows.base[row] = bytes(base);
  });
  return summed(rows);
}

/**
 * @param {number} length
 * @param {boolean} compares
 * @returns {Rows}
 */
function emptyRows(length, compares) {
  return {
    root: new Int32Array(length),
    node: new Int32Array(length),
    value: new Float64Array(length),
    base: compares ? new Float64Array(length) : null,
    total: 0,
    baseTotal: 0,
    scales: [1, 1],
  };
}

/** @param {Rows} rows */
function summed(rows) {
  rows.total = rows.value.reduce((sum, value) => sum + value, 0);
  rows.baseTotal = rows.base ? rows.base.reduce((sum, value) => sum + value, 0) : 0;
  return rows;
}

/**
 * The first index at which a sorted list has `value` or more.
 * @param {ArrayLike<number>} list
 * @param {number} value
 */
export function lowerBound(list, value) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * Counts whose root has a flag: incomplete stacks, waiting threads.
 * @param {import("./data.js").Data} data
 * @param {Rows} rows
 * @param {ArrayLike<number>} values `rows.value` or `rows.base`
 * @param {number} flag
 */
export function flaggedTotal(data, rows, values, flag) {
  let sum = 0;
  for (let row = 0; row < values.length; row++) if (data.roots.flags[rows.root[row]] & flag) sum += values[row];
  return sum;
}
