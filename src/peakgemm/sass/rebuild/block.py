"""The FFMA block of a main loop taken apart: accumulators, fragments, steps of K, and what else there is.

Nothing is read from addresses or from the source: an accumulator is a chain of FFMAs, a fragment the value of a load,
a row or a column of the thread's tile the set of the chains that one fragment element multiplies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...errors import InvalidValue
from ..elf import WORD_BYTES
from ..encoding import ALWAYS, DESTINATION, A, B, C, Register, Word, no_register
from ..program import Program

QUAD = 4  # registers of an LDS.128
#: Instructions whose place among the others of their kind is kept.
ORDERED = frozenset(("LDGSTS", "LDGDEPBAR", "DEPBAR", "BAR", "BRA"))
#: What a load from shared memory may pass: cp.async, whose writes no load sees before the next barrier.
PASSED = frozenset(("LDGSTS", "LDGDEPBAR"))
_PLAIN_MOVE = frozenset((0xF << 72, 0xF << 72 | 1 << 91))  # MOV beside its registers: all bytes; 91: from a uniform one

Value = tuple[str, int, int]  # ("in", register, 0), ("load", place, element), ("sum", chain, step), ("other", place, 0)
Side = int  # 0: rows of the thread's tile, 1: columns


class NotUnderstood(InvalidValue):
    """A loop that is not built as the rebuilder knows them; the message says what, and at which address."""


@dataclass(frozen=True)
class Block:
    """A loop of one block: steps of K, each an outer product of rows and columns.

    ``start`` is the place of its first instruction in the kernel. ``chains`` is the home register of the accumulator at
    (row, column); quads of rows and of columns count from 0, an index is 4 quad + element. ``held`` is the first of the
    four registers that hold a quad when a turn begins. ``loads`` is the place of the load of a quad for a step; the
    steps' number stands for the next turn's first. ``others`` are the places of the remaining instructions; ``before``
    says how many FFMAs stand before each place. All places but ``start`` count from it.
    """

    start: int
    words: tuple[Word, ...]
    steps: int
    quads: tuple[int, int]
    chains: Mapping[tuple[int, int], int]
    held: Mapping[tuple[Side, int], int]
    loads: Mapping[tuple[int, Side, int], int]
    others: tuple[int, ...]
    before: tuple[int, ...]
    multiply: Word

    @property
    def step(self) -> int:
        """FFMAs of a step."""
        return self.quads[0] * self.quads[1] * QUAD * QUAD

    @property
    def homes(self) -> frozenset[int]:
        """The registers of the accumulators."""
        return frozenset(self.chains.values())

    @property
    def held_registers(self) -> frozenset[int]:
        """The registers of the fragments that a turn finds loaded."""
        return frozenset(first + element for first in self.held.values() for element in range(QUAD))

    @property
    def branch(self) -> Word:
        """The branch back."""
        return self.words[-1]


def loop_block(program: Program) -> range:
    """The places of the main loop, if it is one block.

    Raises:
        NotUnderstood: there is no loop around FFMAs, or it has branches inside.
    """
    blocks = program.loop_blocks
    if len(blocks) != 1 or program.successors[blocks[0].start][0] != blocks[0].start:
        starts = ", ".join(f"{block.start * WORD_BYTES:#x}" for block in blocks)
        raise NotUnderstood(f"{program.name}: the main loop is not one block that branches to itself (blocks at "
                            f"{starts})")
    return blocks[0]


def analyse(program: Program) -> Block:
    """Take the main loop of a kernel apart.

    Raises:
        NotUnderstood: it is no such loop.
    """
    places = loop_block(program)
    words = tuple(program.words[place] for place in places)
    return _Analysis(program.name, places.start, words).block()


def operand(word: Word, low: int) -> int:
    """The register in the field that starts at bit ``low``."""
    return next(number for field, number in word.named if field.low == low and field.kind == "R")


def plain_move(word: Word) -> bool:
    """Whether an instruction copies one register, or uniform register, to a register, and nothing else."""
    return word.name == "MOV" and word.guard == ALWAYS and not word.negated and word.rest in _PLAIN_MOVE and \
        sum(field.role == "r" for field, _ in word.named) == 1


def source_of(move: Word) -> Register | None:
    """What a plain move copies; None for RZ."""
    field, number = next((field, number) for field, number in move.named if field.role == "r")
    return None if number == no_register(field.kind, move.arch) else Register(field.kind, number)


class _Analysis:
    """One pass over the block, then questions to what it found."""

    def __init__(self, name: str, start: int, words: Sequence[Word]) -> None:
        self._name, self._start, self._words = name, start, words
        self._values: dict[int, Value] = {}
        self._sums: dict[tuple[int, int], tuple[Value, Value]] = {}  # chain and step to its two factors
        self._moves: dict[int, Value] = {}
        self._loads: list[int] = []
        self._others: list[int] = []
        self._before: list[int] = []
        self._multiply: Word | None = None
        for place, word in enumerate(words):
            self._before.append(len(self._sums))
            self._pass(place, word)

    def _fail(self, place: int, what: str) -> NotUnderstood:
        return NotUnderstood(f"{self._name}, {(self._start + place) * WORD_BYTES:#x}: {what}")

    def _value(self, register: int) -> Value:
        return self._values.get(register, ("in", register, 0))

    def _pass(self, place: int, word: Word) -> None:
        if word.never:  # ptxas's padding
            return
        if word.name == "FFMA":
            self._sum(place, word)
        elif word.name == "LDS" and word.guard == ALWAYS and (quad := self._quad(word)) is not None:
            self._loads.append(place)
            self._values.update({quad + element: ("load", place, element) for element in range(QUAD)})
        elif plain_move(word) and (source := source_of(word)) is not None and source.kind == "R":
            self._moves[place] = self._value(source.number)
            self._values[operand(word, DESTINATION)] = self._value(source.number)
        else:
            if word.ends_block and place != len(self._words) - 1:
                raise self._fail(place, f"{word.name} within the block")
            for register in word.reads:
                if register.kind == "R" and self._value(register.number)[0] in ("load", "sum"):
                    raise self._fail(place, f"{word.name} reads {register}, an accumulator or a fragment")
            if word.name not in ORDERED and (word.name.startswith(("LD", "ST", "ATOM", "RED")) and word.name != "LDC"):
                raise self._fail(place, f"{word.name} in the loop; loads of 128 bits from shared memory and cp.async "
                                        "are what is understood")
            self._others.append(place)
            self._values.update({register.number: ("other", place, 0)
                                 for register in word.writes if register.kind == "R"})

    @staticmethod
    def _quad(word: Word) -> int | None:
        return next((number for field, number in word.named if field.role == "w" and field.width == QUAD), None)

    def _sum(self, place: int, word: Word) -> None:
        plain = word.with_control(stall=0, yield_=0, write_barrier=7, read_barrier=7, wait_mask=0, reuse=0)
        if word.guard != ALWAYS or len(word.named) < 4 or sum(field.kind == "R" for field, _ in word.named) != 4:
            raise self._fail(place, "a predicated FFMA, or one with a constant")
        if self._multiply is not None and self._multiply.rest != plain.rest:
            raise self._fail(place, "an FFMA with other modifiers than those before it")
        self._multiply = plain
        added = self._value(operand(word, C))
        if added[0] == "in":
            chain, step = added[1], 0
        elif added[0] == "sum":
            chain, step = added[1], added[2] + 1
        else:
            raise self._fail(place, f"an FFMA adds to R{operand(word, C)}, which is no accumulator")
        if (chain, step) in self._sums:
            raise self._fail(place, f"the accumulator R{chain} is used twice")
        factors = (self._value(operand(word, A)), self._value(operand(word, B)))
        if any(kind not in ("in", "load") for kind, _, _ in factors):
            raise self._fail(place, "an FFMA multiplies what no load brought")
        self._sums[chain, step] = factors
        self._values[operand(word, DESTINATION)] = ("sum", chain, step)

    def block(self) -> Block:
        if self._multiply is None:
            raise self._fail(0, "no FFMA")
        steps = max(step for _, step in self._sums) + 1
        homes = {chain for chain, _ in self._sums}
        for chain in homes:
            if self._value(chain) != ("sum", chain, steps - 1):
                raise self._fail(0, f"the accumulator in R{chain} is not there again when the turn ends")
        rows, columns = self._sides(steps)
        elements = self._elements(steps)
        key = {one: (side, index) for side, group in enumerate((rows, columns)) for index, one in enumerate(group)}
        # Quads, in the order of the lowest register or place that holds them, give rows and columns their numbers.
        quads, held, loads = self._quads(steps, elements, key)
        numbered = {one: (side, QUAD * quad + element) for (side, quad), ones in quads.items()
                    for element, one in enumerate(ones)}
        chains = {(numbered[row][1], numbered[column][1]): next(iter(row & column))
                  for row in rows for column in columns}
        kept = [*self._others, *(place for place, value in self._moves.items() if self._is_other(value, homes, held))]
        counts = [sum(side == one for side, _ in quads) for one in (0, 1)]
        return Block(self._start, tuple(self._words), steps, (counts[0], counts[1]), chains, held, loads,
                     tuple(sorted(kept)), tuple(self._before), self._multiply)

    @staticmethod
    def _is_other(value: Value, homes: Iterable[int], held: Mapping[tuple[Side, int], int]) -> bool:
        """Whether a copy is not of an accumulator or fragment: those the new loop does without."""
        fragments = {first + element for first in held.values() for element in range(QUAD)}
        return value[0] == "other" or (value[0] == "in" and value[1] not in homes and value[1] not in fragments)

    def _elements(self, steps: int) -> list[dict[Value, frozenset[int]]]:
        """For each step, the chains that each factor goes to."""
        chains_of: list[dict[Value, set[int]]] = [defaultdict(set) for _ in range(steps)]
        for (chain, step), factors in self._sums.items():
            for factor in factors:
                chains_of[step][factor].add(chain)
        return [{value: frozenset(chains) for value, chains in one.items()} for one in chains_of]

    def _sides(self, steps: int) -> tuple[list[frozenset[int]], list[frozenset[int]]]:
        """The rows and the columns, as sets of chains; the fewer are called rows."""
        elements = self._elements(steps)
        keys = set(elements[0].values())
        first = min(keys, key=lambda one: (len(one), min(one)))
        crossing = [one for one in keys if one != first and one & first]
        along = [one for one in keys if one not in crossing]
        if len(crossing) * len(along) != len({chain for chain, _ in self._sums}) or any(
                len(row & column) != 1 for row in along for column in crossing):
            raise self._fail(0, "the FFMAs of a step are no outer product of two fragments")
        if any(set(one.values()) != keys for one in elements):
            raise self._fail(0, "the steps of K multiply different rows and columns")
        rows, columns = sorted((along, crossing), key=lambda side: (len(side), min(min(one) for one in side)))
        return rows, columns

    def _quads(self, steps: int, elements: Sequence[Mapping[Value, frozenset[int]]],
               key: Mapping[frozenset[int], tuple[Side, int]]) \
            -> tuple[dict[tuple[Side, int], tuple[frozenset[int], ...]], dict[tuple[Side, int], int],
                     dict[tuple[int, Side, int], int]]:
        inside = [{value: chains for value, chains in one.items() if value[0] == "load"} for one in elements]
        first = {chains: value[1] for value, chains in elements[0].items() if value[0] == "in"}
        if set(first) != set(key):
            raise self._fail(0, "the first step multiplies fragments that the turn before did not leave in registers")
        quads: dict[tuple[Side, int], tuple[frozenset[int], ...]] = {}
        held: dict[tuple[Side, int], int] = {}
        for one, register in sorted(first.items(), key=lambda item: item[1]):
            if register % QUAD == 0:
                ones = tuple(next((other for other, number in first.items() if number == register + element), one)
                             for element in range(QUAD))
                side = key[one][0]
                if len(set(ones)) != QUAD or {key[other][0] for other in ones} != {side}:
                    raise self._fail(0, f"R{register} to R{register + 3} are not four fragments of one side")
                number = sum(known == side for known, _ in quads)
                quads[side, number], held[side, number] = ones, register
        if len(quads) * QUAD != len(key):
            raise self._fail(0, "fragments do not lie four by four in registers when the turn begins")
        # Number the quads of a side by the addresses that the loads of a step have: A before A + 32, and so on.
        loads: dict[tuple[int, Side, int], int] = {}
        by_elements = {ones: quad for quad, ones in quads.items()}
        for place in self._loads:
            brings = [("load", place, element) for element in range(QUAD)]
            used = [(step, inside[step][value]) for step in range(steps) for value in brings if value in inside[step]]
            if not used:
                quad, step = self._for_the_next_turn(place, held), steps
            else:
                step = used[0][0]
                known = by_elements.get(tuple(one for _, one in used))
                if known is None or any(other != step for other, _ in used):
                    raise self._fail(place, "a load whose four values are not used in one step, in the others' order")
                quad = known
            brought = step, quad[0], quad[1]
            if brought in loads:
                raise self._fail(place, "a fragment that is loaded twice")
            loads[brought] = place
        missing = [(step, quad) for step in range(1, steps + 1) for quad in quads if (step, *quad) not in loads]
        if missing:
            raise self._fail(0, f"no load brings fragment {missing[0][1]} of step {missing[0][0]}")
        order = self._by_address(loads, quads)
        return ({(side, order[side, quad]): ones for (side, quad), ones in quads.items()},
                {(side, order[side, quad]): register for (side, quad), register in held.items()},
                {(step, side, order[side, quad]): place for (step, side, quad), place in loads.items()})

    def _for_the_next_turn(self, place: int, held: Mapping[tuple[Side, int], int]) -> tuple[Side, int]:
        for quad, register in held.items():
            if all(self._value(register + element) == ("load", place, element) for element in range(QUAD)):
                return quad
        raise self._fail(place, "a load whose values neither this turn uses nor the next one finds where it looks")

    def _by_address(self, loads: Mapping[tuple[int, Side, int], int],
                    quads: Iterable[tuple[Side, int]]) -> dict[tuple[Side, int], int]:
        """The number of each quad among those of its side, by the offsets of the loads of step 1."""
        offset = {(side, quad): self._words[loads[1, side, quad]].rest >> 40 & 0xFFFFFF for side, quad in quads}
        numbers = {}
        for side in (0, 1):
            ranked = sorted((quad for quad in offset if quad[0] == side), key=lambda quad: offset[quad])
            numbers.update({quad: number for number, quad in enumerate(ranked)})
        return numbers
