"""Tiles of a product dealt out to devices, and the panels that devices can take from each other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import prod
from threading import Event, Lock
from typing import Any, NamedTuple

from .grid import Grid, Tile, bands, growing, sweeping


class Key(NamedTuple):
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


class Held(NamedTuple):
    """A panel that lies on a device; ``memory`` keeps it there, ``copied`` makes an event behind its copy."""

    pointer: int
    size: int
    memory: Any
    copied: Callable[[], Any]


class Claim:
    """That ``device`` brings a panel from the host, for others to take from there.

    Attributes:
        held: the panel, once all of its copy is enqueued; None before, and where it could not be brought.
    """

    def __init__(self, device: int) -> None:
        self.device, self._settled = device, Event()
        self.held: Held | None = None

    def settle(self, held: Held | None) -> None:
        """The panel is there, or will not be."""
        self.held = held
        self._settled.set()

    @property
    def settled(self) -> bool:
        """Whether `held` is what it stays."""
        return self._settled.is_set()

    def wait(self) -> None:
        """Until it is settled."""
        self._settled.wait()


class Deal:
    """A queue of tiles for each worker. One whose queue is empty takes the last tile of the fullest one.

    So the first share follows what the devices should do, and the end what they do.
    """

    def __init__(self, queues: Sequence[Iterable[Tile]], left: dict[int, int] | None = None) -> None:
        self._queues = [deque(queue) for queue in queues]
        self._left = left if left is not None else {tile.number: tile.area for queue in self._queues for tile in queue}
        self._lock, self._stopped = Lock(), False
        self._claims: dict[Key, Claim] = {}
        self.taken = [0] * len(self._queues)  # elements of C, by worker

    def take(self, worker: int) -> Tile | None:
        """The next tile for ``worker``; None: there is none left, or a worker has failed."""
        with self._lock:
            if self._stopped:
                return None
            queue = self._queues[worker]
            if queue:
                tile = queue.popleft()
            else:
                fullest = max(self._queues, key=lambda other: sum(tile.area for tile in other))
                if not fullest:
                    return None
                tile = fullest.pop()
            self.taken[worker] += tile.area
            return tile

    def give_back(self, worker: int, tiles: Iterable[Tile]) -> None:
        """Tiles that ``worker`` took and has no room for, in parts: they are its next ones, or another's."""
        with self._lock:
            for tile in reversed(list(tiles)):
                self.taken[worker] -= tile.area
                self._queues[worker].appendleft(tile)

    def finish(self, tile: Tile) -> bool:
        """``tile`` lies in C; whether with it the whole tile of the grid does."""
        with self._lock:
            self._left[tile.number] -= tile.area
            return self._left[tile.number] == 0

    def upcoming(self, worker: int) -> list[Tile]:
        """What ``worker`` takes next, unless others do."""
        with self._lock:
            return list(self._queues[worker])

    def stop(self) -> None:
        """No worker gets another tile."""
        with self._lock:
            self._stopped = True

    def claim(self, key: Key, device: int) -> tuple[Claim, bool]:
        """Who brings a panel from the host, and whether that is ``device``, which asked first."""
        with self._lock:
            first = key not in self._claims
            if first:
                self._claims[key] = Claim(device)
            return self._claims[key], first

    def forget(self) -> None:
        """Let go of the panels that were brought."""
        with self._lock:
            self._claims.clear()


def keys(tile: Tile, a: Sequence[bool] = (), b: Sequence[bool] = ()) -> tuple[Key, Key]:
    """The panels that a tile reads; ``a`` and ``b``: along which dimensions of the batch each operand is broadcast."""
    first, second = (tuple((0, 1) if once else (x.start, x.stop) for x, once in zip(tile.matrices, side, strict=True))
                     for side in (a, b))
    return (Key("a", tile.rows.start, tile.rows.stop, first), Key("b", tile.columns.start, tile.columns.stop, second))


def dealt(grid: Grid, weights: Sequence[float], heights: Sequence[int | None],
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
        all_of_other = _turned(other, worker // 2, (len(weights) + 1) // 2)
        if worker % 2:
            own, all_of_other = own[::-1], all_of_other[::-1]
        down, across = (all_of_other, own) if along_columns else (own, all_of_other)
        orders.append([(i, j, 0) for i, j in _order(down, across, height)])
    return [[tile for place in order if (tile := grid.tile(*place)).number not in done] for order in orders]


def _order(rows: Sequence[int], columns: Sequence[int], height: int | None) -> Iterable[tuple[int, int]]:
    return growing(rows, columns) if height is None else sweeping(rows, columns, height)


def _turned(blocks: Sequence[int], worker: int, workers: int) -> list[int]:
    start = worker * len(blocks) // workers
    return [*blocks[start:], *blocks[:start]]
