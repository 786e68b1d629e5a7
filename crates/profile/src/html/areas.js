// Bytes in use over time as stacked areas: one for each caller of the allocator that had much, the largest at the bottom, the rest
// on top. Input: what places had from a moment on. Output: bytes by area and moment, and the painted areas.

/** The hues of Paul Tol's "muted" scheme, which can be told apart with any sight; the dark blue is lighter. */
const AREA_COLOURS = ["#cc6677", "#88ccee", "#ddcc77", "#44aa99", "#aa4499", "#7788cc", "#999933", "#117733"];
const REST_COLOUR = "#9a9c9f";

/** How much of an area is seen where the pointer is on another one. */
const FADED = 0.35;

/**
 * @typedef {object} Areas
 * @property {string[]} names the last is that of the rest
 * @property {Float64Array[]} bytes by area, then moment
 * @property {Float64Array} total by moment
 * @property {number} most of all moments
 */

/**
 * @param {import("./data.js").Inuse} inuse
 * @param {number} nodes how many there are
 * @returns {Areas}
 */
export function areasOf(inuse, nodes) {
  const moments = inuse.time.length;
  const names = [...inuse.areas, "all others"];
  const bytes = names.map(() => new Float64Array(moments));
  /** @type {Map<number, number>} */
  const known = new Map();
  for (let row = 0; row < inuse.moment.length; row++) {
    const place = inuse.root[row] * nodes + inuse.node[row];
    const area = bytes[inuse.area[row]] || bytes[names.length - 1];
    area[inuse.moment[row]] += inuse.bytes[row] - (known.get(place) || 0);
    known.set(place, inuse.bytes[row]);
  }
  const total = new Float64Array(moments);
  for (const area of bytes) {
    for (let at = 0; at < moments; at++) {
      if (at > 0) area[at] += area[at - 1];
      total[at] += area[at];
    }
  }
  return { names, bytes, total, most: total.reduce((a, b) => Math.max(a, b), 0) };
}

/**
 * @param {Areas} areas
 * @param {number} area
 */
export function areaColour(areas, area) {
  return area === areas.names.length - 1 ? REST_COLOUR : AREA_COLOURS[area % AREA_COLOURS.length];
}

/**
 * The area that has a height at a moment, in bytes from the bottom; -1 above all.
 * @param {Areas} areas
 * @param {number} moment
 * @param {number} height
 */
export function areaAt(areas, moment, height) {
  let below = 0;
  for (let area = 0; area < areas.bytes.length; area++) {
    below += areas.bytes[area][moment];
    if (height < below) return area;
  }
  return -1;
}

/**
 * Powers of two for an axis of bytes, at least `leastPx` apart, from 0 to `most`.
 * @param {number} most
 * @param {number} heightPx
 * @param {number} leastPx
 */
export function byteTicks(most, heightPx, leastPx) {
  const rough = Math.max(1, (most * leastPx) / Math.max(1, heightPx));
  const step = 2 ** Math.ceil(Math.log2(rough));
  const ticks = [];
  for (let tick = 0; tick <= most; tick += step) ticks.push(tick);
  return ticks;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Areas} areas
 * @param {(moment: number) => number} across pixels from the left
 * @param {(bytes: number) => number} up pixels from the top
 * @param {number} lit the area that stands out, or -1
 * @param {string} line colour between areas
 */
export function paintAreas(context, areas, across, up, lit, line) {
  const moments = areas.total.length;
  const bottom = new Float64Array(moments);
  areas.bytes.forEach((area, index) => {
    context.beginPath();
    for (let at = 0; at < moments; at++) context.lineTo(across(at), up(bottom[at] + area[at]));
    for (let at = moments - 1; at >= 0; at--) context.lineTo(across(at), up(bottom[at]));
    context.closePath();
    context.globalAlpha = lit < 0 || lit === index ? 1 : FADED;
    context.fillStyle = areaColour(areas, index);
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = line;
    context.lineWidth = 0.5;
    context.stroke();
    for (let at = 0; at < moments; at++) bottom[at] += area[at];
  });
}
