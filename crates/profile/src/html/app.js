// The page: its parts, its state, and what is shown again when the state changes.

import { CallersView } from "./callers.js";
import { COLOURINGS, coloursOf } from "./colours.js";
import { decode, hasThreads, threadWord } from "./data.js";
import { bytesOfBase64, gunzip } from "./bytes.js";
import { element, fill } from "./dom.js";
import { FlameView } from "./flame.js";
import { buildFrame } from "./frame.js";
import { threadsOf } from "./functions.js";
import { helpDialog, listenToKeys } from "./keys.js";
import { neighbour, nodeOfPath, pathOf } from "./layout.js";
import { MemoryView } from "./memory.js";
import { Model } from "./model.js";
import { Names } from "./names.js";
import { clip, percent } from "./numbers.js";
import { showPanel } from "./panel.js";
import { matchedCounts, nextMatch } from "./search.js";
import { showSource } from "./source.js";
import { VIEWS, addressOf, inOrder, initialState, keyOfName, nameOfKey, stateOf } from "./state.js";
import { FunctionTable } from "./table.js";
import { TimeView } from "./timeline.js";
import { Tip, spoken } from "./tip.js";
import { showFilters, showOptions, showTabs, showThreads } from "./toolbar.js";
import { TruthHeader, shownPart } from "./truth.js";

/** @typedef {import("./state.js").State} State */

const NO_TIME = "This profile does not say when its samples were taken, so there are no lanes and no heat map.";

export class App {
  /**
   * @param {import("./data.js").Data} data
   * @param {HTMLElement} host
   */
  constructor(data, host) {
    this.data = data;
    this.names = new Names(data);
    this.model = new Model(data, this.names);
    this.initial = initialState(data.sides.length > 1, data.threads.count, data.sides.some((side) => side.by_thread));
    // Of a program that has freed everything, the peak shows more than the end.
    if (data.inuse && data.sides[0].total === 0) this.initial.moment = data.inuse.peak;
    this.state = stateOf(location.hash, this.initial);
    this.computed = this.model.compute(this.state);
    this.darkPage = matchMedia("(prefers-color-scheme: dark)");
    this.help = helpDialog();
    this.tip = new Tip();
    /** Where the flame graph is zoomed to. */
    this.zoomKey = "";
    document.title = clip(data.title, 200);
    const update = (/** @type {Partial<State>} */ change) => this.update(change);
    const act = (/** @type {string} */ action, /** @type {any} */ argument) => this.act(action, argument);
    this.parts = buildFrame(host, data.title, { search: (query) => update({ query }), act }, [this.tip.box, this.help]);
    const { parts } = this;
    const pick = (/** @type {number} */ id) => this.pick(id);
    this.truth = new TruthHeader(parts.truth, {
      stacks: (stacks) => update({ stacks, path: [] }),
      search: (query) => update({ query }),
    });
    this.time = new TimeView(parts.time, data, { change: (change) => this.changeTime(change) });
    const memory = { change: (/** @type {any} */ change) => this.changeTime(change), pick: (/** @type {string} */ name) => this.pick(this.names.functionOf(name)) };
    this.memory = new MemoryView(parts.memory, data, memory, this.tip.box);
    this.flame = new FlameView(parts.flame, {
      click: (node) => this.zoom(node),
      hover: (node, x, y) => this.hover(this.computed.layout.tree, node, x, y),
    });
    this.table = new FunctionTable(parts.functions, {
      select: pick,
      open: (selected) => update({ selected, view: "callers" }),
      sort: (sort) => update({ sort }),
    });
    this.callers = new CallersView(parts.callers, { select: pick, hover: (tree, node, x, y) => this.hover(tree, node, x, y) });
    this.darkPage.addEventListener("change", () => this.show());
    addEventListener("hashchange", () => {
      this.state = stateOf(location.hash, this.initial);
      this.show();
    });
    document.addEventListener("pointerdown", (event) => this.closeMenus(/** @type {Node} */ (event.target)));
    listenToKeys(act);
    this.show();
  }

  /** @param {Partial<State>} change */
  update(change) {
    this.state = inOrder({ ...this.state, ...change });
    const address = addressOf(this.state, this.initial);
    const url = address || location.pathname + location.search;
    // The browser's Back goes from view to view, not from letter to letter of a search.
    const isStep = ["view", "path", "focus", "selected"].some((key) => key in change);
    if (isStep && address !== location.hash) history.pushState(null, "", url);
    else history.replaceState(null, "", url);
    this.show();
  }

  /**
   * Two ranges, or moments, are compared by their colours.
   * @param {Partial<import("./timeline.js").TimeState & import("./memory.js").MemoryState>} change
   */
  changeTime(change) {
    const { colour } = this.state;
    const has = (/** @type {any} */ { baseRange, baseMoment }) => baseRange !== null || baseMoment >= 0;
    const { baseRange, baseMoment } = this.state;
    if (has({ baseRange, baseMoment, ...change })) this.update({ ...change, path: [], colour: has(this.state) ? colour : "change" });
    else this.update({ ...change, path: [], colour: colour === "change" && !this.data.compare ? "library" : colour });
  }

  get isDark() {
    return this.state.theme === "dark" || (this.state.theme === "auto" && this.darkPage.matches);
  }

  show() {
    const { data, names, state, parts } = this;
    const dark = this.isDark;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    this.computed = this.model.compute(state);
    const { rows, tree, totals, layout, matched, everything, whole, treeKey } = this.computed;
    const page = { compares: rows.base !== null, threads: hasThreads(data), update: (/** @type {Partial<State>} */ change) => this.update(change) };
    if (document.activeElement !== parts.searchBox) parts.searchBox.value = state.query;
    this.truth.show({ data, rows: everything, totals: whole, stacks: state.stacks, query: state.query });
    this.time.show({ range: state.range, baseRange: state.baseRange, threads: state.threads, time: state.time, dark });
    this.memory.show({ moment: state.moment, baseMoment: state.baseMoment, dark });
    showTabs(parts.tabs, state, page);
    showOptions(parts.options, state, page);
    const threads = this.model.keep("threads", [], () => threadsOf(data, everything, -1));
    showThreads(parts.threads, data, threads, everything.total, state, page.update);
    const colours = this.model.keep("colours", [treeKey, state.invert, state.colour, dark], () =>
      coloursOf(names, layout.tree, state.colour, dark, whole.self, totals.self),
    );
    showFilters(parts.filters, this.filters(), colours.legend, state.query, page.update);
    parts.filters.append(parts.shown);
    const all = data.compare ? data.compare.words : "";
    const isMoment = data.inuse && state.moment >= 0;
    const part = isMoment ? this.memory.words(state.moment) : rows.total === everything.total ? all : shownPart(data, rows.total, everything.total);
    fill(parts.shown, part, data.samples || data.inuse ? "" : element("span", { title: NO_TIME }, part === "" ? "no time line" : " · no time line"));
    for (const view of /** @type {const} */ (["flame", "functions", "callers", "source"])) parts[view].hidden = state.view !== view;
    parts.panel.hidden = !state.panel;
    if (state.view === "flame") {
      this.flame.show({ layout, names, colours, matched, upward: state.upward, dark });
      this.restoreZoom();
    } else if (state.view === "functions") {
      const { sort, selected } = state;
      this.table.show({ names, totals, total: rows.total, baseTotal: rows.baseTotal, matched, sort, selected, unit: data.unit });
    } else if (state.view === "callers") this.callers.show(names, tree, state.selected, { colour: state.colour, dark, matched, whole: whole.self });
    else showSource(parts.source, data, names, rows, state.selected);
    if (state.panel) {
      const { selected, focus, collapsed } = state;
      showPanel(parts.panel, { data, names, tree, rows, totals, selected, focus, collapsed }, this.panelHooks());
    }
    this.showMatched();
  }

  showMatched() {
    const { parts } = this;
    const { rows, tree, matched, searchError } = this.computed;
    parts.searchBox.classList.toggle("wrong", searchError !== "");
    if (!matched) return fill(parts.matched, searchError === "" ? null : clip(searchError, 80));
    const { value, nodes } = matchedCounts(tree, matched);
    fill(parts.matched, element("b", {}, percent(value / rows.total)), nodes === 0 ? " no match" : " matched");
  }

  filters() {
    const { data, names, state } = this;
    /** @type {{ words: string, clear: Partial<State> }[]} */
    const filters = [];
    if (state.path.length > 0 && state.view === "flame") filters.push({ words: "zoomed", clear: { path: [] } });
    if (state.stacks !== "all") filters.push({ words: `${state.stacks} stacks`, clear: { stacks: "all", path: [] } });
    if (state.focus >= 0) filters.push({ words: `focus: ${names.fit(state.focus, 60)}`, clear: { focus: -1, path: [] } });
    for (const library of state.collapsed) {
      const rest = state.collapsed.filter((other) => other !== library);
      filters.push({ words: `collapsed: ${names.nameOfKey(library)}`, clear: { collapsed: rest, path: [] } });
    }
    if (state.threads.length > 0) filters.push({ words: `${state.threads.length} of ${data.threads.count} ${threadWord(data)}`, clear: { threads: [], path: [] } });
    return filters;
  }

  panelHooks() {
    return {
      select: (/** @type {number} */ id) => this.pick(id),
      view: (/** @type {string} */ view) => this.update({ view }),
      focus: (/** @type {number} */ focus) => this.update({ focus, path: [] }),
      collapse: (/** @type {number} */ library) => {
        const { collapsed } = this.state;
        const without = collapsed.filter((other) => other !== library);
        this.update({ collapsed: without.length < collapsed.length ? without : [...collapsed, library], path: [] });
      },
    };
  }

  /**
   * Selects a function; in the flame graph its heaviest box.
   * @param {number} id
   */
  pick(id) {
    this.update({ selected: id < this.names.functions ? id : -1 });
    if (this.state.view !== "flame") return;
    const { tree, size } = this.computed.layout;
    let heaviest = -1;
    for (let node = 0; node < tree.count; node++) {
      if (tree.name[node] === id && (heaviest < 0 || size[node] > size[heaviest])) heaviest = node;
    }
    this.flame.select(heaviest);
  }

  /** @param {number} node */
  zoom(node) {
    if (node < 0) return;
    const { tree, levels } = this.computed.layout;
    const id = tree.name[node];
    const isWhole = tree.parent[node] < 0 && levels[0].length === 1;
    const path = isWhole ? [] : pathOf(tree, node).map((name) => keyOfName(this.names, name));
    this.update({ path, selected: id < this.names.functions ? id : -1 });
    this.flame.select(node);
    this.speak(node);
  }

  /** Zooms to the node of the state, unless the flame graph shows it already. */
  restoreZoom() {
    const { state, names } = this;
    const { layout, treeKey } = this.computed;
    const key = `${treeKey} ${state.invert}`;
    const zoomKey = `${key} ${state.path.join(" ")}`;
    if (this.zoomKey === zoomKey) return;
    const smooth = this.zoomKey.startsWith(key);
    this.zoomKey = zoomKey;
    const node = nodeOfPath(layout.tree, state.path.map((name) => nameOfKey(names, name)));
    this.flame.zoomToNode(node, smooth);
    if (node >= 0) this.flame.select(node);
  }

  /**
   * @param {import("./tree.js").Tree} tree
   * @param {number} node
   * @param {number} x
   * @param {number} y
   */
  hover(tree, node, x, y) {
    if (node < 0) this.tip.hide();
    else this.tip.show(this.data, this.names, this.computed.rows, tree, node, x, y);
  }

  /** @param {number} node */
  speak(node) {
    fill(this.parts.spoken, spoken(this.names, this.computed.rows, this.computed.layout.tree, node));
  }

  /**
   * What a key or a button asks for.
   * @param {string} action
   * @param {any} [argument]
   */
  act(action, argument) {
    const { state, flame } = this;
    const { layout, matched, rows } = this.computed;
    const at = flame.selected;
    const id = at >= 0 && state.view === "flame" ? layout.tree.name[at] : state.selected;
    if (action === "view") this.update({ view: VIEWS.includes(argument) ? argument : "flame" });
    else if (action === "invert") this.update({ invert: !state.invert, path: [] });
    else if (action === "upward") this.update({ upward: !state.upward });
    else if (action === "recursion") this.update({ recursion: !state.recursion, path: [] });
    else if (action === "levels") this.update({ levels: !state.levels, path: [] });
    else if (action === "stacks") this.update({ stacks: state.stacks === "all" ? "incomplete" : "all", path: [] });
    else if (action === "panel") this.update({ panel: !state.panel });
    else if (action === "theme") this.update({ theme: this.isDark ? "light" : "dark" });
    else if (action === "help") this.help.showModal();
    else if (action === "search") this.parts.searchBox.select();
    else if (action === "time") (this.time.canvas || this.memory.canvas)?.focus();
    else if (action === "zoomBy") flame.zoomBy(argument);
    else if (action === "zoom") this.zoom(at);
    else if (action === "match" && matched) this.goTo(nextMatch(layout, matched, at, argument));
    else if (action === "move") this.move(argument);
    else if (action === "focus" && id >= 0 && id < this.names.functions) this.panelHooks().focus(state.focus === id ? -1 : id);
    else if (action === "collapse" && id >= 0 && this.names.libraryKey(id) !== -1) this.panelHooks().collapse(this.names.libraryKey(id));
    else if (action === "zoomOut") this.update({ path: state.path.slice(0, -1) });
    else if (action === "colour") {
      const choices = COLOURINGS.filter((colour) => colour !== "change" || rows.base !== null);
      this.update({ colour: choices[(choices.indexOf(state.colour) + 1) % choices.length] });
    } else if (action === "reset") this.reset();
  }

  /** @param {"up" | "down" | "before" | "after"} to */
  move(to) {
    const { flame, state } = this;
    const { layout } = this.computed;
    if (state.view !== "flame") return;
    if (layout.levels.length === 0) return;
    if (flame.selected < 0) return this.goTo(layout.levels[0][0]);
    const outward = (to === "up") !== state.upward;
    const step = to === "before" || to === "after" ? to : outward ? "parent" : "child";
    this.goTo(neighbour(layout, flame.selected, step));
  }

  /** @param {number} node */
  goTo(node) {
    if (node < 0) return;
    const { tree, left, size } = this.computed.layout;
    const id = tree.name[node];
    if (this.state.view !== "flame") this.update({ view: "flame" });
    this.update({ selected: id < this.names.functions ? id : -1 });
    const [from, to] = this.flame.view;
    if (left[node] + size[node] <= from || left[node] >= to) this.flame.zoomToNode(-1, true);
    this.flame.select(node);
    this.speak(node);
  }

  /**
   * Closes what is unfolded, but where `target` is in it. Returns whether something was.
   * @param {Node | null} target
   */
  closeMenus(target) {
    const menu = this.parts.threads.querySelector("details");
    let closed = false;
    if (menu && menu.open && !menu.contains(target)) closed = !(menu.open = false);
    if (this.truth.open !== "" && !this.parts.truth.contains(target)) {
      this.truth.open = "";
      this.show();
      closed = true;
    }
    return closed;
  }

  reset() {
    const { state } = this;
    const { searchBox } = this.parts;
    if (this.closeMenus(null)) return;
    if (state.query !== "" || document.activeElement === searchBox) {
      searchBox.value = "";
      searchBox.blur();
      this.update({ query: "" });
    } else if (state.path.length > 0) this.update({ path: [] });
    else this.update({ focus: -1, collapsed: [], stacks: "all", threads: [], range: null, baseRange: null, moment: -1, baseMoment: -1 });
    if (this.state.path.length === 0) this.flame.zoomToNode(-1, true);
  }
}

/** Reads the data of the page and shows it. */
export async function main() {
  const host = /** @type {HTMLElement} */ (document.getElementById("page"));
  try {
    const text = /** @type {HTMLElement} */ (document.getElementById("profile")).textContent || "";
    const data = decode(await gunzip(bytesOfBase64(text)));
    Object.assign(window, { stackprof: new App(data, host) });
  } catch (error) {
    fill(host, element("p.failure", {}, `This page cannot show its profile: ${error instanceof Error ? error.message : error}`));
    throw error;
  }
}
