// The heat map of Brendan Gregg's FlameScope: columns of time across, fractions of a column down. What repeats is a pattern,
// a pause is a gap.

const ROWS = 50;
const COLUMNS_LEAST = 30;
const COLUMN_NS = [10e9, 1e9, 0.1e9, 0.01e9, 0.001e9];

/**
 * @typedef {object} Heat
 * @property {number} columnNs
 * @property {number} columns
 * @property {number} rows
 * @property {Float64Array} counts by column, then row
 * @property {number} most
 */

/**
 * @param {import("./data.js").Data} data
 * @param {number} endNs
 * @param {Set<number> | null} threads
 * @returns {Heat}
 */
export function heatOf(data, endNs, threads) {
  const columnNs = COLUMN_NS.find((ns) => endNs / ns >= COLUMNS_LEAST) || COLUMN_NS[COLUMN_NS.length - 1];
  const columns = Math.max(1, Math.ceil(endNs / columnNs));
  const counts = new Float64Array(columns * ROWS);
  const { samples, roots } = data;
  if (samples) {
    for (let at = 0; at < samples.time.length; at++) {
      if (threads && !threads.has(roots.thread[samples.root[at]])) continue;
      const cell = Math.floor((samples.time[at] / columnNs) * ROWS);
      if (cell >= 0 && cell < counts.length) counts[cell] += samples.value[at];
    }
  }
  return { columnNs, columns, rows: ROWS, counts, most: counts.reduce((a, b) => Math.max(a, b), 0) };
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Heat} heat
 * @param {{ left: number, top: number, width: number, height: number }} box
 * @param {boolean} dark
 */
export function paintHeat(context, heat, box, dark) {
  const [width, height] = [box.width / heat.columns, box.height / heat.rows];
  for (let column = 0; column < heat.columns; column++) {
    for (let row = 0; row < heat.rows; row++) {
      const count = heat.counts[column * heat.rows + row];
      if (count === 0) continue;
      context.fillStyle = shade(Math.sqrt(count / heat.most), dark);
      // The beginning of a column is at its top.
      context.fillRect(box.left + column * width, box.top + row * height, width + 0.5, height + 0.5);
    }
  }
}

/**
 * Darker is more on a light page, lighter is more on a dark one: distinguishable without hue.
 * @param {number} share
 * @param {boolean} dark
 */
export function shade(share, dark) {
  const lightness = dark ? 24 + share * 54 : 88 - share * 48;
  return `hsl(24 ${Math.round(55 + share * 30)}% ${Math.round(lightness)}%)`;
}

/**
 * The time of a place in the map.
 * @param {Heat} heat
 * @param {{ left: number, top: number, width: number, height: number }} box
 * @param {number} x
 * @param {number} y
 */
export function heatTime(heat, box, x, y) {
  const column = Math.max(0, Math.min(heat.columns - 1, Math.floor(((x - box.left) / box.width) * heat.columns)));
  const row = Math.max(0, Math.min(heat.rows, Math.floor(((y - box.top) / box.height) * heat.rows)));
  return (column + row / heat.rows) * heat.columnNs;
}
