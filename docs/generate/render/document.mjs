// As much of a document as the drawings need where there is no browser: elements that become markup.

const ESCAPES = /** @type {Record<string, string>} */ ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" });

/** @param {string} text */
function escaped(text) {
  return text.replace(/[&<>"]/g, (one) => ESCAPES[one]);
}

class Made {
  /** @param {string} name */
  constructor(name) {
    this.name = name;
    /** @type {[string, string][]} */
    this.attributes = [];
    /** @type {(Made | string)[]} */
    this.children = [];
  }

  /**
   * @param {string} name
   * @param {string} value
   */
  setAttribute(name, value) {
    this.attributes.push([name, value]);
  }

  /** @param {...(Made | string)} children */
  append(...children) {
    this.children.push(...children);
  }

  addEventListener() {} // nobody clicks on markup

  /** @returns {string} */
  toString() {
    const inner = this.children.map((one) => (typeof one === "string" ? escaped(one) : one.toString())).join("");
    return `<${this.name}${this.attributes.map(([name, value]) => ` ${name}="${escaped(value)}"`).join("")}>${inner}</${this.name}>`;
  }
}

Object.assign(globalThis, { document: {
  createElement: (/** @type {string} */ name) => new Made(name),
  createElementNS: (/** @type {string} */ _, /** @type {string} */ name) => new Made(name),
} });
