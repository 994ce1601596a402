"""Seeded faults: edits of a kernel that break a dependence by construction, to see whether the checker finds them.

Each is drawn within a block of straight-line code, from what stands there, not from what the checker believes: a
consumer moved to within three cycles of the fixed-latency instruction whose result it reads (no pipe of sm_90 is that
fast); a scoreboard that nothing else between producer and consumer tells of no longer waited for, no longer set, or
another one set; two dependent neighbours exchanged; a register renamed in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from random import Random

from peakgemm.sass.control import BARRIERS, NO_BARRIER
from peakgemm.sass.dataflow import dependences
from peakgemm.sass.elf import WORD_BYTES
from peakgemm.sass.encoding import ALWAYS, Register, Word
from peakgemm.sass.program import Program
from peakgemm.sass.schedule import waited

#: No result of a fixed-latency instruction is there after fewer cycles.
FASTEST = 4


@dataclass(frozen=True)
class Mutation:
    """An edited kernel, the kind of the fault and what was done."""

    kind: str
    what: str
    program: Program


def draw(program: Program, random: Random) -> Mutation:
    """A fault of a kind and at a place drawn by chance, among those that the kernel has room for."""
    for kind in random.sample(list(KINDS), len(KINDS)):
        if faults := _faults(program, kind):
            what, changes = random.choice(faults)
            words = [changes.get(place, word) for place, word in enumerate(program.words)]
            return Mutation(kind, what, program.with_words(words))
    raise ValueError(f"{program.name} has no dependence to break")


Fault = tuple[str, dict[int, Word]]  # what is done, and the words that take the places of others
_known: dict[tuple[int, str], tuple[Program, list[Fault]]] = {}


def _faults(program: Program, kind: str) -> list[Fault]:
    key = id(program), kind
    if key not in _known or _known[key][0] is not program:
        _known[key] = program, list(KINDS[kind](program))
    return _known[key][1]


def _pairs(program: Program) -> Iterator[tuple[int, int, Register]]:
    """Producer, first consumer and register of each RAW dependence within a block."""
    for block in _reachable(program):
        last: dict[Register, int] = {}
        used: set[tuple[int, Register]] = set()
        for place in block:
            word = program.words[place]
            if word.never:
                continue
            for register in word.reads:
                if register in last and (last[register], register) not in used:
                    used.add((last[register], register))
                    yield last[register], place, register
            for register in word.writes:
                last[register] = place


def _reachable(program: Program) -> list[range]:
    return [program.blocks[start] for start in program.successors]


def _stalls(program: Program) -> Iterator[Fault]:
    for before, after, register in _pairs(program):
        words = program.words[before:after]
        if words[0].queue or register.kind not in ("R", "P") or len(words) >= FASTEST:
            continue
        late = program.words[after].name == "IMAD" and any(  # an addend is needed later than the factors
            field.low == 64 and register in program.words[after].registers(field, number)
            for field, number in program.words[after].named)
        if not late and sum(word.control.stall for word in words) >= FASTEST:
            changes = {before + at: word.with_control(stall=1) for at, word in enumerate(words)}
            yield f"stalls of 1 between {_at(before)} and {_at(after)} ({register})", changes


def _awaited(program: Program) -> Iterator[tuple[int, int, int]]:
    """Producer, first consumer and scoreboard, where no other wait between them tells of the result."""
    for before, after, register in _pairs(program):
        first, last = program.words[before], program.words[after]
        barrier = first.control.write_barrier
        if first.queue in ("", "tensor") or barrier == NO_BARRIER or register.kind != "R" or first.never:
            continue
        others = 0
        for word in program.words[before + 1:after]:
            if (word.queue == first.queue or word.reader == first.reader) and not word.never:
                others |= word.control.sets
        waits = 0
        for word in program.words[before + 1:after]:
            waits |= waited(word) | (0xFF if word.name == "DEPBAR" else 0)
        own = 1 << barrier
        if last.control.wait_mask & own and not waits & (own | others) and not last.control.wait_mask & others:
            yield before, after, barrier


def _waits(program: Program) -> Iterator[Fault]:
    for before, after, barrier in _awaited(program):
        word = program.words[after]
        yield (f"{_at(after)} does not wait for scoreboard {barrier} of {_at(before)}",
               {after: word.with_control(wait_mask=word.control.wait_mask & ~(1 << barrier))})


def _unset(program: Program) -> Iterator[Fault]:
    for before, after, barrier in _awaited(program):
        if not _set_between(program, before, after, barrier):
            yield (f"{_at(before)} does not set scoreboard {barrier}",
                   {before: program.words[before].with_control(write_barrier=NO_BARRIER)})


def _other(program: Program) -> Iterator[Fault]:
    for before, after, barrier in _awaited(program):
        if _set_between(program, before, after, barrier):
            continue
        waits = 0
        for word in program.words[before + 1:after + 1]:
            waits |= waited(word)
        free = [number for number in range(BARRIERS) if not waits >> number & 1]
        if free:
            yield (f"{_at(before)} sets scoreboard {free[0]} instead of {barrier}",
                   {before: program.words[before].with_control(write_barrier=free[0])})


def _set_between(program: Program, before: int, after: int, barrier: int) -> bool:
    """Whether the producer, or another after it in its queue, tells by the same scoreboard all the same."""
    first = program.words[before]
    return first.control.read_barrier == barrier or any(
        barrier in (word.control.write_barrier, word.control.read_barrier) and word.queue == first.queue
        for word in program.words[before + 1:after])


def _swaps(program: Program) -> Iterator[Fault]:
    for block in _reachable(program):
        words = program.words[block.start:block.stop]
        for one in dependences(words):
            if one.after == one.before + 1 and one.kind in ("RAW", "WAW", "WAR", "MEM"):
                first, second = words[one.before], words[one.after]
                if first.ends_block or second.ends_block or first.never or second.never or \
                        first.with_control(stall=0) == second.with_control(stall=0) or _same(first, second):
                    continue
                at = block.start + one.before
                yield f"{_at(at)} and {_at(at + 1)} exchanged ({one.kind})", {at: second, at + 1: first}


def _same(first: Word, second: Word) -> bool:
    """Two whose order shows nowhere: the same operation, or two that only mark time."""
    idle = {"WARPGROUP", "FENCE", "MEMBAR", "NOP", "ERRBAR"}
    return first.with_control(**asdict(second.control)) == second or (
        {first.name, second.name} <= idle and first.access == second.access)


def _registers(program: Program) -> Iterator[Fault]:
    top = max((register.number for word in program.words for register in word.writes if register.kind == "R"),
              default=0)
    for block in _reachable(program):
        for place in block:
            word = program.words[place]
            if word.never or not word.writes or word.guard != ALWAYS:
                continue
            for index, (field, number) in enumerate(word.named):
                if field.kind == "R" and field.width == 1 and field.role == "r" and number != 255:
                    other = (number + 1 + place % top) % (top + 1)
                    numbers = (*word.numbers[:index], other, *word.numbers[index + 1:])
                    yield f"{_at(place)} reads R{other} instead of R{number}", {place: word.with_numbers(numbers)}


def _at(place: int) -> str:
    return f"{place * WORD_BYTES:#x}"


KINDS: dict[str, Callable[[Program], Iterator[Fault]]] = {
    "stall": _stalls, "wait": _waits, "unset barrier": _unset, "other barrier": _other, "order": _swaps,
    "register": _registers,
}


def draws(programs: Sequence[Program], count: int, seed: int) -> Iterator[tuple[Program, Mutation]]:
    """So many faults over several kernels, each with the kernel that it was drawn for."""
    random = Random(seed)
    for _ in range(count):
        program = random.choice(programs)
        yield program, draw(program, random)
