// The tree that a flame graph shows: rows of counts in, one node for each path of names out.
//
// A parent has a lower number than its children, so totals are sums from the last node to the first. Options change the
// names of a path before it is put into the tree; nothing else in the page knows of them.

import { INCOMPLETE, threadName, hasThreads } from "./data.js";
import { LIBRARY, PROCESS, THREAD } from "./names.js";

/**
 * @typedef {object} Tree
 * @property {number} count
 * @property {Int32Array} name numbers of `Names`
 * @property {Int32Array} parent -1 for the outermost
 * @property {Float64Array} self
 * @property {Float64Array} total
 * @property {Float64Array | null} baseSelf
 * @property {Float64Array | null} baseTotal
 * @property {Uint8Array} inlined 1 if the function was inlined at every occurrence of the node
 */

/**
 * @typedef {object} TreeOptions
 * @property {boolean} mergeRecursion a function that calls itself, also through others, occurs in a path once
 * @property {Set<number>} collapsed libraries whose frames become one
 * @property {number} focus a function: only stacks through it, from it on; -1 for all
 * @property {boolean} threads a level for each thread below its process
 */

/** Of an inverted tree, lighter nodes than this part are left out: less than a tenth of a pixel. */
export const LEAST_PART = 1e-5;

/** Puts paths into a tree; makes the arrays. */
class TreeBuilder {
  /** @param {boolean} compares */
  constructor(compares) {
    /** @type {number[]} */
    this.name = [];
    /** @type {number[]} */
    this.parent = [];
    /** @type {number[]} */
    this.self = [];
    /** @type {number[] | null} */
    this.baseSelf = compares ? [] : null;
    /** @type {number[]} */
    this.inlined = [];
    // A hash table of nodes by parent and name: a `Map` takes three times as long.
    this.slots = new Int32Array(1 << 12).fill(-1);
  }

  /**
   * The child of `parent` with this name, made if it is not there.
   * @param {number} parent -1 for the outermost
   * @param {number} name
   */
  child(parent, name) {
    if (this.name.length * 2 >= this.slots.length) this.grow();
    const mask = this.slots.length - 1;
    let slot = hash(parent, name) & mask;
    for (;;) {
      const node = this.slots[slot];
      if (node < 0) break;
      if (this.parent[node] === parent && this.name[node] === name) return node;
      slot = (slot + 1) & mask;
    }
    const node = this.name.length;
    this.slots[slot] = node;
    this.name.push(name);
    this.parent.push(parent);
    this.self.push(0);
    if (this.baseSelf) this.baseSelf.push(0);
    this.inlined.push(1);
    return node;
  }

  grow() {
    this.slots = new Int32Array(this.slots.length * 4).fill(-1);
    const mask = this.slots.length - 1;
    for (let node = 0; node < this.name.length; node++) {
      let slot = hash(this.parent[node], this.name[node]) & mask;
      while (this.slots[slot] >= 0) slot = (slot + 1) & mask;
      this.slots[slot] = node;
    }
  }

  /**
   * @param {number} node
   * @param {number} value
   * @param {number} base
   */
  add(node, value, base) {
    this.self[node] += value;
    if (this.baseSelf) this.baseSelf[node] += base;
  }

  /** @returns {Tree} */
  finish() {
    const tree = {
      count: this.name.length,
      name: Int32Array.from(this.name),
      parent: Int32Array.from(this.parent),
      self: Float64Array.from(this.self),
      total: Float64Array.from(this.self),
      baseSelf: this.baseSelf && Float64Array.from(this.baseSelf),
      baseTotal: this.baseSelf && Float64Array.from(this.baseSelf),
      inlined: Uint8Array.from(this.inlined),
    };
    for (let node = tree.count - 1; node > 0; node--) {
      const parent = tree.parent[node];
      if (parent < 0) continue;
      tree.total[parent] += tree.total[node];
      if (tree.baseTotal) tree.baseTotal[parent] += tree.baseTotal[node];
    }
    return tree;
  }
}

/**
 * @param {number} parent
 * @param {number} name
 */
function hash(parent, name) {
  const mixed = Math.imul(parent + 1, 0x9e3779b1) ^ Math.imul(name + 1, 0x85ebca6b);
  return mixed ^ (mixed >>> 15);
}

const NOT_MAPPED = -2;
/** The path has not come to the function in focus. */
const OUTSIDE = -1;

/**
 * @param {import("./data.js").Data} data
 * @param {import("./names.js").Names} names
 * @param {import("./selection.js").Rows} rows
 * @param {TreeOptions} options
 * @returns {Tree}
 */
export function buildTree(data, names, rows, options) {
  const builder = new TreeBuilder(rows.base !== null);
  const step = stepper(data, names, builder, options);
  const order = groupByRoot(rows, data.roots.count);
  // By node of the data: its node in the tree, for one root at a time; `stamp` has the root.
  const place = new Int32Array(data.nodes.count);
  const stamp = new Int32Array(data.nodes.count).fill(-1);
  /** @type {number[]} */
  const path = [];
  const { parent } = data.nodes;
  let root = -1;
  let group = 0;
  /** @type {Map<string, number>} */
  const groups = new Map();
  for (const row of order) {
    if (rows.root[row] !== root) {
      root = rows.root[row];
      const begins = rootNames(data, names, root, options);
      // Roots with the same names share their places.
      const key = begins.join(" ");
      group = groups.get(key) ?? groups.size;
      groups.set(key, group);
      let node = OUTSIDE;
      if (options.focus < 0) for (const name of begins) node = plain(builder, node, name);
      place[0] = options.focus < 0 ? node : NOT_MAPPED;
      stamp[0] = group;
    }
    path.length = 0;
    let at = rows.node[row];
    while (stamp[at] !== group) {
      path.push(at);
      at = parent[at];
    }
    let node = place[at];
    for (let index = path.length - 1; index >= 0; index--) {
      at = path[index];
      node = step(node, data.nodes.frame[at]);
      place[at] = node;
      stamp[at] = group;
    }
    if (node >= 0) builder.add(node, rows.value[row], rows.base ? rows.base[row] : 0);
  }
  return builder.finish();
}

/**
 * @param {TreeBuilder} builder
 * @param {number} parent
 * @param {number} name
 */
function plain(builder, parent, name) {
  const node = builder.child(parent, name);
  builder.inlined[node] = 0;
  return node;
}

/**
 * What leads from a node of the tree to the one below it for a frame.
 * @param {import("./data.js").Data} data
 * @param {import("./names.js").Names} names
 * @param {TreeBuilder} builder
 * @param {TreeOptions} options
 * @returns {(node: number, frame: number) => number}
 */
function stepper(data, names, builder, options) {
  const { frames } = data;
  /** @type {Map<number, number>} */
  const labels = new Map();
  for (const library of options.collapsed) {
    labels.set(library, names.label(names.nameOfKey(library), LIBRARY, library));
  }
  const collapses = labels.size > 0;
  return (node, frame) => {
    let name = frames.function[frame];
    if (node < 0) {
      if (options.focus >= 0 && name !== options.focus) return NOT_MAPPED;
      node = OUTSIDE;
    }
    let inlined = frames.inlined[frame];
    if (collapses && name !== options.focus) {
      const label = labels.get(names.libraryKey(name));
      if (label !== undefined) {
        name = label;
        inlined = 0;
        if (node >= 0 && builder.name[node] === label) return node;
      }
    }
    if (options.mergeRecursion) {
      for (let above = node; above >= 0; above = builder.parent[above]) if (builder.name[above] === name) return above;
    }
    const child = builder.child(node, name);
    if (!inlined) builder.inlined[child] = 0;
    return child;
  };
}

/**
 * The rows, those of one root beside each other.
 * @param {import("./selection.js").Rows} rows
 * @param {number} roots
 */
function groupByRoot(rows, roots) {
  const starts = new Int32Array(roots + 1);
  for (const root of rows.root) starts[root + 1]++;
  for (let root = 0; root < roots; root++) starts[root + 1] += starts[root];
  const order = new Int32Array(rows.root.length);
  for (let row = 0; row < order.length; row++) order[starts[rows.root[row]]++] = row;
  return order;
}

/**
 * The nodes above the code of a root: the process, the thread, `[incomplete]`, as in folded stacks.
 * @param {import("./data.js").Data} data
 * @param {import("./names.js").Names} names
 * @param {number} root
 * @param {TreeOptions} options
 * @returns {number[]}
 */
function rootNames(data, names, root, options) {
  const thread = data.roots.thread[root];
  const process = data.strings[data.threads.process[thread]] || "[unknown]";
  const begins = [names.label(process, PROCESS)];
  if (options.threads && hasThreads(data) && data.threads.id[thread] >= 0) {
    begins.push(names.label(threadName(data, thread), THREAD));
  }
  if (data.roots.flags[root] & INCOMPLETE) begins.push(names.label("[incomplete]", PROCESS));
  return begins;
}

/**
 * Callers first: each node's name is at the bottom, what called it above. `seeds` are the nodes to begin with and what each
 * counts; without, all that have self counts. What is lighter than `least` is left out.
 * @param {Tree} tree
 * @param {{ node: number, value: number, base: number }[] | null} seeds
 * @param {boolean} mergeRecursion
 * @param {number} least
 * @returns {Tree}
 */
export function invertTree(tree, seeds, mergeRecursion, least) {
  const builder = new TreeBuilder(tree.baseSelf !== null);
  if (!seeds) {
    seeds = [];
    for (let node = 0; node < tree.count; node++) {
      const base = tree.baseSelf ? tree.baseSelf[node] : 0;
      if (tree.self[node] > 0 || base > 0) seeds.push({ node, value: tree.self[node], base });
    }
  }
  /** @type {{ at: number, value: number, base: number }[]} */
  const items = seeds.map(({ node, value, base }) => ({ at: node, value, base }));
  /** @type {{ above: number, items: { at: number, value: number, base: number }[] }[]} */
  const open = [{ above: -1, items }];
  for (let next = open.pop(); next; next = open.pop()) {
    /** @type {Map<number, { at: number, value: number, base: number }[]>} */
    const byName = new Map();
    for (const item of next.items) {
      const name = tree.name[item.at];
      const list = byName.get(name);
      if (list) list.push(item);
      else byName.set(name, [item]);
    }
    for (const [name, list] of byName) {
      let value = 0;
      let base = 0;
      for (const item of list) {
        value += item.value;
        base += item.base;
      }
      if (value < least && base < least) {
        if (next.above >= 0) builder.add(next.above, value, base);
        continue;
      }
      const known = mergeRecursion ? ancestor(builder, next.above, name) : -1;
      const node = known >= 0 ? known : builder.child(next.above, name);
      const callers = [];
      for (const { at, value, base } of list) {
        if (!tree.inlined[at]) builder.inlined[node] = 0;
        const caller = tree.parent[at];
        if (caller < 0) builder.add(node, value, base);
        else callers.push({ at: caller, value, base });
      }
      if (callers.length > 0) open.push({ above: node, items: callers });
    }
  }
  return builder.finish();
}

/**
 * @param {TreeBuilder} builder
 * @param {number} node
 * @param {number} name
 */
function ancestor(builder, node, name) {
  while (node >= 0 && builder.name[node] !== name) node = builder.parent[node];
  return node;
}

/**
 * All callees of a function, wherever it occurs: the trees below its outermost nodes as one.
 * @param {Tree} tree
 * @param {number} name
 * @returns {Tree}
 */
export function calleesTree(tree, name) {
  const builder = new TreeBuilder(tree.baseSelf !== null);
  const place = new Int32Array(tree.count).fill(-1);
  for (let node = 0; node < tree.count; node++) {
    const above = tree.parent[node] >= 0 ? place[tree.parent[node]] : -1;
    if (above < 0 && tree.name[node] !== name) continue;
    place[node] = builder.child(above, tree.name[node]);
    if (!tree.inlined[node]) builder.inlined[place[node]] = 0;
    builder.add(place[node], tree.self[node], tree.baseSelf ? tree.baseSelf[node] : 0);
  }
  return builder.finish();
}

/**
 * The outermost nodes of a function, with all that they count: seeds of its callers.
 * @param {Tree} tree
 * @param {number} name
 */
export function outermostNodes(tree, name) {
  const inside = new Uint8Array(tree.count);
  const seeds = [];
  for (let node = 0; node < tree.count; node++) {
    const parent = tree.parent[node];
    if (parent >= 0 && inside[parent]) inside[node] = 1;
    else if (tree.name[node] === name) {
      inside[node] = 1;
      seeds.push({ node, value: tree.total[node], base: tree.baseTotal ? tree.baseTotal[node] : 0 });
    }
  }
  return seeds;
}
