"""What a loop's register reads cost: instructions to `register_reads`, and what its steps say of the loop.

Memory instructions, barriers and branches read the register file by another way: they take an issue slot, and neither
read nor fill the reuse cache. Other arithmetic reads as FFMA does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .listing import Instruction, classify
from .register_reads import SLOTS, Reads, Rule, Step, rule_of, steady

_REGISTER = re.compile(r"[-~|!]*R(\d+)(?![\w])")
_PREDICATE = re.compile(r"!?U?P(\d+|T)$")
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


def bank_model(instructions: Iterable[Instruction], arch: str) -> BankModel | None:
    """The cost of the register reads of ``instructions``, a loop, on ``arch`` (``sm_NN``).

    Returns None where the model does not apply: no FFMA, or packed ones (FFMA2, whose operands span both banks).

    Raises:
        InvalidValue: an architecture whose rule is not known.
    """
    rule, loop = rule_of(arch), tuple(instructions)
    ffmas = sum(one.is_ffma for one in loop)
    if not ffmas or any(one.base == "FFMA2" for one in loop):
        return None
    turns = read_steps(loop, rule)
    steps = [step for turn in turns for one, step in zip(loop, turn, strict=True) if one.is_ffma and step is not None]
    each = len(turns)
    return BankModel(ffmas, sum(step.cycles for step in steps) / each,
                     sum(step.cycles > rule.issue for step in steps) / each,
                     sum(step.cached.bit_count() for step in steps) / each, sum(map(_moves, loop)), rule.issue)


def read_steps(loop: Sequence[Instruction], rule: Rule) -> list[list[Step | None]]:
    """Two turns of a loop in its steady state: what became of each instruction; None: it reads no operand slot."""
    return steady([None if classify(one) in _NO_READS else reads_of(one) for one in loop], rule)


def reads_slots(name: str, never: bool) -> bool:
    """Whether an instruction of that opcode reads the register file by operand slots; ``never``: its guard is false."""
    return classify(Instruction(0, "@!PT" if never else "", name, (), "")) not in _NO_READS


def reads_of(instruction: Instruction) -> Reads:
    """What an arithmetic instruction reads by which slot.

    Constants, immediates, RZ and uniform registers take a slot but read no bank; predicates take none.
    """
    # The first operand is written, whatever its kind; a second destination is always a predicate.
    sources = [operand for operand in instruction.operands[1:] if not _PREDICATE.match(operand)]
    registers: list[int | None] = [None] * len(SLOTS)
    reuse = 0
    # MOV has no first source: what it copies sits in slot b.
    first = 1 if instruction.base == "MOV" else 0
    for slot, operand in enumerate(sources[:len(SLOTS) - first], first):
        if match := _REGISTER.match(operand):
            registers[slot] = int(match[1])
            reuse |= (".reuse" in operand) << slot
    written = _REGISTER.match(instruction.operands[0]) if instruction.is_ffma else None
    return Reads((registers[0], registers[1], registers[2]), reuse, int(written[1]) if written else None)


def marks(instruction: Instruction, step: Step | None, rule: Rule) -> str:
    """Slots a, b, c as text: the bank that is read, ``r`` from the reuse cache, ``.`` no register; ``!`` behind a bank
    that made the instruction wait: ``r0!0!``."""
    if step is None:
        return ""
    found = ""
    for slot, register in enumerate(reads_of(instruction).registers):
        if register is None:
            found += "."
        elif step.cached >> slot & 1:
            found += "r"
        else:
            found += f"{rule.bank(register)}{'!' if step.waited >> slot & 1 else ''}"
    return found


def _moves(ffma: Instruction) -> bool:
    if not ffma.is_ffma:
        return False
    written, accumulator = _REGISTER.match(ffma.operands[0]), _REGISTER.match(ffma.operands[3])
    return written is not None and accumulator is not None and written[1] != accumulator[1]
