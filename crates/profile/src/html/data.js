// The profile as the page has it: tables of numbers and one list of strings.
// docs/html.md describes the form; crates/profile/src/formats/html writes it.

import { column } from "./bytes.js";

/** What code a function is: values of `functions.kind`. */
export const CODE = 0;
export const KERNEL = 1;
export const JIT = 2;
export const NO_SYMBOL = 3;
export const MARK = 4;

/** Bits of `roots.flags`. */
export const INCOMPLETE = 1;
export const WAITING = 2;

/** What an event is: values of `events.kind`. A gap is a time of which most was lost. */
export const EVENT_GAP = 0;
export const EVENT_LOSS = 1;
export const EVENT_THREAD_START = 3;
export const EVENT_THREAD_END = 6;

/**
 * One recording. `null` and empty: not known.
 * @typedef {object} Side
 * @property {string} name
 * @property {number | null} hz
 * @property {number | null} time_unix_ns
 * @property {number | null} duration_ns
 * @property {number | null} pid
 * @property {string | null} arch
 * @property {string | null} command
 * @property {boolean | null} launched
 * @property {boolean | null} idle
 * @property {string | null} version
 * @property {string | null} source how stacks were sampled
 * @property {boolean} by_thread its stacks are those of single threads
 * @property {number} total
 * @property {Record<string, number>} lost counts by cause
 * @property {Record<string, number>} incomplete counts by cause
 */

/** @typedef {{ name: string, path: string, build_id: string }} Library */
/** @typedef {{ measure: "seconds" | "samples" | "shares", scales: [number, number], words: string }} Compare */
/** @typedef {{ root: Int32Array, node: Int32Array, value: Float64Array, base: Float64Array | null }} Counts */
/** @typedef {{ time: Float64Array, root: Int32Array, node: Int32Array, value: Float64Array }} Samples */
/** @typedef {{ time: Float64Array, duration: Float64Array, kind: Int32Array, thread: Int32Array, text: Int32Array }} Events */

/**
 * What was in use over time: places (a root and a node) have `bytes` from a moment on, in order of moments.
 * @typedef {object} Inuse
 * @property {Float64Array} time of each moment
 * @property {number} peak the moment when most was in use
 * @property {string[]} areas callers that had most, the largest first
 * @property {Int32Array} moment
 * @property {Int32Array} root
 * @property {Int32Array} node
 * @property {Int32Array} area index; beyond `areas`: the rest
 * @property {Float64Array} bytes
 */

/**
 * @typedef {object} Data
 * @property {string} title
 * @property {string} unit what the counts count, in the plural
 * @property {Side[]} sides one, or base and new of a comparison
 * @property {Compare | null} compare
 * @property {string[]} strings number 0 is the empty one
 * @property {Library[]} libraries
 * @property {{ count: number, name: Int32Array, library: Int32Array, file: Int32Array, line: Int32Array, kind: Int32Array }} functions
 *   `library` is -1 where it is not known
 * @property {{ count: number, function: Int32Array, line: Int32Array, address: Float64Array, inlined: Int32Array }} frames
 * @property {{ count: number, process: Int32Array, name: Int32Array, id: Float64Array }} threads `id` is -1 where threads are merged
 * @property {{ count: number, thread: Int32Array, flags: Int32Array }} roots
 * @property {{ count: number, parent: Int32Array, frame: Int32Array }} nodes number 0 is the top, which has no frame; a parent
 *   has a lower number than its children
 * @property {Counts} counts
 * @property {Samples | null} samples in order of time; the profile has a time line if it is there
 * @property {Events | null} events
 * @property {Inuse | null} inuse of a recording of allocations
 * @property {Record<string, string>} sources text by path of the source file
 * @property {{ function: Int32Array, address: Float64Array, text: Int32Array } | null} instructions
 */

/**
 * @param {Uint8Array} bytes
 * @returns {Data}
 */
export function decode(bytes) {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  if (header.form !== 1) throw new Error(`this page cannot read form ${header.form} of its data`);
  /** @type {Record<string, Float64Array>} */
  const columns = {};
  let start = 4 + length;
  for (const [name, form, count, size] of header.columns) {
    columns[name] = column(bytes, start, count, form);
    start += size;
  }
  /** @param {string} name */
  const wide = (name) => columns[name] || new Float64Array(0);
  /** @param {string} name */
  const ints = (name) => Int32Array.from(wide(name));
  const nodes = { count: wide("node.frame").length, parent: ints("node.parent"), frame: ints("node.frame") };
  nodes.parent[0] = -1;
  nodes.frame[0] = -1;
  const minusOne = (/** @type {Float64Array} */ values) => values.map((value) => value - 1);
  return {
    title: header.title,
    unit: header.unit,
    sides: header.sides,
    compare: header.compare || null,
    strings: header.strings,
    libraries: header.libraries,
    functions: {
      count: wide("function.name").length,
      name: ints("function.name"),
      library: Int32Array.from(minusOne(wide("function.library"))),
      file: ints("function.file"),
      line: ints("function.line"),
      kind: ints("function.kind"),
    },
    frames: {
      count: wide("frame.function").length,
      function: ints("frame.function"),
      line: ints("frame.line"),
      address: wide("frame.address"),
      inlined: ints("frame.inlined"),
    },
    threads: {
      count: wide("thread.process").length,
      process: ints("thread.process"),
      name: ints("thread.name"),
      id: minusOne(wide("thread.id")),
    },
    roots: { count: wide("root.thread").length, thread: ints("root.thread"), flags: ints("root.flags") },
    nodes,
    counts: {
      root: ints("count.root"),
      node: ints("count.node"),
      value: wide("count.value"),
      base: columns["count.base"] || null,
    },
    samples: columns["sample.time"]
      ? { time: wide("sample.time"), root: ints("sample.root"), node: ints("sample.node"), value: wide("sample.value") }
      : null,
    events: columns["event.time"]
      ? {
          time: wide("event.time"),
          duration: wide("event.duration"),
          kind: ints("event.kind"),
          thread: Int32Array.from(minusOne(wide("event.thread"))),
          text: ints("event.text"),
        }
      : null,
    inuse: columns["moment.time"]
      ? {
          ...header.inuse,
          time: wide("moment.time"),
          moment: ints("inuse.moment"),
          root: ints("inuse.root"),
          node: ints("inuse.node"),
          area: ints("inuse.area"),
          bytes: wide("inuse.bytes"),
        }
      : null,
    sources: header.sources || {},
    instructions: columns["instruction.function"]
      ? { function: ints("instruction.function"), address: wide("instruction.address"), text: ints("instruction.text") }
      : null,
  };
}

/**
 * The text of a source file, if it is in the page. A path may be the name of something that every object has.
 * @param {Data} data
 * @param {string} file
 */
export function sourceText(data, file) {
  return Object.hasOwn(data.sources, file) ? data.sources[file] : undefined;
}

/**
 * `name (id)`, or the process where threads are merged.
 * @param {Data} data
 * @param {number} thread
 */
export function threadName(data, thread) {
  const { process, name, id } = data.threads;
  return id[thread] < 0
    ? data.strings[process[thread]]
    : `${data.strings[name[thread]]} (${id[thread]})`.trim();
}

/**
 * What `data.threads` are: threads, or processes where their threads are merged.
 * @param {Data} data
 */
export function threadWord(data) {
  return hasThreads(data) ? "threads" : "processes";
}

/**
 * Whether threads are kept apart.
 * @param {Data} data
 */
export function hasThreads(data) {
  return data.threads.id.some((id) => id >= 0);
}
