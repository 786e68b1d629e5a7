// What the page shows, and the same as the part of the address behind `#`, so that a view can be kept or sent.

/** The tabs. */
export const VIEWS = ["flame", "functions", "callers", "source"];

/**
 * A name in an address: the number of a function, or kind, library and text of a label.
 * @typedef {string} NameKey
 */

/**
 * @typedef {object} State
 * @property {string} view
 * @property {number} selected a function, or -1
 * @property {NameKey[]} path the node that fills the width of the flame graph
 * @property {string} query
 * @property {boolean} invert callers first
 * @property {boolean} upward the outermost function at the bottom
 * @property {boolean} recursion merged
 * @property {boolean} levels a level for each thread
 * @property {number[]} collapsed libraries
 * @property {number} focus a function, or -1
 * @property {number[]} threads that are shown; empty is all
 * @property {"all" | "incomplete" | "complete"} stacks
 * @property {[number, number] | null} range
 * @property {[number, number] | null} baseRange
 * @property {number} moment of what was in use, or -1 for the counts of the profile
 * @property {number} baseMoment the moment that it is compared with, or -1
 * @property {string} colour
 * @property {string} theme auto, light or dark
 * @property {string} sort column of the table
 * @property {string} time lanes or heat
 * @property {boolean} panel whether the panel is open
 */

/** Longer paths are in no address. */
const PATH_MAX = 500;

/** With more threads than this, their stacks are shown as one tree. */
const LEVELS_MAX = 16;

/**
 * @param {boolean} compares
 * @param {number} threads how many there are
 * @param {boolean} byThread whether the profile keeps their stacks apart
 * @returns {State}
 */
export function initialState(compares, threads, byThread) {
  return {
    view: "flame",
    selected: -1,
    path: [],
    query: "",
    invert: false,
    upward: false,
    recursion: false,
    levels: byThread && threads <= LEVELS_MAX,
    collapsed: [],
    focus: -1,
    threads: [],
    stacks: "all",
    range: null,
    baseRange: null,
    moment: -1,
    baseMoment: -1,
    colour: compares ? "change" : "library",
    theme: "auto",
    sort: "self",
    time: "lanes",
    panel: true,
  };
}

/**
 * The address of a state: only what differs from the initial one.
 * @param {State} state
 * @param {State} initial
 */
export function addressOf(state, initial) {
  const out = new URLSearchParams();
  if (state.path.length > PATH_MAX) state = { ...state, path: [] };
  for (const key of /** @type {(keyof State)[]} */ (Object.keys(initial))) {
    const text = asText(state[key]);
    if (text !== asText(initial[key])) out.set(key, text);
  }
  const text = out.toString();
  return text === "" ? "" : `#${text}`;
}

/** @param {any} value */
function asText(value) {
  if (value === null) return "";
  if (typeof value === "boolean") return value ? "1" : "0";
  return Array.isArray(value) ? value.map((item) => encodeURIComponent(item)).join(",") : String(value);
}

/**
 * A state whose comparison has the earlier moment as its base, whichever of the two was chosen first: what grew since has
 * grown.
 * @param {State} state
 * @returns {State}
 */
export function inOrder(state) {
  const { moment, baseMoment } = state;
  return moment >= 0 && baseMoment > moment ? { ...state, moment: baseMoment, baseMoment: moment } : state;
}

/**
 * The state of an address. Invalid parts keep their initial values.
 * @param {string} address
 * @param {State} initial
 * @returns {State}
 */
export function stateOf(address, initial) {
  const given = new URLSearchParams(address.replace(/^#/, ""));
  /** @type {any} */
  const state = { ...initial };
  const choices = {
    view: VIEWS,
    stacks: ["all", "incomplete", "complete"],
    colour: ["library", "kind", "change"],
    theme: ["auto", "light", "dark"],
    time: ["lanes", "heat"],
    sort: ["self", "total", "name", "library", "base", "change"],
  };
  for (const [key, allowed] of Object.entries(choices)) {
    const text = given.get(key);
    if (text !== null && allowed.includes(text)) state[key] = text;
  }
  for (const key of ["invert", "upward", "recursion", "levels", "panel"]) {
    const text = given.get(key);
    if (text === "0" || text === "1") state[key] = text === "1";
  }
  for (const key of ["selected", "focus", "moment", "baseMoment"]) {
    const number = Number(given.get(key) ?? NaN);
    if (Number.isInteger(number) && number >= -1) state[key] = number;
  }
  for (const key of ["collapsed", "threads"]) {
    const text = given.get(key);
    if (text) state[key] = text.split(",").map(Number).filter(Number.isInteger);
  }
  for (const key of ["range", "baseRange"]) {
    const ends = (given.get(key) ?? "").split(",").map((text) => (text === "" ? NaN : Number(text)));
    if (ends.length === 2 && ends.every(Number.isFinite) && ends[0] < ends[1]) state[key] = ends;
  }
  state.query = given.get("query") ?? initial.query;
  const path = given.get("path");
  if (path) state.path = path.split(",").map(unescaped);
  return inOrder(state);
}

/** @param {string} text */
function unescaped(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/**
 * @param {import("./names.js").Names} names
 * @param {number} id
 * @returns {NameKey}
 */
export function keyOfName(names, id) {
  if (id < names.functions) return String(id);
  const { kind, library, text } = names.labels[id - names.functions];
  return `${kind}~${library}~${text}`;
}

/**
 * @param {import("./names.js").Names} names
 * @param {NameKey} key
 */
export function nameOfKey(names, key) {
  const label = /^(\d+)~(-?\d+)~(.*)$/s.exec(key);
  if (!label) return /^\d+$/.test(key) && Number(key) < names.functions ? Number(key) : -1;
  return names.label(label[3], Number(label[1]), Number(label[2]));
}
