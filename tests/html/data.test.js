// Bytes to numbers, and numbers to a profile.

import assert from "node:assert/strict";
import { test } from "node:test";
import { bytesOfBase64, column, gunzip } from "../../crates/profile/src/html/bytes.js";
import { decode, hasThreads, sourceText, threadName } from "../../crates/profile/src/html/data.js";
import { encodeColumn, inPage, profile } from "./page.js";
import { random } from "./random.js";

test("columns of any numbers come back as they were", () => {
  const rng = random(1);
  for (const form of ["plain", "delta", "back"]) {
    for (let round = 0; round < 50; round++) {
      const numbers = Array.from({ length: rng.below(40) }, (_, index) =>
        form === "back" ? rng.below(index + 1) : Math.floor(rng.part() * 2 ** rng.below(53)),
      );
      const bytes = Uint8Array.from(encodeColumn(form, numbers));
      assert.deepEqual([...column(bytes, 0, numbers.length, form)], numbers, form);
    }
  }
});

test("a column that ends early reads as zeros, and ends", () => {
  assert.deepEqual([...column(Uint8Array.of(5, 0x80), 0, 4, "plain")], [5, 0, 0, 0]);
});

test("data comes through base64 and gzip", async () => {
  const data = decode(await gunzip(bytesOfBase64(inPage(profile([["p;main;é\u202e", 3]])))));
  assert.equal(data.strings[data.functions.name[1]], "é\u202e");
  assert.deepEqual([...data.counts.value], [3]);
  assert.equal(data.samples, null);
  assert.equal(data.compare, null);
});

test("another form is refused by its number", () => {
  assert.throws(() => decode(profile([["p;a", 1]], { header: { form: 2 } })), /form 2/);
});

test("threads have names where they are kept apart", () => {
  const merged = decode(profile([["p;a", 1]]));
  assert.ok(!hasThreads(merged));
  assert.equal(threadName(merged, 0), "p");
  const apart = decode(profile([{ stack: "p;a", count: 1, thread: ["io", 7] }]));
  assert.ok(hasThreads(apart));
  assert.equal(threadName(apart, 0), "io (7)");
});

test("a source file is found by its path alone", () => {
  const data = decode(profile([["p;a", 1]], { sources: { "/src/a.c": "int x;" } }));
  assert.equal(sourceText(data, "/src/a.c"), "int x;");
  for (const name of ["constructor", "__proto__", "toString", ""]) assert.equal(sourceText(data, name), undefined, name);
  assert.equal(sourceText(decode(profile([["p;a", 1]])), "constructor"), undefined);
});
