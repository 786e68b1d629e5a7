// The keyboard: one table of keys, which is also the help.

import { element, fill } from "./dom.js";

/**
 * A key, what it does in words, and the name of the action of `App`.
 * @type {[string, string, string][]}
 */
const KEYS = [
  ["1 2 3 4", "flame graph, functions, callers and callees, lines", "view"],
  ["← → ↑ ↓", "move in the flame graph, or in the table", "move"],
  ["Enter", "zoom to the selected box; in the table, callers and callees", "zoom"],
  ["Backspace", "zoom out by one level", "zoomOut"],
  ["+ −", "zoom in, zoom out", "zoomBy"],
  ["Escape", "take away: search, zoom, then filters", "reset"],
  ["/", "search: text, /expression/, lib:name, file:name, kind:kernel", "search"],
  ["n N", "next match, match before", "match"],
  ["i", "callers first (inverted)", "invert"],
  ["u", "flame graph: the outermost function at the bottom", "upward"],
  ["r", "merge recursion", "recursion"],
  ["b", "a level for each thread", "levels"],
  ["f", "focus on the selected function", "focus"],
  ["l", "collapse the library of the selected function", "collapse"],
  ["s", "incomplete stacks only", "stacks"],
  ["c", "next colours", "colour"],
  ["d", "light, dark", "theme"],
  ["p", "panel", "panel"],
  ["g", "time views: arrows move the range, with Shift its end, or the moment; b makes it the base", "time"],
  ["?", "this list", "help"],
];

/** By `event.key`: the action and its argument. @type {Record<string, [string, any?]>} */
const ACTIONS = {
  1: ["view", "flame"],
  2: ["view", "functions"],
  3: ["view", "callers"],
  4: ["view", "source"],
  ArrowUp: ["move", "up"],
  ArrowDown: ["move", "down"],
  ArrowLeft: ["move", "before"],
  ArrowRight: ["move", "after"],
  Enter: ["zoom"],
  Backspace: ["zoomOut"],
  "+": ["zoomBy", 0.7],
  "=": ["zoomBy", 0.7],
  "-": ["zoomBy", 1 / 0.7],
  Escape: ["reset"],
  "/": ["search"],
  n: ["match", 1],
  N: ["match", -1],
  i: ["invert"],
  u: ["upward"],
  r: ["recursion"],
  b: ["levels"],
  f: ["focus"],
  l: ["collapse"],
  s: ["stacks"],
  c: ["colour"],
  d: ["theme"],
  p: ["panel"],
  g: ["time"],
  "?": ["help"],
};

/** Keys that mean something to a button or a link that has the focus. */
const OF_BUTTONS = ["Enter", " "];

/**
 * Calls `act` for each key of the table; returns nothing to undo, for the page lives as long as it does.
 * @param {(action: string, argument: any) => void} act
 */
export function listenToKeys(act) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const { target } = event;
    const isText = target instanceof HTMLInputElement || target instanceof HTMLSelectElement;
    if (isText && event.key !== "Escape") return;
    if (target instanceof HTMLButtonElement && OF_BUTTONS.includes(event.key)) return;
    if (document.querySelector("dialog[open]")) return;
    const found = Object.hasOwn(ACTIONS, event.key) ? ACTIONS[event.key] : null;
    if (!found) return;
    event.preventDefault();
    act(found[0], found[1]);
  });
}

/** @returns {HTMLDialogElement} */
export function helpDialog() {
  const dialog = /** @type {HTMLDialogElement} */ (element("dialog.help", { "aria-label": "keys" }));
  const close = element("button", { type: "button", onclick: () => dialog.close() }, "Close");
  fill(
    dialog,
    element("h2", {}, "Keys"),
    element(
      "dl",
      {},
      KEYS.map(([keys, words]) => [element("dt", {}, keys.split(" ").map((key) => element("kbd", {}, key))), element("dd", {}, words)]),
    ),
    element("p.note", {}, "Mouse: a click zooms to a box; Ctrl and the wheel zoom, Shift and the wheel or dragging pan."),
    close,
  );
  return dialog;
}
