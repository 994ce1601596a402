// One kernel, or two in lock-step: their pictures, one source for both, then the rest of each.
import { Source } from "explorer/code.js";
import { el } from "explorer/dom.js";
import { KernelView, about, costlyTable, counterTable, folded } from "explorer/kernel.js";

/** @typedef {import("./types.js").Trace} Trace */
/** @typedef {import("./types.js").Place} Place */

export class Group {
  /**
   * @param {[Trace, Partial<Place>][]} wanted kernels, and where to begin; the second without an instruction begins beside the first
   * @param {() => void} moved called when step, warp or lane change
   */
  constructor(wanted, moved) {
    this.moved = moved;
    this.together = true;
    this.active = 0;
    const traces = wanted.map(([trace]) => trace);
    this.views = wanted.map(([trace, place], at) => new KernelView(trace, place, () => this.#moved(at)));
    if (wanted[1]?.[1].instruction === undefined) this.views[1]?.follow(this.views[0]);
    this.source = new Source(traces, (at, instruction) => this.views[at].toInstruction(instruction));
    const [only, ...others] = this.views, two = others.length > 0;
    const panes = (/** @type {KernelView} */ { compiled }) => compiled.panes.map(({ box }) => box);
    for (const view of this.views) {
      if (two) view.box.append(view.accesses);
      if (two) view.more.prepend(el("h2", {}, view.trace.label), folded("PTX and SASS", ...panes(view)));
      view.more.append(costlyTable(view.trace, (instruction) => view.toInstruction(instruction)), ...(two ? [] : [counterTable(traces)]), about(view.trace));
    }
    if (!two)
      only.box.append(el("div", { class: "views" }, el("div", {}, only.accesses, only.registers), el("section", { class: "code" }, this.source.box, ...panes(only))), only.more);
    this.box = el("div", { class: two ? "drawn columns two" : "drawn columns" }, ...this.views.map(({ box }) => box),
      ...(two ? [el("section", { class: "both" }, this.source.box, counterTable(traces)), ...this.views.map(({ more }) => more)] : []));
    this.views.forEach((view, at) => {
      for (const part of [view.box, view.more])
        for (const event of ["pointerdown", "focusin"]) part.addEventListener(event, () => { this.active = at; });
    });
  }

  get places() {
    return this.views.map(({ place }) => place);
  }

  /** Bring the marked lines into sight; only what stands in the page has a height. */
  show() {
    this.source.show(this.places.map(({ instruction }) => instruction), this.active);
    for (const { compiled, place } of this.views) compiled.show(place.instruction);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.altKey || event.metaKey || target.closest("input, select, textarea")) return;
    const view = this.views[this.active], by = event.key === "ArrowRight" || event.key === "ArrowDown" ? 1 : -1;
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") event.shiftKey ? view.walkAccess(by) : view.walk(by);
    else if (event.key === "c") view.walkCostly() || (this.together && this.views.some((one) => one.walkCostly()));
    else if ((event.key === "ArrowUp" || event.key === "ArrowDown") && !target.closest("[tabindex]")) view.toLane(view.lane + by);
    else return;
    event.preventDefault();
  }

  /** @param {number} at the kernel that was moved: the other follows */
  #moved(at) {
    if (this.together) this.views.forEach((view) => view !== this.views[at] && view.follow(this.views[at]));
    this.source.show(this.places.map(({ instruction }) => instruction), at);
    this.moved();
  }
}
