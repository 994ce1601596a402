"""The figures of a kernel's main loop that need no GPU, ready for JSON."""

from __future__ import annotations

from typing import Any

from ..inspect.loops import main_loop
from ..inspect.sass import disassemble, mix, parse
from ..runtime.architectures import architecture
from .banks import bank_model

FACTS = ("loop_instructions", "loop_ffma", "loop_bytes", "ffma_fraction", "widths", "classes",
         "bank_cycles_per_ffma", "bank_ceiling", "accumulators_moved")


def static_facts(cubin: bytes, arch: str) -> dict[str, Any]:
    """What the SASS of ``cubin`` says of its main loop.

    ``loop_instructions``, ``loop_ffma``, ``loop_bytes`` (16 an instruction), ``ffma_fraction`` (0 to 1),
    ``widths`` (accesses by opcode and bits a thread), ``classes`` (instructions by class),
    ``bank_cycles_per_ffma`` (issue cycles, register-bank conflicts included), ``bank_ceiling`` (share of
    FP32 peak that they leave, modelled) and ``accumulators_moved`` (0 to 1). A kernel without a loop around FFMA
    has None for each; so has one for sm_70, which nvdisasm 13 refuses, and so have the last three
    where the bank model does not apply.

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
    }
