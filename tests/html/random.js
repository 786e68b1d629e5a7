// Numbers from a seed, and profiles of such numbers.

/** @param {number} seed */
export function random(seed) {
  let state = seed >>> 0;
  const part = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  const below = (limit) => Math.floor(part() * limit);
  return { part, below, pick: (list) => list[below(list.length)] };
}

/** Stacks of a few functions, so that there is recursion; of two processes, some incomplete. */
export function randomStacks(rng, count, compares = false) {
  const stacks = [];
  const known = new Set();
  while (stacks.length < count) {
    const names = Array.from({ length: rng.below(9) }, () => `f${rng.below(7)}@lib${rng.below(3)}.so:${1 + rng.below(4)}`);
    const one = { stack: [rng.pick(["p", "q"]), ...names].join(";"), count: 1 + rng.below(20), incomplete: rng.below(5) === 0 };
    if (compares) one.base = rng.below(20);
    const key = `${one.stack} ${one.incomplete}`;
    if (known.has(key)) continue;
    known.add(key);
    stacks.push(one);
  }
  return stacks;
}

/** A stack as names alone. */
export const namesOf = ({ stack, incomplete }) => {
  const [process, ...names] = stack.split(";").map((name) => name.replace(/@.*/, ""));
  return [process, ...(incomplete ? ["[incomplete]"] : []), ...names];
};
