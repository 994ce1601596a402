// Draws one access of a warp: 32 banks across, a wavefront a row; or 128 bytes across, a line of memory a row.
import { el, scroller, spans, svg } from "explorer/dom.js";
import { cost, place } from "explorer/model.js";

/** @typedef {import("./types.js").Trace} Trace */
/** @typedef {import("./types.js").Access} Access */
/** @typedef {import("./types.js").Shape} Shape */

const CELL = 20, HIGH = 18, LEFT = 118, TOP = 18;

/**
 * @param {Trace} trace
 * @param {Access} access
 * @param {number} lane
 * @param {(lane: number) => void} choose
 */
export function drawAccess(trace, access, lane, choose) {
  const shape = trace.shapes[access[1]];
  const shared = shape.space === "shared";
  const unit = shared ? "wavefront" : "sector";
  const count = cost(trace, access);
  const costly = count > shape.ideal;
  const where = place(trace, shape.space, access[2] + (shape.offsets.find((offset) => offset !== null) ?? 0));
  const box = el("section", { class: "access", "data-space": shape.space, "data-count": count, "data-ideal": shape.ideal });
  box.append(el("h3", {}, `${shared ? "Shared memory" : "Global memory"}: ${shape.load ? "read" : "access"} of ${shape.size} bytes a lane at ${where}`));
  box.append(el("p", { class: costly ? "cost costly" : "cost" },
    el("strong", {}, `${count} ${unit}${count === 1 ? "" : "s"}`), `, ${shape.ideal} at best`));
  box.append(scroller(`${shared ? "Banks" : "Sectors"}, drawn`, "drawing", accessDrawing(trace, access, lane, choose)));
  const source = (access[3] ?? 0) > shape.count;
  const said = el("details", { class: "explain", open: true }, el("summary", {}, costly ? (shared ? "Explain this conflict" : "Explain these sectors") : "Explain"));
  if (source)
    said.append(el("p", {}, `A cp.async through L1 (.ca) counts the banks of its source as well, where no two lanes share a word: they take ${access[3]} wavefronts. Of its target alone:`));
  said.append(el("p", {}, shape.text));
  box.append(said);
  return box;
}

/**
 * The drawing alone.
 * @param {Trace} trace
 * @param {Access} access
 * @param {number} lane marked; -1: none
 * @param {(lane: number) => void} choose
 */
export function accessDrawing(trace, access, lane, choose) {
  const shape = trace.shapes[access[1]];
  return shape.space === "shared" ? banks(trace, shape, access[2], lane, choose) : lines(trace, shape, access[2], lane, choose);
}

/**
 * @param {number} rows
 * @param {string} label
 */
function canvas(rows, label) {
  const wide = LEFT + 32 * CELL + 4, high = TOP + rows * HIGH + 4;
  return svg("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, role: "img", "aria-label": label });
}

/** @param {number[]} lanes */
function shown(lanes) {
  return lanes.length === 1 ? `${lanes[0]}` : lanes.length === 32 ? "all" : `${lanes[0]}+`;
}

/**
 * @param {SVGElement} into
 * @param {number} column
 * @param {number} row
 * @param {number[]} lanes
 * @param {string} kind
 * @param {string} title
 * @param {number} lane
 * @param {(lane: number) => void} choose
 */
function cell(into, column, row, lanes, kind, title, lane, choose) {
  const x = LEFT + column * CELL, y = TOP + row * HIGH;
  const mine = lanes.includes(lane) ? " mine" : "";
  into.append(svg("g", { class: `cell ${kind}${mine}`, click: () => choose(lanes[0]) }, svg("title", {}, title),
    svg("rect", { x: x + 1, y: y + 1, width: CELL - 2, height: HIGH - 2, rx: 2 }),
    svg("text", { x: x + CELL / 2, y: y + HIGH - 5 }, shown(lanes))));
}

/**
 * @param {Trace} trace
 * @param {Shape} shape
 * @param {number} base
 * @param {number} lane
 * @param {(lane: number) => void} choose
 */
function banks(trace, shape, base, lane, choose) {
  const rows = shape.rows.length, phases = shape.phases ?? [];
  const several = new Set(phases).size > 1;
  const made = canvas(rows, `${rows} wavefronts over 32 banks. ${shape.text}`);
  heads(made, (bank) => `${bank}`, "bank");
  let phase = -1, first = 0;
  shape.rows.forEach((/** @type {number[][]} */ words, /** @type {number} */ row) => {
    if (phases[row] !== phase) [phase, first] = [phases[row], row];
    const again = row > first;
    label(made, row, `${row}`, several ? `phase ${phase}, wavefront ` : "wavefront ");
    for (const [word, ...lanes] of words)
      cell(made, word % 32, row, lanes, again ? "again" : "first",
        `bank ${word % 32}: ${place(trace, "shared", base + 4 * word)}, lane ${spans(lanes)}`, lane, choose);
  });
  return made;
}

/**
 * @param {Trace} trace
 * @param {Shape} shape
 * @param {number} base
 * @param {number} lane
 * @param {(lane: number) => void} choose
 */
function lines(trace, shape, base, lane, choose) {
  /** @type {Map<number, number[]>} */
  const words = new Map();
  shape.offsets.forEach((offset, one) => {
    if (offset === null) return;
    for (let word = Math.floor(offset / 4); word < Math.max((offset + shape.size) / 4, Math.floor(offset / 4) + 1); word++)
      words.set(word, [...(words.get(word) ?? []), one]);
  });
  const sectors = shape.rows.map((/** @type {number[]} */ row) => row[0]);
  const starts = [...new Set(sectors.map((sector) => Math.floor(sector / 4)))];
  const made = canvas(starts.length, `${shape.count} sectors in ${starts.length} lines of 128 bytes. ${shape.text}`);
  heads(made, (word) => (word % 8 ? "" : `${word * 4}`), "byte");
  for (const sector of sectors) {
    const row = starts.indexOf(Math.floor(sector / 4));
    made.append(svg("rect", { class: "sector", x: LEFT + (sector % 4) * 8 * CELL, y: TOP + row * HIGH, width: 8 * CELL - 1, height: HIGH - 1 }));
  }
  starts.forEach((line, row) => label(made, row, place(trace, "global", base + 128 * line)));
  for (const [word, lanes] of words) {
    const row = starts.indexOf(Math.floor(word / 32));
    cell(made, ((word % 32) + 32) % 32, row, lanes, "first", `${place(trace, "global", base + 4 * word)}: lane ${spans(lanes)}`, lane, choose);
  }
  return made;
}

/**
 * @param {SVGElement} into
 * @param {(column: number) => string} text
 * @param {string} what
 */
function heads(into, text, what) {
  into.append(svg("text", { class: "head", x: LEFT - 6, y: 12, "text-anchor": "end" }, what));
  for (let column = 0; column < 32; column++)
    if (text(column))
      into.append(svg("text", { class: column % 8 ? "head minor" : "head", x: LEFT + column * CELL + CELL / 2, y: 12, "text-anchor": "middle" }, text(column)));
}

/**
 * @param {SVGElement} into
 * @param {number} row
 * @param {string} text
 * @param {string} [before] left out where the drawing is small, as are `minor` heads
 */
function label(into, row, text, before) {
  into.append(svg("text", { class: "row", x: LEFT - 6, y: TOP + row * HIGH + HIGH - 5, "text-anchor": "end" },
    ...(before ? [svg("tspan", { class: "minor" }, before)] : []), text));
}
