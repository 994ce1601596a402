// What the registers of the instruction hold in each lane, and all registers of one lane.
import { el, scroller } from "explorer/dom.js";
import { ofLane } from "explorer/model.js";

/** @typedef {import("./model.js").Warp} Warp */

const MOST = 80; // registers listed of a lane

/**
 * @param {Warp} warp
 * @param {number} step
 * @param {number} lane
 * @param {(step: number) => void} go
 */
export function drawRegisters(warp, step, lane, go) {
  const code = warp.trace.code[warp.steps[step]];
  const box = el("section", { class: "registers" }, el("h3", {}, "Registers of the instruction, by lane"));
  if (!code || !(code.reads.length + code.writes.length)) {
    box.append(el("p", { class: "soft" }, "It names no register."));
    return box;
  }
  const table = el("table", {}, el("caption", { class: "unseen" }, "Values of the instruction's registers in the 32 lanes"));
  const head = el("tr", {}, el("th", { scope: "col" }, "register"), el("th", { scope: "col" }, "from"));
  for (let one = 0; one < 32; one++) head.append(el("th", { scope: "col", class: one === lane ? "mine" : undefined }, `${one}`));
  table.append(el("thead", {}, head));
  const body = el("tbody");
  for (const name of code.reads) body.append(row(warp, name, step - 1, "reads", lane, go));
  for (const name of code.writes) body.append(row(warp, name, step, "writes", lane, go));
  table.append(body);
  box.append(scroller("Values by lane", "table", table), ofOneLane(warp, step, lane));
  return box;
}

/**
 * @param {Warp} warp
 * @param {string} name
 * @param {number} until
 * @param {string} role
 * @param {number} lane
 * @param {(step: number) => void} go
 */
function row(warp, name, until, role, lane, go) {
  const writer = warp.writer(name, until), value = warp.value(name, until);
  const made = el("tr", {}, el("th", { scope: "row" }, `${role === "writes" ? "→ " : ""}${name}`));
  const from = warp.trace.code[warp.steps[writer]];
  made.append(el("td", {}, role === "writes" ? "here" : writer < 0 || !from ? "never written" :
    el("button", { class: "link", click: () => go(writer), "aria-label": `Go to the step that wrote ${name}` },
      from.text.split(" ").find((word) => !word.startsWith("@")) ?? "")));
  if (value === undefined) made.append(el("td", { colspan: 32, class: "soft" }, writer < 0 ? "0" : "not kept (see limits)"));
  else for (let one = 0; one < 32; one++)
    made.append(el("td", { class: one === lane ? "mine" : undefined }, `${ofLane(value, one) ?? "–"}`));
  return made;
}

/**
 * @param {Warp} warp
 * @param {number} step
 * @param {number} lane
 */
function ofOneLane(warp, step, lane) {
  const list = el("dl");
  let count = 0;
  for (const name of warp.values.keys()) {
    const value = warp.value(name, step);
    if (value === undefined || count++ >= MOST) continue;
    list.append(el("div", {}, el("dt", {}, name), el("dd", {}, `${ofLane(value, lane) ?? "–"}`)));
  }
  return el("details", {}, el("summary", {}, `All kept registers of lane ${lane}`), list);
}
