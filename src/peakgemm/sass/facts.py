"""What a stretch of SASS is made of, and the figures of a kernel's main loop that need no GPU, ready for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from .banks import bank_model
from .elf import WORD_BYTES, Cubin
from .encoding import Word
from .opcodes import CLASSES
from .program import Program

FACTS = ("loop_instructions", "loop_ffma", "loop_bytes", "ffma_fraction", "widths", "classes",
         "bank_cycles_per_ffma", "bank_ceiling", "accumulators_moved", "loads_in_a_row")
#: Opcodes whose access widths `Mix` counts.
WIDE = ("LDG", "LDS", "STS", "STG", "LDGSTS")
_SIZES = (8, 8, 16, 16, 32, 64, 128)  # bits that a memory instruction moves for a thread, by its bits 73 to 75


@dataclass(frozen=True, slots=True)
class Mix:
    """What a stretch of SASS is made of.

    ``widths`` counts accesses by opcode and bits a thread (``{"LDS": {"128": 4}}``), ``classes`` counts
    instructions by each of `CLASSES`.
    """

    instructions: int
    ffma: int
    widths: dict[str, dict[str, int]]
    classes: dict[str, int]

    @property
    def ffma_fraction(self) -> float:
        """The share of FFMA among the instructions: what the FP32 pipe gets of the issue slots."""
        return self.ffma / self.instructions if self.instructions else 0.0


def mix(words: Iterable[Word]) -> Mix:
    """Counts of instructions by width and by class."""
    classes = dict.fromkeys(CLASSES, 0)
    widths: dict[str, Counter[int]] = {}
    ffma = 0
    for word in words:
        ffma += word.is_ffma
        classes[word.kind] += 1
        if word.name in WIDE and not word.never:
            widths.setdefault(word.name, Counter())[width(word)] += 1
    return Mix(sum(classes.values()), ffma,
               {opcode: {str(bits): widths[opcode][bits] for bits in sorted(widths[opcode])}
                for opcode in WIDE if opcode in widths}, classes)


def width(word: Word) -> int:
    """Bits that a memory instruction moves for each thread."""
    size = word.bits >> 73 & 7
    return _SIZES[size] if size < len(_SIZES) else 256


def static_facts(cubin: bytes, arch: str) -> dict[str, Any]:
    """What the SASS of ``cubin`` says of its main loop.

    ``loop_instructions``, ``loop_ffma``, ``loop_bytes`` (16 an instruction), ``ffma_fraction`` (0 to 1),
    ``widths`` (accesses by opcode and bits a thread), ``classes`` (instructions by class),
    ``bank_cycles_per_ffma`` (issue cycles, register-bank conflicts included), ``bank_ceiling`` (share of
    FP32 peak that they leave, modelled), ``accumulators_moved`` (0 to 1) and ``loads_in_a_row`` (see
    `loads_in_a_row`). A kernel without a loop around FFMA has None for each; so have those of the bank model
    where it does not apply.

    Raises:
        InvalidValue: bytes that are not a cubin, or an architecture that no table decodes.
    """
    code = Cubin.read(cubin)
    turns = (Program.of(code, name, unknown="{:#x}".format).main for name in code.kernels)
    loop = max(turns, key=lambda turn: sum(word.is_ffma for word in turn), default=())
    if not loop:
        return dict.fromkeys(FACTS)
    what, banks = mix(loop), bank_model(loop, arch)
    return {
        "loop_instructions": what.instructions,
        "loop_ffma": what.ffma,
        "loop_bytes": WORD_BYTES * what.instructions,
        "ffma_fraction": what.ffma_fraction,
        "widths": what.widths,
        "classes": what.classes,
        "bank_cycles_per_ffma": banks.cycles_per_ffma if banks else None,
        "bank_ceiling": banks.ceiling if banks else None,
        "accumulators_moved": banks.moved if banks else None,
        "loads_in_a_row": loads_in_a_row(loop),
    }


def loads_in_a_row(words: Iterable[Word]) -> int:
    """The most loads from shared memory (LDS) that follow each other with nothing between.

    They leave by one queue, and a warp that waits for its place there computes nothing: of two loops of 8 x 16
    results a thread, alike in length and to 0.1 % in modelled bank cycles, the one with up to ten in a row takes 4 %
    longer at 2048 than the one with none (docs/notebook/08). Two or three were no loss. Those that ptxas puts before
    cp.async and that never run (``@!PT``) are not counted.
    """
    runs = groupby(words, lambda word: word.name == "LDS" and not word.never)
    return max((len(list(run)) for loads, run in runs if loads), default=0)
