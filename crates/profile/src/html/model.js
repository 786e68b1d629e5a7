// What is computed from the profile and the state: rows, tree, totals, boxes, matches. Each is kept until something that it
// depends on changes, so that a click on a box costs no tree and a search no layout.

import { functionTotals } from "./functions.js";
import { layOut } from "./layout.js";
import { matchNames } from "./search.js";
import { select } from "./selection.js";
import { LEAST_PART, buildTree, invertTree } from "./tree.js";

/**
 * @typedef {object} Computed
 * @property {import("./selection.js").Rows} everything rows of the whole profile
 * @property {import("./functions.js").Totals} whole totals of the whole profile
 * @property {import("./selection.js").Rows} rows those that are shown
 * @property {import("./tree.js").Tree} tree callers above callees
 * @property {import("./functions.js").Totals} totals
 * @property {import("./layout.js").Layout} layout of the flame graph, which may be inverted
 * @property {Uint8Array | null} matched by name
 * @property {string} searchError
 * @property {string} treeKey the same for the same tree
 */

export class Model {
  /**
   * @param {import("./data.js").Data} data
   * @param {import("./names.js").Names} names
   */
  constructor(data, names) {
    this.data = data;
    this.names = names;
    /** Results by name, with what they were computed from. @type {Map<string, { key: string, value: any }>} */
    this.kept = new Map();
  }

  /**
   * A value, computed again if `parts` differ from those of the last time.
   * @template T
   * @param {string} name
   * @param {any[]} parts
   * @param {() => T} compute
   * @returns {T}
   */
  keep(name, parts, compute) {
    const key = JSON.stringify(parts);
    let known = this.kept.get(name);
    if (!known || known.key !== key) {
      known = { key, value: compute() };
      this.kept.set(name, known);
    }
    return known.value;
  }

  /**
   * @param {import("./state.js").State} state
   * @returns {Computed}
   */
  compute(state) {
    const { data, names } = this;
    const { stacks, range, baseRange, moment, baseMoment, recursion, focus, levels, invert, query } = state;
    const all = { threads: null, stacks: /** @type {const} */ ("all"), range: null, baseRange: null };
    const plain = { mergeRecursion: false, collapsed: new Set(), focus: -1, threads: true };
    const everything = this.keep("everything", [], () => select(data, all));
    const whole = this.keep("whole", [], () => functionTotals(buildTree(data, names, everything, plain), names.count));
    const rowsKey = [state.threads, stacks, range, baseRange, moment, baseMoment];
    const rows = this.keep("rows", rowsKey, () => {
      const threads = state.threads.length > 0 ? new Set(state.threads) : null;
      return select(data, { threads, stacks, range, baseRange, moment, baseMoment });
    });
    const parts = [...rowsKey, recursion, state.collapsed, focus, levels];
    const tree = this.keep("tree", parts, () => {
      const collapsed = new Set(state.collapsed);
      return buildTree(data, names, rows, { mergeRecursion: recursion, collapsed, focus, threads: levels });
    });
    const totals = this.keep("totals", parts, () => functionTotals(tree, names.count));
    const least = (rows.total + rows.baseTotal) * LEAST_PART;
    const layout = this.keep("layout", [...parts, invert], () =>
      layOut(invert ? invertTree(tree, null, recursion, least) : tree),
    );
    const found = this.keep("matched", [query, names.count], () => matchNames(names, query));
    const { matched, error: searchError } = found;
    return { everything, whole, rows, tree, totals, layout, matched, searchError, treeKey: JSON.stringify(parts) };
  }
}
