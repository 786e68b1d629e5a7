// The row of tabs, search and options above the views, and the row of filters and colours below it.

import { element, fill, toggle } from "./dom.js";
import { threadName, threadWord } from "./data.js";
import { clip, percent } from "./numbers.js";

const MENU_MAX = 500;
/** @type {[string, string][]} */
const TABS = [
  ["flame", "Flame graph"],
  ["functions", "Functions"],
  ["callers", "Callers and callees"],
  ["source", "Lines"],
];
/** @type {Record<string, string>} */
const COLOUR_WORDS = { library: "by library", kind: "by kind of code", change: "by change" };

/** @typedef {(change: Partial<import("./state.js").State>) => void} Update */

/**
 * @param {HTMLElement} host
 * @param {import("./state.js").State} state
 * @param {{ compares: boolean, threads: boolean, update: Update }} page
 */
export function showTabs(host, state, { update }) {
  fill(
    host,
    TABS.map(([view, text], index) =>
      element(
        "button.tab",
        {
          type: "button",
          role: "tab",
          "aria-selected": String(state.view === view),
          title: `key ${index + 1}`,
          onclick: () => update({ view }),
        },
        text,
      ),
    ),
  );
}

/**
 * @param {HTMLElement} host
 * @param {import("./state.js").State} state
 * @param {{ compares: boolean, threads: boolean, update: Update }} page
 */
export function showOptions(host, state, { compares, threads, update }) {
  const colours = compares ? ["change", "library", "kind"] : ["library", "kind"];
  const select = /** @type {HTMLSelectElement} */ (
    element(
      "select",
      { "aria-label": "colours", title: "colours (key c)", onchange: () => update({ colour: select.value }) },
      colours.map((colour) => element("option", { value: colour, selected: colour === state.colour }, COLOUR_WORDS[colour])),
    )
  );
  fill(
    host,
    element(
      "span.group",
      {},
      toggle("Callers first", state.invert, "begin with the functions that work; above them their callers (key i)", () =>
        update({ invert: !state.invert, path: [] }),
      ),
      toggle("Root at bottom", state.upward, "flame graph instead of icicle graph (key u)", () => update({ upward: !state.upward })),
      toggle("Merge recursion", state.recursion, "a function stands in a stack once (key r)", () =>
        update({ recursion: !state.recursion, path: [] }),
      ),
      threads && toggle("By thread", state.levels, "a level for each thread (key b)", () => update({ levels: !state.levels, path: [] })),
    ),
    select,
  );
}

/**
 * The menu of threads.
 * @param {HTMLElement} host
 * @param {import("./data.js").Data} data
 * @param {{ thread: number, total: number }[]} found
 * @param {number} all counts
 * @param {import("./state.js").State} state
 * @param {Update} update
 */
export function showThreads(host, data, found, all, state, update) {
  if (found.length < 2) return fill(host);
  const wasOpen = host.querySelector("details")?.open;
  const { threads } = state;
  const word = threadWord(data);
  const label = threads.length === 0 ? `All ${found.length} ${word}` : `${threads.length} of ${found.length} ${word}`;
  const flip = (/** @type {number} */ thread) =>
    update({ threads: threads.includes(thread) ? threads.filter((other) => other !== thread) : [...threads, thread], path: [] });
  const menu = element(
    "details.menu",
    { open: wasOpen === true },
    element("summary", { title: `which ${word} are shown` }, label),
    element(
      "div.menu-list",
      {},
      threads.length > 0 && element("button.line", { type: "button", onclick: () => update({ threads: [], path: [] }) }, `All ${word}`),
      found.slice(0, MENU_MAX).map(({ thread, total }) =>
        element(
          `button.line${threads.includes(thread) ? ".selected" : ""}`,
          { type: "button", "aria-pressed": String(threads.includes(thread)), onclick: () => flip(thread) },
          element("span.share", {}, percent(total / all)),
          element("bdi.line-name", {}, clip(threadName(data, thread), 80)),
        ),
      ),
    ),
  );
  fill(host, menu);
}

/**
 * What is left out, each with a button that takes it back; and what the colours mean.
 * @param {HTMLElement} host
 * @param {{ words: string, clear: Partial<import("./state.js").State> }[]} filters
 * @param {import("./colours.js").LegendEntry[]} legend
 * @param {string} query
 * @param {Update} update
 */
export function showFilters(host, filters, legend, query, update) {
  fill(
    host,
    filters.map(({ words, clear }) =>
      element("button.filter", { type: "button", title: "take this filter away", onclick: () => update(clear) }, element("bdi", {}, clip(words, 80)), " ✕"),
    ),
    element(
      "span.legend",
      { role: "group", "aria-label": "colours" },
      legend.map(({ text, colour, share, query: own }) => {
        const swatch = element("span.swatch");
        swatch.style.background = colour;
        const label = [swatch, element("bdi", { title: text.slice(0, 2000) }, clip(text, 24)), Number.isFinite(share) ? element("span.note", {}, percent(share)) : null];
        if (own === "") return element("span.legend-entry", {}, label);
        const isOn = own === query;
        return element(
          "button.legend-entry",
          { type: "button", "aria-pressed": String(isOn), title: "mark this library", onclick: () => update({ query: isOn ? "" : own }) },
          label,
        );
      }),
    ),
  );
}
