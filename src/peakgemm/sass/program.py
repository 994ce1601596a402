"""A kernel of a cubin, decoded, with its control flow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from ..errors import InvalidValue
from .elf import WORD_BYTES, Cubin
from .encoding import ALWAYS, Word, decode
from .loops import Loop, natural_loops

_TARGETS = frozenset(("BRA", "BSSY", "CALL", "WARPSYNC"))
_NAMED = {"CALL": 0x944, "WARPSYNC": 0x348}  # the opcode that holds its target; others go where a register says
_BY_POINTER = 0x344  # a call through a register, from where the kernel lies; 0x343 is one of a function elsewhere
_DIVERGENT = 33  # bit of BRA: to the slow twin of a warp-wide operation, for a warp that has diverged
_NEGATED = 90  # bit of BRA: its predicate operand is negated
_NEVER_FALLS_THROUGH = frozenset(("BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU", "EXIT", "RET", "KILL"))
_ENDS_BLOCK = _NEVER_FALLS_THROUGH | {"CALL", "BSYNC"}
_INDIRECT = frozenset(("BRX", "BRXU", "JMX"))


@dataclass(frozen=True)
class Program:
    """A kernel: ``words`` in order, the word at place i from address 16 i on.

    ``indirect`` are the places to which each indirect branch may go, as the compiler noted them; for a call through a
    pointer, the functions that lie beside the kernel.
    """

    arch: str
    name: str
    words: tuple[Word, ...]
    indirect: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, cubin: Cubin, name: str = "", unknown: Callable[[int], str] | None = None) -> Program:
        """Decode a kernel of a cubin; without a name, its only one. ``unknown``: see `decode`.

        Raises:
            UnknownInstruction: without ``unknown``, an instruction that the table does not have.
            InvalidValue: no such kernel, or an architecture without a table.
        """
        kernel = cubin.kernel(name)
        words = tuple(decode(word, cubin.arch, place * WORD_BYTES, unknown)
                      for place, word in enumerate(cubin.words(kernel.name)))
        functions = tuple(address // WORD_BYTES for address in cubin.functions(kernel.name))
        calls = {place: functions for place, word in enumerate(words) if word.opcode == _BY_POINTER}
        return cls(cubin.arch, kernel.name, words, calls | {
            address // WORD_BYTES: tuple(goes // WORD_BYTES for goes in targets)
            for address, targets in cubin.indirect_branches(kernel.name).items()})

    def with_words(self, words: Sequence[Word]) -> Program:
        """The same kernel with other instructions."""
        return Program(self.arch, self.name, tuple(words), self.indirect)

    def with_block(self, block: range, words: Sequence[Word]) -> Program:
        """The same kernel with other instructions at the places of ``block``."""
        return self.with_words((*self.words[:block.start], *words, *self.words[block.stop:]))

    def encode(self) -> tuple[int, ...]:
        """The instruction words, for `Cubin.with_words`."""
        return tuple(word.bits for word in self.words)

    @cached_property
    def _targets(self) -> Mapping[int, int]:
        """Where each branch goes that names its target, by place."""
        return {place: goes for place, word in enumerate(self.words) if (goes := target(word, place)) is not None}

    @cached_property
    def blocks(self) -> Mapping[int, range]:
        """Basic blocks: the places of their instructions, by the first."""
        leaders = {0, len(self.words), *self._targets.values()}
        leaders |= {place + 1 for place, word in enumerate(self.words) if word.name in _ENDS_BLOCK}
        starts = sorted(place for place in leaders if 0 <= place <= len(self.words))
        return {start: range(start, end) for start, end in pairwise(starts)}

    @cached_property
    def successors(self) -> Mapping[int, tuple[int, ...]]:
        """Where control goes from each block that can be reached.

        A call goes to its function, and from there back behind every call; one of a function that lies elsewhere comes
        back with what was under way.
        """
        behind = tuple(block.stop for block in self.blocks.values() if self.words[block[-1]].name == "CALL")

        def returns(place: int) -> Sequence[int]:
            if self.words[place].name == "RET":
                return behind
            return self.indirect.get(place, tuple(self.blocks) if self.words[place].name in _INDIRECT else ())

        return self._flow(lambda place: (*self._goes(place), *returns(place)))

    def _flow(self, goes: Callable[[int], Sequence[int]]) -> dict[int, tuple[int, ...]]:
        """The successors of each block that the entry reaches; ``goes``: those of a block, by its last place.

        BSYNC jumps to wherever the BSSY of the same barrier register said; the pairs are found by carrying the
        registers' contents along the control flow, since neither order nor distance tells them.
        """
        successors: dict[int, tuple[int, ...]] = {}
        entry = next(iter(self.blocks), None)
        states: dict[int, dict[int, frozenset[int]]] = {} if entry is None else {entry: {}}
        work = list(states)
        while work:
            block = work.pop()
            leaving = dict(states[block])
            for place in self.blocks[block]:
                if self.words[place].name == "BSSY" and place in self._targets:
                    leaving[_barrier(self.words[place])] = frozenset((self._targets[place],))
            last = self.blocks[block][-1]
            joins = leaving.get(_barrier(self.words[last]), ()) if self.words[last].name == "BSYNC" else ()
            successors[block] = tuple(dict.fromkeys(place for place in (sorted(joins) or goes(last))
                                                    if place in self.blocks))
            for follower in successors[block]:
                known = states.get(follower)
                joined = leaving if known is None else {
                    barrier: known.get(barrier, frozenset()) | leaving.get(barrier, frozenset())
                    for barrier in {*known, *leaving}}
                if joined != known:
                    states[follower] = joined
                    work.append(follower)
        return successors

    def _goes(self, last: int) -> tuple[int, ...]:
        """The places that may follow a block, by its ``last`` instruction alone."""
        word, behind = self.words[last], (last + 1,)
        named = (self._targets[last],) if last in self._targets else ()
        if word.name == "CALL":
            return named + behind
        if word.name not in _NEVER_FALLS_THROUGH:
            return behind
        return named + behind if _is_conditional(word) else named

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Every natural loop. A call counts as an instruction like others, and the slow twin of a warp-wide operation
        as no part of a loop."""
        def goes(last: int) -> tuple[int, ...]:
            word = self.words[last]
            slow = word.name == "BRA" and word.bits >> _DIVERGENT & 1
            return (last + 1,) if slow else (*self._goes(last), *self.indirect.get(last, ()))

        return natural_loops(self.blocks, self._flow(goes))

    @cached_property
    def loop(self) -> Loop | None:
        """The main loop: the one that holds the most FFMA of its own, or None where no loop holds one.

        An FFMA belongs to the innermost loop around it, so the loop over K wins over a loop over tiles around it, and
        over the copy loops, without FFMA, inside it.
        """
        return self.loop_with_most(lambda word: word.is_ffma)

    def loop_with_most(self, counted: Callable[[Word], bool]) -> Loop | None:
        """The loop with the most ``counted`` instructions of its own, the shortest of equals; None: none has any."""
        counts = {loop: sum(counted(self.words[place]) for place in loop.own) for loop in self.loops}
        best = max(counts, key=lambda loop: (counts[loop], -len(loop.places)), default=None)
        return best if best is not None and counts[best] else None

    @cached_property
    def loop_blocks(self) -> tuple[range, ...]:
        """The blocks of the main loop, as places in ``words``.

        Raises:
            InvalidValue: no loop holds an FFMA.
        """
        if self.loop is None:
            raise InvalidValue(f"{self.name} has no loop around an FFMA")
        places = set(self.loop.places)
        return tuple(block for start, block in self.blocks.items() if start in places)

    @cached_property
    def main(self) -> tuple[Word, ...]:
        """The instructions of the main loop, by address; none where there is no loop around an FFMA."""
        return tuple(self.words[place] for place in self.loop.places) if self.loop else ()


def target(word: Word, place: int) -> int | None:
    """The place to which an instruction may branch, None where it names none or a register says.

    Offsets count from the next instruction: in bytes from bit 32 on up to sm_89 and for BSSY; from sm_90 on in words of
    four bytes, the low eight bits of which sit at bit 16.
    """
    if word.name not in _TARGETS or word.opcode != _NAMED.get(word.name, word.opcode):
        return None
    if word.name == "BSSY":  # behind its offset lies a flag, RECONVERGENT
        offset, bits = word.bits >> 32 & (1 << 41) - 1, 41
    elif int(word.arch[3:]) < 90:
        offset, bits = word.bits >> 32 & (1 << 50) - 1, 50
    else:
        offset, bits = (word.bits >> 34 & (1 << 48) - 1) << 10 | (word.bits >> 16 & 0xFF) << 2, 58
    if offset >> bits - 1:
        offset -= 1 << bits
    return place + 1 + offset // WORD_BYTES


def with_target(word: Word, place: int, to: int) -> Word:
    """The branch at ``place`` with the place ``to`` as its target, encoded as `target` reads it."""
    offset = (to - place - 1) * WORD_BYTES
    if word.name == "BSSY" or int(word.arch[3:]) < 90:
        fields: tuple[tuple[int, int, int], ...] = ((32, 41 if word.name == "BSSY" else 50, offset),)
    else:
        fields = (16, 8, offset // 4), (34, 48, offset // 4 >> 8)
    bits = word.bits
    for low, width, value in fields:
        mask = (1 << width) - 1
        bits = bits & ~(mask << low) | (value & mask) << low
    return Word(word.arch, bits, word.layout)


def _is_conditional(word: Word) -> bool:
    """Whether control may also go on behind a branch: ``@P0 BRA L``, ``BRA P0, L`` and ``BRA.U UP0, L``."""
    if word.guard != ALWAYS or word.negated:
        return True
    return word.name == "BRA" and (
        any(number != ALWAYS for place, number in word.named if place.kind in ("P", "UP"))
        or bool(word.rest >> _DIVERGENT & 1) or bool(word.rest >> _NEGATED & 1))


def _barrier(word: Word) -> int:
    """The convergence barrier that BSSY or BSYNC names; -1: none."""
    return next((number for place, number in word.named if place.kind == "B"), -1)
