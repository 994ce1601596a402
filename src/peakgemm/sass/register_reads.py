"""What register reads cost, by architecture: pure functions of register numbers and ``.reuse`` bits.

A stream is a list of `Reads`, one an instruction. A rule is followed by a reader, one pass over a stream::

    reader = rule_of("sm_90").reader()
    for reads in stream:
        step = reader.step(reads)

Three families of rules:

=================  ===================================================================================
Kepler             four banks, register modulo 8 folded to 4; no reuse cache; an instruction waits for its own reads
Maxwell, Pascal    four banks, register modulo 4; a reuse entry an operand slot; waits for its own reads
sm_70, 75, 80      two banks; 16 lanes take an FFMA two cycles, so three reads of one bank cost one cycle more
sm_86 and later    two banks of one register a cycle; the reads of an instruction may take a window of two cycles,
                   so that it leaves to the next what it asks too much of a bank; a reuse entry per slot *and* bank
=================  ===================================================================================

The last was measured on an H100 over 45 streams of FFMA (two warps a scheduler): mean error 0.028 cycles an FFMA,
largest 0.13. Taking every FFMA to wait for its own reads erred by 0.36. Sources of the others: Lai and Seznec,
"Performance Upper Bound Analysis and Optimization of SGEMM on Fermi and Kepler GPUs" (2013); the wiki of maxas (Gray,
2014); Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking" (2018).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..errors import InvalidValue
from ..runtime.architectures import number_of

SLOTS = "abc"


@dataclass(frozen=True, slots=True)
class Reads:
    """The registers that an instruction reads by operand slots a, b, c (None: no register), and a bit for each slot,
    a = 1, b = 2, c = 4, whose register ``.reuse`` keeps."""

    registers: tuple[int | None, int | None, int | None]
    reuse: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """What became of an instruction: ``cycles`` from the issue before it to its own, ``cached`` the slots that the
    reuse cache served, ``waited`` the slots whose bank made it take longer, each as the slots' bits."""

    cycles: int
    cached: int = 0
    waited: int = 0


class Reader(Protocol):
    """One pass over a stream."""

    def step(self, reads: Reads) -> Step:
        """Issue the next instruction."""

    def skip(self) -> None:
        """An instruction that reads through no operand slot takes its issue slot."""


class Rule(Protocol):
    """How an architecture reads registers. ``issue`` is the cycles of an FFMA without conflicts."""

    @property
    def name(self) -> str: ...
    @property
    def banks(self) -> int: ...
    @property
    def issue(self) -> int: ...
    def bank(self, register: int) -> int:
        """The bank that holds a register."""
    def reader(self) -> Reader:
        """A fresh pass, nothing cached."""


class _Entries:
    """The reuse cache in front of the banks: what a slot, or a slot and bank, has kept."""

    def __init__(self, per_bank: bool, drop_on_read: bool = True) -> None:
        self._kept: dict[tuple[int, int], int] = {}
        self._per_bank, self._drop = per_bank, drop_on_read

    def uncached(self, reads: Reads, bank_of: Rule) -> tuple[dict[int, int], int]:
        """The registers that the banks must give, with the slots that ask for each; and the slots that are served.

        A read drops the entry of its slot, served or not, unless it carries ``.reuse``. One register in two slots is
        read once.
        """
        wanted: dict[int, int] = {}
        cached = 0
        for slot, register in enumerate(reads.registers):
            if register is None:
                continue
            entry = (slot, bank_of.bank(register) if self._per_bank else 0)
            if self._kept.get(entry) == register:
                cached |= 1 << slot
            else:
                wanted[register] = wanted.get(register, 0) | 1 << slot
            if self._drop:
                self._kept.pop(entry, None)
            if reads.reuse >> slot & 1:
                self._kept[entry] = register
        return wanted, cached


@dataclass(frozen=True, slots=True)
class OwnReads:
    """An instruction waits for its own reads: a bank gives one register a cycle.

    ``fold``: registers modulo 8 in four banks, two neighbours of like parity within four sharing one (Kepler).
    ``reuse``: whether there is a reuse cache, with an entry an operand slot.
    """

    name: str
    banks: int
    issue: int = 1
    reuse: bool = True
    fold: bool = False

    def bank(self, register: int) -> int:
        """Kepler: parity, and which half of eight; else the register's number modulo the banks."""
        return register % 2 + 2 * (register % 8 // 4) if self.fold else register % self.banks

    def reader(self) -> Reader:
        """A fresh pass."""
        return _OwnReads(self)


class _OwnReads:
    def __init__(self, rule: OwnReads) -> None:
        self._rule, self._entries = rule, _Entries(per_bank=False)

    def step(self, reads: Reads) -> Step:
        if not self._rule.reuse:
            reads = Reads(reads.registers)
        wanted, cached = self._entries.uncached(reads, self._rule)
        load = [0] * self._rule.banks
        for register in wanted:
            load[self._rule.bank(register)] += 1
        cycles = max(self._rule.issue, *load)
        waited = 0
        if cycles > self._rule.issue:
            for register, slots in wanted.items():
                if load[self._rule.bank(register)] == cycles:
                    waited |= slots
        return Step(cycles, cached, waited)

    def skip(self) -> None:
        return


@dataclass(frozen=True, slots=True)
class Window:
    """An instruction issues at t if each of its uncached reads finds a free cycle of its bank in t .. t + window - 1.

    ``three_reads`` is the window of an instruction that asks one bank for three registers. Reads look for their cycles
    in the ``order`` of the slots. ``drop_on_read``: a read drops the entry of its slot that it does not renew.
    """

    name: str
    banks: int = 2
    issue: int = 1
    window: int = 2
    three_reads: int = 3
    entry_per_bank: bool = True
    drop_on_read: bool = True
    order: str = SLOTS

    def bank(self, register: int) -> int:
        """The register's number modulo the banks: its parity."""
        return register % self.banks

    def reader(self) -> Reader:
        """A fresh pass."""
        return _Window(self)


class _Window:
    def __init__(self, rule: Window) -> None:
        self._rule = rule
        self._entries = _Entries(rule.entry_per_bank, rule.drop_on_read)
        self._busy: list[set[int]] = [set() for _ in range(rule.banks)]
        self._now = -1
        self._order = [SLOTS.index(slot) for slot in rule.order]

    def step(self, reads: Reads) -> Step:
        wanted, cached = self._entries.uncached(reads, self._rule)
        ranked = sorted(wanted, key=lambda register: min(
            self._order.index(slot) for slot in range(len(SLOTS)) if wanted[register] >> slot & 1))
        before, at, waited = self._now, self._now + 1, 0
        while True:
            taken, missed = self._place(ranked, at)
            if not missed:
                break
            waited |= sum(wanted[register] for register in wanted
                          if self._rule.bank(register) in {self._rule.bank(one) for one in missed})
            at += 1
        for bank, cycle in taken:
            self._busy[bank].add(cycle)
        self._advance(at)
        return Step(at - before, cached, waited)

    def skip(self) -> None:
        self._advance(self._now + 1)

    def _place(self, registers: Sequence[int], at: int) -> tuple[list[tuple[int, int]], list[int]]:
        """The cycles of its bank that each register takes, and the registers that find none."""
        taken: list[tuple[int, int]] = []
        missed = []
        for register in registers:
            bank = self._rule.bank(register)
            asked = sum(self._rule.bank(one) == bank for one in registers)
            window = self._rule.three_reads if asked >= len(SLOTS) else self._rule.window
            free = next((cycle for cycle in range(at, at + max(window, asked))
                         if cycle not in self._busy[bank] and (bank, cycle) not in taken), None)
            if free is None:
                missed.append(register)
            else:
                taken.append((bank, free))
        return taken, missed

    def _advance(self, now: int) -> None:
        self._now = now
        for bank in self._busy:
            bank.difference_update([cycle for cycle in bank if cycle <= now])


KEPLER = OwnReads("Kepler: 4 banks, register modulo 8 folded", 4, reuse=False, fold=True)
MAXWELL = OwnReads("Maxwell and Pascal: 4 banks, register modulo 4", 4)
HALF_RATE = OwnReads("2 banks, two cycles an FFMA", 2, issue=2)
TWO_BANKS = Window("2 banks, a window of two cycles, a reuse entry per slot and bank")

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


def steady(stream: Iterable[Reads | None], rule: Rule, turns: int = 2) -> list[list[Step | None]]:
    """The steps of ``turns`` turns of a loop, after one that fills the cache; None for what reads no slot."""
    loop, reader = list(stream), rule.reader()
    found: list[list[Step | None]] = []
    for _ in range(turns + 1):
        found.append([])
        for reads in loop:
            if reads is None:
                reader.skip()
                found[-1].append(None)
            else:
                found[-1].append(reader.step(reads))
    return found[1:]


def cycles_per_instruction(stream: Iterable[Reads], rule: Rule, turns: int = 2) -> float:
    """Cycles an instruction of a loop of ``stream`` in its steady state."""
    steps = [step for turn in steady(stream, rule, turns) for step in turn if step is not None]
    return sum(step.cycles for step in steps) / len(steps)
