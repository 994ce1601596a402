"""A PTX simulator on NumPy: results, memory traffic and mistakes of a CUDA kernel, without a GPU.

`run` executes a kernel and gives a `Report`: the arrays among the arguments are updated in place,
``report.faults`` holds races, accesses out of bounds, misaligned ones, reads of unwritten shared
memory, divergent barriers and deadlocks with their source lines, and ``report.counters``
shared-memory wavefronts and global sectors as the profiler would count them.

Float32 arithmetic is that of the GPU, bit for bit, unless ptxas fuses a separate ``mul.f32`` and ``add.f32``, which it
may do where PTX gives them no rounding mode; ``.approx`` functions (``ex2``, ``lg2``, ``sin``, ``cos``,
``tanh``, ``rsqrt``, ``rcp.approx``, ``div.full``) are rounded correctly instead and need not be. Sums of tensor cores
are those of `ops.accumulation`. What orders threads, and so is no race, says docs/simulator.md.

A `TensorMap` stands for a ``CUtensorMap``.
"""

from .core.tensor_map import TensorMap
from .front.ptx import PtxError, UnknownInstruction
from .launch import run
from .report import Fault, InstructionCounts, Report
from .rungs import run_rung

__all__ = ["Fault", "InstructionCounts", "PtxError", "Report", "TensorMap", "UnknownInstruction", "run", "run_rung"]
