// A list of any length: only the rows in the window are elements.

import { element } from "./dom.js";

export class VirtualList {
  /**
   * @param {HTMLElement} host scrolls
   * @param {number} rowPx
   * @param {(index: number) => HTMLElement} row
   */
  constructor(host, rowPx, row) {
    this.host = host;
    this.rowPx = rowPx;
    this.row = row;
    this.length = 0;
    this.space = element("div.list-space");
    this.rows = element("div.list-rows");
    host.replaceChildren(this.space);
    this.space.append(this.rows);
    host.addEventListener("scroll", () => this.paint());
    new ResizeObserver(() => this.paint()).observe(host);
  }

  /** @param {number} length */
  show(length) {
    this.length = length;
    this.space.style.height = `${length * this.rowPx}px`;
    this.paint();
  }

  paint() {
    const first = Math.max(0, Math.floor(this.host.scrollTop / this.rowPx) - 2);
    const last = Math.min(this.length, first + Math.ceil(this.host.clientHeight / this.rowPx) + 5);
    this.rows.style.transform = `translateY(${first * this.rowPx}px)`;
    const made = [];
    for (let index = first; index < last; index++) made.push(this.row(index));
    this.rows.replaceChildren(...made);
  }

  /**
   * Shows a row in the middle.
   * @param {number} index
   */
  centre(index) {
    const { host } = this;
    host.scrollTop = Math.max(0, (index + 0.5) * this.rowPx - host.clientHeight / 2);
    this.paint();
  }

  /** @param {number} index */
  reveal(index) {
    const top = index * this.rowPx;
    const { host } = this;
    if (top < host.scrollTop) host.scrollTop = top;
    else if (top + this.rowPx > host.scrollTop + host.clientHeight) host.scrollTop = top + this.rowPx - host.clientHeight;
    this.paint();
  }
}
