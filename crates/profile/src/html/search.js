// Search: which names match a text or a regular expression, and which share of the counts is below them.

import { KIND_WORDS } from "./names.js";

/** @typedef {import("./names.js").Names} Names */

/**
 * What is looked for. `/…/` is a regular expression; any other text is found as it is. Small letters find large ones.
 * @param {string} query
 * @returns {{ matches: ((text: string) => boolean) | null, error: string }} no function for an empty query and for a mistake
 */
function parseQuery(query) {
  if (query.trim() === "") return { matches: null, error: "" };
  const inSlashes = /^\/(.*?)\/?$/s.exec(query);
  const ignoresCase = query === query.toLowerCase();
  if (inSlashes && inSlashes[1] !== "") {
    try {
      const expression = new RegExp(inSlashes[1], ignoresCase ? "iu" : "u");
      return { matches: (text) => expression.test(text), error: "" };
    } catch (error) {
      return { matches: null, error: String(error instanceof Error ? error.message : error) };
    }
  }
  return { matches: (text) => (ignoresCase ? text.toLowerCase() : text).includes(query), error: "" };
}

/** What `file:`, `lib:` and `kind:` in front of a query search. @type {Record<string, (names: Names, id: number) => string>} */
const PLACES = {
  file: (names, id) => names.file(id),
  lib: (names, id) => names.libraryName(id),
  kind: (names, id) => KIND_WORDS[names.kind(id)],
};

/**
 * By name: 1 if it matches.
 * @param {Names} names
 * @param {string} query
 * @returns {{ matched: Uint8Array | null, error: string }}
 */
export function matchNames(names, query) {
  const prefix = /^(file|lib|kind):/.exec(query);
  const { matches, error } = parseQuery(prefix ? query.slice(prefix[0].length) : query);
  if (!matches) return { matched: null, error };
  const matched = new Uint8Array(names.count);
  const textOf = prefix ? PLACES[prefix[1]] : (/** @type {Names} */ all, /** @type {number} */ id) => all.text(id);
  for (let id = 0; id < matched.length; id++) matched[id] = matches(textOf(names, id)) ? 1 : 0;
  return { matched, error: "" };
}

/**
 * Counts below the outermost nodes that match: nested matches are counted once.
 * @param {import("./tree.js").Tree} tree
 * @param {Uint8Array} matched by name
 * @returns {{ value: number, base: number, nodes: number }}
 */
export function matchedCounts(tree, matched) {
  const inside = new Uint8Array(tree.count);
  const sum = { value: 0, base: 0, nodes: 0 };
  for (let node = 0; node < tree.count; node++) {
    const parent = tree.parent[node];
    const isMatch = matched[tree.name[node]] === 1;
    if (isMatch) sum.nodes++;
    if (parent >= 0 && inside[parent]) inside[node] = 1;
    else if (isMatch) {
      inside[node] = 1;
      sum.value += tree.total[node];
      sum.base += tree.baseTotal ? tree.baseTotal[node] : 0;
    }
  }
  return sum;
}

/**
 * The next node that matches, in the order of the layout: level by level, from left to right.
 * @param {import("./layout.js").Layout} layout
 * @param {Uint8Array} matched
 * @param {number} from a node, or -1
 * @param {1 | -1} direction
 */
export function nextMatch(layout, matched, from, direction) {
  const nodes = [];
  for (const level of layout.levels) for (const node of level) if (matched[layout.tree.name[node]]) nodes.push(node);
  if (nodes.length === 0) return -1;
  const at = nodes.indexOf(from);
  if (at < 0) return nodes[direction > 0 ? 0 : nodes.length - 1];
  return nodes[(at + direction + nodes.length) % nodes.length];
}
