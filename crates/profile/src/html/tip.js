// What is said of the box under the pointer.

import { element, fill } from "./dom.js";
import { KIND_WORDS } from "./names.js";
import { change, clip, fileName, percent } from "./numbers.js";
import { amount } from "./panel.js";

export class Tip {
  constructor() {
    this.box = element("div.tip", { role: "tooltip" });
    this.box.hidden = true;
  }

  hide() {
    this.box.hidden = true;
  }

  /**
   * @param {import("./data.js").Data} data
   * @param {import("./names.js").Names} names
   * @param {import("./selection.js").Rows} rows
   * @param {import("./tree.js").Tree} tree
   * @param {number} node
   * @param {number} x
   * @param {number} y
   */
  show(data, names, rows, tree, node, x, y) {
    const id = tree.name[node];
    const { baseTotal } = tree;
    const words = [KIND_WORDS[names.kind(id)], tree.inlined[node] ? "inlined" : "", names.libraryName(id), fileName(names.file(id))];
    const base = baseTotal ? baseTotal[node] : 0;
    fill(
      this.box,
      element("div.tip-name", {}, element("bdi", {}, clip(names.text(id), 600))),
      element("div.tip-place", {}, words.filter((word) => word !== "").map((word) => element("bdi.tag", {}, clip(word, 100)))),
      element("div", {}, element("b", {}, percent(tree.total[node] / rows.total)), ` total · ${amount(data, tree.total[node], rows.scales[1])}`),
      element("div", {}, element("b", {}, percent(tree.self[node] / rows.total)), ` self · ${amount(data, tree.self[node], rows.scales[1])}`),
      baseTotal &&
        element(
          `div.${tree.total[node] > base ? "grew" : "shrank"}`,
          {},
          element("b", {}, change(base, tree.total[node])),
          ` base ${percent(base / rows.baseTotal)} · ${amount(data, base, rows.scales[0])}`,
        ),
    );
    this.box.hidden = false;
    placeBeside(this.box, x, y);
  }
}

/**
 * Puts a box beside the pointer, inside of the window.
 * @param {HTMLElement} box
 * @param {number} x
 * @param {number} y
 */
export function placeBeside(box, x, y) {
  const { offsetWidth, offsetHeight } = box;
  const left = x + 14 + offsetWidth > innerWidth ? x - offsetWidth - 10 : x + 14;
  const top = y + 16 + offsetHeight > innerHeight ? y - offsetHeight - 12 : y + 16;
  box.style.left = `${Math.max(4, left)}px`;
  box.style.top = `${Math.max(4, top)}px`;
}

/**
 * The same in one line, for readers of screens.
 * @param {import("./names.js").Names} names
 * @param {import("./selection.js").Rows} rows
 * @param {import("./tree.js").Tree} tree
 * @param {number} node
 */
export function spoken(names, rows, tree, node) {
  const [total, self] = [percent(tree.total[node] / rows.total), percent(tree.self[node] / rows.total)];
  return `${clip(names.text(tree.name[node]), 200)}: ${total} total, ${self} self`;
}
