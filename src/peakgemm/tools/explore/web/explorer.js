// The explorer's page: one kernel, or two side by side; the fragment of the URL says which, and where.
import { el } from "explorer/dom.js";
import { format, parse, part } from "explorer/fragment.js";
import { KernelView, counterTable } from "explorer/kernel.js";

/** @typedef {import("./types.js").Trace} Trace */
/** @typedef {import("./types.js").Place} Place */

export class Explorer {
  /**
   * @param {Trace[]} traces
   * @param {HTMLElement} into
   */
  constructor(traces, into) {
    this.traces = traces;
    /** @type {KernelView[]} */
    this.views = [];
    this.active = 0;
    this.part = "";
    this.first = this.#select("kernel ", false);
    this.second = this.#select("beside ", true);
    this.together = el("input", { type: "checkbox", checked: true });
    this.compared = el("div");
    this.columns = el("div", { class: "columns" });
    into.append(el("nav", { class: "choice", "aria-label": "Kernels" }, this.first.label, this.second.label,
      el("label", { class: "together" }, this.together, " step both"),
      el("p", { class: "soft keys" }, "Keys: ← → step, Shift + ← → access, c costly, ↑ ↓ lane")), this.compared, this.columns);
    window.addEventListener("hashchange", () => {
      if (location.hash !== this.here) this.follow(location.hash);
    });
    document.addEventListener("keydown", (event) => this.key(event));
    this.follow(location.hash);
  }

  /** Where one is, as a fragment. */
  get here() {
    return format(this.views.map((one) => one.place), this.part);
  }

  /** @param {string} fragment */
  follow(fragment) {
    this.part = part(fragment);
    this.open(parse(fragment));
    if (this.part) this.columns.querySelector(`.${this.part}`)?.scrollIntoView();
  }

  /** @param {Place[]} places */
  open(places) {
    const known = places.filter((place) => this.traces.some((one) => one.name === place.kernel));
    const wanted = known.length ? known : [/** @type {Partial<Place>} */ ({ kernel: this.traces[0]?.name })];
    this.views = wanted.map((place) => {
      const trace = /** @type {Trace} */ (this.traces.find((one) => one.name === place.kernel));
      const cleaned = place.instruction === -1 ? { lane: place.lane } : place;
      return new KernelView(trace, cleaned, () => this.tell());
    });
    this.active = 0;
    this.first.select.value = this.views[0].trace.name;
    this.second.select.value = this.views[1]?.trace.name ?? "";
    this.columns.classList.toggle("two", this.views.length > 1);
    this.columns.replaceChildren(...this.views.map((one) => one.box));
    this.views.forEach((one, at) => {
      one.box.addEventListener("pointerdown", () => { this.active = at; });
      one.box.addEventListener("focusin", () => { this.active = at; });
      one.code.show(one.place.instruction); // now that the panes have a height
    });
    this.compared.replaceChildren(...(this.views.length > 1 ? [counterTable(this.views.map((one) => one.trace))] : []));
    document.body.classList.toggle("comparing", this.views.length > 1);
    this.together.parentElement?.toggleAttribute("hidden", this.views.length < 2);
    this.tell();
  }

  /** Put the place into the URL. */
  tell() {
    if (this.views.length) history.replaceState(null, "", this.here);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    if (!this.views.length || event.ctrlKey || event.altKey || event.metaKey || target.closest("input, select, textarea")) return;
    const views = this.together.checked ? this.views : [this.views[this.active]];
    const by = event.key === "ArrowRight" || event.key === "ArrowDown" ? 1 : -1;
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") for (const one of views) event.shiftKey ? one.walkAccess(by) : one.walk(by);
    else if (event.key === "c") for (const one of views) one.walkCostly(1);
    else if ((event.key === "ArrowUp" || event.key === "ArrowDown") && !target.closest("[role=region]")) for (const one of views) one.toLane(one.lane + by);
    else return;
    event.preventDefault();
  }

  /**
   * @param {string} text
   * @param {boolean} none whether no kernel may be chosen
   */
  #select(text, none) {
    const select = el("select", { change: () => {
      const chosen = [this.first.select.value, this.second.select.value].filter(Boolean);
      this.open(chosen.map((kernel, at) => (this.views[at]?.trace.name === kernel ? this.views[at].place
        : { kernel, instruction: -1, occurrence: 0, warp: -1, lane: this.views[0]?.lane ?? 0 })));
    } }, ...(none ? [el("option", { value: "" }, "nothing")] : []), ...this.traces.map((one) => el("option", { value: one.name }, one.label)));
    return { select, label: el("label", {}, text, select) };
  }
}

/** Begin with the traces that the page holds. */
export function begin() {
  const data = document.getElementById("data")?.textContent ?? "[]";
  const traces = /** @type {Trace[]} */ (JSON.parse(data));
  new Explorer(traces, /** @type {HTMLElement} */ (document.getElementById("main")));
}
