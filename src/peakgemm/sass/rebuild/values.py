"""The instructions of a loop beside its FFMAs, by the values that they pass on, and the registers that hold these.

A value is a register as one instruction of the turn, or the turn before, has left it. Moving an instruction and giving
a value another register are then independent questions: what must follow what comes from who reads which value, and
from who else uses its register.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ..encoding import ALWAYS, Register, Word
from .block import Block, NotUnderstood

TURN = -1  # the "place" of what a turn finds

#: A register as the instruction at a place left it.
Value = tuple[int, Register]


@dataclass
class Values:
    """Who reads which value, and which register holds it.

    ``sources`` has for each place, and each register that the compiler's instruction there reads, the place that wrote
    it. ``register`` is where a value now lives, where that is elsewhere. ``places`` are the instructions that are left;
    ``preheader`` are moves that run once, before the loop. ``carried`` maps registers of the new loop to what they hold
    in place of, at the start of a turn.
    """

    block: Block
    places: list[int]
    sources: dict[int, dict[Register, int]]
    register: dict[Value, Register] = field(default_factory=dict)
    preheader: list[Word] = field(default_factory=list)
    carried: dict[Register, Register] = field(default_factory=dict)

    @classmethod
    def of(cls, block: Block) -> Values:
        """Those of the compiler's loop: loads of fragments and all others; FFMAs, and copies of fragments, left out."""
        places = sorted((*block.others, *block.loads.values()))
        written: dict[Register, int] = {}
        sources: dict[int, dict[Register, int]] = {}
        kept: dict[int, dict[Register, int]] = {}
        others = set(block.others)
        for place in places:
            word = block.words[place]
            sources[place] = {register: written.get(register, TURN) for register in word.reads}
            if word.guard != ALWAYS and place in others:  # it may leave what was there
                kept[place] = {register: written.get(register, TURN) for register in word.writes}
            if place in others:
                written.update(dict.fromkeys(word.writes, place))
        values = cls(block, places, sources)
        for place, before in kept.items():
            sources[place].update({register: source for register, source in before.items()
                                   if not values._under_one_guard(place, register)})
        return values

    def _under_one_guard(self, place: int, register: Register) -> bool:
        """Whether what a guarded instruction writes is read under the same guard alone, so that what was there before
        is not wanted."""
        word, after = self.block.words[place], self.definitions()[register]
        guard = Register(word.layout.guard_kind, word.guard)
        handed_on = after[-1] == place and self.readers((TURN, register))
        return not handed_on and all(
            (self.block.words[reader].guard, self.block.words[reader].negated) == (word.guard, word.negated)
            and self.sources[reader][guard] == self.sources[place][guard] for reader in self.readers((place, register)))

    def copy(self) -> Values:
        """The same, to try a change on."""
        sources = {place: dict(each) for place, each in self.sources.items()}
        return replace(self, places=list(self.places), sources=sources, register=dict(self.register),
                       preheader=list(self.preheader), carried=dict(self.carried))

    def writes(self, place: int) -> frozenset[Register]:
        """What an instruction writes, under the compiler's names; nothing for a load: fragments are placed anew."""
        return self.block.words[place].writes if place in self._others else frozenset()

    @property
    def _others(self) -> frozenset[int]:
        return frozenset(self.block.others)

    def home(self, value: Value) -> Register:
        """The register that holds a value."""
        return self.register.get(value, value[1])

    def definitions(self) -> dict[Register, list[int]]:
        """The places that write each register, under the compiler's names, in order."""
        places_of: dict[Register, list[int]] = defaultdict(list)
        for place in self.places:
            for register in self.writes(place):
                places_of[register].append(place)
        return places_of

    def readers(self, value: Value) -> list[int]:
        """The places that read a value."""
        return [place for place in self.places if self.sources[place].get(value[1]) == value[0]]

    def word(self, place: int, load_to: int | None = None) -> Word:
        """The instruction with the registers that its values now have; ``load_to``: the quad that a load fills.

        Raises:
            NotUnderstood: values that an instruction reads or writes as a group, and that do not lie together.
        """
        old = self.block.words[place]
        numbers = []
        for entry, number in old.named:
            registers = old.registers(entry, number)
            if not registers or entry.kind not in ("R", "UR"):
                numbers.append(number)
            elif load_to is not None and entry.role == "w":
                numbers.append(load_to)
            else:
                homes = [self.home((place if entry.role == "w" else self.sources[place][register], register))
                         for register in registers]
                if [one.number - homes[0].number for one in homes] != list(range(len(homes))):
                    raise NotUnderstood(f"{old.name} uses {registers[0]} to {registers[-1]} as a group, which lie "
                                        "apart")
                numbers.append(homes[0].number)
        return old.with_numbers(numbers)


def _groups(values: Values) -> dict[int, tuple[int, ...]]:
    """The registers that instructions name as a group, by each of these."""
    groups: dict[int, tuple[int, ...]] = {}
    for place in values.places:
        word = values.block.words[place]
        for entry, number in word.named:
            numbers = tuple(register.number for register in word.registers(entry, number))
            if entry.kind == "R" and len(numbers) > 1 and (entry.role == "r" or place in values.block.others):
                groups.update(dict.fromkeys(numbers, numbers))
    return groups


def rename(values: Values, taken: Iterable[int], free: list[int]) -> None:
    """Give the values that lie in registers ``taken`` by accumulators and fragments registers of ``free``, which
    shrinks: pairs stay pairs.

    Raises:
        NotUnderstood: an instruction reads an accumulator or a fragment, or no registers are left.
    """
    taken = frozenset(taken)
    moved = _lying_in(values, taken)
    wanted = sorted({register.number for _, register in moved})
    last = {register: places[-1] for register, places in values.definitions().items()}
    for place in values.places:
        for register, source in values.sources[place].items():
            if source == TURN and register.kind == "R" and (
                    register.number in taken or (last.get(register), register) in moved):
                raise NotUnderstood(f"{values.block.words[place].name} reads {register}, an accumulator or a fragment")
    fresh: dict[int, int] = {}
    for number in wanted:
        if number % 2 == 0 and number + 1 in wanted:
            first = next((one for one in free if one % 2 == 0 and one + 1 in free), None)
            if first is None:
                raise NotUnderstood("no pair of registers is left for the addresses of the loop")
            fresh.update({number: first, number + 1: first + 1})
            free[:] = [one for one in free if one not in (first, first + 1)]
        elif number not in fresh:
            if not free:
                raise NotUnderstood("no register is left for the addresses of the loop")
            fresh[number] = free.pop()
    for place, register in moved:
        values.register[place, register] = Register("R", fresh[values.home((place, register)).number])


def _lying_in(values: Values, taken: frozenset[int]) -> list[Value]:
    """The values that an instruction of the turn leaves in registers ``taken``, or that are read as a group with one
    that does. Another value of the same register, such as an address that the next turn wants, is none."""
    inside = {(place, register) for place in values.places for register in values.writes(place)
              if register.kind == "R" and register.number in taken}
    groups = _groups(values)
    named = [{register.number: (source, register) for register, source in values.sources[place].items()
              if register.kind == "R" and source != TURN} for place in values.places]
    named += [{register.number: (place, register) for register in values.writes(place) if register.kind == "R"}
              for place in values.places]
    for group in named:  # what an instruction reads, then what one writes
        for number, value in group.items():
            if any(group.get(other) in inside for other in groups.get(number, ())):
                inside.add(value)
    return sorted(inside)
