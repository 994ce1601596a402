"""What a loop's register reads cost: instructions to `register_reads`, and what its steps say of the loop.

Memory instructions, barriers and branches read the register file by another way: they take an issue slot, and neither
read nor fill the reuse cache. Other arithmetic reads as FFMA does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .encoding import DESTINATION, C, Word
from .register_file import Step
from .register_reads import Reads, Rule, rule_of, steady

_NO_READS = frozenset(("memory", "barrier", "branch", "other"))


@dataclass(frozen=True, slots=True)
class BankModel:
    """Modelled register reads of the FFMA in one turn of a loop, in its steady state.

    ``cycles`` is what ``ffmas`` take to issue, other instructions' slots not counted, ``conflicts`` how many take
    longer than without banks, ``reuse_hits`` the operands that came from the reuse cache, ``moves`` the FFMA that write
    another register than the one they accumulate onto, ``issue_cycles`` what one FFMA takes without conflict.
    """

    ffmas: int
    cycles: float
    conflicts: float
    reuse_hits: float
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


def bank_model(loop: Sequence[Word], arch: str) -> BankModel | None:
    """The cost of the register reads of a loop on ``arch`` (``sm_NN``).

    Returns None where the model does not apply: no FFMA, or packed ones (FFMA2, whose operands span both banks).

    Raises:
        InvalidValue: an architecture whose rule is not known.
    """
    rule, ffmas = rule_of(arch), sum(word.is_ffma for word in loop)
    if not ffmas or any(word.name == "FFMA2" for word in loop):
        return None
    turns = steady([reads_of(word) for word in loop], rule)
    steps = [step for turn in turns for word, step in zip(loop, turn, strict=True)
             if word.is_ffma and step is not None]
    each = len(turns)
    return BankModel(ffmas, sum(step.cycles for step in steps) / each,
                     sum(step.cycles > rule.issue for step in steps) / each,
                     sum(step.cached.bit_count() for step in steps) / each, sum(map(_moves, loop)), rule.issue)


def reads_of(word: Word) -> Reads | None:
    """What an instruction reads by which slot; None: it reads no operand slot.

    Constants, immediates, RZ and uniform registers take a slot but read no bank; predicates take none.
    """
    if word.kind in _NO_READS:
        return None
    return Reads(word.slots, word.control.reuse & 7, word.at(DESTINATION) if word.is_ffma else None)


def marks(word: Word, step: Step | None, rule: Rule) -> str:
    """Slots a, b, c as text: the bank that is read, ``r`` from the reuse cache, ``.`` no register; ``!`` behind a bank
    that made the instruction wait: ``r0!0!``."""
    if step is None:
        return ""
    text = ""
    for slot, register in enumerate(word.slots):
        if register is None:
            text += "."
        elif step.cached >> slot & 1:
            text += "r"
        else:
            text += f"{rule.bank(register)}{'!' if step.waited >> slot & 1 else ''}"
    return text


def _moves(word: Word) -> bool:
    written, added = word.at(DESTINATION), word.at(C)
    return word.is_ffma and written is not None and added is not None and written != added
