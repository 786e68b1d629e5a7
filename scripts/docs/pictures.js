// Pictures of pages. Called by scripts/docs/pictures.sh: node pictures.js CHROMIUM PLAYWRIGHT DIRECTORY BUILD WORDS
// BUILD and WORDS are pages; pictures are written into DIRECTORY.

import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const [chromium, playwright, directory, build, words] = process.argv.slice(2);
const browser = await createRequire(import.meta.url)(resolve(playwright)).chromium.launch({ executablePath: chromium, args: ["--no-sandbox"] });

/** Takes a picture of a page after `act`, which runs in it. */
async function picture(name, file, height, colorScheme, act) {
  const page = await (await browser.newContext({ viewport: { width: 1280, height }, colorScheme })).newPage();
  await page.goto(`file://${resolve(file)}`);
  await page.waitForFunction(() => window.stackprof !== undefined);
  await page.evaluate(act);
  await page.waitForTimeout(500);
  await page.screenshot({ path: join(directory, `${name}.png`) });
  await page.close();
}

await picture("page", build, 680, "light", () => {});
await picture("ranges", build, 620, "dark", () => {
  const end = stackprof.time.endNs;
  stackprof.changeTime({ range: [0.62 * end, 0.78 * end], baseRange: [0.22 * end, 0.45 * end] });
});
await picture("heat", build, 500, "light", () => {
  stackprof.changeTime({ time: "heat" });
  stackprof.update({ view: "functions" });
});
await picture("lines", words, 700, "light", () => {
  const { names } = stackprof;
  const selected = [...Array(names.functions).keys()].find((id) => names.text(id) === "words::count");
  stackprof.update({ selected, view: "source" });
});
await browser.close();
