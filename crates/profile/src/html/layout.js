// Where each box of a flame graph is: a level for each depth, on it the boxes from left to right. Computed once for a tree;
// painting, zooming and finding what is under the pointer are searches in sorted lists.

import { childLists } from "./functions.js";

/**
 * @typedef {object} Layout
 * @property {import("./tree.js").Tree} tree
 * @property {Int32Array[]} levels nodes of each depth, from left to right
 * @property {Float64Array} left by node: where its box begins, in counts
 * @property {Float64Array} size by node: how wide it is, in counts
 * @property {Int32Array} depth by node
 * @property {number} width of the whole, in counts
 */

/**
 * The heaviest child is the leftmost. Of a comparison a box is as wide as the mean of base and new, so that what is gone has
 * a box, too.
 * @param {import("./tree.js").Tree} tree
 * @returns {Layout}
 */
export function layOut(tree) {
  const { baseTotal } = tree;
  const size = baseTotal ? tree.total.map((value, node) => (value + baseTotal[node]) / 2) : tree.total;
  const left = new Float64Array(tree.count);
  const depth = new Int32Array(tree.count);
  const { starts, list } = childLists(tree);
  for (let at = 0; at + 1 < starts.length; at++) {
    if (starts[at + 1] - starts[at] < 2) continue;
    list.subarray(starts[at], starts[at + 1]).sort((a, b) => size[b] - size[a] || a - b);
  }
  const levels = [];
  let width = 0;
  let level = list.slice(starts[0], starts[1]).filter((node) => size[node] > 0);
  for (const node of level) {
    left[node] = width;
    width += size[node];
  }
  while (level.length > 0) {
    levels.push(level);
    let count = 0;
    for (const node of level) count += starts[node + 2] - starts[node + 1];
    const below = new Int32Array(count);
    let length = 0;
    for (const node of level) {
      let at = left[node];
      for (let index = starts[node + 1]; index < starts[node + 2]; index++) {
        const child = list[index];
        if (size[child] <= 0) continue;
        left[child] = at;
        depth[child] = levels.length;
        at += size[child];
        below[length++] = child;
      }
    }
    level = below.subarray(0, length);
  }
  return { tree, levels, left, size, depth, width };
}

/**
 * Index on its level of the first box that ends behind `at`.
 * @param {Layout} layout
 * @param {Int32Array} level
 * @param {number} at
 * @param {number} from index to begin at
 */
export function firstBehind(layout, level, at, from = 0) {
  let low = from;
  let high = level.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    const node = level[middle];
    if (layout.left[node] + layout.size[node] <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * The node at a place, or -1.
 * @param {Layout} layout
 * @param {number} depth
 * @param {number} at in counts
 */
export function nodeAt(layout, depth, at) {
  const level = layout.levels[depth];
  if (!level) return -1;
  const node = level[firstBehind(layout, level, at)];
  return node !== undefined && layout.left[node] <= at ? node : -1;
}

/**
 * The neighbour of a node: its caller, its heaviest child, or the one beside it on its level.
 * @param {Layout} layout
 * @param {number} node
 * @param {"parent" | "child" | "before" | "after"} to
 */
export function neighbour(layout, node, to) {
  const { tree, levels, depth, left, size } = layout;
  if (to === "parent") return tree.parent[node] >= 0 ? tree.parent[node] : node;
  if (to === "child") {
    const child = nodeAt(layout, depth[node] + 1, left[node] + size[node] * 1e-12);
    return child >= 0 && tree.parent[child] === node ? child : node;
  }
  const level = levels[depth[node]];
  const index = firstBehind(layout, level, left[node]);
  const at = level[index] === node ? index : level.indexOf(node);
  return level[to === "before" ? at - 1 : at + 1] ?? node;
}

/**
 * The names from the outermost node to this one.
 * @param {import("./tree.js").Tree} tree
 * @param {number} node
 */
export function pathOf(tree, node) {
  const path = [];
  for (let at = node; at >= 0; at = tree.parent[at]) path.push(tree.name[at]);
  return path.reverse();
}

/**
 * The node that a path of names leads to, or as far as there is one; -1 if there is none.
 * @param {import("./tree.js").Tree} tree
 * @param {number[]} path
 */
export function nodeOfPath(tree, path) {
  if (path.length === 0) return -1;
  const { starts, list } = childLists(tree);
  let at = -1;
  for (const name of path) {
    const next = list.subarray(starts[at + 1], starts[at + 2]).find((node) => tree.name[node] === name);
    if (next === undefined) break;
    at = next;
  }
  return at;
}
