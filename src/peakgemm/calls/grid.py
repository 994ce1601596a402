"""A large product of host arrays as tiles of its result: where C is cut, and in which order tiles are computed.

A tile is rows of A times columns of B over the whole of K, so that its sums are those of one product of its shape. The
cuts follow from the sizes alone: not from how many devices there are, nor from which of them computes a tile. So the
result has the same bits on one device and on several of a kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..arrays.base import FLOAT

# Rows and columns of a tile. 4096 x 4096 are 64 MB of C, whose copy out (1.2 ms on PCIe 5) is all that the last tile
# adds, and 512 tiles of 256 x 128 for a kernel: near a multiple of an H100's 132 SMs.
BLOCKS = (4096, 2048, 1024)
MANY = 2          # blocks along a dimension, at least, while they are not the smallest
_STEP = 256       # the largest tile of a kernel: blocks are whole ones
_THIN_BYTES = 64 << 20  # moved for a tile of a thin C


class Tile(NamedTuple):
    """Rows and columns of C; ``number`` is that of the tile of the grid that it is, or is a part of."""

    number: int
    rows: slice
    columns: slice

    def __str__(self) -> str:
        return (f"rows {self.rows.start} to {self.rows.stop} and columns {self.columns.start} to {self.columns.stop} "
                "of C")

    @property
    def area(self) -> int:
        """Elements."""
        return int(self.rows.stop - self.rows.start) * int(self.columns.stop - self.columns.start)

    def halves(self) -> list[Tile]:
        """It in two, cut along its longer side at a multiple of 256 where that leaves two; itself where it is one
        element."""
        tall = self.rows.stop - self.rows.start >= self.columns.stop - self.columns.start
        side = self.rows if tall else self.columns
        half = (side.stop - side.start) // 2
        if half == 0:
            return [self]
        half -= half % _STEP if half > _STEP else 0
        middle = side.start + half
        parts = slice(side.start, middle), slice(middle, side.stop)
        return [self._replace(rows=part) if tall else self._replace(columns=part) for part in parts]


class Grid(NamedTuple):
    """Where C is cut."""

    rows: tuple[slice, ...]
    columns: tuple[slice, ...]

    def tile(self, i: int, j: int) -> Tile:
        """The tile of the ``i``-th rows and the ``j``-th columns."""
        return Tile(i * len(self.columns) + j, self.rows[i], self.columns[j])

    def tiles(self) -> list[Tile]:
        """All, row by row."""
        return [self.tile(i, j) for i in range(len(self.rows)) for j in range(len(self.columns))]


def grid(m: int, n: int, k: int, room: int | None = None, blocks: Sequence[int] = BLOCKS) -> Grid:
    """Where to cut an ``(m, k) (k, n)`` product.

    Args:
        m, n, k: its sizes.
        room: bytes of the smallest device's free memory: one tile with the next one's panels must fit. None: any.
        blocks: sides of a tile to choose from, falling.
    """
    down, across = _side(m, blocks), _side(n, blocks)
    if across == n and n < blocks[-1]:  # a tall C: tiles by what they move
        down = _thin(m, n, k)
    elif down == m and m < blocks[-1]:
        across = _thin(n, m, k)
    while room is not None and max(down, across) > _STEP and _bytes(down, across, k) > room:
        if down >= across:
            down = _whole(down // 2)
        else:
            across = _whole(across // 2)
    return Grid(cuts(m, down), cuts(n, across))


def _side(extent: int, blocks: Sequence[int]) -> int:
    found = next((block for block in blocks if extent >= MANY * block), blocks[-1])
    return min(extent, found)


def _thin(long: int, short: int, k: int) -> int:
    row = FLOAT * max(1, k + short)
    return min(long, max(_STEP, _whole(_THIN_BYTES // row)))


def _whole(size: int) -> int:
    return max(_STEP, size - size % _STEP)


def _bytes(down: int, across: int, k: int) -> int:
    """On the device at a time: the panels of two tiles, and three results."""
    return FLOAT * (2 * k * (down + across) + 3 * down * across)


def cuts(extent: int, block: int) -> tuple[slice, ...]:
    """``extent`` in blocks, the first and the last of them in parts, and what is left over by its size.

    A device begins at an end, and waits for the first panels; then each is no longer than what lies before it, so that
    its copy takes no longer than there is work without it. Its last tiles are small as well: their way out, and what
    one of several devices waits for, is all that is left. No part is shorter than the smallest block.
    """
    whole, left = divmod(extent, block)
    sizes, half, quarter = [block] * whole, block // 2, block // 4
    if whole > 1 and half >= BLOCKS[-1]:
        parts = [quarter, quarter, half] if quarter >= BLOCKS[-1] else [half, half]
        sizes = [*parts, *sizes[2:], *parts[::-1]]
    if left and sizes and left < _STEP:
        sizes[0] += left
    elif left:
        sizes.insert(next((i for i, size in enumerate(sizes) if size >= left), len(sizes)), left)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))


def growing(rows: Sequence[int], columns: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Row and column blocks in the order of a growing square: each new panel is used with all that are there."""
    for step in range(max(len(rows), len(columns))):
        if step < len(rows):
            for j in columns[:step]:
                yield rows[step], j
        if step < len(columns):
            for i in rows[:step + 1]:
                yield i, columns[step]


def sweeping(rows: Sequence[int], columns: Sequence[int], height: int) -> Iterator[tuple[int, int]]:
    """In bands of ``height`` row blocks that stay, past which the column blocks pass, to and fro."""
    backwards = False
    for low in range(0, len(rows), max(1, height)):
        for j in reversed(columns) if backwards else columns:
            for i in rows[low:low + max(1, height)]:
                yield i, j
        backwards = not backwards


def bands(sizes: Sequence[int], weights: Sequence[float]) -> list[range]:
    """Neighbouring blocks for each of several devices, shares of the total extent as near to ``weights`` as blocks
    allow."""
    total, whole = sum(sizes), sum(weights)
    ends, passed, share, at = [], 0.0, 0.0, 0
    for weight in weights:
        share += weight / whole * total
        while at < len(sizes) and passed + sizes[at] / 2 <= share + 1e-9 * total:
            passed += sizes[at]
            at += 1
        ends.append(at)
    ends[-1] = len(sizes)
    return [range(low, high) for low, high in zip([0, *ends[:-1]], ends, strict=True)]
