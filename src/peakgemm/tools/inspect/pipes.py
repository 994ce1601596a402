"""Counts of a loop's instructions by pipe, and by the profiler's counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...sass.encoding import Word
from ...sass.opcodes import PIPES

#: Nsight Compute's counters of executed warp instructions, and the opcode that each counts.
PROFILED = {
    "smsp__sass_inst_executed_op_shared_ld.sum": "LDS",
    "smsp__sass_inst_executed_op_shared_st.sum": "STS",
    "smsp__sass_inst_executed_op_ldgsts.sum": "LDGSTS",
    "smsp__sass_inst_executed_op_ldsm.sum": "LDSM",
    "smsp__sass_inst_executed_op_global_ld.sum": "LDG",
    "smsp__sass_inst_executed_op_global_st.sum": "STG",
    "smsp__sass_inst_executed_op_local_ld.sum": "LDL",
    "smsp__sass_inst_executed_op_local_st.sum": "STL",
}


def by_pipe(words: Sequence[Word]) -> dict[str, int]:
    """Counts of instructions by pipe, those that are there, in the order of `PIPES`."""
    counts = Counter(word.pipe for word in words)
    return {name: counts[name] for name in PIPES if counts[name]}


def profiled(loop: Sequence[Word]) -> dict[str, int]:
    """What the profiler's counters of `PROFILED` gain in one turn of a loop, for each warp that takes it.

    ``smsp__inst_executed.sum`` is all of them. A guard that is false for the whole warp still counts as executed; of
    blocks that a branch leaves out, and of ``@!PT``, that is not so: see docs/inspect.md.
    """
    opcodes = Counter(word.name for word in loop if not word.never)
    return {"smsp__inst_executed.sum": len(loop),
            **{counter: opcodes[name] for counter, name in PROFILED.items() if opcodes[name]}}
