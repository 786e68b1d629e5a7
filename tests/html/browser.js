// The page in a real browser, used as people use it. Called by scripts/check-html.sh:
//   node browser.js CHROMIUM PLAYWRIGHT DIRECTORY
// Reads DIRECTORY/NAME.html with DIRECTORY/NAME.folded, writes pictures beside them, prints one line a check, exits 1 if one
// failed.

import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { inPage, memory, page as wrap, profile } from "./page.js";
import { random } from "./random.js";

const [chromium, playwright, directory] = process.argv.slice(2);
const failures = [];
let current = "";
function check(holds, what) {
  if (!holds) failures.push(`${current}: ${what}`);
  console.log(`${holds ? "ok  " : "FAIL"} ${current}: ${what}`);
}
const equal = (one, other, what) => check(JSON.stringify(one) === JSON.stringify(other), `${what}: ${JSON.stringify(one)}${JSON.stringify(one) === JSON.stringify(other) ? "" : `, expected ${JSON.stringify(other)}`}`);

const painted = (page) => page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));

/** Opens a page; whatever it asks the network for, prints or throws is noted. */
async function open(context, file, address = "") {
  const page = await context.newPage();
  const wrong = [];
  page.on("pageerror", (error) => wrong.push(error.message));
  page.on("console", (message) => { if (message.type() === "error") wrong.push(message.text()); });
  page.on("dialog", (dialog) => { wrong.push(`dialog ${dialog.message()}`); dialog.dismiss(); });
  page.on("request", (request) => { if (!request.url().startsWith(`file://${join(directory, file)}`)) wrong.push(`request ${request.url().slice(0, 200)}`); });
  await page.goto(`file://${join(directory, file)}${address}`);
  await page.waitForFunction(() => window.stackprof !== undefined);
  await painted(page);
  return { page, wrong };
}

/** Stacks of the page, as folded text writes them. */
const foldedOf = (page, base = false) => page.evaluate((base) => {
  const { names } = stackprof;
  const { tree } = stackprof.computed;
  const own = base ? tree.baseSelf : tree.self;
  const lines = {};
  for (let node = 0; node < tree.count; node++) {
    if (own[node] === 0) continue;
    const path = [];
    for (let at = node; at >= 0; at = tree.parent[at]) path.push(names.text(tree.name[at]).trim().replaceAll(";", ":") || "[unknown]");
    const line = path.reverse().join(";");
    lines[line] = (lines[line] || 0) + own[node];
  }
  return lines;
}, base);

function foldedFile(name) {
  const lines = {};
  for (const line of readFileSync(join(directory, name), "utf8").trimEnd().split("\n")) {
    const at = line.lastIndexOf(" ");
    lines[line.slice(0, at)] = Number(line.slice(at + 1));
  }
  return lines;
}

const difference = (one, other) => [...new Set([...Object.keys(one), ...Object.keys(other)])].filter((line) => one[line] !== other[line]);
const text = (page, selector) => page.evaluate((selector) => document.querySelector(selector)?.textContent ?? null, selector);
const sum = (lines) => Object.values(lines).reduce((all, count) => all + count, 0);

/** The middle of a box on the screen, by its name: the heaviest of that name. */
const place = (page, name) => page.evaluate((name) => {
  const { flame, names, computed: { layout } } = stackprof;
  let best = -1;
  for (let node = 0; node < layout.tree.count; node++) {
    if (names.text(layout.tree.name[node]) === name && (best < 0 || layout.size[node] > layout.size[best])) best = node;
  }
  const { x, y, width } = flame.canvas.getBoundingClientRect();
  const [from, to] = flame.view;
  const middle = layout.left[best] + layout.size[best] / 2;
  return { x: x + ((middle - from) / (to - from)) * width, y: y + flame.top(layout.depth[best]) + 9, share: layout.size[best] / layout.width };
}, name);

// ---- checks

/** Numbers: those of `render -o -`. */
async function numbers(context, name) {
  current = name;
  const { page, wrong } = await open(context, `${name}.html`);
  await page.evaluate(() => stackprof.update({ levels: true }));
  const [here, there] = [await foldedOf(page), foldedFile(`${name}.folded`)];
  equal(difference(here, there).slice(0, 3), [], `${Object.keys(there).length} stacks are those of render -o -`);
  check((await text(page, ".chip b")).replaceAll(",", "") === String(sum(there)), `the head says ${sum(there)}`);
  // Search: the share of lines with a matching name.
  const word = Object.keys(there).at(-1).split(";").at(-1).slice(0, 12).toLowerCase();
  await page.fill(".search", word);
  const matching = Object.entries(there).filter(([line]) => line.split(";").some((part) => part.toLowerCase().includes(word)));
  const share = (100 * matching.reduce((all, [, count]) => all + count, 0)) / sum(there);
  const matched = parseFloat(await text(page, ".matched b"));
  check(Math.abs(matched - share) < 0.06, `search for \`${word}\` matches ${matched}%, ${share.toFixed(2)}% of the lines`);
  await page.fill(".search", "");
  // The table.
  await page.keyboard.press("Escape");
  await page.keyboard.press("2");
  const self = {};
  for (const [line, count] of Object.entries(there)) self[line.split(";").at(-1)] = (self[line.split(";").at(-1)] || 0) + count;
  const rows = await page.evaluate(() => stackprof.table.ids.map((id) => [stackprof.names.text(id).replaceAll(";", ":"), stackprof.computed.totals.self[id]]));
  const byName = {};
  for (const [fn, count] of rows) if (count > 0) byName[fn] = (byName[fn] || 0) + count;
  equal(difference(byName, self).slice(0, 3), [], "self of each function");
  // Paper: the whole graph, whatever the window shows of it.
  await page.keyboard.press("1");
  const paper = await page.evaluate(() => {
    const { flame } = stackprof;
    dispatchEvent(new Event("beforeprint"));
    const printed = [flame.width(), flame.height() >= Math.min(12000, flame.levelsPx()), flame.scrolled()];
    dispatchEvent(new Event("afterprint"));
    return [...printed, flame.width() === flame.host.clientWidth];
  });
  equal(paper, [1000, true, 0, true], "on paper: all levels, in the width of the paper");
  equal(wrong, [], "no error and no request");
  await page.close();
}

const PROGRAM = [
  ["app;main@app:1;parse@app:10;+lex@app:12;memcpy@libc.so.6", 300],
  ["app;main@app:2;parse@app:11;parse@app:10", 120],
  ["app;main@app:3;write_out@app:20;write@libc.so.6;ksys_write_[k]", 80],
  ["app;main@app:4;[app+0x1f40]", 20],
  { stack: "app;worker@app:30", count: 60, thread: ["io", 7], incomplete: true },
];

/** The mouse. */
async function mouse(context) {
  current = "mouse";
  writeFileSync(join(directory, "program.html"), wrap(inPage(profile(PROGRAM, { side: { incomplete: { "no unwind information": 60 }, lost: { "thread ended": 5 } } }))));
  const { page, wrong } = await open(context, "program.html");
  let at = await place(page, "parse");
  await page.mouse.move(at.x, at.y);
  check((await text(page, ".tip")).includes("parse") && (await text(page, ".tip")).includes("72.4%"), `hovering says ${await text(page, ".tip")}`);
  await page.mouse.click(at.x, at.y);
  await page.waitForFunction(() => !stackprof.flame.animation);
  check((await place(page, "parse")).share > 0.7 && (await page.evaluate(() => stackprof.flame.view[1] - stackprof.flame.view[0])) === 420, "a click fills the width with a box");
  equal(await text(page, ".details .name"), "parse", "the panel shows the function");
  check(page.url().includes("path="), "the address has the box");
  // The address alone brings the view back.
  const again = await open(context, "program.html", new URL(page.url()).hash);
  equal(await again.page.evaluate(() => [stackprof.flame.view, stackprof.state.selected]), await page.evaluate(() => [stackprof.flame.view, stackprof.state.selected]), "the address brings the view back");
  await again.page.close();
  await page.goBack();
  equal(await page.evaluate(() => stackprof.state.path), [], "Back goes to the view before");
  await page.goForward();
  await page.click("text=zoomed");
  equal(await page.evaluate(() => stackprof.flame.view[0]), 0, "the filter takes the zoom away");
  await page.click("[data-truth=complete]");
  equal(sum(await foldedOf(page)), 60, "a click on `complete` shows the incomplete stacks");
  check((await text(page, ".causes")).includes("60 no unwind information"), "with their cause");
  await page.click("[data-truth=complete]");
  await page.click("[data-truth=lost]");
  check((await text(page, ".causes")).includes("5 thread ended"), "a click on `lost` shows the causes");
  await page.click("[data-truth=lost]");
  await page.click("[data-truth=named]");
  check((await text(page, ".matched")).startsWith("3.45%"), "a click on `named` marks functions without a name");
  await page.click("[data-truth=named]");
  // Options.
  await page.click("text=Callers first");
  equal(await page.evaluate(() => [...stackprof.computed.layout.levels[0]].map((node) => stackprof.names.text(stackprof.computed.layout.tree.name[node])).slice(0, 2)), ["memcpy", "parse"], "callers first begins with the hottest");
  await page.click("text=Callers first");
  await page.click("text=Merge recursion");
  equal((await foldedOf(page))["app;main;parse"], 120, "merged recursion");
  await page.click("text=Merge recursion");
  await page.click(".panel .line >> text=memcpy");
  await page.click("text=Collapse library");
  check(Object.keys(await foldedOf(page)).some((line) => line.endsWith("lex;libc.so.6")), "a collapsed library");
  await page.click("text=collapsed: libc.so.6");
  await page.click(".panel .line >> text=parse");
  await page.click(".actions >> text=Focus");
  equal(sum(await foldedOf(page)), 420, "focus");
  await page.click("text=focus: parse");
  await page.click(".actions >> text=Callers and callees");
  equal(await page.evaluate(() => [stackprof.callers.callers.width, stackprof.callers.callees.width]), [420, 420], "callers and callees have the total of the function");
  await page.click(".tab >> text=Lines");
  check(/10.*11/s.test(await text(page, ".pane")), "lines of the function");
  await page.click(".tab >> text=Functions");
  await page.click(".table-head >> text=Total");
  equal(await text(page, ".table-row .name"), "main", "sorted by total");
  await page.dblclick(".table-row >> text=lex");
  equal(await page.evaluate(() => stackprof.state.view), "callers", "a double click opens callers and callees");
  await page.click(".menu summary");
  await page.click(".menu-list >> text=io (7)");
  equal(sum(await foldedOf(page)), 60, "one thread");
  equal(wrong, [], "no error and no request");
  await page.close();
}

/** The keyboard alone. */
async function keyboard(context) {
  current = "keyboard";
  const { page, wrong } = await open(context, "program.html");
  const press = async (...keys) => { for (const key of keys) await page.keyboard.press(key); };
  const selected = () => page.evaluate(() => stackprof.names.text(stackprof.computed.layout.tree.name[stackprof.flame.selected]));
  const state = (key) => page.evaluate((key) => stackprof.state[key], key);
  await press("ArrowDown", "ArrowDown", "ArrowDown");
  equal(await selected(), "parse", "arrows move to the heaviest callee");
  await press("ArrowRight");
  equal(await selected(), "write_out", "to the next box");
  await press("ArrowUp");
  equal(await selected(), "main", "and to the caller");
  await press("ArrowDown", "Enter");
  await page.waitForFunction(() => !stackprof.flame.animation);
  equal(await page.evaluate(() => stackprof.flame.view), [0, 420], "Enter zooms");
  check((await text(page, ".spoken")).startsWith("parse: 72.4% total"), "the box is spoken");
  await press("Backspace");
  equal((await state("path")).length, 2, "Backspace zooms out by one");
  await press("Escape");
  equal(await state("path"), [], "Escape zooms out");
  await press("/");
  await page.keyboard.type("write");
  await press("Enter");
  equal(await selected(), "write_out", "Enter in the search goes to the first match");
  await press("Escape");
  equal(await state("query"), "", "Escape takes the search away");
  for (const [key, name, value] of [["i", "invert", true], ["i", "invert", false], ["u", "upward", true], ["u", "upward", false], ["r", "recursion", true], ["r", "recursion", false], ["s", "stacks", "incomplete"], ["s", "stacks", "all"], ["b", "levels", false], ["b", "levels", true], ["c", "colour", "kind"], ["p", "panel", false], ["p", "panel", true], ["d", "theme", "dark"], ["d", "theme", "light"]]) {
    await press(key);
    equal(await state(name), value, `${key}: ${name}`);
  }
  await press("2", "Tab");
  await page.focus(".table-body");
  await press("ArrowDown", "ArrowDown", "Enter");
  equal(await state("view"), "callers", "a row of the table opens callers and callees");
  await press("f");
  check((await state("focus")) >= 0, "f focuses");
  await press("Escape");
  equal(await state("focus"), -1, "Escape takes the filters away");
  await press("4");
  equal(await state("view"), "source", "4: lines");
  await press("?");
  check(await page.evaluate(() => document.querySelector("dialog").open), "? shows the keys");
  await press("Escape");
  await press("1", "+");
  check((await page.evaluate(() => stackprof.flame.view[1] - stackprof.flame.view[0])) < 580, "+ zooms in");
  // Everything with a function can be reached.
  const reached = new Set();
  for (let step = 0; step < 60; step++) {
    await press("Tab");
    reached.add(await page.evaluate(() => document.activeElement?.textContent?.slice(0, 30) ?? ""));
  }
  for (const wanted of ["Flame graph", "Functions", "Callers first", "Merge recursion", "Panel", "?"]) check(reached.has(wanted), `Tab comes to \`${wanted}\``);
  equal(wrong, [], "no error and no request");
  await page.close();
}

/** Time: lanes, heat map, ranges. */
async function time(context) {
  current = "time";
  const [a, b, other] = [[], [], []];
  for (let ms = 0; ms < 4600; ms++) {
    if (ms % 230 < 100) a.push(ms * 1e6);
    else if (ms % 230 < 150) b.push(ms * 1e6);
    if (ms >= 2000 && ms < 4000) other.push(ms * 1e6);
  }
  const stacks = [{ stack: "app;main;a", samples: a, thread: ["main", 1] }, { stack: "app;main;b", samples: b, thread: ["main", 1] }, { stack: "app;run;<b>other", samples: other, thread: ["gc", 2] }];
  writeFileSync(join(directory, "time.html"), wrap(inPage(profile(stacks, { side: { duration_ns: 4600e6 }, events: [[1e9, 2e8, "lost: ring full"]] }))));
  const { page, wrong } = await open(context, "time.html");
  const whole = sum(await foldedOf(page));
  const drag = async (from, to, shift = false) => {
    const { x, y, width, height } = await page.evaluate(() => {
      const { left, top } = stackprof.time.canvas.getBoundingClientRect();
      const box = stackprof.time.box();
      return { x: left + box.left, y: top + box.top, width: box.width, height: box.height };
    });
    if (shift) await page.keyboard.down("Shift");
    await page.mouse.move(x + width * from, y + height / 2);
    await page.mouse.down();
    await page.mouse.move(x + width * ((from + to) / 2), y + height / 2);
    await page.mouse.move(x + width * to, y + height / 2);
    await page.mouse.up();
    if (shift) await page.keyboard.up("Shift");
  };
  const within = ([from, to], list) => list.filter((ns) => ns >= from && ns < to).length;
  await drag(0.5, 0.75);
  const range = await page.evaluate(() => stackprof.state.range);
  check(Math.abs(range[0] - 2300e6) < 10e6 && Math.abs(range[1] - 3450e6) < 10e6, `dragging selects ${range.map((ns) => (ns / 1e9).toFixed(3)).join(" to ")} s`);
  const inRange = await foldedOf(page);
  const expected = { "app;main (1);main;a": within(range, a), "app;main (1);main;b": within(range, b), "app;gc (2);run;<b>other": within(range, other) };
  equal(difference(inRange, expected), [], "the tree has the samples of the range");
  await drag(0.1, 0.3, true);
  const base = await page.evaluate(() => stackprof.state.baseRange);
  check(base !== null && (await page.evaluate(() => stackprof.computed.rows.base !== null)), "dragging with Shift compares");
  equal(await page.evaluate(() => stackprof.state.colour), "change", "by colour");
  equal((await foldedOf(page, true))["app;gc (2);run;<b>other"], undefined, "the busy thread is new");
  await page.click(".filter.base");
  await page.click(".time .filter");
  equal(sum(await foldedOf(page)), whole, "the whole is back");
  await page.click("text=Heat map");
  await page.screenshot({ path: join(directory, "time-heat.png") });
  await page.click("text=Lanes");
  await page.keyboard.press("g");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("Shift+ArrowRight");
  check((await page.evaluate(() => stackprof.state.range)) !== null, "keys select a range");
  await page.keyboard.press("Escape");
  equal(await page.evaluate(() => stackprof.state.range), null, "Escape takes it away");
  equal(await page.evaluate(() => document.querySelectorAll("b:not(.chip b):not(.matched b):not(.tip b)").length), 0, "a name is no markup");
  equal(wrong, [], "no error and no request");
  await page.close();
}

/** Two profiles. */
async function diff(context) {
  current = "diff";
  const { page, wrong } = await open(context, "diff.html");
  const [base, fresh] = [foldedFile("diff-base.folded"), foldedFile("diff-new.folded")];
  equal(difference(await foldedOf(page), fresh).slice(0, 3), [], "counts of new");
  equal(difference(await foldedOf(page, true), base).slice(0, 3), [], "counts of base");
  equal(await page.evaluate(() => stackprof.state.colour), "change", "coloured by change");
  check((await text(page, ".panel h2")).startsWith("What changed most"), "the panel shows what changed");
  const at = await place(page, "gone");
  await page.mouse.move(at.x, at.y);
  check((await text(page, ".tip")).includes("gone"), `what is gone has a box: ${await text(page, ".tip")}`);
  await page.screenshot({ path: join(directory, "diff.png") });
  equal(wrong, [], "no error and no request");
  await page.close();
}

/** Names that would be markup. */
async function hostile(context) {
  current = "hostile";
  const { page, wrong } = await open(context, "hostile.html");
  const elements = () => page.evaluate(() => [document.querySelectorAll("script").length, document.querySelectorAll("img, svg, iframe, object, embed, link, base, form, a, video").length, typeof window.hacked]);
  const there = foldedFile("hostile.folded");
  equal(difference(await foldedOf(page), there).slice(0, 3), [], "every name is as the file has it");
  for (const key of ["1", "2", "3", "4"]) {
    await page.keyboard.press(key);
    for (let id = 0; id < (await page.evaluate(() => stackprof.names.functions)); id++) {
      await page.evaluate((id) => stackprof.pick(id), id);
      await page.evaluate((id) => stackprof.hover(stackprof.computed.tree, [...stackprof.computed.tree.name].indexOf(id), 50, 50), id);
    }
    await page.evaluate(() => stackprof.update({ focus: 0 }));
    await page.evaluate(() => stackprof.update({ focus: -1, query: "<" }));
  }
  equal(await elements(), [2, 0, "undefined"], "no element and no script came of a name");
  check((await page.title()).includes("<img"), `the title is text: ${(await page.title()).slice(0, 60)}`);
  const blocked = await page.evaluate(() => {
    const tried = {};
    try { document.body.insertAdjacentHTML("beforeend", "<b>x</b>"); tried.markup = "ran"; } catch { tried.markup = "blocked"; }
    return tried;
  });
  equal(blocked.markup, "blocked", "the policy blocks markup from text");
  const fetched = await page.evaluate(() => fetch("https://example.invalid/").then(() => "sent", () => "blocked"));
  equal(fetched, "blocked", "the policy blocks requests");
  const layout = await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight);
  check(layout, "long names do not widen the page");
  await page.screenshot({ path: join(directory, "hostile.png") });
  check(wrong.every((message) => /Content Security Policy|TrustedHTML|trusted|Failed to fetch/i.test(message)), `nothing else went wrong: ${wrong.join("; ").slice(0, 300)}`);
  await page.close();
}

/** What was in use over time: mouse, keyboard, address, both themes. */
async function memoryOverTime(browser, context) {
  current = "memory";
  writeFileSync(join(directory, "memory.html"), wrap(inPage(memory())));
  const { page, wrong } = await open(context, "memory.html");
  const box = await page.evaluate(() => {
    const { x, y, width, height } = stackprof.memory.canvas.getBoundingClientRect();
    return { x, y, width, height };
  });
  // Where a second is, from the left of the areas.
  const across = (seconds) => box.x + 72 + (seconds / 10) * (box.width - 72);
  const mib = (lines) => Object.fromEntries(Object.entries(lines).map(([line, bytes]) => [line, bytes / 2 ** 20]));
  check((await text(page, ".chip b")) === "120.0 MiB", "the head says what is in use at the end");
  check((await text(page, "section[aria-label='memory in use over time']")).includes("peak 155.0 MiB at 5.50 s"), "the peak is named");
  const bottom = box.y + box.height - 5;
  await page.mouse.move(across(5), bottom);
  check(/leak.*< main.*50\.0 MiB.*150\.0 MiB in use at 5\.00 s/.test(await text(page, ".tip")), `hovering says ${await text(page, ".tip")}`);
  await page.screenshot({ path: join(directory, "memory-light.png") });
  await page.mouse.click(across(5), bottom);
  equal(mib(await foldedOf(page)), { "p;main;leak": 50, "p;main;cache": 20, "p;main;work;burst": 80 }, "a click shows what was in use then");
  check(page.url().includes("moment=50"), "the address has the moment");
  await page.keyboard.down("Shift");
  await page.mouse.click(across(2), bottom);
  await page.keyboard.up("Shift");
  equal(mib(await foldedOf(page, true)), { "p;main;leak": 20, "p;main;cache": 20 }, "a click with Shift shows what it is compared with");
  await page.screenshot({ path: join(directory, "memory-compared.png") });
  const again = await open(context, "memory.html", new URL(page.url()).hash);
  equal(await again.page.evaluate(() => [stackprof.state.moment, stackprof.state.baseMoment]), [50, 20], "the address brings both back");
  await again.page.close();
  await page.mouse.click(5, 5);
  await page.keyboard.press("Escape");
  equal(sum(mib(await foldedOf(page))), 120, "Escape goes back to the end");
  await page.keyboard.press("g");
  for (const key of ["Home", "ArrowRight", "ArrowRight"]) await page.keyboard.press(key);
  equal(mib(await foldedOf(page)), { "p;main;leak": 2 }, "keys choose a moment");
  equal(await page.evaluate(() => document.activeElement.getAttribute("aria-valuetext")), "2.0 MiB at 200 ms", "readers of screens are told");
  await page.keyboard.press("Escape");
  await page.click("text=peak 155.0 MiB");
  equal(sum(mib(await foldedOf(page))), 155, "a button shows the peak");
  await page.click(".legend-list button >> nth=0");
  equal(await page.evaluate(() => stackprof.names.text(stackprof.state.selected)), "leak", "the legend selects a caller");
  equal(wrong, [], "no error and no request");
  await page.close();
  if (existsSync(join(directory, "heap.html"))) {
    const { page, wrong } = await open(context, "heap.html");
    equal(difference(await foldedOf(page), foldedFile("heap.folded")).slice(0, 3), [], "a recording has the stacks of its folded ones");
    const ends = await page.evaluate(() => {
      const { inuse } = stackprof.data;
      const total = (moment) => stackprof.memory.areas.total[moment];
      const shown = (moment) => {
        stackprof.update({ moment });
        return stackprof.computed.rows.total;
      };
      const moments = [0, inuse.peak, inuse.time.length - 1];
      return [moments.map(total), moments.map(shown), stackprof.data.sides[0].total, stackprof.memory.areas.most];
    });
    equal(ends[1], ends[0], "areas are as high as what is shown of their moments");
    equal([ends[0][2], ends[0][1]], [ends[2], ends[3]], "the last moment is the end, and the highest the peak");
    equal(wrong, [], "no error and no request");
    await page.screenshot({ path: join(directory, "heap.png") });
    await page.close();
  }
  for (const [width, colorScheme] of [[700, "light"], [1400, "dark"]]) {
    const other = await browser.newContext({ viewport: { width, height: 700 }, colorScheme, offline: true });
    // A moment that is not there.
    const { page, wrong } = await open(other, "memory.html", "#moment=999");
    equal(wrong, [], `no error at ${width} px, ${colorScheme}`);
    check(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `nothing is beyond ${width} px`);
    await page.screenshot({ path: join(directory, `memory-${width}-${colorScheme}.png`) });
    await other.close();
  }
}

/** 100,000 boxes: what a frame paints depends on the window alone. How long it takes is printed, and decides nothing. */
async function large(context) {
  current = "large";
  const rng = random(3);
  const stacks = [];
  for (let stack = 0; stack < 6000; stack++) {
    let line = "app;main";
    for (let depth = 10 + rng.below(20); depth > 0; depth--) line += `;module_${rng.below(4000)}::call<T>@lib${rng.below(9)}.so`;
    stacks.push([line, 1 + rng.below(9)]);
  }
  writeFileSync(join(directory, "large.html"), wrap(inPage(profile(stacks))));
  const { page, wrong } = await open(context, "large.html");
  const figures = await page.evaluate(async () => {
    const { flame, computed: { layout } } = stackprof;
    const { fill } = Uint32Array.prototype;
    let fills = 0;
    let most = 0;
    const times = [];
    for (let frame = 0; frame < 60; frame++) {
      const size = layout.width * (0.02 + 0.98 * Math.abs(Math.cos(frame / 10)));
      const left = (layout.width - size) * Math.abs(Math.sin(frame / 15));
      flame.view = [left, left + size];
      Uint32Array.prototype.fill = function (...all) { fills++; return fill.apply(this, all); };
      fills = 0;
      const began = performance.now();
      flame.paint();
      times.push(performance.now() - began);
      Uint32Array.prototype.fill = fill;
      most = Math.max(most, fills);
      await new Promise((done) => requestAnimationFrame(done));
    }
    times.sort((a, b) => a - b);
    const levels = Math.ceil(flame.host.clientHeight / 20) + 1;
    return { boxes: layout.tree.count, most, limit: levels * (2 * flame.canvas.width + 2), median: times[30] };
  });
  check(figures.boxes > 100000, `${figures.boxes} boxes`);
  check(figures.most <= figures.limit, `a frame fills ${figures.most} boxes at most, ${figures.limit} have room`);
  console.log(`     large: a frame takes ${figures.median.toFixed(1)} ms in the middle of 60`);
  equal(wrong, [], "no error and no request");
  await page.close();
}

/** Pictures of the views, at two widths, light and dark. */
async function pictures(browser) {
  current = "pictures";
  const views = { flame: "", inverted: "#invert=1", functions: "#view=functions", callers: "#view=callers&selected=5", lines: "#view=source&selected=5", search: "#query=a" };
  for (const [width, height] of [[1000, 700], [2500, 1300]]) {
    for (const colorScheme of ["light", "dark"]) {
      const context = await browser.newContext({ viewport: { width, height }, colorScheme });
      for (const [view, address] of Object.entries(views)) {
        const { page, wrong } = await open(context, "recording.html", address);
        // Nothing is beyond the window, and no number beyond its cell, which would cut it off.
        const fits = await page.evaluate(() => {
          const cut = [...document.querySelectorAll(".cell .bar")].filter((bar) => bar.getBoundingClientRect().right > bar.closest(".cell").getBoundingClientRect().right);
          return document.documentElement.scrollWidth <= innerWidth && cut.length === 0;
        });
        await page.screenshot({ path: join(directory, `recording-${view}-${width}-${colorScheme}.png`) });
        if (!fits || wrong.length > 0) check(false, `${view} at ${width} px, ${colorScheme}: ${wrong.join("; ")}`);
        await page.close();
      }
      check(true, `views at ${width} px, ${colorScheme}`);
      await context.close();
    }
  }
}

const { chromium: launcher } = createRequire(import.meta.url)(playwright);
const browser = await launcher.launch({
  executablePath: chromium,
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});
// No network: a request fails.
const context = await browser.newContext({ viewport: { width: 1400, height: 800 }, colorScheme: "light", offline: true });
try {
  for (const name of ["recording", "threads", "merged"]) await numbers(context, name);
  await mouse(context);
  await keyboard(context);
  await time(context);
  await memoryOverTime(browser, context);
  await diff(context);
  await hostile(context);
  await large(context);
  await pictures(browser);
} catch (error) {
  failures.push(`${current}: ${error.stack}`);
}
await browser.close();
console.log(failures.length > 0 ? `${failures.length} failed:\n${failures.join("\n")}` : "the page works in the browser");
process.exit(failures.length > 0 ? 1 : 0);
