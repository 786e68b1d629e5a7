// Numbers as people read them.

/** @param {number} share 0 to 1 */
export function percent(share) {
  if (!Number.isFinite(share)) return "–";
  const value = share * 100;
  if (value === 0) return "0%";
  if (value >= 99.995) return "100%";
  if (value >= 99.95) return `${value.toFixed(2)}%`;
  if (value >= 9.995) return `${value.toFixed(1)}%`;
  if (value >= 0.005) return `${value.toFixed(2)}%`;
  return "<0.01%";
}

/** @param {number} value */
export function count(value) {
  const rounded = Math.abs(value - Math.round(value)) < 1e-6 ? Math.round(value) : Number(value.toFixed(1));
  return rounded.toLocaleString("en-US");
}

/** @param {number} ns */
export function duration(ns) {
  const size = Math.abs(ns);
  if (size === 0) return "0 s";
  if (size < 1e3) return `${Math.round(ns)} ns`;
  if (size < 1e6) return `${(ns / 1e3).toFixed(size < 1e4 ? 1 : 0)} µs`;
  if (size < 1e9) return `${(ns / 1e6).toFixed(size < 1e7 ? 1 : 0)} ms`;
  if (size < 100e9) return `${(ns / 1e9).toFixed(size < 10e9 ? 2 : 1)} s`;
  if (size < 6000e9) return `${Math.floor(ns / 60e9)} min ${Math.round((ns % 60e9) / 1e9)} s`;
  return `${(ns / 3600e9).toFixed(1)} h`;
}

/**
 * In the unit that keeps it short, as the summary of a recording has it.
 * @param {number} bytes
 */
export function byteSize(bytes) {
  if (Math.abs(bytes) < 1024) return `${Math.round(bytes)} B`;
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = -1;
  for (; Math.abs(bytes) >= 1023.95 && unit < units.length - 1; unit++) bytes /= 1024;
  return `${bytes.toFixed(1)} ${units[unit]}`;
}

/**
 * `1 sample`, `3 samples`, `1.5 MiB`.
 * @param {number} value
 * @param {string} unit in the plural
 */
export function counted(value, unit) {
  if (unit === "bytes") return byteSize(value);
  return `${count(value)} ${value === 1 && unit.endsWith("s") ? unit.slice(0, -1) : unit}`;
}

/**
 * A change from base to new.
 * @param {number} base
 * @param {number} value
 */
export function change(base, value) {
  if (base === 0 && value === 0) return "0%";
  if (base === 0) return "new";
  if (value === 0) return "gone";
  const grown = (value / base - 1) * 100;
  if (grown >= 900) return `×${(value / base).toFixed(value / base < 100 ? 1 : 0)}`;
  return `${grown > 0 ? "+" : ""}${grown.toFixed(Math.abs(grown) < 10 ? 1 : 0)}%`;
}

/**
 * Texts of any length for places that are not: the middle is left out.
 * @param {string} text
 * @param {number} characters
 */
export function clip(text, characters) {
  if (text.length <= characters) return text;
  const half = Math.floor((characters - 1) / 2);
  return `${text.slice(0, half)}…${text.slice(text.length - half)}`;
}

/**
 * Last part of a path.
 * @param {string} path
 */
export function fileName(path) {
  return path.slice(path.lastIndexOf("/") + 1);
}
