// Elements in one call, HTML and SVG.

const PARTS = "[tabindex], details";

/** @typedef {Record<string, string | number | boolean | undefined | ((event: any) => void)>} Attributes */

/**
 * @param {Element} made
 * @param {Attributes} attributes
 * @param {(Node | string)[]} children
 */
function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children);
}

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} name
 * @param {Attributes} [attributes] functions are listeners
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  fill(made, attributes, children);
  return made;
}

/**
 * @param {string} name
 * @param {Attributes} [attributes]
 * @param {...(Node | string)} children
 * @returns {SVGElement}
 */
export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  fill(made, attributes, children);
  return made;
}

/** @param {number} value */
export function grouped(value) {
  return value.toLocaleString("en-US");
}

/**
 * `0 to 3, 8`.
 * @param {number[]} numbers sorted
 */
export function spans(numbers) {
  const found = [];
  for (let i = 0; i < numbers.length; i++) {
    let j = i;
    while (j + 1 < numbers.length && numbers[j + 1] === numbers[j] + 1) j++;
    found.push(j === i ? `${numbers[i]}` : j === i + 1 ? `${numbers[i]}, ${numbers[j]}` : `${numbers[i]} to ${numbers[j]}`);
    i = j;
  }
  return found.join(", ");
}

/**
 * A part of the page that scrolls by itself, and so must take the focus.
 * @param {string} label
 * @param {string} kind
 * @param {...Node} children
 */
export function scroller(label, kind, ...children) {
  return el("div", { class: kind, role: "group", "aria-label": label, tabindex: 0 }, ...children);
}

/**
 * Replace what is drawn. What scrolls or folds, and is drawn again, keeps the focus, its place, and whether it is open.
 * @param {Element} into
 * @param {...Node} children
 */
export function redraw(into, ...children) {
  const kept = [...into.querySelectorAll(PARTS)].map((one) => ({ name: one.className, top: one.scrollTop, left: one.scrollLeft,
    open: one.hasAttribute("open"), focused: one.contains(document.activeElement) }));
  into.replaceChildren(...children);
  for (const made of /** @type {NodeListOf<HTMLElement>} */ (into.querySelectorAll(PARTS))) {
    const at = kept.findIndex((one) => one.name === made.className);
    if (at < 0) continue;
    const [before] = kept.splice(at, 1);
    if (made instanceof HTMLDetailsElement) made.open = before.open;
    if (before.focused) (made.querySelector("summary") ?? made).focus({ preventScroll: true });
    made.scrollTo(before.left, before.top);
  }
}
