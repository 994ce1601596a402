"""How a Hopper sub-partition reads registers: a pipeline of three read stages in front of two banks.

The rule, found by experiment on an H100 (docs/register-file.md tells it with the streams that prove it):

* An instruction passes three **read stages**, a cycle each, in order. It leaves the third when it holds all its
  operands; until then everything behind it stands still. So it may gather its operands over three cycles.
* A register lies in the **bank** of its number's parity. A bank gives one register of a warp a cycle, to the oldest
  instruction that can take one.
* What is read goes into an **operand register**, one for each slot (a, b, c) *and* bank. It belongs to one instruction
  at a time, until that instruction leaves. So of two instructions in the stages that read one bank by one slot, the
  younger reads last; two in a row that both ask one bank for two registers by the same two slots cost a cycle.
* ``.reuse`` leaves the register's name on the operand register. The next instruction that reads that bank by that slot
  asks no bank if it wants the same register, and takes the name away, unless it carries ``.reuse`` itself. A read of
  the other bank, or of no register, leaves it alone.
* One register wanted by several slots of an instruction is read once, when all their operand registers are free.
* A register whose new value is under way, for five cycles from when its FFMA left the stages, is read as late as the
  stages allow: in the third, or when the value is there.

All 4,978 streams of 2 to 16 FFMAs that it was found with take exactly the cycles that it says.

An instruction's reads never wait for a younger one's, so one pass over a stream, an instruction at a time, is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

BANKS = 2
STAGES = 3
#: Cycles from when an FFMA leaves the read stages until its result can be read from its bank.
UNDER_WAY = 5


@dataclass(frozen=True, slots=True)
class Step:
    """What became of an instruction: ``cycles`` from the issue before it to its own (here: from when the one before it
    left the read stages until it did itself); ``cached``, the slots that ``.reuse`` of an earlier one served, and
    ``waited``, those whose bank made it take longer, a bit each (a = 1, b = 2, c = 4)."""

    cycles: int
    cached: int = 0
    waited: int = 0


@dataclass(slots=True)
class RegisterFile:
    """One pass over the instructions of a warp, or of several that issue in turn: they behave alike.

    ``stages`` is how many cycles an instruction may gather its operands, ``under_way`` as `UNDER_WAY`.
    """

    stages: int = STAGES
    under_way: int = UNDER_WAY
    _left: list[int] = field(init=False)  # when the last instructions left the stages, one for each stage
    _busy: list[set[int]] = field(init=False)  # cycles in which a bank gives a register already
    _owned: dict[tuple[int, int], int] = field(default_factory=dict, init=False)  # until when, by slot and bank
    _named: dict[tuple[int, int], int] = field(default_factory=dict, init=False)  # what .reuse has kept there
    _arrives: dict[int, int] = field(default_factory=dict, init=False)  # when a register's last value is in its bank

    def __post_init__(self) -> None:
        self._left = list(range(1 - self.stages, 1))
        self._busy = [set() for _ in range(BANKS)]

    def read(self, registers: Sequence[int | None], reuse: int = 0, written: int | None = None,
             load: bool = False) -> Step:
        """The next instruction reads ``registers`` by the slots a, b, c (None: no register), keeps those of the bits
        ``reuse``, and writes ``written``. A load leaves names alone, and is not served by them."""
        before = self._left[-1]
        wanted: dict[int, list[int]] = {}
        used, cached = [], 0
        for slot, register in enumerate(registers):
            if register is None:
                continue
            place = slot, register % BANKS
            used.append(place)
            if not load and self._named.pop(place, None) == register:
                cached |= 1 << slot
            else:
                wanted.setdefault(register, []).append(slot)
            if reuse >> slot & 1:
                self._named[place] = register
        at = {register: self._cycle(register, slots) for register, slots in wanted.items()}
        left = max(before, *at.values()) + 1 if at else before + 1
        waited = sum(1 << slot for register, slots in wanted.items() for slot in slots if at[register] > before)
        self._owned.update(dict.fromkeys(used, left))
        if written is not None:
            self._arrives[written] = left + self.under_way
        self._left = [*self._left[1:], left]
        for busy in self._busy:
            busy.difference_update([cycle for cycle in busy if cycle < self._left[0]])
        return Step(left - before, cached, waited)

    def hold(self, cycles: int) -> None:
        """The instruction read last leaves the stages so much later, for a reason of its own: younger ones read on."""
        left = self._left[-1] + cycles
        self._owned.update({place: left for place, until in self._owned.items() if until == self._left[-1]})
        self._arrives.update({one: at + cycles for one, at in self._arrives.items()
                              if at == self._left[-1] + self.under_way})
        self._left[-1] = left

    def skip(self) -> Step:
        """The next instruction reads no slot, as a NOP does."""
        return self.read(())

    def _cycle(self, register: int, slots: Sequence[int]) -> int:
        """The cycle in which its bank gives ``register``, taken from now on."""
        entered, last_stage, bank = self._left[0], self._left[-1], register % BANKS
        at = max(entered, min(self._arrives.get(register, entered), last_stage),
                 *(self._owned.get((slot, bank), entered) for slot in slots))
        while at in self._busy[bank]:
            at += 1
        self._busy[bank].add(at)
        return at
