"""A large product of host arrays as tiles of its result: where C is cut, and in which order tiles are computed.

A tile is rows of A times columns of B over the whole of K, so that its sums are those of one product of its shape. A
batch is cut in groups of whole matrices, and those of one matrix that is large in tiles. The cuts follow from the sizes
alone: not from how many devices there are, nor from which of them computes a tile. So the result has the same bits on
one device and on several of a kind.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple

from ...arrays.base import FLOAT

# Rows and columns of a tile. 4096 x 4096 are 64 MB of C, whose copy out (1.2 ms on PCIe 5) is all that the last tile
# adds, and 512 tiles of 256 x 128 for a kernel: near a multiple of an H100's 132 SMs.
BLOCKS = (4096, 2048, 1024)
MANY = 2          # blocks along a dimension, at least, while they are not the smallest
_STEP = 256       # the largest tile of a kernel: blocks are whole ones
ENOUGH = 6        # matrices of a batch that are not cut
MOVED_BYTES = 64 << 20  # for a tile of a thin C, and for a group of a batch's matrices


class Tile(NamedTuple):
    """Rows and columns of C, of which ``matrices`` of a batch, by its dimensions; ``number`` is that of the tile of the
    grid that it is, or is a part of."""

    number: int
    rows: slice
    columns: slice
    matrices: tuple[slice, ...] = ()

    def __str__(self) -> str:
        which = ", ".join(f"{x.start} to {x.stop}" for x in self.matrices)
        return (f"rows {self.rows.start} to {self.rows.stop} and columns {self.columns.start} to {self.columns.stop} "
                f"of {f'matrices {which} of ' * bool(which)}C")

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where it lies in C."""
        return *self.matrices, self.rows, self.columns

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes, the batch's first."""
        return tuple(_length(x) for x in self.slices)

    @property
    def area(self) -> int:
        """Elements."""
        return prod(self.shape)

    def halves(self) -> list[Tile]:
        """It in two: some of several matrices and the others; a single matrix cut along its longer side, at a multiple
        of 256 where that leaves two; itself where it is one element."""
        *batch, rows, columns = self.shape
        which = next((i for i, size in enumerate(batch) if size > 1), len(batch) + (columns > rows))
        side, half = self.slices[which], self.shape[which] // 2
        if half == 0:
            return [self]
        if which >= len(batch):
            half -= half % _STEP if half > _STEP else 0
        parts = slice(side.start, side.start + half), slice(side.start + half, side.stop)
        halves = ((*self.slices[:which], part, *self.slices[which + 1:]) for part in parts)
        return [Tile(self.number, x[-2], x[-1], x[:-2]) for x in halves]


class PanelKey(NamedTuple):
    """A panel: rows of A or columns of B, of which matrices of a batch; (0, 1) along what the operand is broadcast."""

    side: str  # "a" or "b"
    start: int
    stop: int
    matrices: tuple[tuple[int, int], ...] = ()

    @property
    def slices(self) -> tuple[slice, ...]:
        """Where it lies in its operand."""
        rows, columns = slice(self.start, self.stop), slice(None)
        return *(slice(*pair) for pair in self.matrices), *((rows, columns) if self.side == "a" else (columns, rows))


def panel_keys(tile: Tile, a: Sequence[bool] = (), b: Sequence[bool] = ()) -> tuple[PanelKey, PanelKey]:
    """The panels that a tile reads; ``a`` and ``b``: along which dimensions of the batch each operand is broadcast."""
    first, second = (tuple((0, 1) if once else (x.start, x.stop) for x, once in zip(tile.matrices, side, strict=True))
                     for side in (a, b))
    return (PanelKey("a", tile.rows.start, tile.rows.stop, first),
            PanelKey("b", tile.columns.start, tile.columns.stop, second))


class Grid(NamedTuple):
    """Where C is cut; ``groups``: a batch's matrices, each with all rows and columns."""

    rows: tuple[slice, ...]
    columns: tuple[slice, ...]
    groups: tuple[tuple[slice, ...], ...] = ((),)

    def tile(self, i: int, j: int, group: int = 0) -> Tile:
        """The tile of the ``i``-th rows and the ``j``-th columns."""
        number = (group * len(self.rows) + i) * len(self.columns) + j
        return Tile(number, self.rows[i], self.columns[j], self.groups[group])

    def tiles(self) -> list[Tile]:
        """All, row by row."""
        return [self.tile(i, j, group) for group in range(len(self.groups)) for i in range(len(self.rows))
                for j in range(len(self.columns))]

    @property
    def largest(self) -> tuple[int, int, int]:
        """Matrices, rows and columns of the largest tile."""
        return (max(prod(_length(x) for x in group) for group in self.groups), max(_length(x) for x in self.rows),
                max(_length(x) for x in self.columns))


def _length(x: slice) -> int:
    return int(x.stop - x.start)


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


def batch_grid(batch: tuple[int, ...], m: int, n: int, k: int, moved: int, room: int | None = None) -> Grid:
    """Where to cut a batch of ``(m, k) (k, n)`` products, of which each moves ``moved`` bytes.

    Groups of matrices are computed by one launch, as long as they move `MOVED_BYTES`. Where there are `ENOUGH` of them
    large matrices stay whole as well, if there is room: the copies of some run beside the products of others.
    """
    most = max(1, MOVED_BYTES // max(1, moved))
    groups = tuple(_groups(batch, most))
    if most > 1 or (len(groups) >= ENOUGH and (room is None or _bytes(m, n, k) <= room)):
        return Grid((slice(0, m),), (slice(0, n),), groups)
    return grid(m, n, k, room)._replace(groups=groups)


def _groups(batch: tuple[int, ...], most: int) -> Iterator[tuple[slice, ...]]:
    """At most ``most`` matrices each: a range of one dimension, all of those inside it, one of those outside it."""
    inner = prod(batch[1:])
    step, within = most // inner, tuple(slice(0, size) for size in batch[1:])
    for low in range(0, batch[0], max(1, step)):
        if step:
            yield slice(low, min(low + step, batch[0])), *within
        else:
            for group in _groups(batch[1:], most):
                yield slice(low, low + 1), *group


def _side(extent: int, blocks: Sequence[int]) -> int:
    return min(extent, next((block for block in blocks if extent >= MANY * block), blocks[-1]))


def _thin(long: int, short: int, k: int) -> int:
    row = FLOAT * max(1, k + short)
    return min(long, max(_STEP, _whole(MOVED_BYTES // row)))


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
    return tuple(slice(start, stop) for start, stop in pairwise(accumulate(sizes, initial=0)))


def assign_tiles(grid: Grid, weights: Sequence[float], heights: Sequence[int | None],
                 finished: Iterable[int] = ()) -> list[list[Tile]]:
    """The tiles of ``grid`` for each of several devices, in the order in which it should compute them.

    Args:
        weights: what the devices are worth, in any unit.
        heights: for each, how many row blocks of A it can keep; None: it keeps all operands.
        finished: numbers of tiles to leave out.
    """
    rows, columns = range(len(grid.rows)), range(len(grid.columns))
    done, orders = set(finished), list[list[tuple[int, int, int]]]()
    by_groups, along_columns = len(grid.groups) > 1, len(columns) > len(rows)
    sides = grid.columns if along_columns else grid.rows
    sizes = ([prod(x.stop - x.start for x in group) for group in grid.groups] if by_groups else
             [side.stop - side.start for side in sides])
    for worker, (band, height) in enumerate(zip(bands(sizes, weights), heights, strict=True)):
        if by_groups:  # whole matrices for each device, one after the other
            orders.append([(i, j, group) for group in band for i, j in _order(rows, columns, height)])
            continue
        # Each device begins with other panels of the operand that all need, and takes the rest from the others; every
        # other one goes backwards, as the short panels are at both ends.
        own, other = list(band), rows if along_columns else columns
        all_of_other = _rotated(other, worker // 2, (len(weights) + 1) // 2)
        if worker % 2:
            own, all_of_other = own[::-1], all_of_other[::-1]
        down, across = (all_of_other, own) if along_columns else (own, all_of_other)
        orders.append([(i, j, 0) for i, j in _order(down, across, height)])
    return [[tile for where in order if (tile := grid.tile(*where)).number not in done] for order in orders]


def _order(rows: Sequence[int], columns: Sequence[int], height: int | None) -> Iterable[tuple[int, int]]:
    return growing(rows, columns) if height is None else sweeping(rows, columns, height)


def _rotated(blocks: Sequence[int], worker: int, workers: int) -> list[int]:
    start = worker * len(blocks) // workers
    return [*blocks[start:], *blocks[:start]]


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
    for band, low in enumerate(range(0, len(rows), height)):
        for j in reversed(columns) if band % 2 else columns:
            for i in rows[low:low + height]:
                yield i, j


def bands(sizes: Sequence[int], weights: Sequence[float]) -> list[range]:
    """Neighbouring blocks for each of several devices, shares of the total extent as near to ``weights`` as blocks
    allow."""
    total, whole = sum(sizes), sum(weights)
    centres = [end - size / 2 for end, size in zip(accumulate(sizes), sizes, strict=True)]
    shares = accumulate(weight / whole * total for weight in weights)
    ends = [0, *(bisect_right(centres, share + 1e-9 * total) for share in shares)]
    ends[-1] = len(sizes)
    return [range(low, high) for low, high in pairwise(ends)]
