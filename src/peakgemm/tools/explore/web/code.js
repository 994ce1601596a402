// Source, PTX and SASS side by side; what belongs to the instruction is marked in all three.
import { el, grouped, scroller } from "explorer/dom.js";

/** @typedef {import("./types.js").Trace} Trace */

export class Code {
  /**
   * @param {Trace} trace
   * @param {(instruction: number) => void} go
   */
  constructor(trace, go) {
    this.trace = trace;
    /** @type {Map<string, HTMLElement>} */
    this.source = new Map();
    /** @type {Map<number, HTMLElement>} */
    this.ptx = new Map();
    /** @type {Map<number, HTMLElement[]>} */
    this.sass = new Map();
    this.marked = /** @type {HTMLElement[]} */ ([]);
    this.panes = [this.#source(go), this.#ptx(go), this.#sass(go)];
    this.box = el("section", { class: "code" }, ...this.panes.map(({ name, pane }) => el("div", { class: "pane" }, el("h3", {}, name), pane)));
  }

  /**
   * Mark what belongs to an instruction, and bring it into sight.
   * @param {number} instruction
   */
  show(instruction) {
    for (const one of this.marked) one.classList.remove("on", "head");
    const code = this.trace.code[instruction];
    const places = [
      code?.at ? [this.source.get(code.at.join(":"))] : [], [this.ptx.get(instruction)], this.sass.get(instruction) ?? []];
    this.marked = [];
    places.forEach((found, at) => {
      const lines = found.filter((line) => line !== undefined);
      lines.forEach((line) => line.classList.add("on"));
      this.marked.push(...lines);
      const pane = this.panes[at].pane, first = lines[0];
      if (first) pane.scrollTop = first.offsetTop - pane.clientHeight / 2;
    });
  }

  /** @param {(instruction: number) => void} go */
  #source(go) {
    const pane = scroller("Source", "lines");
    const counts = byLine(this.trace), first = new Map();
    this.trace.code.forEach((code, index) => {
      if (code?.at && !first.has(code.at.join(":"))) first.set(code.at.join(":"), index);
    });
    this.trace.files.forEach((file, number) => {
      const used = new Set([...first.keys()].filter((key) => key.startsWith(`${number}:`)).map((key) => Number(key.split(":")[1])));
      if (!used.size) return;
      pane.append(el("div", { class: "file" }, file.lines.length ? file.name : `${file.name} (not found here)`));
      const from = Math.max(Math.min(...used) - 3, 1), until = Math.min(Math.max(...used) + 2, file.lines.length);
      for (let line = from; line <= until; line++) {
        const key = `${number}:${line}`;
        const made = el("div", { class: first.has(key) ? "line" : "line idle" }, el("i", {}, `${line}`.padStart(4) + " "), file.lines[line - 1] + " ", ...badge(counts.get(key)));
        if (first.has(key)) made.addEventListener("click", () => go(first.get(key)));
        this.source.set(key, made);
        pane.append(made);
      }
    });
    if (!pane.children.length) pane.append(el("p", { class: "soft" }, "The PTX names no source lines."));
    return { name: "Source", pane };
  }

  /** @param {(instruction: number) => void} go */
  #ptx(go) {
    const pane = scroller("PTX", "lines");
    let before = -1;
    this.trace.code.forEach((code, index) => {
      if (!code) return;
      if (before >= 0 && index !== before + 1) pane.append(el("div", { class: "file" }, `${index - before - 1} not executed`));
      before = index;
      const made = el("div", { class: "line", click: () => go(index), "data-instruction": index }, el("i", {}, `${code.ptx}`.padStart(5) + " "), code.text + " ", ...badge(code.n));
      this.ptx.set(index, made);
      pane.append(made);
    });
    return { name: "PTX, executed", pane };
  }

  /** @param {(instruction: number) => void} go */
  #sass(go) {
    const { sass } = this.trace, title = `SASS of the ${sass?.part ?? "main loop"}`;
    const pane = scroller(title, "lines");
    for (const note of sass?.notes ?? []) pane.append(el("p", { class: "soft" }, note));
    if (!sass) pane.append(el("p", { class: "soft" }, "No SASS here: it takes the assembler of CUDA, which peakgemm explore runs."));
    for (const line of sass?.lines ?? []) {
      const { code } = line;
      const made = el("div", { class: "line" }, el("i", {}, `${line.address} ${line.control.padEnd(14)} `), line.text.padEnd(40) + " ",
        el("span", { class: line.late ? "reads late" : "reads" }, line.reads));
      if (code !== undefined) {
        made.addEventListener("click", () => go(code));
        this.sass.set(code, [...(this.sass.get(code) ?? []), made]);
      }
      pane.append(made);
    }
    return { name: `${title}, banks of register reads`, pane };
  }
}

/** @param {Trace} trace */
function byLine(trace) {
  /** @type {Map<string, number[]>} */
  const found = new Map();
  for (const code of trace.code) {
    if (!code?.at) continue;
    const there = found.get(code.at.join(":")) ?? [0, 0, 0, 0, 0];
    found.set(code.at.join(":"), there.map((value, at) => value + (code.n[at] ?? 0)));
  }
  return found;
}

/**
 * What an instruction or line costs, where that is more than it must.
 * @param {number[] | undefined} counts
 */
function badge(counts) {
  if (!counts) return [];
  const made = [];
  if (counts[1]) made.push(el("b", { class: counts[1] > counts[2] ? "costly" : "" }, `${grouped(counts[1])} wavefronts${counts[1] > counts[2] ? ` for ${grouped(counts[2])}` : ""}`));
  if (counts[3]) made.push(el("b", { class: counts[3] > counts[4] ? "costly" : "" }, `${grouped(counts[3])} sectors${counts[3] > counts[4] ? ` for ${grouped(counts[4])}` : ""}`));
  return made;
}
