// Callers and callees of one function: its callers above it, what it calls below, both as flame graphs.

import { coloursOf } from "./colours.js";
import { element, fill } from "./dom.js";
import { FlameView } from "./flame.js";
import { layOut } from "./layout.js";
import { clip } from "./numbers.js";
import { LEAST_PART, calleesTree, invertTree, outermostNodes } from "./tree.js";

export class CallersView {
  /**
   * @param {HTMLElement} host
   * @param {{ select: (id: number) => void, hover: (tree: import("./tree.js").Tree, node: number, x: number, y: number) => void }} hooks
   */
  constructor(host, hooks) {
    this.title = element("h2.callers-title");
    const [above, below] = [element("div.flame"), element("div.flame")];
    /** @type {import("./layout.js").Layout | null} */
    this.callers = null;
    /** @type {import("./layout.js").Layout | null} */
    this.callees = null;
    const pick = (/** @type {import("./layout.js").Layout | null} */ layout, /** @type {FlameView} */ view, /** @type {number} */ node) => {
      if (!layout || node < 0) return;
      view.select(node);
      hooks.select(layout.tree.name[node]);
    };
    this.above = new FlameView(above, {
      click: (node) => pick(this.callers, this.above, node),
      hover: (node, x, y) => this.callers && hooks.hover(this.callers.tree, node, x, y),
    });
    this.below = new FlameView(below, {
      click: (node) => pick(this.callees, this.below, node),
      hover: (node, x, y) => this.callees && hooks.hover(this.callees.tree, node, x, y),
    });
    this.note = element("p.note");
    this.body = element(
      "div.callers-body",
      {},
      element("section", {}, element("h3", {}, "Callers"), above),
      element("section", {}, element("h3", {}, "Callees"), below),
    );
    fill(host, this.title, this.note, this.body);
  }

  /**
   * @param {import("./names.js").Names} names
   * @param {import("./tree.js").Tree} tree callers above callees
   * @param {number} name
   * @param {{ colour: string, dark: boolean, matched: Uint8Array | null, whole: Float64Array }} look
   */
  show(names, tree, name, look) {
    const seeds = name >= 0 ? outermostNodes(tree, name) : [];
    this.body.hidden = seeds.length === 0;
    this.note.hidden = seeds.length > 0;
    fill(this.title, name >= 0 ? element("bdi", {}, clip(names.text(name), 500)) : null);
    if (seeds.length === 0) {
      fill(this.note, name < 0 ? "Select a function to see its callers and callees: in the flame graph, the table, or the panel." : "The selected function is not in what is shown.");
      return;
    }
    const total = seeds.reduce((sum, seed) => sum + seed.value + seed.base, 0);
    this.callers = layOut(invertTree(tree, seeds, false, total * LEAST_PART));
    this.callees = layOut(calleesTree(tree, name));
    for (const [view, layout, upward] of /** @type {[FlameView, import("./layout.js").Layout, boolean][]} */ ([
      [this.above, this.callers, true],
      [this.below, this.callees, false],
    ])) {
      const colours = coloursOf(names, layout.tree, look.colour, look.dark, look.whole, look.whole);
      view.show({ layout, names, colours, matched: look.matched, upward, dark: look.dark });
    }
  }
}
