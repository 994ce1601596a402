"""The new loop as instructions: FFMAs with their fragments' registers, everything else at its position, control bits.

Every instruction stalls for one cycle: the positions keep fixed latencies apart. The loads of a step tell by three
scoreboards, and what they bring is waited for by its first FFMA, not ahead of it (which costs 0.6 %). ptxas's loads
that never run, before each cp.async, are left out (they cost 1.0 %).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..control import BARRIERS, NO_BARRIER
from ..elf import NOP
from ..encoding import DESTINATION, A, B, C, Word, decode
from ..schedule import waited
from .block import QUAD, Block, NotUnderstood, Side
from .order import Multiply
from .values import Values

_PLAIN = {"stall": 1, "yield_": 1, "write_barrier": NO_BARRIER, "read_barrier": NO_BARRIER, "wait_mask": 0, "reuse": 0}
_GROUPS = 3  # scoreboards for the loads of a step
_LONGEST = 15


@dataclass(frozen=True)
class Emitted:
    """``preheader`` runs once and falls into ``loop``, whose last instruction is the branch back, no target yet."""

    preheader: tuple[Word, ...]
    loop: tuple[Word, ...]
    used: int  # the scoreboards, as a mask, of which something may be outstanding behind the loop


def emit(values: Values, positions: Mapping[int, int], multiplies: Sequence[Multiply],
         fragments: Mapping[tuple[int, Side, int], int]) -> Emitted:
    """Put the loop together. ``fragments`` is the first register of a quad by the parity of the step that uses it."""
    block = values.block
    boards = _boards(block)
    at: dict[int, list[int]] = defaultdict(list)
    for place, position in positions.items():
        at[position].append(place)
    groups = _groups(block, boards)
    words: list[Word] = []
    quads = {place: quad for quad, place in block.loads.items()}
    for position in range(block.steps * block.step):
        for place in sorted(at.get(position, ()), key=lambda one: (_rank(block, one), one)):
            if place in quads:
                step, side, quad = quads[place]
                word = values.word(place, fragments[step % 2, side, quad])
                words.append(word.with_control(**{**_PLAIN, "write_barrier": groups[side, quad]}))
            else:
                words.append(_other(values, place, boards))
        step, within = divmod(position, block.step)
        words.append(_ffma(block, multiplies[within], {side: fragments[step % 2, side, quad // QUAD]
                     for side, quad in ((0, multiplies[within].row), (1, multiplies[within].column))}))
    words.append(block.branch)
    loop = _waits(words, sum(1 << board for board in groups.values()))
    entry = sum(1 << board for board in range(BARRIERS) if board != boards[0])
    moves = values.preheader or [_nothing(block)]
    preheader = [move.with_control(**_PLAIN) for move in moves]
    preheader[0] = preheader[0].with_control(wait_mask=entry)
    # What uniform registers were given just before the loop. So long a stall goes with yield alone: nvdisasm knows no
    # stall above 11 without.
    preheader[-1] = preheader[-1].with_control(stall=_LONGEST, yield_=0)
    return Emitted(tuple(preheader), loop, entry)


def _boards(block: Block) -> tuple[int, int, tuple[int, ...]]:
    """Scoreboards: that of the groups of cp.async, the compiler's; that of cp.async's reads; those of loads."""
    words = [block.words[place] for place in block.others]
    boards = [word.control.write_barrier for word in words if word.name == "LDGDEPBAR"]
    if len(set(boards)) != 1 or boards[0] == NO_BARRIER:
        raise NotUnderstood("the loop has no group of cp.async (LDGDEPBAR), or several")
    free = [board for board in range(BARRIERS) if board != boards[0]]
    return boards[0], free[0], tuple(free[1:1 + _GROUPS])


def _groups(block: Block, boards: tuple[int, int, tuple[int, ...]]) -> dict[tuple[Side, int], int]:
    """The scoreboard of each quad's load: shared by neighbours in the order in which they are needed."""
    needed = [(0, 0), *((1, quad) for quad in range(block.quads[1])), *((0, quad) for quad in range(1, block.quads[0]))]
    return {quad: boards[2][place * _GROUPS // len(needed)] for place, quad in enumerate(needed)}


def _rank(block: Block, place: int) -> int:
    """At one position, loads follow what is not a load."""
    return 0 if place in block.others else 1


def _other(values: Values, place: int, boards: tuple[int, int, tuple[int, ...]]) -> Word:
    word = values.word(place)
    if word.name == "LDGSTS":
        return word.with_control(**{**_PLAIN, "read_barrier": boards[1]})
    if word.queue or word.name in ("LDGDEPBAR", "DEPBAR", "BAR"):
        return word.with_control(wait_mask=0)
    return word.with_control(**_PLAIN)


def _ffma(block: Block, one: Multiply, quads: Mapping[Side, int]) -> Word:
    chain = block.chains[one.row, one.column]
    numbers = {DESTINATION: chain, A: quads[0] + one.row % QUAD, B: quads[1] + one.column % QUAD, C: chain}
    word = block.multiply.with_numbers([numbers[field.low] if field.kind == "R" else number
                                        for field, number in block.multiply.named])
    return word.with_control(**{**_PLAIN, "reuse": one.reuse})


def _nothing(block: Block) -> Word:
    """A NOP, where nothing runs before the loop but there is something to wait for."""
    return decode(NOP, block.branch.arch)


def _waits(words: Sequence[Word], loads: int) -> tuple[Word, ...]:
    """The loop with each instruction waiting for the scoreboards that its registers need, in the steady state.

    A barrier waits for the loads before it: what they read may be overwritten behind it.
    """
    masks = [0] * len(words)
    writing: dict[object, int] = {}  # register to the scoreboard that tells of its value
    reading: dict[object, int] = {}  # register to the scoreboards, a mask, that tell of its having been read
    for turn in range(2):
        for place, word in enumerate(words):
            mask = waited(word) if word.name == "DEPBAR" else 0
            needed = 0
            for register in word.reads | word.writes:
                needed |= 1 << writing[register] if register in writing else 0
            for register in word.writes:
                needed |= reading.get(register, 0)
            if word.name == "BAR":
                needed |= sum(1 << board for board in set(writing.values()) if loads >> board & 1)
            if turn:
                masks[place] = needed
            mask |= needed
            writing = {register: board for register, board in writing.items() if not mask >> board & 1}
            reading = {register: left for register, boards in reading.items() if (left := boards & ~mask)}
            control = word.control
            if control.write_barrier != NO_BARRIER:
                writing.update(dict.fromkeys(word.writes, control.write_barrier))
            board = control.read_barrier if control.read_barrier != NO_BARRIER else control.write_barrier
            if board != NO_BARRIER:
                for register in word.reads:
                    if register.kind == "R":
                        reading[register] = reading.get(register, 0) | 1 << board
    return tuple(word.with_control(wait_mask=masks[place]) if place < len(words) - 1 else
                 word.with_control(wait_mask=word.control.wait_mask | masks[place]) for place, word in enumerate(words))
