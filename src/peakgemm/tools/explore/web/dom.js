// Elements in one call, HTML and SVG.

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
 */
export function scroller(label, kind) {
  return el("div", { class: kind, role: "region", "aria-label": label, tabindex: 0 });
}
