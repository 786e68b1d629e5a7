// The table of functions: self, total, name, library; of a comparison also base and change.

import { bar, element, fill } from "./dom.js";
import { VirtualList } from "./list.js";
import { change, count, percent } from "./numbers.js";

const ROW_PX = 24;

/**
 * What the table shows.
 * @typedef {object} TableContent
 * @property {import("./names.js").Names} names
 * @property {import("./functions.js").Totals} totals
 * @property {number} total of all rows
 * @property {number} baseTotal
 * @property {Uint8Array | null} matched by name; rows that do not match are left out
 * @property {string} sort
 * @property {number} selected
 * @property {string} unit
 */

/** @type {[string, string, string][]} */
const COLUMNS = [
  ["self", "Self", "counts of stacks that end in the function"],
  ["total", "Total", "counts of stacks that the function is on"],
  ["base", "Base total", "total in base"],
  ["change", "Change", "of the total, from base to new"],
  ["name", "Function", ""],
  ["library", "Library", ""],
];

export class FunctionTable {
  /**
   * @param {HTMLElement} host
   * @param {{ select: (id: number) => void, open: (id: number) => void, sort: (column: string) => void }} hooks
   */
  constructor(host, hooks) {
    this.hooks = hooks;
    /** @type {TableContent | null} */
    this.content = null;
    /** @type {number[]} */
    this.ids = [];
    this.head = element("div.table-head", { role: "row" });
    const body = element("div.table-body", { tabindex: "0", role: "grid", "aria-label": "functions" });
    this.body = body;
    host.replaceChildren(this.head, body);
    this.list = new VirtualList(body, ROW_PX, (index) => this.row(index));
    body.addEventListener("keydown", (event) => this.key(event));
  }

  /** @param {TableContent} content */
  show(content) {
    const { totals, matched, sort } = content;
    const before = this.content;
    this.content = content;
    const isOther = !before || before.sort !== sort || before.matched !== matched || before.totals !== totals;
    if (isOther) this.fillRows(content);
    if (!before || before.sort !== sort || before.matched !== matched) this.body.scrollTop = 0;
    const { ids } = this;
    this.list.show(ids.length);
    const at = ids.indexOf(content.selected);
    if (at >= 0) this.list.reveal(at);
  }

  /** @param {TableContent} content */
  fillRows(content) {
    const { totals, names, matched, sort } = content;
    const ids = [];
    for (let id = 0; id < totals.total.length; id++) {
      const has = totals.total[id] > 0 || totals.self[id] > 0 || (totals.baseTotal !== null && totals.baseTotal[id] > 0);
      if (has && (names.isCode(id) || totals.self[id] > 0) && (!matched || matched[id])) ids.push(id);
    }
    this.ids = ids.sort(order(content));
    fill(
      this.head,
      COLUMNS.filter(([key]) => totals.baseTotal || (key !== "base" && key !== "change")).map(([key, text, title]) =>
        element(
          `button.cell.${key}`,
          { type: "button", title, "aria-sort": sort === key ? "descending" : null, onclick: () => this.hooks.sort(key) },
          text + (sort === key ? " ▾" : ""),
        ),
      ),
    );
  }

  /** @param {number} index */
  row(index) {
    const content = /** @type {TableContent} */ (this.content);
    const id = this.ids[index];
    const { names, totals, total, baseTotal, selected, unit } = content;
    const cell = (/** @type {string} */ kind, /** @type {any} */ ...children) =>
      element(`span.cell.${kind}`, { role: "gridcell" }, ...children);
    const counted = (/** @type {Float64Array} */ values, /** @type {string} */ kind) => {
      const share = values[id] / total;
      const made = cell(kind, bar(share, percent(share), kind));
      made.title = `${count(values[id])} ${unit}`;
      return made;
    };
    const base = totals.baseTotal ? totals.baseTotal[id] : 0;
    return element(
      `div.table-row${id === selected ? ".selected" : ""}`,
      {
        role: "row",
        "aria-selected": id === selected ? "true" : "false",
        onclick: () => this.hooks.select(id),
        ondblclick: () => this.hooks.open(id),
      },
      counted(totals.self, "self"),
      counted(totals.total, "total"),
      totals.baseTotal && cell("base", percent(base / baseTotal)),
      totals.baseTotal && cell(`change${totals.total[id] > base ? ".grew" : ".shrank"}`, change(base, totals.total[id])),
      cell("name", element("bdi", { title: names.text(id).slice(0, 2000) }, names.text(id).slice(0, 1000))),
      cell("library", element("bdi", {}, names.libraryName(id).slice(0, 300))),
    );
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const { ids, content } = this;
    if (!content || ids.length === 0) return;
    const page = Math.max(1, Math.floor(this.body.clientHeight / ROW_PX) - 1);
    /** @type {Record<string, number>} */
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -ids.length, End: ids.length };
    const at = ids.indexOf(content.selected);
    if (event.key === "Enter" && at >= 0) this.hooks.open(ids[at]);
    else if (event.key in steps) {
      const next = at < 0 ? 0 : Math.max(0, Math.min(ids.length - 1, at + steps[event.key]));
      this.hooks.select(ids[next]);
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

/**
 * @param {TableContent} content
 * @returns {(a: number, b: number) => number}
 */
function order({ names, totals, sort }) {
  const { self, total, baseTotal } = totals;
  const heavier = (/** @type {number} */ a, /** @type {number} */ b) => self[b] - self[a] || total[b] - total[a] || a - b;
  const byText = (/** @type {(id: number) => string} */ text) => (/** @type {number} */ a, /** @type {number} */ b) => {
    const [one, other] = [text(a), text(b)];
    return one < other ? -1 : one > other ? 1 : heavier(a, b);
  };
  if (sort === "name") return byText((id) => names.text(id));
  if (sort === "library") return byText((id) => names.libraryName(id));
  if (sort === "total") return (a, b) => total[b] - total[a] || heavier(a, b);
  if (sort === "base" && baseTotal) return (a, b) => baseTotal[b] - baseTotal[a] || heavier(a, b);
  if (sort === "change" && baseTotal) {
    const size = (/** @type {number} */ id) => Math.abs(total[id] - baseTotal[id]);
    return (a, b) => size(b) - size(a) || heavier(a, b);
  }
  return heavier;
}
