// The place that one looks at, as the fragment of a URL: #k=03&i=41.0&w=0&l=5, and k2, i2, w2, l2 of a second kernel;
// v=timeline brings the pipeline over time into view.

/** @typedef {import("./types.js").Place} Place */

/**
 * @param {string} text `#k=...`
 * @returns {Place[]}
 */
export function parse(text) {
  const words = new URLSearchParams(text.replace(/^#/, ""));
  const found = [];
  for (const suffix of ["", "2"]) {
    const kernel = words.get(`k${suffix}`);
    if (kernel === null) break;
    const [instruction, occurrence] = (words.get(`i${suffix}`) ?? "").split(".").map((word) => number(word, -1));
    found.push({ kernel, instruction: instruction ?? -1, occurrence: occurrence ?? 0,
      warp: number(words.get(`w${suffix}`), -1), lane: Math.min(number(words.get(`l${suffix}`), 0), 31) });
  }
  return found;
}

/**
 * The part of the page that is brought into view: `v=timeline`; "": none is asked for.
 * @param {string} text
 */
export function part(text) {
  return new URLSearchParams(text.replace(/^#/, "")).get("v") === "timeline" ? "timeline" : "";
}

/**
 * @param {Place[]} places
 * @param {string} [part]
 */
export function format(places, part = "") {
  return "#" + places.map((one, at) => {
    const suffix = at ? "2" : "";
    return `k${suffix}=${encodeURIComponent(one.kernel)}&i${suffix}=${one.instruction}.${one.occurrence}` +
      `&w${suffix}=${one.warp}&l${suffix}=${one.lane}`;
  }).join("&") + (part ? `&v=${part}` : "");
}

/**
 * @param {string | null | undefined} text
 * @param {number} otherwise
 */
function number(text, otherwise) {
  return text && /^\d{1,9}$/.test(text) ? Number(text) : otherwise;
}
