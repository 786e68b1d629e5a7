// The parts of the page in their places, empty. `app.js` fills them.

import { element, fill } from "./dom.js";
import { clip } from "./numbers.js";

/**
 * @param {HTMLElement} host
 * @param {string} title
 * @param {{ search: (query: string) => void, act: (action: string, argument?: any) => void }} hooks
 * @param {HTMLElement[]} floating what lies over the page
 */
export function buildFrame(host, title, hooks, floating) {
  const searchBox = /** @type {HTMLInputElement} */ (
    element("input.search", {
      type: "search",
      placeholder: "Search: text or /expression/",
      "aria-label": "search",
      spellcheck: "false",
      oninput: () => hooks.search(searchBox.value),
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key === "Enter") hooks.act("match", event.shiftKey ? -1 : 1);
      },
    })
  );
  const parts = {
    searchBox,
    truth: element("div.truth"),
    time: element("section.time", { "aria-label": "time" }),
    memory: element("section.time", { "aria-label": "memory in use over time" }),
    tabs: element("div.tabs", { role: "tablist" }),
    options: element("div.options"),
    threads: element("div.threads"),
    filters: element("div.filters"),
    flame: element("div.flame.stage", { tabindex: "0", role: "application", "aria-label": "flame graph" }),
    functions: element("div.stage.functions"),
    callers: element("div.stage.callers"),
    source: element("div.stage.source"),
    panel: element("aside.panel", { "aria-label": "functions" }),
    matched: element("span.matched", { role: "status" }),
    shown: element("span.note.shown"),
    spoken: element("div.spoken", { role: "status", "aria-live": "polite" }),
  };
  const button = (/** @type {string} */ text, /** @type {string} */ words, /** @type {string} */ action) =>
    element("button", { type: "button", title: words, onclick: () => hooks.act(action) }, text);
  fill(
    host,
    element(
      "header",
      {},
      element("h1", {}, element("bdi", { title: title.slice(0, 2000) }, clip(title, 120))),
      parts.truth,
      element(
        "span.corner",
        {},
        button("Panel", "show or hide the panel (key p)", "panel"),
        button("◐", "light or dark (key d)", "theme"),
        button("?", "keys (key ?)", "help"),
      ),
    ),
    parts.time,
    parts.memory,
    element("nav", {}, parts.tabs, element("span.search-group", {}, searchBox, parts.matched), parts.options, parts.threads),
    parts.filters,
    element("main", {}, element("div.stages", {}, parts.flame, parts.functions, parts.callers, parts.source), parts.panel),
    parts.spoken,
    floating,
  );
  return parts;
}
