// Colours of boxes: by library, by kind of code, by change. Hues are Paul Tol's "light" scheme, made for labels in black and
// to be distinguishable with any sight; a change is orange or blue. Names give shades, so that neighbours of one hue differ.

import { sumOf } from "./functions.js";
import { KERNEL_LIBRARY } from "./names.js";

/** @typedef {[number, number, number]} Rgb */

/** @type {Rgb} */
const ORANGE = [238, 136, 102];
/** @type {Rgb} */
const VIOLET = [186, 166, 228];
/** @type {Rgb} */
const GREY = [205, 205, 203];
/** The heaviest library has the first. @type {Rgb[]} */
const LIBRARIES = [
  ORANGE,
  [119, 170, 221],
  [238, 221, 136],
  [68, 187, 153],
  [255, 170, 187],
  [153, 221, 255],
  [187, 204, 51],
  [186, 176, 60],
];
/** @type {Record<string, Rgb>} */
const ORIGINS = {
  program: ORANGE,
  library: LIBRARIES[1],
  kernel: VIOLET,
  jit: LIBRARIES[2],
  none: GREY,
  mark: [221, 221, 216],
};
/** @type {Record<string, string>} */
const ORIGIN_WORDS = {
  program: "program",
  library: "libraries",
  kernel: "kernel",
  jit: "JIT code",
  none: "no symbol",
  mark: "process, thread, mark",
};
/** @type {Rgb} */
const NEUTRAL = [224, 224, 220];
/** @type {Rgb} */
const GREW = [240, 130, 20];
/** @type {Rgb} */
const SHRANK = [86, 158, 224];

const SHADES = 4;
/** Libraries below this part have no colour of their own. */
const LEAST_SHARE = 0.005;
const CHANGE_STEPS = 32;

/** @typedef {{ text: string, colour: string, share: number, query: string }} LegendEntry */

/**
 * The colours of a tree: `of(node)` is an index into `pixels`; `pixels[index + faded]` is the colour of what a search did not
 * find.
 * @typedef {object} Colours
 * @property {Uint32Array} pixels
 * @property {number} faded
 * @property {(node: number) => number} of
 * @property {LegendEntry[]} legend
 */

/** Ways to colour, as the address and the menu name them. */
export const COLOURINGS = ["library", "kind", "change"];

/**
 * @param {import("./names.js").Names} names
 * @param {import("./tree.js").Tree} tree
 * @param {string} by one of `COLOURINGS`
 * @param {boolean} dark
 * @param {Float64Array} whole self counts of the whole profile: a library keeps its colour whatever is shown
 * @param {Float64Array} shown self counts of what is shown, for the shares of the legend
 * @returns {Colours}
 */
export function coloursOf(names, tree, by, dark, whole, shown) {
  if (by === "change" && tree.baseTotal) return byChange(tree, dark);
  return by === "kind" ? byKind(names, tree, dark, shown) : byLibrary(names, tree, dark, whole, shown);
}

/**
 * Self counts of code by library, or by the key that `keyOf` returns.
 * @template K
 * @param {import("./names.js").Names} names
 * @param {Float64Array} self
 * @param {(id: number) => K} keyOf
 */
function weightsBy(names, self, keyOf) {
  /** @type {Map<K, number>} */
  const weights = new Map();
  for (let id = 0; id < self.length; id++) {
    if (self[id] > 0 && names.isCode(id)) weights.set(keyOf(id), (weights.get(keyOf(id)) || 0) + self[id]);
  }
  return weights;
}

/** Colours of libraries by the self counts that rank them. @type {WeakMap<Float64Array, Map<number, Rgb>>} */
const knownColours = new WeakMap();

/**
 * @param {import("./names.js").Names} names
 * @param {Float64Array} whole
 */
function libraryColours(names, whole) {
  let colours = knownColours.get(whole);
  if (colours) return colours;
  const all = sumOf(whole);
  const weights = weightsBy(names, whole, (id) => names.libraryKey(id));
  colours = new Map();
  let next = 0;
  for (const [key, weight] of [...weights].sort((a, b) => b[1] - a[1] || a[0] - b[0])) {
    if (key === KERNEL_LIBRARY) colours.set(key, VIOLET);
    else if (weight >= all * LEAST_SHARE && next < LIBRARIES.length) colours.set(key, LIBRARIES[next++]);
  }
  knownColours.set(whole, colours);
  return colours;
}

/**
 * @param {import("./names.js").Names} names
 * @param {import("./tree.js").Tree} tree
 * @param {boolean} dark
 * @param {Float64Array} whole
 * @param {Float64Array} shown
 */
function byLibrary(names, tree, dark, whole, shown) {
  const colours = libraryColours(names, whole);
  const weights = weightsBy(names, shown, (id) => names.libraryKey(id));
  const total = sumOf(shown);
  /** @type {LegendEntry[]} */
  const legend = [];
  for (const [key, colour] of colours) {
    const [text, weight] = [names.nameOfKey(key), weights.get(key) || 0];
    weights.delete(key);
    if (weight === 0) continue;
    const query = key === -1 ? "" : `lib:${text}`;
    legend.push({ text: text || "no library", colour: css(onPage(colour, dark)), share: weight / total, query });
  }
  const others = [...weights.values()].reduce((sum, weight) => sum + weight, 0);
  if (others > 0) legend.push({ text: "others", colour: css(onPage(GREY, dark)), share: others / total, query: "" });
  const of = (/** @type {number} */ id) => {
    const origin = names.origin(id);
    if (origin === "mark") return ORIGINS.mark;
    if (origin === "none" && names.library(id) < 0) return GREY;
    return colours.get(names.libraryKey(id)) || GREY;
  };
  return { ...shaded(names, tree, of, dark), legend };
}

/**
 * @param {import("./names.js").Names} names
 * @param {import("./tree.js").Tree} tree
 * @param {boolean} dark
 * @param {Float64Array} shown
 */
function byKind(names, tree, dark, shown) {
  const weights = weightsBy(names, shown, (id) => /** @type {string} */ (names.origin(id)));
  const total = sumOf(shown);
  const legend = Object.keys(ORIGINS)
    .filter((origin) => weights.has(origin))
    .map((origin) => ({
      text: ORIGIN_WORDS[origin],
      colour: css(onPage(ORIGINS[origin], dark)),
      share: (weights.get(origin) || 0) / total,
      query: "",
    }));
  return { ...shaded(names, tree, (id) => ORIGINS[names.origin(id)], dark), legend };
}

/**
 * @param {import("./tree.js").Tree} tree
 * @param {boolean} dark
 * @returns {Colours}
 */
function byChange(tree, dark) {
  /** @type {Rgb[]} */
  const steps = [];
  for (let step = -CHANGE_STEPS; step <= CHANGE_STEPS; step++) {
    // The root lets small changes be seen.
    const strength = Math.sqrt(Math.abs(step) / CHANGE_STEPS);
    steps.push(onPage(mix(NEUTRAL, step > 0 ? GREW : SHRANK, strength), dark));
  }
  const base = tree.baseTotal || tree.total;
  const entry = (/** @type {string} */ text, /** @type {Rgb} */ colour) => ({
    text,
    colour: css(onPage(colour, dark)),
    share: NaN,
    query: "",
  });
  return {
    ...withFaded(steps, dark),
    of: (node) => {
      const sum = tree.total[node] + base[node];
      const change = sum > 0 ? (tree.total[node] - base[node]) / sum : 0;
      return Math.round(change * CHANGE_STEPS) + CHANGE_STEPS;
    },
    legend: [entry("grew", GREW), entry("unchanged", NEUTRAL), entry("shrank", SHRANK)],
  };
}

/**
 * Colours by name, each with its shades.
 * @param {import("./names.js").Names} names
 * @param {import("./tree.js").Tree} tree
 * @param {(id: number) => Rgb} of
 * @param {boolean} dark
 */
function shaded(names, tree, of, dark) {
  /** @type {Map<Rgb, number>} */
  const hues = new Map();
  /** @type {Rgb[]} */
  const fills = [];
  const index = new Int32Array(names.count).fill(-1);
  const ofName = (/** @type {number} */ id) => {
    const colour = of(id);
    let hue = hues.get(colour);
    if (hue === undefined) {
      hue = fills.length;
      hues.set(colour, hue);
      for (let shade = 0; shade < SHADES; shade++) fills.push(onPage(mix(colour, [255, 255, 255], shade * 0.1), dark));
    }
    return hue + (names.hash(id) % SHADES);
  };
  for (let node = 0; node < tree.count; node++) {
    const name = tree.name[node];
    if (index[name] < 0) index[name] = ofName(name);
  }
  return { ...withFaded(fills, dark), of: (/** @type {number} */ node) => index[tree.name[node]] };
}

/**
 * @param {Rgb[]} fills
 * @param {boolean} dark
 */
function withFaded(fills, dark) {
  const faded = fills.map((fill) => mix(fill, groundOf(dark), dark ? 0.72 : 0.68));
  return { pixels: Uint32Array.from([...fills, ...faded].map(pixelOf)), faded: fills.length };
}

/**
 * What is behind the boxes.
 * @param {boolean} dark
 * @returns {Rgb}
 */
export function groundOf(dark) {
  return dark ? [30, 33, 38] : [255, 255, 255];
}

/**
 * A colour as canvases keep it: four bytes, red first, in one number.
 * @param {Rgb} colour
 */
export function pixelOf([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/**
 * On a dark page colours are a little darker; black text on them stays readable.
 * @param {Rgb} colour
 * @param {boolean} dark
 */
function onPage(colour, dark) {
  return dark ? mix(colour, [0, 0, 0], 0.14) : colour;
}

/**
 * @param {Rgb} from
 * @param {Rgb} to
 * @param {number} share
 * @returns {Rgb}
 */
export function mix(from, to, share) {
  const part = (/** @type {0 | 1 | 2} */ at) => Math.round(from[at] + (to[at] - from[at]) * share);
  return [part(0), part(1), part(2)];
}

/** @param {Rgb} colour */
function css([red, green, blue]) {
  return `rgb(${red},${green},${blue})`;
}
