// The schema of a trace, version 1: a field that changes its meaning raises it. For the type check, and for readers.
/** Step, index of its shape, base address; of a cp.async's target also the wavefronts of its source's banks. */
export type Access = [step: number, shape: number, base: number, source?: number];
/** One value for all lanes, an even sequence, or one a lane; integers from 2^53 are strings. */
export type Value = number | string | null | { from: number; step: number } | (number | string | null)[];

/** Accesses that differ by a multiple of 128 bytes share one. `count`, `ideal`: wavefronts or sectors. */
export interface Shape {
  space: "shared" | "global";
  size: number;
  load: boolean;
  offsets: (number | null)[];
  count: number;
  ideal: number;
  /** shared: per wavefront its words as [word, ...lanes]; global: sectors as [sector, ...lanes]. */
  rows: any[];
  phases?: number[];
  text: string;
}

export interface Instruction {
  text: string;
  ptx: number;
  kind: number;
  reads: string[];
  writes: string[];
  at?: [number, number];
  /** executions, wavefronts, fewest wavefronts, sectors, fewest sectors: sums over all blocks. */
  n: [number, number, number, number, number];
}

/** Warps that do the same: steps as runs [first instruction, count]; jumps [step, clock] where a step begins later than a
 * tick after the one before; flights ["load" or "copy", first step, last step]; `end` is the last clock. */
export interface Track {
  warps: number[];
  steps: [number, number][];
  jumps: [number, number][];
  flights: [string, number, number][];
  end: number;
}

export interface SassLine {
  address: string;
  control: string;
  text: string;
  reads: string;
  late: boolean;
  live: number | null;
  code?: number;
  at?: [number, number];
}

export interface Fault {
  kind: string;
  message: string;
  file: string;
  line: number;
  ptx_line: number;
  instruction: string;
  count: number;
}

/** `detailed`: the warps of the traced block of which addresses and values are kept; `code`: null where never executed;
 * `accesses` and `writes` by warp; `limits`: what was left out, in words. */
export interface Trace {
  schema: number;
  name: string;
  label: string;
  kernel: string;
  about: string;
  grid: number[];
  block: number[];
  warps: number;
  traced_block: number[];
  detailed: number[];
  stopped: string;
  counters: Record<string, number>;
  faults: Fault[];
  arrays: { name: string; base: number; bytes: number; shape: number[]; item: number }[];
  shared: { name: string; base: number; bytes: number }[];
  files: { name: string; lines: string[] }[];
  code: (Instruction | null)[];
  kinds: string[];
  tracks: Track[];
  accesses: Record<string, Access[]>;
  shapes: Shape[];
  writes: Record<string, [number, string, Value][]>;
  limits: string[];
  sass: { lines: SassLine[]; part?: string; notes: string[]; registers?: number | null; cycles_per_ffma?: number | null } | null;
}

/** Where one looks: a kernel, the occurrence of an instruction, a warp and a lane of it. */
export interface Place {
  kernel: string;
  instruction: number;
  occurrence: number;
  warp: number;
  lane: number;
}

/** What the browser simulator starts from. Of an exercise also its file, task, the rung that is its goal, and the counters
 * that may not exceed the rung's. */
export interface Setup {
  name: string;
  label: string;
  ptx: string;
  grid: string;
  block: string;
  args: string[];
  shared: number;
  arch: string;
  source?: string;
  task?: string;
  goal?: string;
  counters?: string[];
}

/** A goal of an exercise, and what was found. */
export interface Finding {
  goal: string;
  met: boolean;
  said: string;
}
