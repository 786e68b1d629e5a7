// The modules as one script: each imports only what stands before it, and no two have a name in common.

import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { test } from "node:test";
import vm from "node:vm";
import { MODULES, moduleText, script } from "./page.js";

test("every module of crates/profile/src/html is in the page", () => {
  const files = readdirSync(new URL("../../crates/profile/src/html/", import.meta.url)).filter((name) => name.endsWith(".js"));
  assert.deepEqual([...MODULES].sort(), files.sort());
});

test("a module imports, in one line each, only modules that stand before it", () => {
  MODULES.forEach((name, index) => {
    for (const line of moduleText(name).split("\n").filter((text) => text.startsWith("import"))) {
      const found = /^import \{ [\w, ]+ \} from "\.\/(\w+\.js)";$/.exec(line);
      assert.ok(found, `${name}: ${line}`);
      assert.ok(MODULES.indexOf(found[1]) < index && MODULES.includes(found[1]), `${name} stands before ${found[1]}`);
    }
  });
});

test("each name at the top of a module is there once", () => {
  const known = new Map();
  for (const name of MODULES) {
    for (const [, word] of moduleText(name).matchAll(/^(?:export )?(?:async )?(?:const|let|class|function) (\w+)/gm)) {
      assert.ok(!known.has(word), `\`${word}\` is in ${known.get(word)} and ${name}`);
      known.set(word, name);
    }
    // Several in one statement would not be seen above.
    assert.doesNotMatch(moduleText(name), /^(?:export )?(?:const|let) [[{]/m);
  }
});

test("modules are short", () => {
  for (const name of MODULES) {
    const lines = moduleText(name).split("\n").length;
    assert.ok(lines <= 400, `${name} has ${lines} lines`);
    assert.match(moduleText(name), /^\/\/ /, `${name} does not begin with what it is for`);
  }
});

test("the script is one that a browser understands", () => {
  new vm.Script(`(async () => {${script()}})`);
});
