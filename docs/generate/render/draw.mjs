// Views of a trace as the explorer draws them, chosen by what they are to show, for a page that is not the explorer.
import "explorer/document.mjs";
import { accessDrawing } from "explorer/access.js";
import { format } from "explorer/fragment.js";
import { Warp, cost, place } from "explorer/model.js";
import { NAMES, strip, windowAt } from "explorer/timeline.js";

const BINS = 450, WIDE = 560; // narrower than in the explorer: it must do on a phone

/** @typedef {import("../../../src/peakgemm/tools/explore/web/types.js").Trace} Trace */
/** @typedef {import("../../../src/peakgemm/tools/explore/web/types.js").Access} Access */
/** @typedef {{ view: "shared" | "global" | "run" | "load" | "barrier" }} Wish */

/**
 * The view of a trace that a wish means: of memory the costliest load of the main loop, of time the whole run, or the
 * ticks around a load from shared memory or a barrier in the middle of it.
 * @param {Trace} trace
 * @param {Wish} wish
 */
export function draw(trace, { view }) {
  const warp = new Warp(trace, trace.detailed[0]);
  return view === "shared" || view === "global" ? memory(trace, warp, view) : time(trace, warp, view);
}

/**
 * @param {Trace} trace
 * @param {Warp} warp
 * @param {"shared" | "global"} space
 */
function memory(trace, warp, space) {
  const [step, access] = costliest(trace, warp, space);
  const shape = trace.shapes[access[1]], code = trace.code[warp.steps[step]];
  return { svg: String(accessDrawing(trace, access, -1, () => {})), count: cost(trace, access), ideal: shape.ideal, said: shape.text,
    space, size: shape.size, instruction: code?.text ?? "", fragment: at(trace, warp, step), tracks: [],
    where: place(trace, space, access[2] + (shape.offsets.find((offset) => offset !== null) ?? 0)) };
}

/**
 * Of the loads that are executed most often the one with the most wavefronts or sectors; of such the one of the most
 * words; its second time, when the loop runs.
 * @param {Trace} trace
 * @param {Warp} warp
 * @param {"shared" | "global"} space
 * @returns {[number, Access]}
 */
function costliest(trace, warp, space) {
  const loads = [...warp.accesses].flatMap(([step, found]) => found.map((access) => /** @type {[number, Access]} */ ([step, access])))
    .filter(([, access]) => trace.shapes[access[1]].space === space && trace.shapes[access[1]].load);
  const key = (/** @type {[number, Access]} */ [step, access]) =>
    [trace.code[warp.steps[step]]?.n[0] ?? 0, cost(trace, access), new Set(trace.shapes[access[1]].offsets).size];
  const better = (/** @type {number[]} */ a, /** @type {number[]} */ b) => a.map((value, i) => value - b[i]).find((more) => more) ?? 0;
  const best = loads.reduce((found, one) => (better(key(one), key(found)) > 0 ? one : found));
  return loads.filter(([step]) => warp.steps[step] === warp.steps[best[0]])[1] ?? best;
}

/**
 * @param {Trace} trace
 * @param {Warp} warp
 * @param {"run" | "load" | "barrier"} view
 */
function time(trace, warp, view) {
  const end = Math.max(...trace.tracks.map((one) => one.end), 1);
  const kind = (/** @type {number} */ step) => trace.kinds[trace.code[warp.steps[step]]?.kind ?? 0];
  const middle = warp.length >> 1, found = view === "run" ? -1 : warp.seek(middle, 1, (step) => kind(step) === view);
  const step = found < 0 ? middle : found;
  const [from, to] = view === "run" ? [0, end] : windowAt(warp.clocks[step], end);
  return { svg: String(strip(trace, warp, from, to, view === "run" ? -1 : warp.clocks[step], null, BINS, WIDE)), from, to, end, names: NAMES,
    tracks: trace.tracks.map((track) => ({ warps: track.warps, ...counted(trace, new Warp(trace, track.warps[0]), from, to) })),
    fragment: `${at(trace, warp, step)}&v=timeline` };
}

/**
 * Ticks of each kind, and those with something in flight (null: not followed), from tick `from` to `to`.
 * @param {Trace} trace
 * @param {Warp} warp
 * @param {number} from
 * @param {number} to
 */
function counted(trace, warp, from, to) {
  /** @type {Record<string, number>} */
  const kinds = Object.fromEntries(trace.kinds.map((kind) => [kind, 0]));
  for (let step = 0; step < warp.length; step++)
    if (from <= warp.clocks[step] && warp.clocks[step] < to) kinds[trace.kinds[trace.code[warp.steps[step]]?.kind ?? 0]]++;
  const covered = new Set();
  for (const [, first, last] of warp.track.flights)
    for (let clock = Math.max(warp.clocks[first], from); clock < Math.min(warp.clocks[last], to); clock++) covered.add(clock);
  const bulk = trace.code.some((one) => one?.text.includes(".bulk")); // the copy engine's, which no warp waits for by itself
  return { kinds, inFlight: bulk ? null : covered.size };
}

/**
 * @param {Trace} trace
 * @param {Warp} warp
 * @param {number} step
 */
function at(trace, warp, step) {
  return format([{ kernel: trace.name, instruction: warp.steps[step], occurrence: warp.occurrence(step), warp: warp.number, lane: 0 }]);
}
