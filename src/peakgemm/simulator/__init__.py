"""A PTX simulator on NumPy: results, memory traffic and mistakes of a CUDA kernel, without a GPU.

`run` executes a kernel and gives a `Report`: the arrays among the arguments are updated in place,
``report.faults`` holds races, accesses out of bounds, misaligned ones, reads of unwritten shared
memory, divergent barriers and deadlocks with their source lines, and ``report.counters``
shared-memory wavefronts and global sectors as the profiler would count them.
"""

from .launch import run
from .ptx import PtxError, UnknownInstruction
from .report import Fault, InstructionCounts, Report

__all__ = ["Fault", "InstructionCounts", "PtxError", "Report", "UnknownInstruction", "run"]
