// The pipeline over time: what each warp does, and what is in flight meanwhile. Whole run above, a window below.
import { el, scroller, spans, svg } from "explorer/dom.js";
import { Warp } from "explorer/model.js";

/** @typedef {import("./types.js").Trace} Trace */

const LEFT = 96, WIDE = 900, ROW = 26, BAR = 14, BINS = 450, WINDOW = 240;
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
  const from = Math.max(Math.min(now - WINDOW / 2, end - WINDOW), 0);
  const drawn = scroller("Timeline, drawn", "drawing");
  drawn.append(
    el("p", { class: "soft" }, `Whole run: ${end.toLocaleString("en-US")} ticks; a tick is an instruction of the warp.`),
    strip(trace, warp, 0, end, now, go, BINS), el("p", { class: "soft" }, `Ticks ${from} to ${Math.min(from + WINDOW, end)}`),
    strip(trace, warp, from, Math.min(from + WINDOW, end), now, go, WINDOW));
  box.append(drawn);
  return box;
}

/** @param {Trace} trace */
function legend(trace) {
  const names = /** @type {Record<string, string>} */ ({ copy: "copy from global memory", stage: "store to shared memory",
    load: "load from shared memory", compute: "compute", barrier: "barrier, wait", store: "store to global memory", other: "other" });
  return el("ul", { class: "legend" }, ...trace.kinds.map((kind) => el("li", {}, el("span", { class: `swatch ${kind}` }), names[kind] ?? kind)),
    el("li", {}, el("span", { class: "swatch flight" }), "in flight"));
}

/**
 * @param {Trace} trace
 * @param {Warp} warp
 * @param {number} from
 * @param {number} to
 * @param {number} now
 * @param {(warp: number, step: number) => void} go
 * @param {number} bins
 */
function strip(trace, warp, from, to, now, go, bins) {
  bins = Math.min(bins, Math.max(to - from, 1));
  const high = trace.tracks.length * ROW + 4, scale = (WIDE - LEFT) / Math.max(to - from, 1);
  const tracks = trace.tracks.map((one) => (one === warp.track ? warp : new Warp(trace, one.warps[0])));
  const made = svg("svg", { viewBox: `0 0 ${WIDE} ${high}`, width: WIDE, height: high, role: "img",
    "aria-label": `Timeline of ${trace.tracks.length} groups of warps, ticks ${from} to ${to}, now at ${now}` });
  tracks.forEach((one, row) => {
    const y = row * ROW + 3;
    made.append(svg("text", { class: one.track === warp.track ? "row now" : "row", x: LEFT - 6, y: y + BAR - 3, "text-anchor": "end" },
      `warp ${spans(one.track.warps)}`));
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
    const hit = svg("rect", { class: "hit", x: LEFT, y, width: WIDE - LEFT, height: ROW - 4 });
    hit.addEventListener("click", (event) => {
      const box = hit.getBoundingClientRect();
      const clock = from + ((/** @type {MouseEvent} */ (event).clientX - box.left) / box.width) * (to - from);
      go(trace.detailed.find((number) => one.track.warps.includes(number)) ?? warp.number, stepAt(one, clock));
    });
    made.append(hit);
  });
  const x = LEFT + (now - from + 0.5) * scale;
  made.append(svg("line", { class: "now", x1: x, x2: x, y1: 0, y2: high }));
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
 * @param {SVGElement} into
 * @param {Warp} one
 * @param {number} from
 * @param {number} to
 * @param {number} scale
 * @param {number} y
 */
function flights(into, one, from, to, scale, y) {
  let last = -1;
  for (const [kind, first, until] of one.track.flights) {
    const begin = Math.max(one.clocks[first], from), stop = Math.min(one.clocks[until], to);
    if (stop <= begin || (begin - from) * scale < last) continue; // one bar where several overlap
    last = (stop - from) * scale;
    into.append(svg("rect", { class: "flight", x: LEFT + (begin - from) * scale, y, width: (stop - begin) * scale, height: 4 },
      svg("title", {}, kind === "copy" ? "cp.async until it is waited for" : "load until its value is read")));
  }
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
