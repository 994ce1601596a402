"""What register reads cost, by architecture: pure functions of register numbers and ``.reuse`` bits.

A stream is a list of `Reads`, one an instruction. A rule is followed by a reader, one pass over a stream::

    reader = rule_of("sm_90").reader()
    for reads in stream:
        step = reader.read(*reads)

Three families of rules:

=================  ===================================================================================
Kepler             four banks, register modulo 8 folded to 4; no reuse cache; an instruction waits for its own reads
Maxwell, Pascal    four banks, register modulo 4; a reuse entry an operand slot; waits for its own reads
sm_70, 75, 80      two banks; 16 lanes take an FFMA two cycles, so three reads of one bank cost one cycle more
sm_86 and later    two banks of one register a cycle behind three read stages; an operand register, which ``.reuse``
                   keeps, per slot *and* bank: `register_file`
=================  ===================================================================================

The last was found on an H100 (docs/register-file.md) and is taken for the others with 32 lanes, where nothing was
measured. Taking every FFMA to wait for its own reads erred by 0.36 cycles on average over 45 streams. Sources of the
others: Lai and Seznec, "Performance Upper Bound Analysis and Optimization of SGEMM on Fermi and Kepler GPUs" (2013);
the wiki of maxas (Gray, 2014); Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking" (2018).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..errors import InvalidValue
from ..runtime.architectures import number_of
from .register_file import BANKS, STAGES, RegisterFile, Step

SLOTS = "abc"


class Reads(NamedTuple):
    """The registers that an instruction reads by operand slots a, b, c (None: no register), and a bit for each slot,
    a = 1, b = 2, c = 4, whose register ``.reuse`` keeps. ``written``: what an FFMA writes; None: not known."""

    registers: Sequence[int | None]
    reuse: int = 0
    written: int | None = None


class Reader(Protocol):
    """One pass over a stream."""

    def read(self, registers: Sequence[int | None], reuse: int = 0, written: int | None = None) -> Step:
        """Issue the next instruction, which reads as `Reads` says."""

    def skip(self) -> Step:
        """An instruction that reads through no operand slot takes its issue slot."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How an architecture reads registers: ``banks`` of one register a cycle each.

    ``issue`` is the cycles of an FFMA without conflicts. ``stages``: instructions gather their operands in so many read
    stages, by `register_file`; 0: an instruction waits for its own reads. ``reuse``: whether there is a reuse cache,
    with an entry an operand slot. ``fold``: registers modulo 8 in four banks, two neighbours of like parity within four
    sharing one (Kepler).
    """

    name: str
    banks: int
    issue: int = 1
    stages: int = 0
    reuse: bool = True
    fold: bool = False

    def bank(self, register: int) -> int:
        """The bank that holds a register. Kepler: parity, and which half of eight."""
        return register % 2 + 2 * (register % 8 // 4) if self.fold else register % self.banks

    def reader(self) -> Reader:
        """A fresh pass, nothing cached."""
        return RegisterFile(self.stages) if self.stages else _OwnReads(self)


class _OwnReads:
    """An instruction waits for its own reads.

    A read drops the entry of its slot, served or not, unless it carries ``.reuse``. One register in two slots is read
    once.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._kept: dict[int, int] = {}

    def read(self, registers: Sequence[int | None], reuse: int = 0, written: int | None = None) -> Step:
        """Issue the next instruction."""
        rule, wanted, cached = self._rule, dict[int, int](), 0  # the slots that ask for each register; those served
        for slot, register in enumerate(registers):
            if register is None:
                continue
            if self._kept.pop(slot, None) == register:
                cached |= 1 << slot
            else:
                wanted[register] = wanted.get(register, 0) | 1 << slot
            if rule.reuse and reuse >> slot & 1:
                self._kept[slot] = register
        load = [0] * rule.banks
        for register in wanted:
            load[rule.bank(register)] += 1
        cycles = max(rule.issue, *load)
        late = [slots for register, slots in wanted.items() if load[rule.bank(register)] == cycles > rule.issue]
        return Step(cycles, cached, sum(late))

    def skip(self) -> Step:
        """It waits for nothing."""
        return Step(1)


KEPLER = Rule("Kepler: 4 banks, register modulo 8 folded", 4, reuse=False, fold=True)
MAXWELL = Rule("Maxwell and Pascal: 4 banks, register modulo 4", 4)
HALF_RATE = Rule("2 banks, two cycles an FFMA", 2, issue=2)
TWO_BANKS = Rule("2 banks, three read stages, an operand register per slot and bank", BANKS, stages=STAGES)

# Architectures whose rule was measured or published. Others of a later number are not guessed.
_RULES: dict[int, Rule] = {
    **dict.fromkeys((30, 35, 37), KEPLER), **dict.fromkeys((50, 52, 53, 60, 61, 62), MAXWELL),
    **dict.fromkeys((70, 72, 75, 80), HALF_RATE), **dict.fromkeys((86, 87, 89, 90, 100, 103, 120, 121), TWO_BANKS)}


def rule_of(arch: str) -> Rule:
    """The rule of ``sm_NN``.

    Raises:
        InvalidValue: an architecture whose rule is not known.
    """
    rule = _RULES.get(number_of(arch))
    if rule is None:
        known = ", ".join(f"sm_{number}" for number in _RULES)
        raise InvalidValue(f"no rule for the register reads of {arch!r}; there are rules for {known}")
    return rule


def follow(stream: Iterable[Reads | None], reader: Reader) -> list[Step | None]:
    """The step of each instruction of a stream; None for what reads no slot."""
    steps: list[Step | None] = []
    for reads in stream:
        if reads is None:
            reader.skip()
        steps.append(None if reads is None else reader.read(*reads))
    return steps


def steady(stream: Iterable[Reads | None], rule: Rule, turns: int = 2) -> list[list[Step | None]]:
    """The steps of ``turns`` turns of a loop, after one that fills the cache."""
    loop, reader = list(stream), rule.reader()
    return [follow(loop, reader) for _ in range(turns + 1)][1:]
