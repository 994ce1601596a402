"""What a loop's register reads cost: the register file's two banks and the reuse cache.

The rule, from Volta on: a register sits in the bank of its number's parity. A bank gives one register
of a warp (32 lanes) a cycle. In front of the banks each operand slot (a, b, c) has an entry that can
serve a read instead: it keeps the register that the last read of the slot carried with ``.reuse``, and
the next read of the slot drops it, after being served if it asks for the same register, unless it
carries ``.reuse`` itself. Memory instructions neither read nor fill it.

Where 32 FP32 lanes take an FFMA a cycle (sm_86, 89, 90, 100, 120) two reads of one bank therefore cost a
cycle; where 16 lanes take two cycles (sm_70, 75, 80) only three do.

Measured on an H100: row-order and snake-order 8x16 outer products in registers, modelled at 93.9 and
98.9 % of peak, ran at 93.2 and 97.8 %; a warp-specialised kernel that little else limits stayed within
2 points of the model over six register allocations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..inspect.sass import Instruction, classify
from ..runtime.architectures import architecture

BANKS = 2
SLOTS = 3
_REGISTER = re.compile(r"[-~|!]*R(\d+)(?![\w])")
_PREDICATE = re.compile(r"!?U?P(\d+|T)$")
_NO_READS = frozenset(("memory", "barrier", "branch", "other"))


@dataclass(frozen=True, slots=True)
class BankModel:
    """Modelled register reads of the FFMA in a stretch of SASS.

    ``cycles`` is what ``ffmas`` take to issue, ``conflicts`` how many take longer than without banks,
    ``reuse_hits`` the operands that came from the reuse cache, ``moves`` the FFMA that write another
    register than the one they accumulate onto, ``issue_cycles`` what one FFMA takes without conflict.
    """

    ffmas: int
    cycles: int
    conflicts: int
    reuse_hits: int
    moves: int
    issue_cycles: int

    @property
    def cycles_per_ffma(self) -> float:
        """Issue cycles an FFMA: 1.0 at best with 32 lanes a sub-partition, 2.0 with 16."""
        return self.cycles / self.ffmas

    @property
    def ceiling(self) -> float:
        """The share of FP32 peak that the register reads leave by this model; measured kernels can exceed it."""
        return self.issue_cycles * self.ffmas / self.cycles

    @property
    def moved(self) -> float:
        """The fraction of FFMA whose destination is not their accumulator."""
        return self.moves / self.ffmas


def bank_model(instructions: Iterable[Instruction], arch: str, entry_per_bank: bool = False) -> BankModel | None:
    """The cost of the register reads of ``instructions``, one turn of a loop, on ``arch`` (``sm_NN``).

    ``entry_per_bank`` gives each slot an entry for either bank, so that a read of one parity spares an
    entry of the other: ptxas places ``.reuse`` as though it were so. The measurements above were modelled
    without.

    Returns None where the model does not apply: no FFMA, or packed ones (FFMA2, whose operands span both
    banks).

    Raises:
        InvalidValue: unknown architecture.
    """
    limits = architecture(arch)
    # 32 lanes a warp; the lanes of one sub-partition take it in 1 or 2 cycles.
    issue = limits.warp_size * limits.sub_partitions // limits.fp32_lanes_per_sm
    entries: dict[tuple[int, int], int] = {}
    ffmas = cycles = conflicts = hits = moves = 0
    for instruction in instructions:
        if instruction.base == "FFMA2":
            return None
        if classify(instruction) in _NO_READS:
            continue
        uncached: set[int] = set()
        hit = 0
        for slot, register, keep in _reads(instruction):
            entry = (slot, register % BANKS if entry_per_bank else 0)
            if entries.pop(entry, None) == register:
                hit += 1
            else:
                uncached.add(register)
            if keep:
                entries[entry] = register
        if not instruction.is_ffma:
            continue
        # A register in two slots at once is read once.
        reads = max(sum(register % BANKS == bank for register in uncached) for bank in range(BANKS))
        ffmas += 1
        cycles += max(issue, reads)
        conflicts += reads > issue
        hits += hit
        moves += _moves(instruction)
    return BankModel(ffmas, cycles, conflicts, hits, moves, issue) if ffmas else None


def _reads(instruction: Instruction) -> list[tuple[int, int, bool]]:
    """Slot, register and ``.reuse`` bit of each register that an arithmetic instruction reads.

    Constants, immediates, RZ and uniform registers take a slot but read no bank; predicates take none.
    """
    # The first operand is written, whatever its kind; a second destination is always a predicate.
    sources = [operand for operand in instruction.operands[1:] if not _PREDICATE.match(operand)]
    # MOV has no first source: what it copies sits in slot b.
    first = 1 if instruction.base == "MOV" else 0
    return [(slot, int(match[1]), ".reuse" in operand)
            for slot, operand in enumerate(sources[:SLOTS - first], first)
            if (match := _REGISTER.match(operand))]


def _moves(ffma: Instruction) -> bool:
    written, accumulator = _REGISTER.match(ffma.operands[0]), _REGISTER.match(ffma.operands[3])
    return written is not None and accumulator is not None and written[1] != accumulator[1]
