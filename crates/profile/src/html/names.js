// What boxes and rows are called: functions of the profile, and labels that views add (a process, a thread, a collapsed
// library). A name is a number: below `data.functions.count` a function, above it a label.

import { CODE, JIT, KERNEL, MARK, NO_SYMBOL } from "./data.js";

/** Kinds of labels, beside those of functions. */
export const PROCESS = 5;
export const THREAD = 6;
export const LIBRARY = 7;

/** What kinds are called. */
export const KIND_WORDS = ["", "kernel", "JIT code", "no symbol", "", "process", "thread", "library"];

/** All functions of the kernel and its modules are one library. */
export const KERNEL_LIBRARY = -2;

const UNKNOWN = "[unknown]";

/** The names of a profile. */
export class Names {
  /** @param {import("./data.js").Data} data */
  constructor(data) {
    this.data = data;
    this.functions = data.functions.count;
    /** @type {{ text: string, kind: number, library: number }[]} */
    this.labels = [];
    /** @type {Map<string, number>} */
    this.known = new Map();
    /** @type {Map<number, string>} */
    this.shorts = new Map();
    /** @type {number[]} */
    this.hashes = [];
  }

  get count() {
    return this.functions + this.labels.length;
  }

  /**
   * The number of a label, the same for the same label.
   * @param {string} text
   * @param {number} kind
   * @param {number} library
   */
  label(text, kind, library = -1) {
    const key = `${kind} ${library} ${text}`;
    let id = this.known.get(key);
    if (id === undefined) {
      id = this.count;
      this.labels.push({ text, kind, library });
      this.known.set(key, id);
    }
    return id;
  }

  /** @param {number} id */
  text(id) {
    if (id >= this.functions) return this.labels[id - this.functions].text;
    return this.data.strings[this.data.functions.name[id]] || UNKNOWN;
  }

  /**
   * The function of this name, or -1.
   * @param {string} text
   */
  functionOf(text) {
    for (let id = 0; id < this.functions; id++) if (this.text(id) === text) return id;
    return -1;
  }

  /**
   * A number that depends on the name alone.
   * @param {number} id
   */
  hash(id) {
    const known = this.hashes[id];
    return known === undefined ? (this.hashes[id] = hashOf(this.text(id))) : known;
  }

  /** @param {number} id */
  kind(id) {
    return id >= this.functions ? this.labels[id - this.functions].kind : this.data.functions.kind[id];
  }

  /**
   * Index of the library, or -1.
   * @param {number} id
   */
  library(id) {
    return id >= this.functions ? this.labels[id - this.functions].library : this.data.functions.library[id];
  }

  /**
   * The identity of a library: the index, `KERNEL_LIBRARY`, or -1 where it is not known.
   * @param {number} id
   */
  libraryKey(id) {
    return this.kind(id) === KERNEL ? KERNEL_LIBRARY : this.library(id);
  }

  /** @param {number} id */
  libraryName(id) {
    return this.nameOfKey(this.libraryKey(id));
  }

  /** @param {number} key */
  nameOfKey(key) {
    if (key === KERNEL_LIBRARY) return "[kernel]";
    return key >= 0 ? this.data.libraries[key].name : "";
  }

  /**
   * Path of the source file; empty where it is not known.
   * @param {number} id
   */
  file(id) {
    return id >= this.functions ? "" : this.data.strings[this.data.functions.file[id]];
  }

  /**
   * The name without arguments, template arguments and outer namespaces, for narrow boxes.
   * @param {number} id
   */
  short(id) {
    let short = this.shorts.get(id);
    if (short === undefined) {
      short = shortName(this.text(id));
      this.shorts.set(id, short);
    }
    return short;
  }

  /**
   * As many characters of a name as fit; the short form where the whole does not.
   * @param {number} id
   * @param {number} characters
   */
  fit(id, characters) {
    const text = this.text(id);
    if (text.length <= characters) return text;
    const short = this.short(id);
    return short.length <= characters ? short : `${short.slice(0, Math.max(1, characters - 1))}…`;
  }

  /**
   * Whether a function is code of the program, of a library, of the kernel, JIT code, or has no symbol.
   * @param {number} id
   * @returns {"program" | "library" | "kernel" | "jit" | "none" | "mark"}
   */
  origin(id) {
    const kind = this.kind(id);
    if (kind === KERNEL) return "kernel";
    if (kind === JIT) return "jit";
    if (kind === NO_SYMBOL) return "none";
    if (kind !== CODE && kind !== LIBRARY) return "mark";
    const library = this.library(id);
    if (library < 0) return "program";
    return isProgram(this.data.libraries[library].name) ? "program" : "library";
  }

  /**
   * Whether this is code, and not a process, thread or mark.
   * @param {number} id
   */
  isCode(id) {
    const kind = this.kind(id);
    return kind !== MARK && kind !== PROCESS && kind !== THREAD;
  }
}

/**
 * Libraries are recognised by their names; all else is the program.
 * @param {string} file
 */
export function isProgram(file) {
  return !/\.so(\.|$)|\.dylib$|\.dll$|\.node$|^\[/i.test(file);
}

/** @param {string} text */
function hashOf(text) {
  let hash = 0x811c9dc5;
  const length = Math.min(text.length, 200);
  for (let at = 0; at < length; at++) hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193);
  return (hash ^ (hash >>> 15)) >>> 0;
}

/**
 * @param {string} text
 * @returns {string}
 */
export function shortName(text) {
  // Longer ones are no names; patterns on them would take long.
  if (text.length > 2000 || text.startsWith("[")) return text;
  if (text.startsWith("<")) return shortMethod(text);
  let out = "";
  let depth = 0;
  for (let at = 0; at < text.length; at++) {
    const c = text[at];
    // `operator<` and `operator()` are names.
    const before = c === "<" ? /operator<?$/ : c === "(" ? /operator$/ : null;
    if (before && at > 0 && !before.test(text.slice(Math.max(0, at - 9), at))) depth++;
    else if ((c === ">" || c === ")") && depth > 0) depth--;
    else if (depth === 0) out += c;
  }
  out = out.replace(/::::/g, "::").replace(/ (const|volatile)$/, "").trim();
  const parts = out.split("::").filter((part) => part !== "");
  return parts.length > 2 ? parts.slice(-2).join("::") : parts.join("::") || text;
}

/**
 * `<a::T as b::Trait>::f` is `T::f`.
 * @param {string} text begins with `<`
 * @returns {string}
 */
function shortMethod(text) {
  let depth = 0;
  let end = 0;
  for (; end < text.length; end++) {
    if (text[end] === "<") depth++;
    else if (text[end] === ">" && text[end - 1] !== "-" && --depth === 0) break;
  }
  const rest = text.slice(end + 1).replace(/^::/, "");
  if (rest === "") return text;
  const type = text.slice(1, end).split(" as ")[0].replace(/<.*/s, "").split("::").pop();
  return type ? `${type}::${shortName(rest)}` : shortName(rest);
}
