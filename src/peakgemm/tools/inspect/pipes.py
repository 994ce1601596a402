"""Which pipe of a sub-partition runs an instruction, in the names of Nsight Compute's metrics.

Source: Nsight Compute's documentation, "Pipelines": ``sm__inst_executed_pipe_*``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from ...sass.listing import Instruction, classify

#: In the order in which tables show them.
PIPES = ("fma", "alu", "lsu", "tensor", "uniform", "xu", "fp64", "cbu", "adu", "other")

_FMA = re.compile(r"FFMA2?$|FMUL|FADD|IMAD|HFMA2|HADD2|HMUL2|IDP")
_XU = re.compile(r"MUFU|[IF]2[IF]$|F2F$|FRND|POPC|FLO|BREV|CONV")
_CBU_ALSO = ("WARPSYNC", "NANOSLEEP", "YIELD")


def pipe(instruction: Instruction) -> str:
    """One of `PIPES`. What never runs takes an issue slot and no pipe: "other", as NOP."""
    base, kind = instruction.base, classify(instruction)
    if not instruction.runs or base == "NOP":
        return "other"
    if kind == "tensor":
        return "tensor"
    if kind == "branch" or base in _CBU_ALSO:
        return "cbu"
    if base.startswith("U") and not base.startswith(("UTMA", "UBLK")):
        return "uniform"
    if kind == "memory" or base.startswith(("UTMA", "UBLK")) or base in ("S2R", "LDGDEPBAR", "DEPBAR", "SYNCS"):
        return "lsu" if base not in ("S2R", "LDGDEPBAR", "DEPBAR", "SYNCS", "LDC") else "adu"
    if kind == "barrier":
        return "adu"
    if base in ("DADD", "DMUL", "DFMA", "DSETP", "DMNMX"):
        return "fp64"
    if _XU.match(base):
        return "xu"
    if _FMA.match(base):
        return "fma"
    return "alu" if kind in ("integer", "float", "move") else "other"


def by_pipe(instructions: Iterable[Instruction]) -> dict[str, int]:
    """Counts of ``instructions`` by pipe, those that are there, in the order of `PIPES`."""
    counts = Counter(map(pipe, instructions))
    return {name: counts[name] for name in PIPES if counts[name]}


#: Nsight Compute's counters of executed warp instructions, and the opcodes that each counts.
PROFILED = {
    "smsp__sass_inst_executed_op_shared_ld.sum": ("LDS",),
    "smsp__sass_inst_executed_op_shared_st.sum": ("STS",),
    "smsp__sass_inst_executed_op_ldgsts.sum": ("LDGSTS",),
    "smsp__sass_inst_executed_op_ldsm.sum": ("LDSM",),
    "smsp__sass_inst_executed_op_global_ld.sum": ("LDG",),
    "smsp__sass_inst_executed_op_global_st.sum": ("STG",),
    "smsp__sass_inst_executed_op_local_ld.sum": ("LDL",),
    "smsp__sass_inst_executed_op_local_st.sum": ("STL",),
}


def profiled(instructions: Iterable[Instruction]) -> dict[str, int]:
    """What the profiler's counters of `PROFILED` gain in one turn of a loop, for each warp that takes it.

    ``smsp__inst_executed.sum`` is all of them. A guard that is false for the whole warp still counts as executed; of
    blocks that a branch leaves out, and of ``@!PT``, that is not so: see docs/inspect.md.
    """
    loop = tuple(instructions)
    opcodes = Counter(one.base for one in loop if one.runs)
    found = {name: sum(opcodes[base] for base in bases) for name, bases in PROFILED.items()}
    return {"smsp__inst_executed.sum": len(loop), **{name: count for name, count in found.items() if count}}
