// The schema of a trace, as docs/explorer.md has it; for the type check alone.
export type Access = [step: number, shape: number, base: number, source?: number];
export type Value = number | string | null | { from: number; step: number } | (number | string | null)[];

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

export interface Setup {
  name: string;
  label: string;
  ptx: string;
  grid: string;
  block: string;
  args: string[];
  shared: number;
  arch: string;
}
