// Elements of the page. Text from a profile comes in as text nodes and attributes only; nothing here, nor anywhere else in
// the page, parses markup.

/**
 * The content of an element; lists in lists are allowed.
 * @typedef {Node | string | number | null | undefined | false | any[]} Child
 */

/**
 * `element("button.chip", { title: "…", onclick: f }, "text")`. Keys that begin with `on` are listeners, others attributes;
 * `false`, `null` and `undefined` leave an attribute out.
 * @param {string} tag with classes
 * @param {Record<string, any>} [attributes]
 * @param {...Child} children
 * @returns {HTMLElement}
 */
export function element(tag, attributes, ...children) {
  const [name, ...classes] = tag.split(".");
  const made = document.createElement(name);
  if (classes.length > 0) made.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === false || value === null || value === undefined) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...nodes(children));
  return made;
}

/**
 * @param {Child[]} children
 * @returns {(Node | string)[]}
 */
function nodes(children) {
  /** @type {(Node | string)[]} */
  const out = [];
  for (const child of children.flat(4)) {
    if (child === null || child === undefined || child === false) continue;
    out.push(typeof child === "number" ? String(child) : child);
  }
  return out;
}

/**
 * Puts these in the place of all that an element has.
 * @param {Element} host
 * @param {...Child} children
 */
export function fill(host, ...children) {
  host.replaceChildren(...nodes(children));
}

/**
 * A button that is on or off.
 * @param {string} text
 * @param {boolean} isOn
 * @param {string} title
 * @param {() => void} onclick
 */
export function toggle(text, isOn, title, onclick) {
  return element("button.toggle", { type: "button", "aria-pressed": isOn ? "true" : "false", title, onclick }, text);
}

/**
 * A share as a bar with its number.
 * @param {number} share 0 to 1
 * @param {string} text
 * @param {string} kind a class
 */
export function bar(share, text, kind) {
  const filled = element(`span.bar-fill.${kind}`);
  filled.style.width = `${Math.max(0, Math.min(1, share || 0)) * 100}%`;
  return element("span.bar", {}, filled, element("span.bar-text", {}, text));
}
