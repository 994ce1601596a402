// One kernel: its controls, access, code, registers, timeline and counters, at one step of one warp.
import { drawAccess } from "explorer/access.js";
import { compiled } from "explorer/code.js";
import { el, grouped, redraw, scroller } from "explorer/dom.js";
import { Warp } from "explorer/model.js";
import { drawRegisters } from "explorer/registers.js";
import { drawTimeline } from "explorer/timeline.js";

/** @typedef {import("./types.js").Trace} Trace */
/** @typedef {import("./types.js").Place} Place */

const SHORT = ["shared_loads", "shared_stores", "shared_wavefronts", "shared_wavefronts_ideal", "global_requests",
  "global_sectors", "global_sectors_ideal", "global_bytes", "barriers", "warp_instructions", "fma_lane_instructions"];

export class KernelView {
  /**
   * @param {Trace} trace
   * @param {Partial<Place>} place where to begin
   * @param {() => void} moved called when step, warp or lane change
   */
  constructor(trace, place, moved) {
    this.trace = trace;
    this.moved = moved;
    const number = place.warp !== undefined && trace.detailed.includes(place.warp) ? place.warp : trace.detailed[0];
    this.warp = new Warp(trace, number);
    this.lane = place.lane ?? 0;
    const asked = this.warp.stepsOf(place.instruction ?? -1);
    this.step = asked[Math.min(place.occurrence ?? 0, asked.length - 1)] ?? this.warp.start();
    this.compiled = compiled(trace, (instruction) => this.toInstruction(instruction));
    this.status = el("p", { class: "status", "aria-live": "polite" });
    this.accesses = el("div", { class: "accesses" });
    this.registers = el("div");
    this.timeline = el("div");
    this.warps = el("select", { change: (/** @type {Event} */ event) => this.toWarp(Number(/** @type {HTMLSelectElement} */ (event.target).value)) },
      ...trace.detailed.map((one) => el("option", { value: one }, `${one}`)));
    this.lanes = el("select", { change: (/** @type {Event} */ event) => this.toLane(Number(/** @type {HTMLSelectElement} */ (event.target).value)) },
      ...Array.from({ length: 32 }, (_, one) => el("option", { value: one }, `${one}`)));
    this.slider = el("input", { type: "range", min: 0, max: Math.max(this.warp.length - 1, 0),
      input: () => this.toStep(Number(this.slider.value)), "aria-label": "Step" });
    this.box = el("article", { class: "kernel", "data-kernel": trace.name }, this.#head(), this.#controls(), this.status);
    this.more = el("section", { class: "more", "data-of": trace.name, "aria-label": `More of ${trace.label}` }, this.registers, this.timeline);
    this.draw();
  }

  /** @returns {Place} */
  get place() {
    return { kernel: this.trace.name, instruction: this.warp.steps[this.step] ?? -1, occurrence: this.warp.occurrence(this.step),
      warp: this.warp.number, lane: this.lane };
  }

  /** @param {number} step @returns {boolean} whether there is such a step */
  toStep(step) {
    if (step < 0 || step >= this.warp.length) return false;
    this.step = step;
    this.draw();
    this.moved();
    return true;
  }

  /** @param {number} by 1 or -1 */
  walk(by) {
    return this.toStep(this.step + by);
  }

  /** @param {number} by */
  walkAccess(by) {
    return this.toStep(this.warp.seek(this.step, by, (step) => this.warp.accesses.has(step)));
  }

  walkCostly() {
    return this.toStep(this.warp.seek(this.step, 1, (step) => this.warp.isCostly(step)));
  }

  /** Go where another kernel is: the same warp and lane where they are kept, and the step that belongs to its own. @param {KernelView} leader */
  follow(leader) {
    this.lane = leader.lane;
    if (leader.warp.number !== this.warp.number && this.trace.detailed.includes(leader.warp.number)) this.#take(leader.warp.number);
    const step = leader.warp.counterpart(leader.step, this.warp);
    if (step >= 0) this.step = step;
    this.draw();
  }

  /** @param {number} lane */
  toLane(lane) {
    this.lane = (lane + 32) % 32;
    this.draw();
    this.moved();
  }

  /** @param {number} number */
  toWarp(number) {
    if (number === this.warp.number) return;
    this.#take(number);
    this.draw();
    this.moved();
  }

  /** @param {number} number of a warp */
  #take(number) {
    const { instruction, occurrence } = this.place;
    this.warp = new Warp(this.trace, number);
    this.slider.max = `${Math.max(this.warp.length - 1, 0)}`;
    this.step = this.warp.stepsOf(instruction)[occurrence] ?? this.warp.start();
  }

  /** The next time the warp executes an instruction, or the first. @param {number} instruction */
  toInstruction(instruction) {
    for (const number of [this.warp.number, ...this.trace.detailed]) {
      const warp = number === this.warp.number ? this.warp : new Warp(this.trace, number);
      const steps = warp.stepsOf(instruction);
      if (!steps.length) continue;
      this.toWarp(number);
      this.toStep(steps.find((step) => step > this.step) ?? steps[0]);
      return;
    }
  }

  draw() {
    const { trace, warp, step } = this;
    const instruction = warp.steps[step], code = trace.code[instruction];
    this.box.dataset.step = `${step}`;
    this.slider.value = `${step}`;
    this.warps.value = `${warp.number}`;
    this.lanes.value = `${this.lane}`;
    this.status.replaceChildren(el("strong", {}, code?.text ?? "no step"), ` step ${grouped(step + 1)} of ${grouped(warp.length)}` +
      ` of warp ${warp.number}, PTX line ${code?.ptx ?? "?"}${code?.at ? `, ${trace.files[code.at[0]].name}:${code.at[1]}` : ""}`);
    this.compiled.show(instruction);
    const found = warp.accesses.get(step) ?? [];
    const kept = ["copy", "stage", "load", "store"].includes(trace.kinds[code?.kind ?? 0]) && !/param|bulk/.test(code?.text ?? "");
    redraw(this.accesses, ...(found.length ? found.map((access) => drawAccess(trace, access, this.lane, (lane) => this.toLane(lane))) :
      [el("p", { class: "soft" }, kept ? "What this step accesses was not kept (see limits), or no lane takes part." : "This instruction accesses neither shared nor global memory lane by lane.")]));
    redraw(this.registers, drawRegisters(warp, step, this.lane, (to) => this.toStep(to)));
    redraw(this.timeline, drawTimeline(trace, warp, step, (number, to) => { this.toWarp(number); this.toStep(to); }));
  }

  #head() {
    const { trace } = this;
    const head = el("header", {}, el("h2", {}, trace.label));
    if (trace.stopped) head.append(el("p", { class: "fault", role: "alert" }, `Stopped: ${trace.stopped}`));
    for (const fault of trace.faults)
      head.append(el("p", { class: "fault", role: "alert" }, el("strong", {}, fault.kind), `, PTX line ${fault.ptx_line}${fault.file ? `, ${fault.file}:${fault.line}` : ""}: ` +
        `${fault.message}${fault.count > 1 ? ` (${grouped(fault.count)} times)` : ""}`, el("code", {}, fault.instruction)));
    return head;
  }

  #controls() {
    /** @param {string} label @param {string} title @param {() => void} click */
    const button = (label, title, click) => el("button", { type: "button", click, "aria-label": title, title }, label);
    return el("div", { class: "controls", role: "group", "aria-label": `Steps of ${this.trace.label}` },
      button("|◀", "Access before (Shift + Left)", () => this.walkAccess(-1)), button("◀", "Step back (Left)", () => this.walk(-1)),
      button("▶", "Step forward (Right)", () => this.walk(1)), button("▶|", "Next access (Shift + Right)", () => this.walkAccess(1)),
      button("next costly", "Next access that costs more than it must (c)", () => this.walkCostly()),
      el("label", {}, "warp ", this.warps), el("label", {}, "lane ", this.lanes), this.slider);
  }
}

/**
 * What was run, and what of it is kept.
 * @param {Trace} trace
 */
export function about(trace) {
  return el("p", { class: "soft" }, `${trace.kernel}: ${trace.about}; grid ${trace.grid.join(" x ")}, block ${trace.block.join(" x ")}; traced: block ` +
    `${trace.traced_block.join(", ")}, in detail warps ${trace.detailed.join(", ")}.${trace.sass?.registers ? ` ${trace.sass.registers} registers a thread.` : ""}` +
    (trace.limits.length ? ` Limits: ${trace.limits.join("; ")}.` : ""));
}

/**
 * @param {Trace} trace
 * @param {(instruction: number) => void} go
 */
export function costlyTable(trace, go) {
  const rows = trace.code.flatMap((code, index) => (code && (code.n[1] > code.n[2] || code.n[3] > code.n[4]) ? [{ code, index }] : []))
    .sort((a, b) => b.code.n[1] - b.code.n[2] + b.code.n[3] - b.code.n[4] - (a.code.n[1] - a.code.n[2] + a.code.n[3] - a.code.n[4]));
  if (!rows.length) return el("p", { class: "soft", "data-costly": 0 }, "No instruction costs more than it must: no bank conflict, no sector more than needed.");
  const table = el("table", { "data-costly": rows.length }, el("thead", {}, el("tr", {}, ...["instruction", "line", "executed", "wavefronts", "at best", "sectors", "at best"].map((head) => el("th", { scope: "col" }, head)))));
  table.append(el("tbody", {}, ...rows.slice(0, 40).map(({ code, index }) => el("tr", {},
    el("th", { scope: "row" }, el("button", { class: "link", click: () => go(index) }, code.text)),
    el("td", {}, code.at ? `${trace.files[code.at[0]].name.split("/").pop()}:${code.at[1]}` : `PTX ${code.ptx}`),
    ...code.n.map((value) => el("td", {}, grouped(value)))))));
  return folded(`Instructions that cost more than they must: ${rows.length}`, scroller("Costly instructions", "table long", table),
    el("p", { class: "soft" }, `Sums over the whole run${rows.length > 40 ? `; the first 40 of ${rows.length}` : ""}.`));
}

/**
 * Counters of one trace, or of two side by side with what differs marked.
 * @param {Trace[]} traces
 */
export function counterTable(traces) {
  const table = el("table", { class: "counters" }, el("caption", { class: "unseen" }, "Counters"),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "counter"), ...traces.map((one) => el("th", { scope: "col" }, one.label)))));
  const body = el("tbody");
  for (const name of SHORT) {
    const values = traces.map((one) => one.counters[name] ?? 0);
    body.append(el("tr", { class: values.some((value) => value !== values[0]) ? "differs" : undefined }, el("th", { scope: "row" }, name.replaceAll("_", " ")),
      ...values.map((value, at) => el("td", { "data-counter": name, "data-of": traces[at].name }, grouped(value)))));
  }
  table.append(body);
  return folded("Counters of the whole run", scroller("Counters", "table", table));
}

/**
 * @param {string} title
 * @param {...Node} children
 */
export function folded(title, ...children) {
  return el("details", { class: "folded" }, el("summary", {}, title), ...children);
}
