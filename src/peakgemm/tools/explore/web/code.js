// Source of one kernel, or of two as one text, and PTX and SASS; what belongs to the instruction is marked in each.
import { el, grouped, scroller } from "explorer/dom.js";

/** @typedef {import("./types.js").Trace} Trace */

/** A list of lines: `marked` brings some into sight. */
class Pane {
  /** @param {string} name */
  constructor(name) {
    this.lines = scroller(name, "lines");
    this.box = el("div", { class: "pane" }, el("h3", {}, name), this.lines);
  }

  /**
   * @param {string} kind
   * @param {(HTMLElement | undefined)[]} wanted
   */
  mark(kind, wanted) {
    for (const one of this.lines.querySelectorAll(`.${kind}`)) one.classList.remove(kind);
    for (const one of wanted) one?.classList.add(kind);
  }

  /** @param {HTMLElement | undefined} line */
  toSight(line) {
    if (line) this.lines.scrollTop = line.offsetTop - this.lines.clientHeight / 2;
  }
}

/** The source of one kernel or two: lines that both have stand once. */
export class Source extends Pane {
  /**
   * @param {Trace[]} traces
   * @param {(at: number, instruction: number) => void} go
   */
  constructor(traces, go) {
    super(traces.length > 1 ? `Source: ${traces.map(({ label }, at) => `${"-+"[at]} ${label}`).join(", ")}` : "Source");
    this.traces = traces;
    this.go = go;
    /** The gutter of each line, by file and line, of each kernel. @type {Map<string, HTMLElement>[]} */
    this.gutters = traces.map(() => new Map());
    this.used = traces.map(usedLines);
    for (const files of paired(traces)) this.#file(files);
    if (!this.lines.children.length) this.lines.append(el("p", { class: "soft" }, "The PTX names no source lines."));
  }

  /** Mark where each kernel is, and bring the line of the one that leads into sight. @param {number[]} instructions @param {number} leader */
  show(instructions, leader) {
    const here = instructions.map((instruction, at) => this.gutters[at].get(this.traces[at].code[instruction]?.at?.join(":") ?? ""));
    this.mark("here", here);
    this.mark("on", here.map((gutter) => gutter?.parentElement ?? undefined));
    this.toSight(here[leader]?.parentElement ?? undefined);
  }

  /** @param {number[]} files of each kernel; -1: it has none */
  #file(files) {
    const shown = files.map((file, at) => this.#range(at, file));
    if (shown.every(([from, until]) => until < from)) return;
    const names = files.map((file, at) => (file < 0 ? "" : this.traces[at].files[file].name + (this.traces[at].files[file].lines.length ? "" : " (not found here)")));
    this.lines.append(el("div", { class: "file" }, [...new Set(names)].filter(Boolean).join(" and ")));
    const texts = shown.map(([from, until], at) => this.traces[at].files[files[at]]?.lines.slice(from - 1, until) ?? []);
    for (const row of texts.length > 1 ? merged(texts[0], texts[1]) : texts[0].map((_, index) => [index])) {
      const at = row.findIndex((index) => index >= 0);
      const keys = row.map((index, at) => (index < 0 ? "" : `${files[at]}:${shown[at][0] + index}`));
      const gutters = row.map((index, at) => el("i", {}, index < 0 ? "     " : `${shown[at][0] + index}`.padStart(4) + " "));
      const sign = row.length < 2 ? "" : row[1] < 0 ? "- " : at ? "+ " : "  ";
      const found = keys.map((key, at) => this.used[at].get(key));
      const first = found.findIndex((use) => use);
      const line = el("div", { class: `line${first < 0 ? " idle" : ""}${sign.trim() ? " only" : ""}` }, ...gutters, sign, texts[at][row[at]] + " ",
        ...found.flatMap((use, at) => badge(use?.counts, row.length > 1 ? `${this.traces[at].name}: ` : "")));
      if (first >= 0) line.addEventListener("click", () => this.go(first, found[first]?.first ?? 0));
      keys.forEach((key, at) => this.gutters[at].set(key, gutters[at]));
      this.lines.append(line);
    }
  }

  /**
   * The lines that instructions name, and some around.
   * @param {number} at
   * @param {number} file
   * @returns {[number, number]}
   */
  #range(at, file) {
    const lines = [...this.used[at].keys()].filter((key) => key.startsWith(`${file}:`)).map((key) => Number(key.split(":")[1]));
    return lines.length ? [Math.max(Math.min(...lines) - 3, 1), Math.min(Math.max(...lines) + 2, this.traces[at].files[file].lines.length)] : [1, 0];
  }
}

/**
 * The PTX that a kernel executed, and the SASS made of it.
 * @param {Trace} trace
 * @param {(instruction: number) => void} go
 * @returns {{ panes: Pane[], show: (instruction: number) => void }}
 */
export function compiled(trace, go) {
  /** @type {Map<number, HTMLElement[]>[]} */
  const lines = [new Map(), new Map()];
  const panes = [ptxPane(trace, go, lines[0]), sassPane(trace, go, lines[1])];
  return { panes, show: (instruction) => panes.forEach((pane, at) => {
    const found = lines[at].get(instruction) ?? [];
    pane.mark("on", found);
    pane.toSight(found[0]);
  }) };
}

/**
 * @param {Trace} trace
 * @param {(instruction: number) => void} go
 * @param {Map<number, HTMLElement[]>} lines
 */
function ptxPane(trace, go, lines) {
  const pane = new Pane("PTX, executed");
  let before = -1;
  trace.code.forEach((code, index) => {
    if (!code) return;
    if (before >= 0 && index !== before + 1) pane.lines.append(el("div", { class: "file" }, `${index - before - 1} not executed`));
    before = index;
    const made = el("div", { class: "line", click: () => go(index), "data-instruction": index }, el("i", {}, `${code.ptx}`.padStart(5) + " "), code.text + " ", ...badge(code.n));
    lines.set(index, [made]);
    pane.lines.append(made);
  });
  return pane;
}

/**
 * @param {Trace} trace
 * @param {(instruction: number) => void} go
 * @param {Map<number, HTMLElement[]>} lines
 */
function sassPane({ sass }, go, lines) {
  const pane = new Pane(`SASS of the ${sass?.part ?? "main loop"}, banks of register reads`);
  for (const note of sass?.notes ?? ["No SASS here: it takes the assembler of CUDA, which peakgemm explore runs."]) pane.lines.append(el("p", { class: "soft" }, note));
  for (const line of sass?.lines ?? []) {
    const { code } = line;
    const made = el("div", { class: "line" }, el("i", {}, `${line.address} ${line.control.padEnd(14)} `), line.text.padEnd(40) + " ",
      el("span", { class: line.late ? "reads late" : "reads" }, line.reads));
    if (code !== undefined) {
      made.addEventListener("click", () => go(code));
      lines.set(code, [...(lines.get(code) ?? []), made]);
    }
    pane.lines.append(made);
  }
  return pane;
}

/**
 * Lines of a kernel that instructions name, as `file:line`: the first instruction of each, and what all of them cost.
 * @param {Trace} trace
 * @returns {Map<string, { first: number, counts: number[] }>}
 */
function usedLines(trace) {
  const found = new Map();
  trace.code.forEach((code, index) => {
    if (!code?.at) return;
    const key = code.at.join(":"), { first, counts } = found.get(key) ?? { first: index, counts: [0, 0, 0, 0, 0] };
    found.set(key, { first, counts: counts.map((/** @type {number} */ value, /** @type {number} */ at) => value + (code.n[at] ?? 0)) });
  });
  return found;
}

/**
 * Files of one kernel, or of two that belong together: those of one name, then the others in their order.
 * @param {Trace[]} traces
 * @returns {number[][]}
 */
function paired([first, second]) {
  const own = first.files.map((_, index) => index);
  if (!second) return own.map((index) => [index]);
  const partner = first.files.map(({ name }) => second.files.findIndex((one) => one.name === name));
  const left = second.files.map((_, index) => index).filter((index) => !partner.includes(index));
  return [...own.map((index) => [index, partner[index] < 0 ? left.shift() ?? -1 : partner[index]]), ...left.map((index) => [-1, index])];
}

/**
 * Two texts as one, by their longest common sequence of lines: the number of each line in both; -1: only the other has it.
 * @param {string[]} first
 * @param {string[]} second
 * @returns {number[][]}
 */
export function merged(first, second) {
  const same = (/** @type {number} */ i, /** @type {number} */ j) => first[i].trim() === second[j].trim();
  const common = Array.from({ length: first.length + 1 }, () => new Uint16Array(second.length + 1)); // from both lines on
  for (let i = first.length - 1; i >= 0; i--)
    for (let j = second.length - 1; j >= 0; j--)
      common[i][j] = same(i, j) ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
  const rows = [];
  for (let i = 0, j = 0; i < first.length || j < second.length;) {
    if (i < first.length && j < second.length && same(i, j)) rows.push([i++, j++]);
    else if (i < first.length && (j === second.length || common[i + 1][j] >= common[i][j + 1])) rows.push([i++, -1]);
    else rows.push([-1, j++]);
  }
  return rows;
}

/**
 * What an instruction or line costs, where that is more than it must.
 * @param {number[] | undefined} counts
 * @param {string} [whose]
 */
function badge(counts, whose = "") {
  const made = [["wavefronts", 1], ["sectors", 3]].flatMap(([what, at]) => {
    const [count, ideal] = counts?.slice(Number(at)) ?? [0, 0];
    return count ? [el("b", { class: count > ideal ? "costly" : "" }, `${grouped(count)} ${what}${count > ideal ? ` for ${grouped(ideal)}` : ""}`)] : [];
  });
  made[0]?.prepend(whose);
  return made;
}
