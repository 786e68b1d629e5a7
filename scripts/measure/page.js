// How fast an .html output is in headless Chromium: opening, zoom and pan, selecting a range.
//   node scripts/measure/page.js CHROMIUM PLAYWRIGHT PAGE...
// PLAYWRIGHT is the directory of npm's playwright-core (scripts/check-html.sh installs it). Prints a table, medians with the
// slowest in brackets; gates nothing. Frames are those that requestAnimationFrame reports while the mouse zooms and pans. A range
// is answered when the frame after it is painted. CPU time is that of the page's main thread, which a machine that does
// something else does not change.

import { createRequire } from "node:module";
import { statSync } from "node:fs";
import { resolve } from "node:path";

const [chromium, playwright, ...pages] = process.argv.slice(2);
if (pages.length === 0) {
  console.error("node scripts/measure/page.js CHROMIUM PLAYWRIGHT PAGE...");
  process.exit(2);
}
const [WIDTH, HEIGHT] = [1600, 1000];
const browser = await createRequire(import.meta.url)(resolve(playwright)).chromium.launch({ executablePath: chromium, args: ["--no-sandbox"] });

const median = (list) => [...list].sort((a, b) => a - b)[list.length >> 1];
const at = (list, share) => [...list].sort((a, b) => a - b)[Math.floor((list.length - 1) * share)];
const rate = (frames) => `${(1000 / median(frames)).toFixed(0)} (slowest tenth ${(1000 / at(frames, 0.9)).toFixed(0)})`;

/** Notes the times of frames from here on. */
const watch = (page) => page.evaluate(() => {
  window.frames_ms = [];
  let last = performance.now();
  const frame = () => {
    const now = performance.now();
    window.frames_ms.push(now - last);
    last = now;
    window.frames_run = requestAnimationFrame(frame);
  };
  window.frames_run = requestAnimationFrame(frame);
});
const watched = (page) => page.evaluate(() => {
  cancelAnimationFrame(window.frames_run);
  return window.frames_ms.slice(2);
});

/** CPU time of the page's main thread so far, ms. */
async function cpuOf(session) {
  const { metrics } = await session.send("Performance.getMetrics");
  return metrics.find(({ name }) => name === "TaskDuration").value * 1000;
}

console.log("| page | MB | samples | boxes | opens, s; CPU | zoom, frames/s; CPU ms each | pan, frames/s; CPU ms each | range, ms; CPU | heat map, ms; CPU |");
console.log("|---|---|---|---|---|---|---|---|---|");
for (const file of pages) {
  const page = await (await browser.newContext({ viewport: { width: WIDTH, height: HEIGHT } })).newPage();
  const session = await page.context().newCDPSession(page);
  await session.send("Performance.enable", { timeDomain: "threadTicks" });
  const opened = [];
  const openedCpu = [];
  for (let round = 0; round < 5; round++) {
    await page.goto("about:blank");
    const cpu = await cpuOf(session);
    const begin = performance.now();
    await page.goto(`file://${resolve(file)}`);
    await page.waitForFunction(() => window.stackprof !== undefined);
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    opened.push((performance.now() - begin) / 1000);
    const all = await cpuOf(session);
    openedCpu.push((all >= cpu ? all - cpu : all) / 1000);
  }
  const facts = await page.evaluate(() => ({
    samples: stackprof.data.samples ? stackprof.data.samples.time.length : 0,
    boxes: stackprof.computed.layout.tree.count,
  }));
  const flame = await page.locator(".flame canvas").first().boundingBox();
  const [x, y] = [flame.x + flame.width / 2, flame.y + flame.height / 2];
  await page.mouse.move(x, y);
  await page.keyboard.down("Control");
  await watch(page);
  const zoomBegin = await cpuOf(session);
  for (let step = 0; step < 60; step++) await page.mouse.wheel(0, step < 30 ? -40 : 40);
  const zoomed = await watched(page);
  const zoomCpu = ((await cpuOf(session)) - zoomBegin) / zoomed.length;
  await page.mouse.wheel(0, -400);
  await page.keyboard.up("Control");
  await watch(page);
  const panBegin = await cpuOf(session);
  await page.mouse.down();
  for (let step = 0; step < 60; step++) await page.mouse.move(x + 150 * Math.sin(step / 6), y + 20 * Math.cos(step / 6));
  const panned = await watched(page);
  const panCpu = ((await cpuOf(session)) - panBegin) / panned.length;
  await page.mouse.up();
  // The state that a drag in the lanes leaves: what follows it is all there is to answer.
  const times = (state) => page.evaluate(async (state) => {
    const taken = [];
    const end = stackprof.time.endNs || 0;
    for (let part = 0; part < 9 && end > 0; part++) {
      const range = state.range ? [(end * part) / 12, (end * (part + 4)) / 12] : null;
      const begin = performance.now();
      stackprof.changeTime({ ...state, range });
      await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
      taken.push(performance.now() - begin);
    }
    stackprof.changeTime({ range: null, time: "lanes" });
    return taken;
  }, state);
  const answered = async (state) => {
    const begin = await cpuOf(session);
    const list = await times(state);
    const cpu = ((await cpuOf(session)) - begin) / (list.length + 1);
    return list.length ? `${median(list).toFixed(0)} (${Math.max(...list).toFixed(0)}); ${cpu.toFixed(0)}` : "-";
  };
  const range = await answered({ range: true });
  const heat = await answered({ time: "heat", range: true });
  const cells = [
    file.replace(/.*\//, ""), (statSync(file).size / 1e6).toFixed(2), facts.samples, facts.boxes,
    `${median(opened).toFixed(2)} (${Math.max(...opened).toFixed(2)}); ${median(openedCpu).toFixed(2)}`,
    `${rate(zoomed)}; ${zoomCpu.toFixed(1)}`, `${rate(panned)}; ${panCpu.toFixed(1)}`, range, heat,
  ];
  console.log(`| ${cells.join(" | ")} |`);
  await page.close();
}
await browser.close();
