"""The order of a step's FFMAs: no read waits for a bank.

Two rows at a time, one in an even and one in an odd register, along all columns: both row elements stay in slot a's two
reuse entries, each column element is read once and kept for its second FFMA. With the accumulators that makes 1.5 reads
an FFMA, of the 2 that the banks give in a cycle; which row goes first, and which of a quad's columns, is chosen by the
model of the register file. (Row by row, back and forth, also has no conflict by the model of single reads, and ran at
0.81 of the speed: each FFMA then reads its column anew.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import permutations

from ..register_file import RegisterFile
from .block import QUAD, Block, NotUnderstood

_A, _B = 1, 2  # bits of .reuse
_BEAM = 4


@dataclass(frozen=True, slots=True)
class Multiply:
    """One FFMA of a step: its row and column, and the slots whose registers ``.reuse`` keeps."""

    row: int
    column: int
    reuse: int


def order(block: Block) -> tuple[Multiply, ...]:
    """The FFMAs of a step, conflict-free by the model if there is such an order within the pattern.

    Raises:
        NotUnderstood: an odd number of rows.
    """
    rows, columns = (QUAD * quads for quads in block.quads)
    if rows % 2:
        raise NotUnderstood(f"{rows} rows do not pair up")
    beam: list[tuple[int, RegisterFile, list[Multiply]]] = [(0, RegisterFile(), [])]
    for panel in range(rows // 2):
        for quad in range(columns // QUAD):
            ordered = quad if panel % 2 == 0 else columns // QUAD - 1 - quad  # back and forth: B's quads stay longer
            last = quad == columns // QUAD - 1
            grown = [one for one in beam for one in _quads(block, one, panel, ordered, last)]
            grown.sort(key=lambda one: one[0])
            beam = grown[:_BEAM]
    return tuple(beam[0][2])


def _quads(block: Block, known: tuple[int, RegisterFile, list[Multiply]], panel: int, quad: int,
           last: bool) -> Iterator[tuple[int, RegisterFile, list[Multiply]]]:
    """A prefix of the order grown by the FFMAs of a quad of columns: each of its orders at its best."""
    best: list[tuple[int, RegisterFile, list[Multiply]]] = []
    for columns in permutations(range(QUAD * quad, QUAD * (quad + 1))):
        cycles, file, made = known[0], deepcopy(known[1]), list(known[2])
        for count, column in enumerate(columns):
            ends = last and count == QUAD - 1
            options = []
            for rows in ((2 * panel, 2 * panel + 1), (2 * panel + 1, 2 * panel)):
                trial = deepcopy(file)
                kept = 0 if ends else _A
                pair = [Multiply(rows[0], column, kept | _B), Multiply(rows[1], column, kept)]
                options.append((sum(_read(trial, block, one) for one in pair), trial, pair))
            spent, file, pair = min(options, key=lambda option: option[0])
            cycles += spent
            made += pair
        best.append((cycles, file, made))
        if cycles == known[0] + 2 * QUAD:
            break  # no conflict: no order is better
    best.sort(key=lambda one: one[0])
    yield from best[:2]


def _read(file: RegisterFile, block: Block, one: Multiply) -> int:
    """The cycles of an FFMA; fragments under numbers that no accumulator has: their parity is what counts."""
    chain = block.chains[one.row, one.column]
    return file.read((1000 + one.row, 2000 + one.column, chain), one.reuse, chain).cycles


def cycles(block: Block, multiplies: Sequence[Multiply], turns: int = 3) -> float:
    """The modelled cycles of a step in its steady state, other instructions left out."""
    file, spent = RegisterFile(), 0
    for _ in range(turns):
        spent = sum(_read(file, block, each) for each in multiplies)
    return spent


