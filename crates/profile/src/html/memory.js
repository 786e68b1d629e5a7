// What was in use over time, above the flame graph of a recording of allocations: stacked areas with an axis of bytes, the peak, and the
// moment that is looked at. A click, or an arrow, chooses a moment; the rest of the page then shows what was in use at it. With Shift,
// or by the key b, a second moment is chosen; the earlier one of the two is the base of the comparison.

import { areaAt, areaColour, areasOf, byteTicks, paintAreas } from "./areas.js";
import { element, fill } from "./dom.js";
import { ticksOf } from "./lanes.js";
import { byteSize, clip, duration, percent } from "./numbers.js";
import { lowerBound } from "./selection.js";
import { placeBeside } from "./tip.js";

const AREAS_PX = 130;
const TIMES_PX = 18;
const BYTES_PX = 72;
/** Colours of the moment and of its base. */
const MOMENT = "rgb(240,130,20)";
const BASE_MOMENT = "rgb(70,145,215)";
/** Moments that a key with Shift goes on by. */
const KEY_MOMENTS = 20;
/** Callers of which one says more of itself. */
const NAMES_SHOWN = 3;

/**
 * @typedef {object} MemoryState
 * @property {number} moment index, or -1 for the counts of the profile
 * @property {number} baseMoment index, or -1 for none
 * @property {boolean} dark
 */

export class MemoryView {
  /**
   * @param {HTMLElement} host
   * @param {import("./data.js").Data} data
   * @param {{ change: (change: Partial<MemoryState>) => void, pick: (name: string) => void }} hooks
   * @param {HTMLElement} tip
   */
  constructor(host, data, hooks, tip) {
    this.hooks = hooks;
    this.tip = tip;
    this.inuse = data.inuse;
    /** @type {MemoryState} */
    this.state = { moment: -1, baseMoment: -1, dark: false };
    this.lit = -1;
    host.hidden = !this.inuse;
    if (!this.inuse) {
      this.canvas = null;
      return;
    }
    this.areas = areasOf(this.inuse, data.nodes.count);
    const { time } = this.inuse;
    this.endNs = Math.max(1, time[time.length - 1], data.sides[0].duration_ns || 0);
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "slider");
    this.canvas.setAttribute("aria-label", "moment of what is in use");
    this.canvas.setAttribute("aria-valuemin", "0");
    this.canvas.setAttribute("aria-valuemax", String(time.length - 1));
    this.frame = element("div.time-frame", {}, this.canvas);
    this.head = element("div.time-head");
    fill(host, this.head, this.frame);
    new ResizeObserver(() => this.resize()).observe(this.frame);
    this.listen(this.canvas);
  }

  /** @param {HTMLCanvasElement} canvas */
  listen(canvas) {
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.offsetX < BYTES_PX) return;
      this.choose(this.momentAt(event), event.shiftKey);
    });
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => this.light(-1));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  /**
   * @param {number} moment
   * @param {boolean} isBase
   */
  choose(moment, isBase) {
    if (isBase && this.state.moment >= 0) this.hooks.change({ baseMoment: moment });
    else this.hooks.change({ moment });
  }

  /** @param {MemoryState} state */
  show(state) {
    if (!this.canvas) return;
    // An address may name any.
    const known = (/** @type {number} */ moment) => Math.min(moment, this.last());
    this.state = { ...state, moment: known(state.moment), baseMoment: known(state.baseMoment) };
    this.resize();
    this.showHead();
    const { moment } = this.state;
    this.canvas.setAttribute("aria-valuenow", String(moment < 0 ? this.last() : moment));
    this.canvas.setAttribute("aria-valuetext", this.words(moment < 0 ? this.last() : moment));
  }

  last() {
    return (this.inuse ? this.inuse.time.length : 1) - 1;
  }

  /** @param {number} moment */
  words(moment) {
    const { inuse, areas } = this;
    moment = Math.min(moment, this.last());
    return inuse && areas ? `${byteSize(areas.total[moment])} at ${duration(inuse.time[moment])}` : "";
  }

  showHead() {
    const { areas, inuse, state } = this;
    if (!areas || !inuse || !this.head) return;
    const { peak } = inuse;
    const away = (/** @type {Partial<MemoryState>} */ change) => () => this.hooks.change(change);
    const legend = areas.names.map((name, area) => {
      if (areas.bytes[area].every((bytes) => bytes === 0)) return null;
      const swatch = element("i.swatch");
      swatch.style.background = areaColour(areas, area);
      const title = area < inuse.areas.length ? `${clip(name, 1000)}\nselect it` : "callers that had less";
      const over = { onpointerenter: () => this.light(area), onpointerleave: () => this.light(-1) };
      const choose = area < inuse.areas.length ? { onclick: () => this.hooks.pick(name.split(" < ")[0]) } : { disabled: true };
      return element("button.legend-entry", { type: "button", title, ...over, ...choose }, swatch, element("bdi", {}, clip(name, 34)));
    });
    fill(
      this.head,
      element("b", {}, "In use over time"),
      element(
        "button.toggle",
        { type: "button", "aria-pressed": String(state.moment === peak), title: "what was in use then", onclick: away({ moment: state.moment === peak ? -1 : peak, baseMoment: -1 }) },
        `peak ${this.words(peak)}`,
      ),
      state.moment >= 0 && state.moment !== peak
        ? element("button.filter", { type: "button", title: "show the counts of the profile again", onclick: away({ moment: -1, baseMoment: -1 }) }, `${this.words(state.moment)} ✕`)
        : null,
      state.moment < 0 && element("span.note", {}, "click: what was in use then; then Shift and click: what changed since"),
      state.baseMoment >= 0 && element("button.filter.base", { type: "button", onclick: away({ baseMoment: -1 }) }, `base ${this.words(state.baseMoment)} ✕`),
      element("span.legend-list", { role: "group", "aria-label": "callers" }, legend),
    );
  }

  resize() {
    const { canvas, frame } = this;
    if (!canvas || !frame) return;
    const width = frame.clientWidth;
    if (width === 0) return;
    const ratio = window.devicePixelRatio || 1;
    const height = AREAS_PX + TIMES_PX;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    this.paint();
  }

  /** @param {number} ns */
  across(ns) {
    return BYTES_PX + (ns / (this.endNs || 1)) * ((this.canvas ? this.canvas.clientWidth : 1) - BYTES_PX);
  }

  /** @param {number} bytes */
  up(bytes) {
    // Room above the peak for its name.
    return TIMES_PX + (AREAS_PX - 1) * (1 - bytes / ((this.areas ? this.areas.most : 0) * 1.05 || 1));
  }

  paint() {
    const { canvas, inuse, areas, state } = this;
    const context = canvas && canvas.getContext("2d");
    if (!canvas || !context || !inuse || !areas) return;
    const ratio = window.devicePixelRatio || 1;
    const ink = state.dark ? "#c9cdd3" : "#33373d";
    const faint = state.dark ? "#3a3f47" : "#dcdcd6";
    const bottom = TIMES_PX + AREAS_PX;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.direction = "ltr";
    const write = (/** @type {string} */ text, /** @type {number} */ x, /** @type {number} */ y) => {
      context.fillStyle = ink;
      context.fillText(text, x, y);
    };
    for (const tick of ticksOf([0, this.endNs || 1], canvas.clientWidth - BYTES_PX, 90).ticks) {
      const x = this.across(tick);
      context.fillStyle = faint;
      context.fillRect(x, TIMES_PX - 4, 1, AREAS_PX + 4);
      write(duration(tick), Math.min(x + 3, canvas.clientWidth - 40), 7);
    }
    context.textAlign = "right";
    for (const tick of byteTicks(areas.most, AREAS_PX, 26)) {
      const y = this.up(tick);
      context.fillStyle = faint;
      context.fillRect(BYTES_PX - 4, y, canvas.clientWidth - BYTES_PX + 4, 1);
      write(byteSize(tick), BYTES_PX - 8, Math.min(y, bottom - 6));
    }
    context.textAlign = "left";
    const at = (/** @type {number} */ moment) => this.across(inuse.time[moment]);
    paintAreas(context, areas, at, (bytes) => this.up(bytes), this.lit, state.dark ? "#1e2126" : "#ffffff");
    this.paintLine(context, at(inuse.peak), ink, [3, 3]);
    const isRight = at(inuse.peak) > canvas.clientWidth - 50;
    context.textAlign = isRight ? "right" : "left";
    write("peak", at(inuse.peak) + (isRight ? -4 : 4), TIMES_PX + 5);
    context.textAlign = "left";
    if (state.baseMoment >= 0) this.paintLine(context, at(state.baseMoment), BASE_MOMENT, []);
    if (state.moment >= 0) this.paintLine(context, at(state.moment), MOMENT, []);
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {number} x
   * @param {string} colour
   * @param {number[]} dashes
   */
  paintLine(context, x, colour, dashes) {
    context.strokeStyle = colour;
    context.lineWidth = dashes.length > 0 ? 1 : 2;
    context.setLineDash(dashes);
    context.beginPath();
    context.moveTo(x, TIMES_PX);
    context.lineTo(x, TIMES_PX + AREAS_PX);
    context.stroke();
    context.setLineDash([]);
  }

  /**
   * The moment that is nearest to the pointer.
   * @param {{ offsetX: number }} event
   */
  momentAt(event) {
    const { inuse, canvas } = this;
    if (!inuse || !canvas) return -1;
    const { time } = inuse;
    const ns = ((event.offsetX - BYTES_PX) / (canvas.clientWidth - BYTES_PX)) * (this.endNs || 1);
    const after = Math.min(lowerBound(time, ns), time.length - 1);
    return after > 0 && ns - time[after - 1] < time[after] - ns ? after - 1 : after;
  }

  /** @param {number} area */
  light(area) {
    if (area < 0) this.tip.hidden = true;
    if (this.lit === area) return;
    this.lit = area;
    this.paint();
  }

  /** @param {PointerEvent} event */
  hover(event) {
    const { areas, inuse } = this;
    if (!areas || !inuse || event.offsetX < BYTES_PX) return this.light(-1);
    const moment = this.momentAt(event);
    const height = ((TIMES_PX + AREAS_PX - event.offsetY) / (AREAS_PX - 1)) * areas.most * 1.05;
    const area = areaAt(areas, moment, height);
    this.light(area);
    const total = areas.total[moment];
    const names = area < 0 ? [] : areas.names[area].split(" < ").slice(0, NAMES_SHOWN);
    fill(
      this.tip,
      names.map((name, index) => element(index === 0 ? "div.tip-name" : "div", {}, element("bdi", {}, `${index === 0 ? "" : "< "}${clip(name, 400)}`))),
      area >= 0 && element("div", {}, element("b", {}, byteSize(areas.bytes[area][moment])), ` · ${percent(areas.bytes[area][moment] / total)} of what is in use`),
      element("div", {}, element("b", {}, byteSize(total)), ` in use at ${duration(inuse.time[moment])}`),
    );
    this.tip.hidden = false;
    placeBeside(this.tip, event.clientX, event.clientY);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const { moment } = this.state;
    const last = this.last();
    const by = event.shiftKey ? KEY_MOMENTS : 1;
    const at = moment < 0 ? last : moment;
    if (event.key === "ArrowLeft") this.choose(Math.max(0, at - by), false);
    else if (event.key === "ArrowRight") this.choose(Math.min(last, at + by), false);
    else if (event.key === "Home") this.choose(0, false);
    else if (event.key === "End") this.choose(last, false);
    else if (event.key === "b" && moment >= 0) this.hooks.change({ baseMoment: moment });
    else if (event.key === "Escape" && moment >= 0) this.hooks.change({ moment: -1, baseMoment: -1 });
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
