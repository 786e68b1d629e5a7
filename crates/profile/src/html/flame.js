// A flame graph on a canvas: paints the visible boxes, zooms, pans, and finds the box at a point.
//
// However many boxes there are, a level paints at most one for each pixel: those below a pixel are skipped by a search. The
// canvas has the size of its frame; an empty element below it has the height of all levels, so the browser's own scroll bar
// and keys work.

import { groundOf, pixelOf } from "./colours.js";
import { firstBehind, nodeAt } from "./layout.js";

const ROW = 20;
const GAP = 1;
const PAD = 5;
const FONT = '12px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace';
const ANIMATION_MS = 160;
/** Width and greatest height of a printed graph, which the style fits to the paper. */
const PAPER_PX = 1000;
const PAPER_HEIGHT_PX = 12000;
/** Narrower boxes are painted as one. */
const LEAST_PX = 1;
/** Boxes without room for this many characters have no name: it could not be read. */
const LEAST_CHARACTERS = 4;

/**
 * What is painted.
 * @typedef {object} Picture
 * @property {import("./layout.js").Layout} layout
 * @property {import("./names.js").Names} names
 * @property {import("./colours.js").Colours} colours
 * @property {Uint8Array | null} matched by name
 * @property {boolean} upward the outermost function is at the bottom
 * @property {boolean} dark
 */

/**
 * @typedef {object} FlameHooks
 * @property {(node: number) => void} click a box, or -1 beside them
 * @property {(node: number, x: number, y: number) => void} hover
 */

export class FlameView {
  /**
   * @param {HTMLElement} host is filled
   * @param {FlameHooks} hooks
   */
  constructor(host, hooks) {
    this.host = host;
    this.hooks = hooks;
    /** @type {Picture | null} */
    this.picture = null;
    /** What is in the width, in counts. @type {[number, number]} */
    this.view = [0, 1];
    this.selected = -1;
    this.hovered = -1;
    this.frame = 0;
    /** The size on paper while the page is printed. @type {[number, number] | null} */
    this.paper = null;
    this.characterPx = 7.2;
    /** @type {{ from: [number, number], to: [number, number], began: number } | null} */
    this.animation = null;
    /** @type {{ x: number, view: [number, number], scroll: number, y: number, moved: boolean } | null} */
    this.drag = null;
    this.canvas = document.createElement("canvas");
    this.space = document.createElement("div");
    this.space.className = "flame-space";
    host.append(this.canvas, this.space);
    /** What is painted, before it is put on the canvas. @type {ImageData | null} */
    this.image = null;
    /** The same, a number for each pixel. */
    this.pixels = new Uint32Array(0);
    const context = this.canvas.getContext("2d", { alpha: false });
    if (!context) throw new Error("this browser has no canvas");
    this.context = context;
    this.listen();
  }

  listen() {
    const { canvas, host } = this;
    new ResizeObserver(() => this.resize()).observe(host);
    // A canvas is printed as it was painted: all levels, for the width of the paper.
    window.addEventListener("beforeprint", () => {
      // One that is hidden has no size.
      if (host.clientWidth > 0) this.resize([PAPER_PX, Math.min(PAPER_HEIGHT_PX, this.levelsPx())]);
    });
    window.addEventListener("afterprint", () => this.resize(null));
    host.addEventListener("scroll", () => this.repaint());
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerleave", () => this.hover(-1, 0, 0));
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      const scroll = host.scrollTop;
      this.drag = { x: event.clientX, y: event.clientY, view: [...this.view], scroll, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointerup", (event) => {
      const { drag } = this;
      this.drag = null;
      if (drag && !drag.moved) this.hooks.click(this.nodeAtPoint(event.offsetX, event.offsetY));
    });
    canvas.addEventListener("pointercancel", () => {
      this.drag = null;
    });
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  /** Puts what is painted on the canvas. @param {ImageData} image */
  putPixels(image) {
    const { context } = this;
    if (!this.paper) {
      context.putImageData(image, 0, 0);
      return;
    }
    // Chromium prints a canvas by its drawing operations; this is one, and putImageData is not.
    const painted = document.createElement("canvas");
    [painted.width, painted.height] = [image.width, image.height];
    painted.getContext("2d")?.putImageData(image, 0, 0);
    context.save();
    context.resetTransform();
    context.drawImage(painted, 0, 0);
    context.restore();
  }

  /** @param {Picture} picture */
  show(picture) {
    const isNew = !this.picture || this.picture.layout !== picture.layout;
    const turned = this.picture && this.picture.upward !== picture.upward;
    this.picture = picture;
    if (isNew) {
      this.view = [0, picture.layout.width];
      this.animation = null;
      this.selected = -1;
      this.hovered = -1;
    }
    this.resize();
    if (isNew || turned) this.host.scrollTop = picture.upward ? this.host.scrollHeight : 0;
  }

  levelsPx() {
    return (this.picture ? this.picture.layout.levels.length + 1 : 0) * ROW;
  }

  /** The width of the graph. */
  width() {
    return this.paper ? this.paper[0] : this.host.clientWidth;
  }

  /** The height of what is seen of the graph. */
  height() {
    return this.paper ? this.paper[1] : this.host.clientHeight;
  }

  /** What is scrolled out above. */
  scrolled() {
    return this.paper ? 0 : this.host.scrollTop;
  }

  /** @param {[number, number] | null} paper its size while the page is printed */
  resize(paper = this.paper) {
    this.paper = paper;
    const { canvas, space } = this;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [this.width(), this.height()];
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    // The canvas itself is as high as the frame.
    space.style.height = `${Math.max(0, this.levelsPx() - height)}px`;
    this.paint();
  }

  repaint() {
    if (this.frame) return;
    this.frame = requestAnimationFrame((now) => {
      this.frame = 0;
      this.animate(now);
      this.paint();
    });
  }

  /** @param {number} now */
  animate(now) {
    const { animation } = this;
    if (!animation) return;
    const share = Math.min(1, (now - animation.began) / ANIMATION_MS);
    const eased = 1 - (1 - share) ** 3;
    const at = (/** @type {0 | 1} */ end) => animation.from[end] + (animation.to[end] - animation.from[end]) * eased;
    this.view = [at(0), at(1)];
    if (share < 1) this.repaint();
    else this.animation = null;
  }

  /**
   * @param {[number, number]} to
   * @param {boolean} smooth
   */
  zoomTo(to, smooth) {
    const width = this.picture ? this.picture.layout.width : 1;
    // Beyond this, numbers have no digits left.
    const least = width * 1e-9;
    let [from, until] = to;
    if (until - from < least) until = from + least;
    if (until - from >= width) [from, until] = [0, width];
    else if (from < 0) [from, until] = [0, until - from];
    else if (until > width) [from, until] = [width - (until - from), width];
    const still = !smooth || matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.animation = still ? null : { from: this.view, to: [from, until], began: performance.now() };
    if (still) this.view = [from, until];
    this.repaint();
  }

  /**
   * @param {number} node -1 for the whole
   * @param {boolean} smooth
   */
  zoomToNode(node, smooth) {
    const { picture } = this;
    if (!picture) return;
    const { left, size, width } = picture.layout;
    this.zoomTo(node < 0 ? [0, width] : [left[node], left[node] + size[node]], smooth);
  }

  /** @param {number} node */
  select(node) {
    this.selected = node;
    if (node >= 0 && this.picture) this.scrollTo(this.picture.layout.depth[node]);
    this.repaint();
  }

  /** @param {number} depth */
  scrollTo(depth) {
    const { host } = this;
    const top = this.top(depth) + host.scrollTop;
    if (top < host.scrollTop) host.scrollTop = top;
    else if (top + ROW > host.scrollTop + host.clientHeight) host.scrollTop = top + ROW - host.clientHeight;
  }

  /**
   * Where a level is in the frame.
   * @param {number} depth
   */
  top(depth) {
    const { picture } = this;
    if (!picture || !picture.upward) return depth * ROW - this.scrolled();
    const height = Math.max(this.height(), this.levelsPx());
    return height - (depth + 1) * ROW - this.scrolled();
  }

  /** @param {number} x */
  countAt(x) {
    const [from, to] = this.view;
    return from + ((to - from) * x) / Math.max(1, this.host.clientWidth);
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  nodeAtPoint(x, y) {
    const { picture } = this;
    if (!picture) return -1;
    const zero = this.top(0);
    const depth = picture.upward ? Math.floor((zero + ROW - y) / ROW) : Math.floor((y - zero) / ROW);
    return depth < 0 ? -1 : nodeAt(picture.layout, depth, this.countAt(x));
  }

  /** @param {PointerEvent} event */
  move(event) {
    const { drag } = this;
    if (!drag) return this.hover(this.nodeAtPoint(event.offsetX, event.offsetY), event.clientX, event.clientY);
    const [x, y] = [event.clientX - drag.x, event.clientY - drag.y];
    if (!drag.moved && Math.abs(x) + Math.abs(y) < 5) return;
    drag.moved = true;
    this.hover(-1, 0, 0);
    this.host.scrollTop = drag.scroll - y;
    const [from, to] = drag.view;
    const by = (-x * (to - from)) / Math.max(1, this.host.clientWidth);
    this.zoomTo([from + by, to + by], false);
  }

  /**
   * @param {number} node
   * @param {number} x
   * @param {number} y
   */
  hover(node, x, y) {
    if (node !== this.hovered) {
      this.hovered = node;
      this.canvas.style.cursor = node >= 0 ? "pointer" : "default";
      this.repaint();
    }
    this.hooks.hover(node, x, y);
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    const [from, to] = this.view;
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      this.zoomBy(Math.exp(event.deltaY * 0.004), this.countAt(event.offsetX));
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      const by = ((event.deltaX || event.deltaY) * (to - from)) / Math.max(1, this.host.clientWidth);
      this.zoomTo([from + by, to + by], false);
    }
  }

  /**
   * @param {number} factor
   * @param {number} [about] in counts; the middle if it is not given
   */
  zoomBy(factor, about) {
    const [from, to] = this.view;
    const at = about ?? (from + to) / 2;
    this.zoomTo([at - (at - from) * factor, at + (to - at) * factor], false);
  }

  paint() {
    const { canvas, context, picture } = this;
    const { width, height } = canvas;
    if (width === 0 || height === 0) return;
    if (!this.image || this.image.width !== width || this.image.height !== height) {
      this.image = context.createImageData(width, height);
      this.pixels = new Uint32Array(this.image.data.buffer);
    }
    this.pixels.fill(pixelOf(groundOf(picture !== null && picture.dark)));
    const ratio = window.devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = FONT;
    context.textBaseline = "middle";
    context.direction = "ltr";
    this.characterPx = context.measureText("0123456789").width / 10;
    /** @type {number[][]} */
    const labels = [[], []];
    if (picture) {
      picture.layout.levels.forEach((level, depth) => {
        const top = this.top(depth);
        if (top + ROW > 0 && top < this.height()) this.paintLevel(picture, level, top, ratio, labels);
      });
    }
    this.putPixels(this.image);
    if (!picture) return;
    this.paintLabels(picture, labels[0], "#16181b");
    this.paintLabels(picture, labels[1], picture.dark ? "#a9adb3" : "#6b6b6b");
    for (const [node, line] of [[this.hovered, 1], [this.selected, 2]]) if (node >= 0) this.outline(picture, node, line);
  }

  /**
   * Fills the boxes of a level, and notes those that have room for their names. A level is one line of pixels, which is then
   * copied to its height: what it takes depends on the size of the canvas and not on how many boxes there are.
   * @param {Picture} picture
   * @param {Int32Array} level
   * @param {number} top
   * @param {number} ratio pixels of the screen for each of the page
   * @param {number[][]} labels node, left edge, characters and top, of boxes as they are and of faded ones
   */
  paintLevel(picture, level, top, ratio, labels) {
    const { layout, colours, matched, dark } = picture;
    const { left, size, tree } = layout;
    const { pixels: fills, faded } = colours;
    const { width, height } = this.canvas;
    const [from, to] = this.view;
    const scale = width / (to - from);
    const room = (LEAST_CHARACTERS * this.characterPx + 2 * PAD) * ratio;
    const gap = Math.round(GAP * ratio);
    const stripe = pixelOf(dark ? [60, 58, 56] : [120, 116, 110]);
    const line = new Uint32Array(width).fill(pixelOf(groundOf(dark)));
    let index = firstBehind(layout, level, from);
    while (index < level.length) {
      const node = level[index];
      if (left[node] >= to) break;
      const x = (left[node] - from) * scale;
      const fades = matched !== null && !matched[tree.name[node]];
      const fill = fills[colours.of(node) + (fades ? faded : 0)];
      if (size[node] * scale < LEAST_PX) {
        // One pixel for all that begin on it.
        const at = Math.floor(x);
        if (at >= 0) line[at] = fill;
        index = firstBehind(layout, level, from + (at + 1) / scale, index + 1);
        continue;
      }
      index++;
      const x0 = Math.max(0, Math.round(x));
      const x1 = Math.min(width, Math.max(x0 + 1, Math.round(x + size[node] * scale)));
      line.fill(fill, x0, x1 - (x1 - x0 > 3 * gap ? gap : 0));
      if (tree.inlined[node] && x1 - x0 > 8 * ratio) line.fill(stripe, x0, x0 + Math.round(2 * ratio));
      if (x1 - x0 < room) continue;
      const characters = Math.floor(((x1 - x0) / ratio - 2 * PAD) / this.characterPx);
      labels[fades ? 1 : 0].push(node, x0 / ratio + PAD, characters, top);
    }
    const first = Math.round(top * ratio);
    const last = Math.min(height, first + Math.round((ROW - GAP) * ratio));
    for (let y = Math.max(0, first); y < last; y++) this.pixels.set(line, y * width);
  }

  /**
   * @param {Picture} picture
   * @param {number[]} labels
   * @param {string} ink
   */
  paintLabels(picture, labels, ink) {
    const { context } = this;
    const { names, layout } = picture;
    context.fillStyle = ink;
    for (let at = 0; at < labels.length; at += 4) {
      const text = names.fit(layout.tree.name[labels[at]], labels[at + 2]);
      context.fillText(text, labels[at + 1], labels[at + 3] + (ROW - GAP) / 2 + 0.5);
    }
  }

  /**
   * @param {Picture} picture
   * @param {number} node
   * @param {number} line
   */
  outline(picture, node, line) {
    const { layout, dark } = picture;
    const [from, to] = this.view;
    const scale = this.width() / (to - from);
    const x0 = Math.max(-line, (layout.left[node] - from) * scale);
    const x1 = Math.min(this.width() + line, (layout.left[node] + layout.size[node] - from) * scale);
    if (x1 <= x0) return;
    this.context.strokeStyle = dark ? "#ffffff" : "#111418";
    this.context.lineWidth = line;
    this.context.strokeRect(x0 + line / 2, this.top(layout.depth[node]) + line / 2, Math.max(1, x1 - x0 - line - GAP), ROW - GAP - line);
  }
}
