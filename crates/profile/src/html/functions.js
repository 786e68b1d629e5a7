// Self and total of every function, by thread, by line and by address. A function that is on a stack several times counts
// there once.

/**
 * @typedef {object} Totals
 * @property {Float64Array} self by name
 * @property {Float64Array} total
 * @property {Float64Array | null} baseSelf
 * @property {Float64Array | null} baseTotal
 */

/**
 * @param {import("./tree.js").Tree} tree
 * @param {number} names how many names there are
 * @returns {Totals}
 */
export function functionTotals(tree, names) {
  const compares = tree.baseTotal !== null;
  const totals = {
    self: new Float64Array(names),
    total: new Float64Array(names),
    baseSelf: compares ? new Float64Array(names) : null,
    baseTotal: compares ? new Float64Array(names) : null,
  };
  const isOutermost = outermost(tree, names);
  for (let node = 0; node < tree.count; node++) {
    const name = tree.name[node];
    totals.self[name] += tree.self[node];
    if (totals.baseSelf && tree.baseSelf) totals.baseSelf[name] += tree.baseSelf[node];
    if (!isOutermost[node]) continue;
    totals.total[name] += tree.total[node];
    if (totals.baseTotal && tree.baseTotal) totals.baseTotal[name] += tree.baseTotal[node];
  }
  return totals;
}

/**
 * By node: 1 if its name is not above it. One walk through the tree, whatever its depth.
 * @param {import("./tree.js").Tree} tree
 * @param {number} names
 */
function outermost(tree, names) {
  const { starts, list } = childLists(tree);
  const uses = new Int32Array(names);
  const first = new Uint8Array(tree.count);
  // A node is on the list twice: when the walk comes to it, and, as ~node, when it leaves it.
  /** @type {number[]} */
  const open = [];
  const push = (/** @type {number} */ parent) => {
    for (let at = starts[parent + 1] - 1; at >= starts[parent]; at--) open.push(list[at]);
  };
  push(0);
  for (let node = open.pop(); node !== undefined; node = open.pop()) {
    if (node < 0) {
      uses[tree.name[~node]]--;
      continue;
    }
    first[node] = uses[tree.name[node]]++ === 0 ? 1 : 0;
    open.push(~node);
    push(node + 1);
  }
  return first;
}

/**
 * The children of each node: those of node `n` are `list[starts[n + 1]]` up to `list[starts[n + 2]]`, the outermost nodes
 * those of -1.
 * @param {import("./tree.js").Tree} tree
 */
export function childLists(tree) {
  const starts = new Int32Array(tree.count + 2);
  for (let node = 0; node < tree.count; node++) starts[tree.parent[node] + 2]++;
  for (let at = 1; at < starts.length; at++) starts[at] += starts[at - 1];
  const next = starts.slice();
  const list = new Int32Array(tree.count);
  for (let node = 0; node < tree.count; node++) list[next[tree.parent[node] + 1]++] = node;
  return { starts, list };
}

/**
 * Counts of one function by place.
 * @typedef {{ key: number, self: number, total: number, base: number }} Place
 */

/**
 * Where in a function the counts are: by line, or by address.
 * @param {import("./data.js").Data} data
 * @param {import("./selection.js").Rows} rows
 * @param {number} fn
 * @param {"line" | "address"} by
 * @returns {Place[]} by key
 */
export function placesOf(data, rows, fn, by) {
  const { nodes, frames } = data;
  const self = new Float64Array(nodes.count);
  const base = new Float64Array(nodes.count);
  for (let row = 0; row < rows.node.length; row++) {
    self[rows.node[row]] += rows.value[row];
    if (rows.base) base[rows.node[row]] += rows.base[row];
  }
  const total = self.slice();
  const baseTotal = base.slice();
  for (let node = nodes.count - 1; node > 0; node--) {
    total[nodes.parent[node]] += total[node];
    baseTotal[nodes.parent[node]] += baseTotal[node];
  }
  /** @type {Map<number, Place>} */
  const places = new Map();
  // Whether the function is above a node; of a recursion only the outermost call counts.
  const inside = new Uint8Array(nodes.count);
  for (let node = 1; node < nodes.count; node++) {
    const parent = nodes.parent[node];
    const frame = nodes.frame[node];
    inside[node] = inside[parent];
    if (frames.function[frame] !== fn) continue;
    const isOutermost = !inside[parent];
    inside[node] = 1;
    if (total[node] === 0 && baseTotal[node] === 0) continue;
    const key = by === "line" ? frames.line[frame] : frames.address[frame];
    let place = places.get(key);
    if (!place) places.set(key, (place = { key, self: 0, total: 0, base: 0 }));
    place.self += self[node];
    if (!isOutermost) continue;
    place.total += total[node];
    place.base += baseTotal[node];
  }
  return [...places.values()].sort((a, b) => a.key - b.key);
}

/**
 * Counts of each instruction. Callers are looked up inside of the instruction that calls, not where it begins.
 * @param {Place[]} places sorted by address
 * @param {{ address: number }[]} instructions sorted by address
 * @returns {Map<number, Place>}
 */
export function byInstruction(places, instructions) {
  /** @type {Map<number, Place>} */
  const found = new Map();
  let at = -1;
  for (const place of places) {
    while (at + 1 < instructions.length && instructions[at + 1].address <= place.key) at++;
    if (at < 0) continue;
    const { address } = instructions[at];
    const known = found.get(address);
    if (!known) {
      found.set(address, { ...place, key: address });
      continue;
    }
    known.self += place.self;
    known.total += place.total;
    known.base += place.base;
  }
  return found;
}

/**
 * Counts of one function by thread, the heaviest first.
 * @param {import("./data.js").Data} data
 * @param {import("./selection.js").Rows} rows
 * @param {number} fn -1 for the whole of each thread
 * @returns {{ thread: number, total: number, base: number }[]}
 */
export function threadsOf(data, rows, fn) {
  const { nodes, frames, roots } = data;
  const has = new Uint8Array(nodes.count);
  has[0] = fn < 0 ? 1 : 0;
  for (let node = 1; node < nodes.count; node++) {
    has[node] = has[nodes.parent[node]] || frames.function[nodes.frame[node]] === fn ? 1 : 0;
  }
  const total = new Float64Array(data.threads.count);
  const base = new Float64Array(data.threads.count);
  for (let row = 0; row < rows.node.length; row++) {
    if (!has[rows.node[row]]) continue;
    total[roots.thread[rows.root[row]]] += rows.value[row];
    if (rows.base) base[roots.thread[rows.root[row]]] += rows.base[row];
  }
  const list = [];
  for (let thread = 0; thread < total.length; thread++) {
    if (total[thread] > 0 || base[thread] > 0) list.push({ thread, total: total[thread], base: base[thread] });
  }
  return list.sort((a, b) => b.total - a.total);
}

/**
 * What calls a function, and what it calls, with the counts that go that way; the heaviest first. Of a recursion the
 * outermost call has the callers, and every call the callees; calls to itself are in neither.
 * @param {import("./tree.js").Tree} tree
 * @param {number} name
 * @returns {{ callers: [number, number][], callees: [number, number][] }}
 */
export function neighboursOf(tree, name) {
  /** @type {Map<number, number>} */
  const callers = new Map();
  /** @type {Map<number, number>} */
  const callees = new Map();
  const inside = new Uint8Array(tree.count);
  const add = (/** @type {Map<number, number>} */ to, /** @type {number} */ id, /** @type {number} */ value) =>
    to.set(id, (to.get(id) || 0) + value);
  for (let node = 0; node < tree.count; node++) {
    const parent = tree.parent[node];
    const isIt = tree.name[node] === name;
    if (parent >= 0) inside[node] = inside[parent];
    if (isIt) {
      if (!inside[node] && parent >= 0) add(callers, tree.name[parent], tree.total[node]);
      inside[node] = 1;
    } else if (parent >= 0 && tree.name[parent] === name) add(callees, tree.name[node], tree.total[node]);
  }
  const sorted = (/** @type {Map<number, number>} */ from) =>
    [...from].filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]);
  return { callers: sorted(callers), callees: sorted(callees) };
}

/**
 * The numbers below `count` with the largest weights above zero, the heaviest first: of a million without sorting them.
 * @param {number} count
 * @param {(index: number) => number} weight
 * @param {number} most
 */
export function heaviest(count, weight, most) {
  /** @type {number[]} */
  const found = [];
  for (let index = 0; index < count; index++) {
    const own = weight(index);
    if (own <= 0 || (found.length === most && own <= weight(found[most - 1]))) continue;
    let at = found.length;
    while (at > 0 && weight(found[at - 1]) < own) at--;
    found.splice(at, 0, index);
    found.length = Math.min(found.length, most);
  }
  return found;
}

/** @param {Float64Array} list */
export function sumOf(list) {
  return list.reduce((sum, value) => sum + value, 0);
}
