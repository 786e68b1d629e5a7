// The head of the page: how much the profile can be trusted. Samples, rate, how many stacks are complete, how many functions
// have a name, what was lost and why. A click shows the reasons and, where there are stacks, only these.

import { element, fill } from "./dom.js";
import { INCOMPLETE, NO_SYMBOL, WAITING } from "./data.js";
import { sumOf } from "./functions.js";
import { count, counted, duration, percent } from "./numbers.js";
import { flaggedTotal } from "./selection.js";

/**
 * @typedef {object} TruthContent
 * @property {import("./data.js").Data} data
 * @property {import("./selection.js").Rows} rows of the whole profile
 * @property {import("./functions.js").Totals} totals of the whole profile
 * @property {string} stacks
 * @property {string} query
 */

export class TruthHeader {
  /**
   * @param {HTMLElement} host
   * @param {{ stacks: (which: "all" | "incomplete" | "complete") => void, search: (query: string) => void }} hooks
   */
  constructor(host, hooks) {
    this.host = host;
    this.hooks = hooks;
    /** What is unfolded: the title of a list of causes. */
    this.open = "";
  }

  /** @param {TruthContent} content */
  show(content) {
    const { data, rows, totals, stacks, query } = content;
    const chips = element("div.chips", { role: "group", "aria-label": "quality of the profile" });
    const unit = data.unit;
    const values = (/** @type {(side: import("./data.js").Side) => string} */ text) => {
      const texts = data.sides.map(text);
      return texts.every((one) => one === texts[0]) ? texts[0] : texts.join(" → ");
    };
    const time = data.sides.some((side) => side.hz)
      ? values((side) => (side.hz ? `${duration((side.total * 1e9) / side.hz)}` : "?"))
      : "";
    const seconds = data.sides.some((side) => side.idle) ? "thread time" : "CPU time";
    chips.append(
      unit === "bytes"
        ? chip(values((side) => counted(side.total, unit)), "", values((side) => `${count(side.total)} bytes`))
        : chip(values((side) => count(side.total)), unit, ""),
      ...(time === "" ? [] : [chip(time, seconds, "samples times the period of the rate")]),
      ...(data.sides.some((side) => side.hz) ? [chip(values((side) => (side.hz ? `${side.hz}` : "?")), "Hz", "samples per second of CPU time")] : []),
      ...(data.sides.some((side) => side.duration_ns)
        ? [chip(values((side) => (side.duration_ns ? duration(side.duration_ns) : "?")), "recorded", "")]
        : []),
    );
    const waiting = flaggedTotal(data, rows, rows.value, WAITING);
    if (waiting > 0) chips.append(chip(percent(waiting / rows.total), "waiting", "time in which threads had no CPU; no CPU time"));
    // Of a comparison base comes first.
    const each = (/** @type {(values: Float64Array, self: Float64Array) => number} */ share) => {
      const shares = rows.base && totals.baseSelf ? [share(rows.base, totals.baseSelf)] : [];
      shares.push(share(rows.value, totals.self));
      const texts = shares.map(percent);
      return { text: texts[0] === texts[texts.length - 1] ? texts[0] : texts.join(" → "), grade: quality(Math.min(...shares)) };
    };
    const complete = each((values) => 1 - flaggedTotal(data, rows, values, INCOMPLETE) / sumOf(values));
    chips.append(
      this.button(content, complete.text, "complete", "incomplete stacks", complete.grade, stacks === "incomplete", () =>
        this.hooks.stacks(stacks === "incomplete" ? "all" : "incomplete"),
      ),
    );
    const named = each((_, self) => {
      let without = 0;
      for (let id = 0; id < data.functions.count; id++) if (data.functions.kind[id] === NO_SYMBOL) without += self[id];
      return 1 - without / sumOf(self);
    });
    const noSymbol = "kind:no symbol";
    chips.append(
      this.button(content, named.text, "named", "", named.grade, query === noSymbol, () =>
        this.hooks.search(query === noSymbol ? "" : noSymbol),
      ),
    );
    const lost = data.sides.map((side) => sum(side.lost));
    const isLost = lost.some((value) => value > 0);
    const lostShare = Math.max(...data.sides.map((side, at) => lost[at] / Math.max(1, lost[at] + side.total)));
    chips.append(this.button(content, values((side) => count(sum(side.lost))), "lost", "lost", quality(isLost ? 1 - lostShare : 1), false, () => {}));
    const source = data.sides.map((side) => side.source).find((text) => text);
    if (source) chips.append(chip(source.split(";")[0], "source", source));
    fill(this.host, chips, this.causes(data));
  }

  /**
   * @param {TruthContent} content
   * @param {string} value
   * @param {string} label
   * @param {string} list which causes it unfolds
   * @param {string} grade
   * @param {boolean} pressed
   * @param {() => void} act
   */
  button(content, value, label, list, grade, pressed, act) {
    const isOpen = list !== "" && this.open === list;
    return element(
      `button.chip.${grade}`,
      {
        type: "button",
        "data-truth": label,
        "aria-pressed": pressed ? "true" : "false",
        "aria-expanded": list === "" ? null : String(isOpen),
        title: list === "" ? "samples whose function has a name; marks those without" : `${list} by cause`,
        onclick: () => {
          this.open = isOpen ? "" : list;
          this.show(content);
          act();
        },
      },
      element("b", {}, value),
      ` ${label}`,
    );
  }

  /** @param {import("./data.js").Data} data */
  causes(data) {
    if (this.open === "") return null;
    const lists = data.sides.map((side) => {
      const counts = this.open === "lost" ? side.lost : side.incomplete;
      const causes = Object.entries(counts).filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]);
      const items = causes.map(([cause, value]) => element("li", {}, element("b", {}, count(value)), " ", element("bdi", {}, cause)));
      const title = data.sides.length > 1 ? `${side.name}: ` : "";
      const none = this.open === "lost" ? "nothing was lost" : "the file does not say why";
      return element("div", {}, element("bdi", {}, title), items.length > 0 ? `${this.open}, in ${data.unit}` : none, element("ul", {}, items));
    });
    return element("div.causes", { role: "status" }, lists);
  }
}

/**
 * @param {string} value
 * @param {string} label
 * @param {string} title
 */
function chip(value, label, title) {
  return element("span.chip", { title: title || null }, element("b", {}, element("bdi", {}, value)), ` ${label}`);
}

/** @param {Record<string, number>} counts */
function sum(counts) {
  return Object.values(counts).reduce((all, value) => all + value, 0);
}

/** @param {number} share */
function quality(share) {
  if (!Number.isFinite(share)) return "plain";
  return share >= 0.98 ? "good" : share >= 0.9 ? "fair" : "poor";
}

/**
 * One line on what is shown: all of it, or which part.
 * @param {import("./data.js").Data} data
 * @param {number} total of what is shown
 * @param {number} all
 */
export function shownPart(data, total, all) {
  return total === all ? counted(all, data.unit) : `${counted(total, data.unit)} of ${data.unit === "bytes" ? counted(all, data.unit) : count(all)}, ${percent(total / all)}`;
}
