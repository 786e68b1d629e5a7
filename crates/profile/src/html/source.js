// Where in the selected function the counts are: lines of source, and instructions. Without the text of the file there are
// line numbers with counts, without a disassembly addresses.

import { sourceText } from "./data.js";
import { bar, element, fill } from "./dom.js";
import { byInstruction, placesOf } from "./functions.js";
import { VirtualList } from "./list.js";
import { clip, percent } from "./numbers.js";

const PLACE_PX = 20;
/** Bytes: x86. */
const LONGEST_INSTRUCTION = 15;

/**
 * @param {HTMLElement} host
 * @param {import("./data.js").Data} data
 * @param {import("./names.js").Names} names
 * @param {import("./selection.js").Rows} rows
 * @param {number} fn
 */
export function showSource(host, data, names, rows, fn) {
  if (fn < 0 || fn >= names.functions) {
    fill(host, element("p.note", {}, "Select a function to see its lines: in the flame graph, the table, or the panel."));
    return;
  }
  const lines = placesOf(data, rows, fn, "line");
  const addresses = placesOf(data, rows, fn, "address");
  const file = names.file(fn);
  const text = sourceText(data, file);
  const linePane = element("div.pane", {});
  const addressPane = element("div.pane", {});
  fill(
    host,
    element("h2", {}, element("bdi", {}, clip(names.text(fn), 500))),
    element(
      "div.panes",
      {},
      pane("Source", file, linePane),
      pane("Instructions", names.libraryName(fn), addressPane),
    ),
  );
  if (lines.some((place) => place.key > 0)) showLines(linePane, lines, text, rows.total);
  else fill(linePane, element("p.note", {}, "The profile has no lines of this function: record with --lines and debug information."));
  if (text === undefined && lines.some((place) => place.key > 0)) {
    linePane.before(element("p.note", {}, "The text of the file is not in this page."));
  }
  if (addresses.some((place) => place.key > 0)) showAddresses(addressPane, data, fn, addresses, rows.total);
  else fill(addressPane, element("p.note", {}, "The profile has no addresses of this function."));
}

/**
 * @param {string} title
 * @param {string} where
 * @param {HTMLElement} content
 */
function pane(title, where, content) {
  return element("section", {}, element("h3", {}, title, " ", element("bdi.note", {}, clip(where, 300))), content);
}

/**
 * @param {HTMLElement} host
 * @param {import("./functions.js").Place[]} places
 * @param {string | undefined} text
 * @param {number} all
 */
function showLines(host, places, text, all) {
  const hottest = places.reduce((a, b) => (b.total > a.total ? b : a));
  const most = hottest.total;
  const byLine = new Map(places.map((place) => [place.key, place]));
  // Without its text a file is only the lines that have counts.
  const numbers = text === undefined ? places.map((place) => place.key) : text.split("\n").map((_, at) => at + 1);
  const lines = text === undefined ? null : text.split("\n");
  const list = new VirtualList(host, PLACE_PX, (index) => {
    const number = numbers[index];
    return placeRow(byLine.get(number), number > 0 ? String(number) : "?", lines ? lines[index].slice(0, 2000) : "", all, most);
  });
  list.show(numbers.length);
  list.centre(numbers.indexOf(hottest.key));
}

/**
 * @param {HTMLElement} host
 * @param {import("./data.js").Data} data
 * @param {number} fn
 * @param {import("./functions.js").Place[]} places
 * @param {number} all
 */
function showAddresses(host, data, fn, places, all) {
  const most = places.reduce((a, b) => Math.max(a, b.total), 0);
  const { rows, byAddress } = instructionRows(data, fn, places);
  const list = new VirtualList(host, PLACE_PX, (index) => {
    const { address, text } = rows[index];
    return placeRow(byAddress.get(address), `0x${address.toString(16)}`, text, all, most);
  });
  list.show(rows.length);
  const hottest = rows.reduce((best, { address }, at) => (totalAt(byAddress, address) > totalAt(byAddress, rows[best].address) ? at : best), 0);
  list.centre(hottest);
}

/**
 * @param {Map<number, import("./functions.js").Place>} places
 * @param {number} address
 */
function totalAt(places, address) {
  return places.get(address)?.total || 0;
}

/**
 * Rows of the listing: all instructions of the function. Those of an inlined function are of the functions that it is inlined
 * into, and only those with counts are shown. Without a disassembly there are addresses.
 * @param {import("./data.js").Data} data
 * @param {number} fn
 * @param {import("./functions.js").Place[]} places
 * @returns {{ rows: { address: number, text: string }[], byAddress: Map<number, import("./functions.js").Place> }}
 */
export function instructionRows(data, fn, places) {
  const { instructions, functions } = data;
  /** @type {{ address: number, text: string }[]} */
  const own = [];
  /** @type {{ address: number, text: string }[]} */
  const around = [];
  if (instructions) {
    for (let at = 0; at < instructions.function.length; at++) {
      const owner = instructions.function[at];
      if (functions.library[owner] !== functions.library[fn]) continue;
      const row = { address: instructions.address[at], text: data.strings[instructions.text[at]] };
      around.push(row);
      if (owner === fn) own.push(row);
    }
  }
  const byOrder = (/** @type {{ address: number }} */ a, /** @type {{ address: number }} */ b) => a.address - b.address;
  if (own.length > 0) return { rows: own.sort(byOrder), byAddress: byInstruction(places, own) };
  const byAddress = byInstruction(places, around.sort(byOrder));
  const rows = around.filter(({ address }) => byAddress.has(address));
  // A function that is inlined into one without a listing.
  const isListed = rows.length > 0 && rows.every(({ address }) => places.some(({ key }) => key - address >= 0 && key - address < LONGEST_INSTRUCTION));
  if (isListed) return { rows, byAddress };
  return { rows: places.map(({ key }) => ({ address: key, text: "" })), byAddress: new Map(places.map((place) => [place.key, place])) };
}

/**
 * @param {import("./functions.js").Place | undefined} place
 * @param {string} label
 * @param {string} text
 * @param {number} all
 * @param {number} most length of a whole bar
 */
function placeRow(place, label, text, all, most) {
  return element(
    `div.place-row${place && text !== "" ? ".hot" : ""}`,
    {},
    element("span.cell.self", {}, place && place.self > 0 ? bar(place.self / most, percent(place.self / all), "self") : ""),
    element("span.cell.total", {}, place && place.total > 0 ? bar(place.total / most, percent(place.total / all), "total") : ""),
    element("span.place-label", {}, label),
    element("code", {}, element("bdi", { dir: "ltr" }, text)),
  );
}
