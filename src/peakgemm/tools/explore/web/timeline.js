// The pipeline over time: what each warp does, and what is in flight meanwhile. Whole run above, a window below.
import { el, scroller, spans, svg } from "explorer/dom.js";
import { Warp } from "explorer/model.js";

/** @typedef {import("./types.js").Trace} Trace */

const LEFT = 96, WIDE = 900, ROW = 32, BAR = 14, BINS = 450, WINDOW = 240;
// What is drawn where several kinds fall together: the rarer tells more.
const WEIGHT = ["other", "compute", "load", "stage", "store", "copy", "barrier"];

/**
 * @param {Trace} trace
 * @param {Warp} warp
 * @param {number} step
 * @param {(warp: number, step: number) => void} go
 */
export function drawTimeline(trace, warp, step, go) {
  const end = Math.max(...trace.tracks.map((one) => one.end), 1);
  const now = warp.clocks[step] ?? 0;
  const box = el("section", { class: "timeline" }, el("h3", {}, "Pipeline over time"),
    legend(trace));
  const [from, to] = windowAt(now, end);
  box.append(scroller("Timeline, drawn", "drawing",
    el("p", { class: "soft" }, `Whole run: ${end.toLocaleString("en-US")} ticks; a tick is an instruction of the warp.`),
    strip(trace, warp, 0, end, now, go), el("p", { class: "soft" }, `Ticks ${from} to ${to}`),
    strip(trace, warp, from, to, now, go, WINDOW)));
  return box;
}

/**
 * The ticks around `now` that are drawn large.
 * @param {number} now
 * @param {number} end
 * @returns {[number, number]}
 */
export function windowAt(now, end) {
  const from = Math.max(Math.min(now - WINDOW / 2, end - WINDOW), 0);
  return [from, Math.min(from + WINDOW, end)];
}

/** @type {Record<string, string>} */
export const NAMES = { copy: "copy from global memory", stage: "store to shared memory", load: "load from shared memory",
  compute: "compute", barrier: "barrier, wait", store: "store to global memory", other: "other" };

/** @param {Trace} trace */
export function legend(trace) {
  return el("ul", { class: "legend" }, ...trace.kinds.map((kind) => el("li", {}, el("span", { class: `swatch ${kind}` }), NAMES[kind] ?? kind)),
    el("li", {}, el("span", { class: "swatch flight" }), "in flight"));
}

/**
 * @param {Trace} trace
 * @param {Warp} warp
 * @param {number} from
 * @param {number} to
 * @param {number} now -1: nowhere
 * @param {((warp: number, step: number) => void) | null} go null: nothing is clicked
 * @param {number} [bins]
 * @param {number} [wide]
 */
export function strip(trace, warp, from, to, now, go, bins = BINS, wide = WIDE) {
  bins = Math.min(bins, Math.max(to - from, 1));
  const high = trace.tracks.length * ROW + 4, scale = (wide - LEFT) / Math.max(to - from, 1);
  const tracks = trace.tracks.map((one) => (one === warp.track ? warp : new Warp(trace, one.warps[0])));
  const made = svg("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, role: "img",
    "aria-label": `Timeline of ${trace.tracks.length} groups of warps, ticks ${from} to ${to}${now < 0 ? "" : `, now at ${now}`}` });
  tracks.forEach((one, row) => {
    const y = row * ROW + 3;
    made.append(svg("text", { class: one.track === warp.track ? "row now" : "row", x: LEFT - 6, y: y + BAR - 3, "text-anchor": "end" },
      svg("tspan", { class: "minor" }, "warp "), spans(one.track.warps)));
    let start = 0, kind = "";
    const bin = (to - from) / bins;
    const kinds = binned(one, from, to, bins);
    for (let at = 0; at <= bins; at++) {
      if (at < bins && kinds[at] === kind) continue;
      if (kind)
        made.append(svg("rect", { class: `tick ${kind}`, x: LEFT + start * bin * scale, y, width: Math.max((at - start) * bin * scale, 0.5), height: BAR }));
      [start, kind] = [at, kinds[at] ?? ""];
    }
    flights(made, one, from, to, scale, y + BAR + 2);
    if (!go) return;
    const hit = svg("rect", { class: "hit", x: LEFT, y, width: wide - LEFT, height: ROW - 4 });
    hit.addEventListener("click", (event) => {
      const box = hit.getBoundingClientRect();
      const clock = from + ((/** @type {MouseEvent} */ (event).clientX - box.left) / box.width) * (to - from);
      go(trace.detailed.find((number) => one.track.warps.includes(number)) ?? warp.number, stepAt(one, clock));
    });
    made.append(hit);
  });
  const x = LEFT + (now - from + 0.5) * scale;
  if (now >= 0) made.append(svg("line", { class: "now", x1: x, x2: x, y1: 0, y2: high }));
  return made;
}

/**
 * @param {Warp} one
 * @param {number} from
 * @param {number} to
 * @param {number} bins
 */
function binned(one, from, to, bins) {
  const kinds = new Array(bins).fill("");
  for (let step = stepAt(one, from); step < one.length && one.clocks[step] < to; step++) {
    const at = Math.floor(((one.clocks[step] - from) * bins) / (to - from));
    const kind = one.trace.kinds[one.trace.code[one.steps[step]]?.kind ?? 0];
    if (at >= 0 && (kinds[at] === "" || WEIGHT.indexOf(kind) > WEIGHT.indexOf(kinds[at]))) kinds[at] = kind;
  }
  return kinds;
}

/**
 * What is in flight, in up to three rows: more at a time than these share the last.
 * @param {SVGElement} into
 * @param {Warp} one
 * @param {number} from
 * @param {number} to
 * @param {number} scale
 * @param {number} y
 */
function flights(into, one, from, to, scale, y) {
  /** @type {[string, number, number][][]} */
  const rows = [[], [], []];
  for (const [kind, first, until] of one.track.flights) {
    const begin = Math.max(one.clocks[first], from), stop = Math.min(one.clocks[until], to);
    if (stop <= begin) continue;
    const row = rows.find((taken) => (taken.at(-1)?.[2] ?? from) <= begin), last = rows[2].at(-1);
    if (row) row.push([kind, begin, stop]);
    else if (last) last[2] = Math.max(last[2], stop);
  }
  rows.forEach((row, at) => {
    for (const [kind, begin, stop] of row)
      into.append(svg("rect", { class: "flight", x: LEFT + (begin - from) * scale, y: y + at * 4, width: (stop - begin) * scale, height: 3 },
        svg("title", {}, kind === "copy" ? "cp.async until it is waited for" : "load until its value is read")));
  });
}

/**
 * The first step that does not end before `clock`.
 * @param {Warp} one
 * @param {number} clock
 */
export function stepAt(one, clock) {
  let low = 0, high = one.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (one.clocks[middle] + 1 > clock) high = middle;
    else low = middle + 1;
  }
  return Math.max(low, 0);
}
