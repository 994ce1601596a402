// The explorer's page: one kernel, or two side by side; the fragment of the URL says which, and where.
import { el } from "explorer/dom.js";
import { format, parse, part } from "explorer/fragment.js";
import { Group } from "explorer/group.js";

/** @typedef {import("./types.js").Trace} Trace */
/** @typedef {import("./types.js").Place} Place */

export class Explorer {
  /**
   * @param {Trace[]} traces
   * @param {HTMLElement} into
   */
  constructor(traces, into) {
    this.traces = traces;
    /** @type {Group | null} */
    this.group = null;
    this.part = "";
    this.first = this.#select("kernel ", false);
    this.second = this.#select("beside ", true);
    this.together = el("input", { type: "checkbox", checked: true, change: () => { if (this.group) this.group.together = this.together.checked; } });
    this.shown = el("div");
    into.append(el("nav", { class: "choice", "aria-label": "Kernels" }, this.first.label, this.second.label,
      el("label", { class: "together" }, this.together, " step both"),
      el("p", { class: "soft keys" }, "Keys: ← → step, Shift + ← → access, c costly, ↑ ↓ lane")), this.shown);
    window.addEventListener("hashchange", () => {
      if (location.hash !== this.here) this.follow(location.hash);
    });
    document.addEventListener("keydown", (event) => this.group?.key(event));
    this.follow(location.hash);
  }

  /** Where one is, as a fragment. */
  get here() {
    return format(this.group?.places ?? [], this.part);
  }

  /** @param {string} fragment */
  follow(fragment) {
    this.part = part(fragment);
    this.open(parse(fragment));
    if (this.part) this.shown.querySelector(`.${this.part}`)?.scrollIntoView();
  }

  /** @param {Place[]} places */
  open(places) {
    const known = places.filter((place) => this.traces.some((one) => one.name === place.kernel));
    const begin = this.traces.slice(0, this.traces.length === 2 ? 2 : 1).map(({ name }) => ({ kernel: name, instruction: -1, lane: 0 }));
    const wanted = known.length ? known : begin;
    this.group = new Group(wanted.map((place) => [/** @type {Trace} */ (this.traces.find((one) => one.name === place.kernel)),
      place.instruction === -1 ? { lane: place.lane } : place]), () => this.tell());
    this.group.together = this.together.checked;
    const [first, second] = this.group.places;
    this.first.select.value = first.kernel;
    this.second.select.value = second?.kernel ?? "";
    this.shown.replaceChildren(this.group.box);
    this.group.show();
    this.together.parentElement?.toggleAttribute("hidden", !second);
    this.tell();
  }

  /** Put the place into the URL. */
  tell() {
    if (this.group) history.replaceState(null, "", this.here);
  }

  /**
   * @param {string} text
   * @param {boolean} none whether no kernel may be chosen
   */
  #select(text, none) {
    const select = el("select", { change: () => {
      const chosen = [this.first.select.value, this.second.select.value].filter(Boolean);
      const { places } = /** @type {Group} */ (this.group);
      this.open(chosen.map((kernel, at) => (places[at]?.kernel === kernel ? places[at]
        : { kernel, instruction: -1, occurrence: 0, warp: -1, lane: places[0].lane })));
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
