// The panel at the side: the hottest functions, and all that is known of the selected one.

import { bar, element, fill } from "./dom.js";
import { heaviest, neighboursOf, threadsOf } from "./functions.js";
import { KIND_WORDS } from "./names.js";
import { change, clip, counted, duration, fileName, percent } from "./numbers.js";
import { hasThreads, threadName } from "./data.js";

const HOTTEST_MAX = 15;
const NEIGHBOURS_MAX = 8;
const THREADS_MAX = 8;
/** Bar, gap and margins of a line. */
const BESIDE_NAME_PX = 108;
const CHARACTER_PX = 7.3;

/**
 * @typedef {object} PanelContent
 * @property {import("./data.js").Data} data
 * @property {import("./names.js").Names} names
 * @property {import("./tree.js").Tree} tree callers above callees
 * @property {import("./selection.js").Rows} rows
 * @property {import("./functions.js").Totals} totals
 * @property {number} selected
 * @property {number} focus
 * @property {number[]} collapsed
 */

/**
 * What the panel asks for.
 * @typedef {object} PanelHooks
 * @property {(id: number) => void} select
 * @property {(view: string) => void} view
 * @property {(id: number) => void} focus
 * @property {(library: number) => void} collapse
 */

/**
 * @param {HTMLElement} host
 * @param {PanelContent} content
 * @param {PanelHooks} hooks
 */
export function showPanel(host, content, hooks) {
  const { selected, names } = content;
  const isThere = selected >= 0 && selected < names.count && content.totals.total[selected] !== undefined;
  // How many characters of a name have room beside a bar.
  const room = Math.max(16, Math.floor((host.clientWidth - BESIDE_NAME_PX) / CHARACTER_PX));
  fill(host, isThere ? details(content, hooks, room) : null, hottest(content, hooks, room));
}

/**
 * @param {PanelContent} content
 * @param {PanelHooks} hooks
 * @param {number} room
 */
function hottest({ data, names, totals, rows, selected }, hooks, room) {
  const { baseSelf } = totals;
  const growth = (/** @type {number} */ id) => (baseSelf ? Math.abs(totals.self[id] - baseSelf[id]) : totals.self[id]);
  const ids = heaviest(totals.self.length, growth, HOTTEST_MAX);
  const most = growth(ids[0] ?? 0) || 1;
  return element(
    "section",
    {},
    element("h2", {}, baseSelf ? "What changed most" : data.unit === "bytes" ? "Most bytes" : "Hottest functions", element("small", {}, "self")),
    ids.map((id) => {
      const text = baseSelf ? change(baseSelf[id], totals.self[id]) : percent(totals.self[id] / rows.total);
      const kind = baseSelf ? (totals.self[id] > baseSelf[id] ? "grew" : "shrank") : "self";
      return line(names, id, growth(id) / most, text, kind, id === selected, hooks, room);
    }),
    ids.length === 0 && element("p.note", {}, rows.total === 0 && data.inuse && data.sides[0].total === 0 ? "nothing was in use then" : "nothing is shown: take a filter away"),
  );
}

/**
 * @param {import("./names.js").Names} names
 * @param {number} id
 * @param {number} share length of the bar
 * @param {string} text
 * @param {string} kind
 * @param {boolean} isSelected
 * @param {PanelHooks} hooks
 * @param {number} room
 */
function line(names, id, share, text, kind, isSelected, hooks, room) {
  return element(
    `button.line${isSelected ? ".selected" : ""}`,
    { type: "button", title: names.text(id).slice(0, 2000), onclick: () => hooks.select(id) },
    bar(share, text, kind),
    element("bdi.line-name", {}, names.fit(id, room)),
  );
}

/**
 * @param {PanelContent} content
 * @param {PanelHooks} hooks
 * @param {number} room
 */
function details(content, hooks, room) {
  const { data, names, tree, rows, totals, selected: id, focus, collapsed } = content;
  const library = names.libraryName(id);
  const [file, kind] = [names.file(id), KIND_WORDS[names.kind(id)]];
  const { baseTotal, baseSelf } = totals;
  const row = (/** @type {string} */ label, /** @type {number} */ value, /** @type {number | null} */ base, /** @type {string} */ fillKind) => [
    element("dt", {}, label),
    element(
      "dd",
      {},
      bar(value / rows.total, percent(value / rows.total), fillKind),
      element("span.amount", {}, amount(data, value, rows.scales[1])),
      base !== null &&
        element(
          `span.amount.${value > base ? "grew" : "shrank"}`,
          {},
          `base ${percent(base / rows.baseTotal)}, ${amount(data, base, rows.scales[0])}: ${change(base, value)}`,
        ),
    ),
  ];
  const { callers, callees } = neighboursOf(tree, id);
  const list = (/** @type {string} */ title, /** @type {[number, number][]} */ found) =>
    found.length > 0 && [
      element("h3", {}, title),
      found
        .slice(0, NEIGHBOURS_MAX)
        .map(([other, value]) =>
          line(names, other, value / totals.total[id], percent(value / totals.total[id]), "total", false, hooks, room),
        ),
    ];
  const isFunction = id < names.functions;
  const libraryKey = names.libraryKey(id);
  const isCollapsed = collapsed.includes(libraryKey);
  return element(
    "section.details",
    { "aria-label": "selected function" },
    element("h2.name", {}, element("bdi", {}, clip(names.text(id), 3000))),
    element(
      "p.place",
      {},
      [kind, library].filter((text) => text !== "").map((text) => element("bdi.tag", {}, clip(text, 200))),
      file !== "" && element("bdi.tag", { title: file.slice(0, 2000) }, clip(fileName(file), 200)),
    ),
    element("dl", {}, row("self", totals.self[id], baseSelf && baseSelf[id], "self"), row("total", totals.total[id], baseTotal && baseTotal[id], "total")),
    element(
      "p.actions",
      {},
      element("button", { type: "button", onclick: () => hooks.view("callers") }, "Callers and callees"),
      isFunction && element("button", { type: "button", onclick: () => hooks.view("source") }, "Lines"),
      isFunction &&
        element("button", { type: "button", "aria-pressed": String(focus === id), onclick: () => hooks.focus(focus === id ? -1 : id) }, "Focus"),
      libraryKey !== -1 &&
        element(
          "button",
          { type: "button", "aria-pressed": String(isCollapsed), onclick: () => hooks.collapse(libraryKey) },
          isCollapsed ? "Expand library" : "Collapse library",
        ),
    ),
    list("Callers", callers),
    list("Callees", callees),
    threads(content),
  );
}

/** @param {PanelContent} content */
function threads({ data, rows, selected }) {
  if (data.threads.count < 2 || selected >= data.functions.count) return null;
  const found = threadsOf(data, rows, selected);
  const most = found.length > 0 ? found[0].total : 1;
  return [
    element("h3", {}, hasThreads(data) ? "Threads" : "Processes"),
    found
      .slice(0, THREADS_MAX)
      .map(({ thread, total }) =>
        element(
          "div.line",
          {},
          bar(total / most, percent(total / rows.total), "total"),
          element("bdi.line-name", {}, clip(threadName(data, thread), 60)),
        ),
      ),
    found.length > THREADS_MAX && element("p.note", {}, `and ${found.length - THREADS_MAX} more`),
  ];
}

/**
 * Counts as people think of them: time where the rate is known.
 * @param {import("./data.js").Data} data
 * @param {number} value
 * @param {number} scale by which it was multiplied
 */
export function amount(data, value, scale) {
  const counts = value / (scale || 1);
  const hz = data.sides[data.sides.length - 1].hz;
  const time = hz ? ` · ${duration((counts * 1e9) / hz)}` : "";
  return counted(counts, data.unit) + time;
}
