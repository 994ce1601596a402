// The browser simulator: a form for PTX and its launch, a worker that runs it, the explorer's views of the answer.
import { el, grouped } from "explorer/dom.js";
import { format, parse } from "explorer/fragment.js";
import { Group } from "explorer/group.js";

/** @typedef {import("./types.js").Setup} Setup */
/** @typedef {import("./types.js").Trace} Trace */

const STEPS = 2000000, SECONDS = 30, MOST_STEPS = 20000000, MOST_SECONDS = 300;

class Simulator {
  /**
   * @param {Setup[]} setups
   * @param {HTMLElement} into
   */
  constructor(setups, into) {
    this.setups = setups;
    /** @type {Worker | null} */
    this.worker = null;
    /** @type {Group | null} */
    this.group = null;
    this.timer = 0;
    this.pick = el("select", { id: "pick", change: () => this.fill(this.pick.value) },
      ...setups.map((one) => el("option", { value: one.name }, one.label)), el("option", { value: "" }, "my own PTX"));
    this.source = el("textarea", { id: "source", readonly: true, spellcheck: false, wrap: "off" });
    this.task = el("p");
    this.exercise = el("div", { class: "wide", hidden: true }, this.task, el("label", {}, "the file to fill in", this.source),
      el("p", { class: "soft" }, "Compile it and paste the PTX. This page checks the product of whole tiles; peakgemm exercise NN --check compiles by itself, and checks " +
        "other sizes and blocks per SM as well."));
    this.ptx = el("textarea", { id: "ptx", spellcheck: false, wrap: "off" });
    this.entry = el("input", { id: "entry", placeholder: "the only one" });
    this.grid = el("input", { id: "grid" });
    this.block = el("input", { id: "block" });
    this.shared = el("input", { id: "shared", type: "number", min: 0 });
    this.args = el("textarea", { id: "args", class: "args", spellcheck: false });
    this.steps = el("input", { id: "steps", type: "number", min: 1, max: MOST_STEPS, value: STEPS });
    this.seconds = el("input", { id: "seconds", type: "number", min: 1, max: MOST_SECONDS, value: SECONDS });
    this.run = el("button", { type: "submit", class: "main" }, "Run");
    this.stop = el("button", { type: "button", click: () => this.halt("Stopped by you.") }, "Stop");
    this.stop.disabled = true;
    this.said = el("p", { id: "said", role: "status" });
    this.refused = el("div", { role: "alert" });
    this.findings = el("ul", { id: "findings", "aria-live": "polite" });
    this.result = el("div", { id: "result" });
    /** @param {string} text @param {HTMLElement} input @param {string} [kind] */
    const field = (text, input, kind) => el("label", { class: kind }, text, input);
    const form = el("form", { submit: (/** @type {Event} */ event) => { event.preventDefault(); this.start(); } },
      field("start from", this.pick), field("entry (where there are several)", this.entry),
      this.exercise, field("PTX, as nvcc -ptx -arch=sm_90 -lineinfo mine.cu writes it", this.ptx, "wide"),
      field("grid: X, XxY or XxYxZ", this.grid), field("block", this.block), field("dynamic shared memory, bytes", this.shared),
      field(`at most instructions (up to ${grouped(MOST_STEPS)})`, this.steps), field(`at most seconds (up to ${MOST_SECONDS})`, this.seconds),
      field("arguments, one a line: 42, 1.5 or dtype:shape:fill (f32 f64 s32 u8 ...; zeros, ones, nan, arange, uniform, normal)", this.args, "wide"),
      el("div", { class: "buttons wide" }, this.run, this.stop, this.said));
    into.append(form, this.refused, this.findings, this.result);
    document.addEventListener("keydown", (event) => this.group?.key(event));
    const [place] = parse(location.hash);
    this.fill(place && setups.some((one) => one.name === place.kernel) ? place.kernel : setups[0].name);
    /** What the URL asks for, until it is shown. @type {import("./types.js").Place | undefined} */
    this.place = place;
    this.load();
  }

  /** @param {string} name */
  fill(name) {
    const setup = this.setups.find((one) => one.name === name);
    this.pick.value = setup?.name ?? "";
    this.exercise.hidden = !setup?.source;
    this.source.value = setup?.source ?? "";
    this.source.scrollTop = this.source.scrollHeight; // the kernel stands behind the headers
    this.task.textContent = setup?.task ?? "";
    this.ptx.value = setup?.ptx ?? "";
    this.entry.value = "";
    this.grid.value = setup?.grid ?? "1";
    this.block.value = setup?.block ?? "32";
    this.shared.value = `${setup?.shared ?? 0}`;
    this.args.value = (setup?.args ?? []).join("\n");
  }

  load() {
    this.say("Loading Python and NumPy (13 MB, once) ...");
    this.worker = new Worker("worker.js");
    this.worker.onmessage = (event) => this.hear(event.data);
    this.worker.onerror = (event) => this.halt(`The worker could not be started (${event.message ?? "no reason given"}). The page must be served by http, not opened from disk.`);
  }

  start() {
    if (!this.worker) this.load();
    const launch = { grid: this.grid.value, block: this.block.value, shared: Number(this.shared.value) || 0,
      args: this.args.value.split("\n").map((word) => word.trim()).filter(Boolean) };
    const setup = this.setups.find((one) => one.name === this.pick.value);
    const { goal, counters } = setup && JSON.stringify(launch) === JSON.stringify({ grid: setup.grid, block: setup.block, shared: setup.shared, args: setup.args }) ? setup : {};
    const { name, label } = setup && (goal || setup.ptx === this.ptx.value) ? setup : { name: "own", label: "your kernel" };
    this.refused.replaceChildren();
    this.findings.replaceChildren();
    this.run.disabled = true;
    this.stop.disabled = false;
    const began = performance.now();
    const tick = () => this.say(`Running: ${Math.round((performance.now() - began) / 1000)} s`);
    tick();
    clearInterval(this.timer);
    this.timer = setInterval(tick, 500);
    this.began = began;
    this.worker?.postMessage(JSON.stringify({ ...launch, ptx: this.ptx.value, entry: this.entry.value.trim(), name, label,
      max_steps: Number(this.steps.value) || STEPS, max_seconds: Number(this.seconds.value) || SECONDS,
      ...(goal ? { goal: this.setups.find((one) => one.name === goal)?.ptx, counters } : {}) }));
  }

  /** @param {string} why */
  halt(why) {
    this.worker?.terminate();
    this.worker = null;
    this.idle(why);
  }

  /** @param {string} text */
  idle(text) {
    clearInterval(this.timer);
    this.run.disabled = false;
    this.stop.disabled = true;
    this.say(text);
  }

  /** @param {string} text */
  say(text) {
    this.said.textContent = text;
  }

  /** @param {{ ready?: boolean, failed?: string, answer?: string }} message */
  hear(message) {
    if (message.failed !== undefined) return this.halt(`The simulator failed: ${message.failed}`);
    if (message.ready) {
      if (!this.run.disabled) this.say("Ready.");
      return;
    }
    const answer = JSON.parse(message.answer ?? "{}");
    const seconds = ((performance.now() - (this.began ?? 0)) / 1000).toFixed(1);
    if (answer.error !== undefined) {
      this.idle(`Refused after ${seconds} s.`);
      return this.refuse(answer.error, answer.line);
    }
    this.idle(`Done in ${seconds} s.`);
    const findings = /** @type {import("./types.js").Finding[]} */ (answer.findings ?? []);
    this.findings.replaceChildren(...findings.map(({ goal, met, said }) => el("li", {}, el("strong", { class: met ? "" : "costly" }, met ? "met" : "missed"), ` ${goal}: ${said}`)));
    this.show(answer.trace);
  }

  /**
   * @param {string} message
   * @param {number | null} line of the PTX
   */
  refuse(message, line) {
    const text = line ? this.ptx.value.split("\n")[line - 1] : undefined;
    this.refused.replaceChildren(el("p", { class: "fault" }, message, ...(text === undefined ? [] : [el("code", {}, `${line}: ${text}`)])));
    this.result.replaceChildren();
    if (text === undefined || !line) return;
    const start = this.ptx.value.split("\n").slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    this.ptx.setSelectionRange(start, start + text.length);
    this.ptx.scrollTop = (line - 4) * 17;
  }

  /** @param {Trace} trace */
  show(trace) {
    const place = this.place?.kernel === trace.name && this.place.instruction >= 0 ? this.place : {};
    this.place = undefined;
    this.group = new Group([[trace, place]], () => this.tell());
    this.result.replaceChildren(this.group.box);
    this.group.show();
    this.tell();
  }

  tell() {
    if (this.group) history.replaceState(null, "", format(this.group.places));
  }
}

/** Begin with the setups that the page holds. */
export function begin() {
  const setups = /** @type {Setup[]} */ (JSON.parse(document.getElementById("data")?.textContent ?? "[]"));
  new Simulator(setups, /** @type {HTMLElement} */ (document.getElementById("main")));
}
