"""The figures of a kernel's main loop that need no GPU, ready for JSON."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from ..runtime.architectures import architecture
from .banks import bank_model
from .listing import Instruction, disassemble, mix, parse
from .loops import main_loop

FACTS = ("loop_instructions", "loop_ffma", "loop_bytes", "ffma_fraction", "widths", "classes",
         "bank_cycles_per_ffma", "bank_ceiling", "accumulators_moved", "loads_in_a_row")


def static_facts(cubin: bytes, arch: str) -> dict[str, Any]:
    """What the SASS of ``cubin`` says of its main loop.

    ``loop_instructions``, ``loop_ffma``, ``loop_bytes`` (16 an instruction), ``ffma_fraction`` (0 to 1),
    ``widths`` (accesses by opcode and bits a thread), ``classes`` (instructions by class),
    ``bank_cycles_per_ffma`` (issue cycles, register-bank conflicts included), ``bank_ceiling`` (share of
    FP32 peak that they leave, modelled), ``accumulators_moved`` (0 to 1) and ``loads_in_a_row`` (see
    `loads_in_a_row`). A kernel without a loop around FFMA has None for each; so has one for sm_70, which nvdisasm 13
    refuses, and so have those of the bank model where it does not apply.

    One run of nvdisasm a call: keep the result.

    Raises:
        InvalidValue: unknown architecture, or bytes that are not a cubin.
        MissingComponent: nvdisasm is not there, or refuses this architecture.
    """
    if architecture(arch).number < 75:  # nvdisasm 13, the only one to install by itself, has dropped it
        return dict.fromkeys(FACTS)
    loop = main_loop(parse(disassemble(cubin, arch)))
    if loop is None:
        return dict.fromkeys(FACTS)
    what = mix(loop.instructions)
    banks = bank_model(loop.instructions, arch)
    return {
        "loop_instructions": what.instructions,
        "loop_ffma": what.ffma,
        "loop_bytes": loop.code_bytes,
        "ffma_fraction": what.ffma_fraction,
        "widths": what.widths,
        "classes": what.classes,
        "bank_cycles_per_ffma": banks.cycles_per_ffma if banks else None,
        "bank_ceiling": banks.ceiling if banks else None,
        "accumulators_moved": banks.moved if banks else None,
        "loads_in_a_row": loads_in_a_row(loop.instructions),
    }


def loads_in_a_row(instructions: Iterable[Instruction]) -> int:
    """The most loads from shared memory (LDS) that follow each other with nothing between.

    They leave by one queue, and a warp that waits for its place there computes nothing: of two loops of 8 x 16
    results a thread, alike in length and to 0.1 % in modelled bank cycles, the one with up to ten in a row takes 4 %
    longer at 2048 than the one with none (docs/notebook/08). Two or three were no loss. Those that ptxas puts before
    cp.async and that never run (``@!PT``) are not counted.
    """
    runs = groupby(instructions, lambda one: one.base == "LDS" and one.predicate != "@!PT")
    return max((len(list(run)) for loads, run in runs if loads), default=0)
