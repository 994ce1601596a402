// A trace, unpacked: steps of a warp, its accesses and the values of its registers.

/** @typedef {import("./types.js").Trace} Trace */
/** @typedef {import("./types.js").Value} Value */
/** @typedef {import("./types.js").Access} Access */
/** @typedef {import("./types.js").Shape} Shape */

/**
 * @param {Value | undefined} value
 * @param {number} lane
 * @returns {number | string | null}
 */
export function ofLane(value, lane) {
  if (value === undefined || value === null) return null;
  if (Array.isArray(value)) return value[lane] ?? null;
  if (typeof value === "object") return value.from + value.step * lane;
  return value;
}

export class Warp {
  /**
   * @param {Trace} trace
   * @param {number} number
   */
  constructor(trace, number) {
    this.trace = trace;
    this.number = number;
    const track = trace.tracks.find((one) => one.warps.includes(number));
    if (!track) throw new Error(`warp ${number} is not in the trace`);
    this.track = track;
    const total = track.steps.reduce((sum, [, count]) => sum + count, 0);
    /** The instruction of each step. */
    this.steps = new Int32Array(total);
    let at = 0;
    for (const [first, count] of track.steps) for (let i = 0; i < count; i++) this.steps[at++] = first + i;
    /** When each step begins. */
    this.clocks = clocks(total, track.jumps);
    /** @type {Map<number, Access[]>} */
    this.accesses = new Map();
    for (const access of trace.accesses[number] ?? []) {
      const there = this.accesses.get(access[0]);
      if (there) there.push(access);
      else this.accesses.set(access[0], [access]);
    }
    /** @type {Map<string, [number, Value][]>} */
    this.values = new Map();
    for (const [step, register, value] of trace.writes[number] ?? []) {
      const there = this.values.get(register);
      if (there) there.push([step, value]);
      else this.values.set(register, [[step, value]]);
    }
    /** @type {Map<number, number[]> | null} */
    this.occurrences = null;
  }

  get length() {
    return this.steps.length;
  }

  /** @param {number} instruction */
  stepsOf(instruction) {
    if (!this.occurrences) {
      this.occurrences = new Map();
      for (let step = 0; step < this.steps.length; step++) {
        const there = this.occurrences.get(this.steps[step]);
        if (there) there.push(step);
        else this.occurrences.set(this.steps[step], [step]);
      }
    }
    return this.occurrences.get(instruction) ?? [];
  }

  /** @param {number} step */
  occurrence(step) {
    return Math.max(this.stepsOf(this.steps[step]).indexOf(step), 0);
  }

  /**
   * The last step at or before `until` that writes a register; -1: none does.
   * @param {string} register
   * @param {number} until
   */
  writer(register, until) {
    for (let step = Math.min(until, this.length - 1); step >= 0; step--)
      if (this.trace.code[this.steps[step]]?.writes.includes(register)) return step;
    return -1;
  }

  /**
   * What a register holds behind step `until`; undefined where that was not kept.
   * @param {string} register
   * @param {number} until
   * @returns {Value | undefined}
   */
  value(register, until) {
    const writer = this.writer(register, until);
    return writer < 0 ? undefined : this.values.get(register)?.find(([step]) => step === writer)?.[1];
  }

  /**
   * The next step (by = 1) or the one before (-1) for which `wanted` holds; -1: there is none.
   * @param {number} from
   * @param {number} by
   * @param {(step: number) => boolean} wanted
   */
  seek(from, by, wanted) {
    for (let step = from + by; step >= 0 && step < this.length; step += by) if (wanted(step)) return step;
    return -1;
  }

  /** @param {number} step */
  isCostly(step) {
    return (this.accesses.get(step) ?? []).some((access) => cost(this.trace, access) > this.trace.shapes[access[1]].ideal);
  }

  /**
   * The step of another kernel's warp that belongs to a step of this one: as far behind the same access or barrier, the
   * n-th of its kind or the last; -1: the other has none.
   * @param {number} step
   * @param {Warp} other
   */
  counterpart(step, other) {
    const kind = (/** @type {Warp} */ warp, /** @type {number} */ at) => warp.trace.kinds[warp.trace.code[warp.steps[at]]?.kind ?? 0];
    const fixed = (/** @type {Warp} */ warp) => (/** @type {number} */ at) => !["compute", "other"].includes(kind(warp, at));
    const from = fixed(this)(step) ? step : this.seek(step, -1, fixed(this));
    let to = -1;
    for (let at = 0; at <= from; at++)
      if (kind(this, at) === kind(this, from)) to = Math.max(to, other.seek(to, 1, (one) => kind(other, one) === kind(this, from)));
    if (from >= 0 && to < 0) return -1;
    const next = other.seek(to, 1, fixed(other));
    return Math.min(to + step - from, (next < 0 ? other.length : next) - 1);
  }

  /** Where to begin: the first access with a bank conflict, else one that moves too many sectors, else any. */
  start() {
    const steps = [...this.accesses.keys()].sort((a, b) => a - b);
    const conflict = steps.find((step) => (this.accesses.get(step) ?? []).some((access) =>
      this.trace.shapes[access[1]].space === "shared" && this.trace.shapes[access[1]].count > this.trace.shapes[access[1]].ideal));
    return conflict ?? steps.find((step) => this.isCostly(step)) ?? steps[0] ?? 0;
  }
}

/**
 * Wavefronts or sectors of an access; a copy's source may take more wavefronts than its target.
 * @param {Trace} trace
 * @param {Access} access
 */
export function cost(trace, access) {
  return Math.max(trace.shapes[access[1]].count, access[3] ?? 0);
}

/**
 * @param {number} total
 * @param {[number, number][]} jumps
 */
export function clocks(total, jumps) {
  const found = new Int32Array(total);
  let clock = 0, next = 0;
  for (let step = 0; step < total; step++) {
    if (next < jumps.length && jumps[next][0] === step) clock = jumps[next++][1];
    found[step] = clock++;
  }
  return found;
}

/**
 * `A[3, 0]`, `As + 128 bytes`: what lies at an address.
 * @param {Trace} trace
 * @param {"shared" | "global"} space
 * @param {number} address
 */
export function place(trace, space, address) {
  const list = space === "shared" ? trace.shared : trace.arrays;
  const found = list.find((one) => one.base <= address && address < one.base + one.bytes);
  if (!found) return space === "shared" ? `shared + ${address}` : `0x${address.toString(16)}`;
  const offset = address - found.base;
  if (!("shape" in found)) return offset ? `${found.name} + ${offset} bytes` : found.name;
  const { shape, item, name } = /** @type {Trace["arrays"][0]} */ (found);
  const element = Math.floor(offset / item);
  if (shape.length !== 2) return `${name}[${element}]`;
  return `${name}[${Math.floor(element / shape[1])}, ${element % shape[1]}]`;
}
