"""That a loop built anew computes what the compiler's did: the values of one turn, compared as expressions.

By induction: where both loops' registers hold the same when a turn begins, under the names that copies out of the loop
gave them, they do when it ends; the instructions before the new loop make them hold the same the first time; and what
is live behind the loop lies in the register where the code there looks for it. What an instruction writes under a
guard, and only others under the same guard read, is taken for what it is where the guard holds.

One thing is taken from the program, not proved: within two barriers no thread reads what a cp.async between them
writes. Loads may therefore pass cp.async, not a barrier. A kernel of which that does not hold has a race between its
threads, whatever the order within one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ..dataflow import Numbering, guard_of, results
from ..encoding import ALWAYS, Register, Word
from .block import PASSED, plain_move, source_of

State = dict[Register, int]


class _Turn:
    """What a sequence of instructions leaves in registers, and the accesses in order."""

    def __init__(self, numbering: Numbering, found: Callable[[Register], int]) -> None:
        self._numbering, self._found = numbering, found
        self.values: State = {}
        self.effects: list[int] = []
        self._interval = 0
        self._guarded: dict[int, tuple[object, int]] = {}  # what was written under a guard: that, and what if it holds

    def value(self, register: Register) -> int:
        if register not in self.values:
            self.values[register] = self._found(register)
        return self.values[register]

    def run(self, words: Iterable[Word]) -> _Turn:
        for word in words:
            if not word.never:
                self._step(word)
        return self

    def _step(self, word: Word) -> None:
        number = self._numbering.of
        if plain_move(word) and (source := source_of(word)) is not None:
            (target,) = word.writes
            self.values[target] = self.value(source)  # a copy is what it copies
            return
        if word.name == "NOP":
            return
        guard = guard_of(word, self.value)

        def seen_by(register: Register) -> int:
            value = self.value(register)
            under, held = self._guarded.get(value, (None, value))
            return held if guard is not None and under == guard else value

        branch = word.ends_block
        accessed = word.access
        effect = branch or (accessed != "" and not (accessed == "shared" and word.name == "LDS"))
        seen = len(self.effects) if effect else self._interval if accessed else None
        done = self._numbering.operation(word, seen_by, guard, None if branch else word.rest, seen)
        for register, place, offset in results(word):
            written = number("result", done, place, offset)
            if guard is not None:
                either = number("either", written, self.value(register))
                self._guarded[either] = guard, written
                written = either
            self.values[register] = written
        if effect:
            self.effects.append(done)
            self._interval += word.name not in PASSED


def difference(compiler: Sequence[Word], preheader: Sequence[Word], loop: Sequence[Word],
               carried: Mapping[Register, Register], at_start: Iterable[Register],
               behind: Iterable[Register]) -> str | None:
    """What the new loop does not do as the compiler's, in words; None: it is proved to do the same.

    ``carried`` maps registers of the new loop to those of the compiler's whose place they take. ``at_start`` and
    ``behind`` are the compiler's live registers where a turn begins and behind the loop.
    """
    numbering = Numbering()

    def entry(register: Register) -> int:
        return numbering.of("in", register)

    old = _Turn(numbering, entry).run(compiler)
    new = _Turn(numbering, lambda register: entry(carried.get(register, register))).run(loop)
    if old.effects != new.effects:
        pairs = enumerate(zip(old.effects, new.effects, strict=False))
        counts = len(old.effects), len(new.effects)
        at = next((place for place, (one, other) in pairs if one != other), min(counts))
        return f"the accesses and barriers of a turn differ from number {at} on ({counts[0]} and {counts[1]})"
    holders = {source: target for target, source in carried.items()}
    for register in sorted(at_start):
        if new.value(holders.get(register, register)) != old.value(register):
            return f"{register} ends a turn with another value"
    for register in sorted(behind):
        if new.value(register) != old.value(register):
            return f"{register}, which is wanted behind the loop, ends it with another value"
    first = _Turn(numbering, entry).run(preheader)
    if first.effects:
        return "the instructions before the loop access memory"
    reads = _read_first(loop)
    for register in sorted({*at_start, *behind, *carried} - set(holders) | reads):
        if first.value(register) != entry(carried.get(register, register)):
            return f"{register} holds another value when the loop begins"
    return None


def _read_first(loop: Sequence[Word]) -> frozenset[Register]:
    """The registers that a turn reads before it writes them."""
    read: set[Register] = set()
    written: set[Register] = set()
    for word in loop:
        read |= word.reads - written
        if word.guard == ALWAYS:
            written |= word.writes
    return frozenset(read)
