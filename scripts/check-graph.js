// Opens flame graphs in a real browser and uses them as people do. Called by check-graph.sh:
//   node check-graph.js CHROMIUM PLAYWRIGHT DIRECTORY
// Reads DIRECTORY/*.svg, writes a picture beside each, prints one line a check, exits 1 if one failed.
"use strict";
const [chromium, playwright, directory] = process.argv.slice(2);
const fs = require("fs");
const path = require("path");

// What a graph has to show: a frame to zoom to, tooltips, and what a search finds.
const GRAPHS = {
  recording: { zoom: /^demo_calls_|recurse /, search: "burn_50_percent", share: [35, 65] },
  base: {
    zoom: /^db::query /, search: "^json::", share: [29.6, 29.7],
    tooltips: ["json::encode (2,200 samples, 29.65%)", "all (7,420 samples, 100%)", "main (7,300 samples, 98.38%)"],
  },
  "blue-orange": { like: "base" },
  dark: { like: "base", background: "rgb(27, 29, 33)" },
  diff: {
    zoom: /^db::query /, search: "new_cache|gc::sweep",
    tooltips: [
      "new_cache::get (base 0 samples, 0.00%; new 250 samples, 3.44%; only in new)",
      "old_cache::lookup(std::vector<int, std::allocator<int> > const&) (base 700 samples, 9.43%; new 0 samples, 0.00%; only in base)",
      "gc::sweep (base 800 samples, 10.78%; new 500 samples, 6.87%; -37.5%)",
    ],
    grown: ["serde_json::ser::to_vec", "json::encode"], shrunk: ["gc::sweep", "db::query"],
  },
  tall: { zoom: /^level_120/, search: "^level_01", subtitle: "lower 101 of 152 levels: 3.9% of samples" },
  "tall-bottom": { like: "tall", subtitle: "upper 101 of 152 levels: 3.9% of samples" },
  "tall-diff": { like: "tall", subtitle: "upper 101 of 152 levels: 3.7% of samples" },
  wide: { zoom: /^leaf_/, search: "^leaf_", timed: true },
};

// So many times what the picture alone takes.
const TIMES_PICTURE = 3;

const failures = [];
let current = "";
function check(holds, what) {
  if (!holds) failures.push(`${current}: ${what}`);
  console.log(`${holds ? "ok  " : "FAIL"} ${current}: ${what}`);
}

// In the page: the frames with name, tooltip and place.
function frames() {
  return [...document.getElementById("frames").children].map((group) => {
    const rect = group.querySelector("rect");
    const title = group.querySelector("title").textContent;
    return {
      title, name: title.replace(/ \([^(]*\)$/, ""),
      hidden: group.classList.contains("hide"),
      x: parseFloat(rect.getAttribute("x")), width: parseFloat(rect.getAttribute("width")),
      fill: rect.getAttribute("fill"), text: group.querySelector("text").textContent,
    };
  });
}

const painted = (page) =>
  page.evaluate(() => new Promise((done) =>
    setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 0)));
const shown = (page, id) =>
  page.evaluate((id) => getComputedStyle(document.getElementById(id)).display !== "none", id);
const text = (page, id) => page.evaluate((id) => document.getElementById(id).textContent, id);

// Whether an element is in the window, and nothing above it.
const visible = (page, id) => page.evaluate((id) => {
  const element = document.getElementById(id);
  const { x, y, width, height } = element.getBoundingClientRect();
  if (x < 0 || y < 0 || x + width > innerWidth || y + height > innerHeight) return false;
  return document.elementFromPoint(x + width / 2, y + height / 2) === element;
}, id);

// Where it opens, and what stays in the window when it is scrolled.
async function look(page, wanted) {
  const root = await page.evaluate(() => {
    const all = [...document.getElementById("frames").children].find((group) => /^all \(/.test(group.textContent));
    const { top, bottom } = all.querySelector("rect").getBoundingClientRect();
    return top >= 0 && bottom <= innerHeight;
  });
  check(root, "opens at its root");
  if (wanted.subtitle) {
    check((await text(page, "subtitle")).includes(wanted.subtitle), `the subtitle says \`${wanted.subtitle}\``);
  }
  for (const to of ["0", "innerHeight / 2", "document.documentElement.height.baseVal.value"]) {
    await page.evaluate((to) => window.scrollTo(0, eval(to)), to);
    await painted(page);
    const seen = [await visible(page, "title"), await visible(page, "subtitle"), await visible(page, "search")];
    check(seen.every((seen) => seen), `heading and Search are in the window scrolled to ${to}`);
  }
}

// The middle of a frame on the screen.
async function place(page, index) {
  const box = await page.evaluate((index) => {
    const rect = document.getElementById("frames").children[index].querySelector("rect");
    rect.scrollIntoView({ block: "center" });
    const { x, y, width, height } = rect.getBoundingClientRect();
    return { x: x + width / 2, y: y + height / 2 };
  }, index);
  return box;
}

async function use(page, wanted) {
  const before = await page.evaluate(frames);
  check(before.length > 5, `${before.length} frames`);
  check(before.every((frame) => /^[^]+ \([^()]*\d sample[^()]*\)$/.test(frame.title)), "every tooltip has samples and share");
  check(before.some((frame) => frame.text.trim() === frame.name && frame.name.length > 3), "names stand in wide frames");
  for (const tooltip of wanted.tooltips || []) {
    check(before.some((frame) => frame.title === tooltip), `tooltip \`${tooltip}\``);
  }
  const warmth = (frame) => { const [r, , b] = frame.fill.match(/\d+/g).map(Number); return r - b; };
  const find = (name) => before.find((frame) => frame.name === name);
  for (const name of wanted.grown || []) check(warmth(find(name)) > 30, `${name} is warm`);
  for (const name of wanted.shrunk || []) check(warmth(find(name)) < -10, `${name} is cold`);
  if (wanted.background) {
    const background = await page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
    check(background === wanted.background, `the page is ${background}`);
  }

  // Hover.
  const candidates = before.map((frame, index) => ({ frame, index })).filter(({ frame }) => wanted.zoom.test(frame.title));
  const { frame, index } = candidates.reduce((a, b) => (b.frame.width > a.frame.width ? b : a));
  let { x, y } = await place(page, index);
  await page.mouse.move(x, y);
  check((await text(page, "details")) === `Function: ${frame.title}`, `hovering shows \`${frame.title}\``);

  // Zoom, and back.
  await page.mouse.click(x, y);
  const zoomed = await page.evaluate(frames);
  check(Math.abs(zoomed[index].width - 100) < 0.01 && zoomed[index].x < 0.01, `${frame.name} fills the width when clicked`);
  check(zoomed.some((frame) => frame.hidden) && (await shown(page, "unzoom")), "other frames are hidden, Reset Zoom is shown");
  await page.screenshot({ path: path.join(directory, `${current}-zoomed.png`) });
  check(await visible(page, "unzoom"), "Reset Zoom is in the window");
  await page.click("#unzoom");
  const after = await page.evaluate(frames);
  check(after.every((frame, i) => !frame.hidden && Math.abs(frame.width - before[i].width) < 0.001 && Math.abs(frame.x - before[i].x) < 0.001),
    "Reset Zoom puts every frame back");
  check(!(await shown(page, "unzoom")), "Reset Zoom is gone");

  // Search: the share of the width under matching frames, each place counted once.
  page.once("dialog", (dialog) => dialog.accept(wanted.search));
  await page.click("#search");
  const expression = new RegExp(wanted.search);
  let covered = 0, end = -1;
  for (const frame of before.filter((frame) => expression.test(frame.title)).sort((a, b) => a.x - b.x || b.width - a.width)) {
    if (frame.x >= end - 1e-3) { covered += frame.width; end = frame.x + frame.width; }
  }
  const matched = parseFloat((await text(page, "matched")).replace(/^Matched: /, ""));
  check(Math.abs(matched - covered) < 0.06, `search for /${wanted.search}/ matches ${matched}%, ${covered.toFixed(2)}% by the frames`);
  if (wanted.share) check(matched > wanted.share[0] - 0.1 && matched < wanted.share[1] + 0.1, `which is in ${wanted.share.join(" to ")}%`);
  check(await visible(page, "matched"), "what was matched is in the window");
  const found = await page.evaluate(frames);
  check(found.every((frame, i) => expression.test(frame.title) === (frame.fill !== before[i].fill)), "exactly the matching frames are marked");
  await page.screenshot({ path: path.join(directory, `${current}-searched.png`) });
  await page.click("#search");
  check((await page.evaluate(frames)).every((frame, i) => frame.fill === before[i].fill), "Reset Search takes the marks away");
}

// CPU time of each process of the browser, in seconds.
function browserSeconds() {
  const processes = fs.readdirSync("/proc").filter((name) => /^\d+$/.test(name)).flatMap((pid) => {
    try {
      const fields = fs.readFileSync(`/proc/${pid}/stat`, "latin1").replace(/^.*\) /, "").split(" ");
      return [{ pid: Number(pid), parent: Number(fields[1]), ticks: Number(fields[11]) + Number(fields[12]) }];
    } catch { return []; } // It has ended.
  });
  const ours = new Set([process.pid]);
  for (let size = 0; size !== ours.size;) {
    size = ours.size;
    for (const { pid, parent } of processes) if (ours.has(parent)) ours.add(pid);
  }
  ours.delete(process.pid);
  return new Map(processes.filter(({ pid }) => ours.has(pid)).map(({ pid, ticks }) => [pid, ticks / 100]));
}

// CPU time of the browser since `before`. Where other programs keep the CPUs busy it tells
// what the clock does not: how long it takes on a free one, at most. The process of the page
// is among those that run; one that has ended belonged to the page before.
function secondsSince(before) {
  return [...browserSeconds()].reduce((sum, [pid, seconds]) => sum + seconds - (before.get(pid) || 0), 0);
}

// What it takes to open, paint and zoom a picture, beside what the browser takes for the picture alone: the same file
// without its script. How fast the machine is, and what else runs there, is in both.
async function time(context, file, errors) {
  const plain = `plain-${file}`;
  const svg = fs.readFileSync(path.join(directory, file), "utf8");
  const without = svg.replace(/<script[^>]*>[\s\S]*?<\/script>/g, "").replace(/ onload="[^"]*"/, "");
  check(without.length < svg.length - 1000, "there is a script to be left out");
  fs.writeFileSync(path.join(directory, plain), without);
  const one = async (file, zoom) => {
    const before = browserSeconds();
    const page = await open(context, file, errors);
    if (zoom) {
      await page.evaluate(() => {
        const groups = [...document.getElementById("frames").children];
        const group = groups.find((group) => /^leaf_/.test(group.textContent));
        group.querySelector("rect").dispatchEvent(new MouseEvent("click", { bubbles: true }));
      });
      await painted(page);
    }
    const seconds = secondsSince(before);
    await page.close();
    return seconds;
  };
  const whole = [], alone = [];
  for (let round = 0; round < 5; round++) {
    whole.push(await one(file, true));
    alone.push(await one(plain, false));
  }
  const list = (numbers) => numbers.map((number) => number.toFixed(2)).join(", ");
  check(Math.min(...whole) < TIMES_PICTURE * Math.min(...alone),
    `opened, painted and zoomed in ${list(whole)} s of the browser's CPU time, the picture alone in ${list(alone)} s`);
}

async function open(context, file, errors) {
  const page = await context.newPage();
  page.on("pageerror", (error) => errors.push(error.message));
  page.on("console", (message) => { if (message.type() === "error") errors.push(message.text()); });
  await page.goto(`file://${path.join(directory, file)}`);
  await painted(page);
  return page;
}

async function main() {
  const browser = await require(playwright).chromium.launch({
    executablePath: chromium,
    args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
      "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  });
  const context = await browser.newContext({ viewport: { width: 1400, height: 800 } });
  for (const [name, graph] of Object.entries(GRAPHS)) {
    current = name;
    const wanted = { ...GRAPHS[graph.like], ...graph };
    const errors = [];
    const file = `${name}.svg`;
    if (wanted.timed) await time(context, file, errors);
    const page = await open(context, file, errors);
    await page.screenshot({ path: path.join(directory, `${name}.png`) });
    await look(page, wanted);
    await use(page, wanted);
    check(errors.length === 0, `no script error ${errors.join("; ")}`);
    await page.close();
  }
  await browser.close();
}

main().then(() => {
  console.log(failures.length ? `${failures.length} failed:\n${failures.join("\n")}` : "every graph works in the browser");
  process.exit(failures.length ? 1 : 0);
}, (error) => { console.error(`check-graph: ${current}: ${error.stack}`); process.exit(1); });
