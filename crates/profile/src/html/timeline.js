// The time views above the flame graph: lanes or heat map, and the range that is selected in them. A profile without times
// has neither, and the page says so.
//
// Dragging selects a range; with Shift, the range that it is compared with. Keys: arrows move the range, Shift and arrows its
// end, Escape takes it away.

import { element, fill, toggle } from "./dom.js";
import { EVENT_LOSS, threadName } from "./data.js";
import { eventsNear, gapsOf } from "./events.js";
import { heatOf, heatTime, paintHeat } from "./heat.js";
import { OVER, lanesOf, paintLane, ticksOf } from "./lanes.js";
import { clip, duration } from "./numbers.js";

const LANE_PX = 22;
const LANES_SHOWN_PX = 138;
const LANES_MAX = 400;
const HEAT_PX = 160;
const AXIS_PX = 18;
const GUTTER_PX = 150;
/** Red, green and blue of the two ranges. */
const RANGE = "240,130,20";
const BASE_RANGE = "70,145,215";
/** Part of the whole by which a key moves a range. */
const KEY_STEP = 0.01;

/**
 * What the time views show, and what they change.
 * @typedef {object} TimeState
 * @property {[number, number] | null} range
 * @property {[number, number] | null} baseRange
 * @property {number[]} threads
 * @property {string} time lanes or heat
 * @property {boolean} dark
 */

/** How near an event has to be to the pointer, pixels. */
const NEAR_PX = 3;
/** Most events that are named at one place. */
const NAMED_MAX = 12;
/** Distance of the lines that hatch a gap, pixels. */
const HATCH_PX = 6;

export class TimeView {
  /**
   * @param {HTMLElement} host
   * @param {import("./data.js").Data} data
   * @param {{ change: (change: Partial<TimeState>) => void }} hooks
   */
  constructor(host, data, hooks) {
    this.data = data;
    this.hooks = hooks;
    /** @type {TimeState} */
    this.state = { range: null, baseRange: null, threads: [], time: "lanes", dark: false };
    /** @type {{ from: number, isBase: boolean } | null} */
    this.drag = null;
    /** @type {import("./lanes.js").Lane[]} */
    this.lanes = [];
    /** @type {import("./heat.js").Heat | null} */
    this.heat = null;
    /** What lanes and heat map were computed for: a range changes neither. */
    this.lanesFor = 0;
    this.heatFor = "";
    const { samples } = data;
    if (!samples || samples.time.length === 0) {
      host.hidden = true;
      this.canvas = null;
      return;
    }
    const told = data.sides[data.sides.length - 1].duration_ns || 0;
    this.endNs = Math.max(told, samples.time[samples.time.length - 1] + 1);
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "slider");
    this.canvas.setAttribute("aria-label", "range of time");
    this.frame = element("div.time-frame", {}, this.canvas);
    this.head = element("div.time-head");
    fill(host, this.head, this.frame);
    new ResizeObserver(() => this.resize()).observe(this.frame);
    this.listen(this.canvas);
  }

  /** @param {HTMLCanvasElement} canvas */
  listen(canvas) {
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      if (this.state.time === "lanes" && event.offsetX < GUTTER_PX) return this.toggleThread(event.offsetY);
      this.drag = { from: this.timeAt(event), isBase: event.shiftKey };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.drag) return this.hover(event);
      const to = this.timeAt(event);
      const [from, until] = [Math.min(this.drag.from, to), Math.max(this.drag.from, to)];
      if (until - from < this.least()) return;
      this.state = { ...this.state, [this.drag.isBase ? "baseRange" : "range"]: [from, until] };
      this.paint();
    });
    canvas.addEventListener("pointerup", (event) => {
      const { drag } = this;
      this.drag = null;
      if (!drag) return;
      const to = this.timeAt(event);
      if (Math.abs(to - drag.from) < this.least()) this.hooks.change({ range: null, baseRange: null });
      else this.hooks.change({ range: this.state.range, baseRange: this.state.range ? this.state.baseRange : null });
    });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  least() {
    return (this.endNs || 1) / 2000;
  }

  /** @param {TimeState} state */
  show(state) {
    if (!this.canvas) return;
    this.state = state;
    this.resize();
    this.showHead();
  }

  showHead() {
    const { data } = this;
    const { range, baseRange, time } = this.state;
    const span = (/** @type {[number, number]} */ [from, to]) => `${duration(from)} – ${duration(to)} (${duration(to - from)})`;
    fill(
      /** @type {HTMLElement} */ (this.head),
      element(
        "span.group",
        { role: "group", "aria-label": "time view" },
        toggle("Lanes", time === "lanes", "CPU use of each thread", () => this.hooks.change({ time: "lanes" })),
        toggle("Heat map", time === "heat", "time across, fractions of it down", () => this.hooks.change({ time: "heat" })),
      ),
      range
        ? element("button.filter", { type: "button", title: "show all times", onclick: () => this.hooks.change({ range: null, baseRange: null }) }, span(range), " ✕")
        : element("span.note", {}, "drag to select a range; with Shift, the one it is compared with"),
      element("span.note", {}, time === "lanes" ? this.scaleWords() : this.columnWords()),
      data.events && time === "lanes" && gapsOf(data).length > 0 && element("span.note.losses", {}, "hatched: samples were lost"),
      range && baseRange && element("button.filter.base", { type: "button", onclick: () => this.hooks.change({ baseRange: null }) }, `base ${span(baseRange)} ✕`),
    );
  }

  /** What the height of a lane is. */
  scaleWords() {
    if (!this.data.sides.some((side) => side.hz)) return "";
    const most = this.lanes.reduce((all, lane) => Math.max(all, lane.most), 0);
    return most > OVER ? `height of a lane: one CPU; amber: its most, up to ${most.toFixed(1)} CPUs` : "height of a lane: one CPU";
  }

  /** How the heat map is read. */
  columnWords() {
    return this.heat ? `a column, from its top: ${duration(this.heat.columnNs)}` : "";
  }

  resize() {
    const { canvas, frame, data, state } = this;
    if (!canvas || !frame) return;
    const width = frame.clientWidth;
    if (width === 0) return;
    const threads = state.threads.length > 0 ? new Set(state.threads) : null;
    let height;
    if (state.time === "heat") {
      const key = state.threads.join(" ");
      if (!this.heat || this.heatFor !== key) this.heat = heatOf(data, this.endNs || 1, threads);
      this.heatFor = key;
      height = HEAT_PX + AXIS_PX;
    } else {
      const intervals = Math.max(50, Math.floor((width - GUTTER_PX) / 2));
      if (this.lanesFor !== intervals) this.lanes = lanesOf(data, [0, this.endNs || 1], intervals).slice(0, LANES_MAX);
      this.lanesFor = intervals;
      height = this.lanes.length * LANE_PX + AXIS_PX;
    }
    // With the border.
    frame.style.height = `${Math.min(height, (state.time === "heat" ? HEAT_PX : LANES_SHOWN_PX) + AXIS_PX) + 2}px`;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    this.paint();
  }

  box() {
    const canvas = /** @type {HTMLCanvasElement} */ (this.canvas);
    const left = this.state.time === "heat" ? 0 : GUTTER_PX;
    return { left, top: AXIS_PX, width: canvas.clientWidth - left, height: canvas.clientHeight - AXIS_PX };
  }

  paint() {
    const { canvas, data, state } = this;
    const context = canvas && canvas.getContext("2d");
    if (!canvas || !context) return;
    const ratio = window.devicePixelRatio || 1;
    const box = this.box();
    const ink = state.dark ? "#c9cdd3" : "#33373d";
    const faint = state.dark ? "#3a3f47" : "#dcdcd6";
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.direction = "ltr";
    const span = this.span();
    for (const tick of ticksOf(span, box.width, 90).ticks) {
      const x = box.left + ((tick - span[0]) / (span[1] - span[0])) * box.width;
      context.fillStyle = faint;
      context.fillRect(x, AXIS_PX - 4, 1, box.height + 4);
      context.fillStyle = ink;
      context.fillText(duration(tick), Math.min(x + 3, canvas.clientWidth - 40), 7);
    }
    if (state.time === "heat" && this.heat) paintHeat(context, this.heat, box, state.dark);
    else {
      this.lanes.forEach((lane, index) => {
        const top = AXIS_PX + index * LANE_PX;
        const isOut = state.threads.length > 0 && !state.threads.includes(lane.thread);
        context.globalAlpha = isOut ? 0.3 : 1;
        const colours = { fill: state.dark ? "#5b9bd5" : "#5b9bd5", line: faint, over: state.dark ? "#d9a441" : "#c98a1b" };
        paintLane(context, lane, { left: box.left, top: top + 2, width: box.width, height: LANE_PX - 4 }, colours);
        context.fillStyle = ink;
        context.fillText(clip(threadName(data, lane.thread), 24), 4, top + LANE_PX / 2);
        context.globalAlpha = 1;
      });
      this.paintEvents(context, box, ink);
      this.paintGaps(context, box, state.dark);
    }
    if (state.baseRange) this.paintRange(context, box, state.baseRange, BASE_RANGE);
    if (state.range) this.paintRange(context, box, state.range, RANGE);
  }

  /**
   * Where samples were lost, no CPU use is known: hatched.
   * @param {CanvasRenderingContext2D} context
   * @param {{ left: number, top: number, width: number, height: number }} box
   * @param {boolean} dark
   */
  paintGaps(context, box, dark) {
    const { events } = this.data;
    if (!events) return;
    const span = this.span();
    context.fillStyle = dark ? "rgba(230,90,90,0.2)" : "rgba(200,40,40,0.14)";
    context.strokeStyle = dark ? "rgb(230,110,110)" : "rgb(190,40,40)";
    for (const at of gapsOf(this.data)) {
      const x = box.left + ((events.time[at] - span[0]) / (span[1] - span[0])) * box.width;
      const width = Math.max(2, (events.duration[at] / (span[1] - span[0])) * box.width);
      context.save();
      context.beginPath();
      context.rect(x, box.top, width, box.height);
      context.fill();
      context.clip();
      context.beginPath();
      for (let from = -box.height; from < width; from += HATCH_PX) {
        context.moveTo(x + from, box.top + box.height);
        context.lineTo(x + from + box.height, box.top);
      }
      context.stroke();
      context.restore();
    }
  }

  /**
   * Events of threads and processes: a mark in the lane of their thread.
   * @param {CanvasRenderingContext2D} context
   * @param {{ left: number, top: number, width: number, height: number }} box
   * @param {string} ink
   */
  paintEvents(context, box, ink) {
    const { events } = this.data;
    if (!events) return;
    const span = this.span();
    const laneOf = new Map(this.lanes.map((lane, index) => [lane.thread, index]));
    context.fillStyle = ink;
    for (let at = 0; at < events.time.length; at++) {
      const lane = laneOf.get(events.thread[at]);
      if (lane === undefined || events.kind[at] <= EVENT_LOSS) continue;
      const x = box.left + ((events.time[at] - span[0]) / (span[1] - span[0])) * box.width;
      context.fillRect(x - 0.5, AXIS_PX + lane * LANE_PX + 2, 1, 6);
    }
  }

  /**
   * Names what happened where the pointer is.
   * @param {PointerEvent} event
   */
  hover(event) {
    const { canvas, lanes, state } = this;
    if (!canvas || state.time === "heat" || event.offsetX < GUTTER_PX) return;
    const lane = lanes[Math.floor((event.offsetY - AXIS_PX) / LANE_PX)];
    const nearNs = (NEAR_PX / this.box().width) * (this.endNs || 1);
    const words = eventsNear(this.data, this.timeAt(event), nearNs, lane ? lane.thread : null);
    const more = words.length > NAMED_MAX ? [`and ${words.length - NAMED_MAX} more`] : [];
    canvas.title = [...words.slice(0, NAMED_MAX), ...more].join("\n");
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {{ left: number, top: number, width: number, height: number }} box
   * @param {[number, number]} range
   * @param {string} rgb
   */
  paintRange(context, box, range, rgb) {
    if (this.state.time === "heat" && this.heat) {
      const { heat } = this;
      const cell = box.width / heat.columns;
      const part = (/** @type {number} */ ns, /** @type {number} */ column) =>
        Math.max(0, Math.min(1, ns / heat.columnNs - column)) * box.height;
      for (let column = 0; column < heat.columns; column++) {
        const [x, from, to] = [box.left + column * cell, part(range[0], column), part(range[1], column)];
        // Everything outside of the range is dimmed: colour over colour could not be read.
        context.fillStyle = this.state.dark ? "rgba(22,24,27,0.72)" : "rgba(255,255,255,0.72)";
        if (rgb === RANGE) {
          context.fillRect(x, box.top, cell, from);
          context.fillRect(x, box.top + to, cell, box.height - to);
        }
        if (to === from) continue;
        context.fillStyle = `rgb(${rgb})`;
        for (const end of [from, to - 2]) context.fillRect(x, box.top + end, cell, 2);
      }
      return;
    }
    const span = this.span();
    const at = (/** @type {number} */ ns) => box.left + ((ns - span[0]) / (span[1] - span[0])) * box.width;
    context.fillStyle = `rgba(${rgb},0.16)`;
    context.fillRect(at(range[0]), AXIS_PX, at(range[1]) - at(range[0]), box.height);
    context.fillStyle = `rgb(${rgb})`;
    for (const end of range) context.fillRect(at(end) - 1, AXIS_PX, 2, box.height);
  }

  /** @returns {[number, number]} */
  span() {
    return [0, this.endNs || 1];
  }

  /** @param {PointerEvent} event */
  timeAt(event) {
    const box = this.box();
    if (this.state.time === "heat" && this.heat) return heatTime(this.heat, box, event.offsetX, event.offsetY);
    const share = Math.max(0, Math.min(1, (event.offsetX - box.left) / box.width));
    return share * (this.endNs || 1);
  }

  /** @param {number} y */
  toggleThread(y) {
    const lane = this.lanes[Math.floor((y - AXIS_PX) / LANE_PX)];
    if (!lane) return;
    const { threads } = this.state;
    const without = threads.filter((thread) => thread !== lane.thread);
    this.hooks.change({ threads: without.length === threads.length ? [...threads, lane.thread] : without });
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const end = this.endNs || 1;
    const direction = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    const { range } = this.state;
    if (direction !== 0) {
      const by = direction * KEY_STEP * end;
      const old = range || [0, end * KEY_STEP * 5];
      const length = old[1] - old[0];
      const from = range ? Math.max(0, Math.min(end - length, old[0] + by)) : old[0];
      const to = Math.max(old[0] + end * KEY_STEP, Math.min(end, old[1] + by));
      this.hooks.change({ range: event.shiftKey ? [old[0], to] : [from, from + length] });
    } else if (event.key === "Escape" && range) this.hooks.change({ range: null, baseRange: null });
    else if (event.key === "b" && range) this.hooks.change({ baseRange: range });
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
