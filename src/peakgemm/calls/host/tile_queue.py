"""Tiles of a product for each of several devices, panels that they take from each other, and results on the way out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from math import prod
from queue import SimpleQueue
from threading import Condition, Lock, Semaphore, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...runtime import device
from ...runtime.memory import DeviceMemory, wait
from ...runtime.transfer import when_done
from .grid import Grid, Tile, bands, growing, sweeping

if TYPE_CHECKING:
    from ...runtime.transfer import Copiers

Array = NDArray[np.float32]
# Results on the device, where they take no more than an eighth of it: one being computed, others queued or going out.
# 16,384 "emulated" took 209 ms with 6 of them and 6 threads out, 177 with 32 and 10 (docs/notebook/23-host-arrays.md).
SLOTS = 32
# Products enqueued, each stream's and one more, where several devices share: what is enqueued no other one can take.
# By 32 one of two GPUs had no tile left while the other had enqueued 65 ms of them: 30,000 at 1.61 of one GPU's speed,
# by 3, in another run, at 1.72 (docs/notebook/23-host-arrays.md).
UNDER_WAY = 3


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


class PeerPanel(NamedTuple):
    """A panel that lies on a device; ``memory`` keeps it there, ``copied`` makes an event behind its copy."""

    pointer: int
    size: int
    memory: Any
    copied: Callable[[], Any]


class Transfer(Future["PeerPanel | None"]):
    """That ``device`` brings a panel from the host, for others to take from there.

    Its result is the panel, once all of its copy is enqueued; None where it could not be brought.
    """

    def __init__(self, device: int) -> None:
        super().__init__()
        self.device = device


class TileQueue:
    """A queue of tiles for each worker. One whose queue is empty takes the last tile of the fullest one.

    So the first share follows what the devices should do, and the end what they do.
    """

    def __init__(self, queues: Sequence[Iterable[Tile]]) -> None:
        self._queues = [deque(queue) for queue in queues]
        self._left = {tile.number: tile.area for queue in self._queues for tile in queue}
        self._lock, self._stopped = Lock(), False
        self._transfers: dict[PanelKey, Transfer] = {}

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
            return tile

    def give_back(self, worker: int, tiles: Iterable[Tile]) -> None:
        """Tiles that ``worker`` took and has no room for, in parts: they are its next ones, or another's."""
        with self._lock:
            for tile in reversed(list(tiles)):
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

    def transfer(self, key: PanelKey, device: int) -> tuple[Transfer, bool]:
        """Who brings a panel from the host, and whether that is ``device``, which asked first."""
        with self._lock:
            first = key not in self._transfers
            if first:
                self._transfers[key] = Transfer(device)
            return self._transfers[key], first

    def forget(self) -> None:
        """Let go of the panels that were brought."""
        with self._lock:
            self._transfers.clear()


def panel_keys(tile: Tile, a: Sequence[bool] = (), b: Sequence[bool] = ()) -> tuple[PanelKey, PanelKey]:
    """The panels that a tile reads; ``a`` and ``b``: along which dimensions of the batch each operand is broadcast."""
    first, second = (tuple((0, 1) if once else (x.start, x.stop) for x, once in zip(tile.matrices, side, strict=True))
                     for side in (a, b))
    return (PanelKey("a", tile.rows.start, tile.rows.stop, first),
            PanelKey("b", tile.columns.start, tile.columns.stop, second))


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


@dataclass(slots=True)
class Slot:
    """A result on the device, and the tile of ``c`` beside it."""

    out: DeviceMemory | None = None
    c: DeviceMemory | None = None


class Results:
    """Places for ``slots`` results on device ``index``, and a thread that has them copied into ``out``.

    The thread that copies a result's last chunk finishes its tile, and calls ``done`` where all of the grid's tile lies
    there. ``alone``: no other device takes tiles of the queue.

    Attributes:
        error: the first one here; nobody gets a tile of the queue any more.
    """

    def __init__(self, index: int, copiers: Copiers, out: Array, queue: TileQueue, done: Callable[[int], None] | None,
                 slots: int, alone: bool) -> None:
        self.error: BaseException | None = None
        self._index, self._copiers, self._target, self._tiles, self._done = index, copiers, out, queue, done
        self._slots = [Slot() for _ in range(slots)]
        self._free: SimpleQueue[Slot] = SimpleQueue()
        for slot in self._slots:
            self._free.put(slot)
        self._under_way = Semaphore(slots if alone else UNDER_WAY)
        self._out: SimpleQueue[tuple[Any, Tile, Slot] | None] = SimpleQueue()
        self._going, self._settled, self._calling = 0, Condition(), Lock()  # results on their way out
        self._thread = Thread(target=self._drain, name=f"peakgemm-drain-{index}", daemon=True)

    def begin(self) -> None:
        """Start the thread, which `end` ends."""
        self._thread.start()

    def take_slot(self) -> Slot:
        """One for the next product, once there is one and few enough products are under way."""
        slot = self._free.get()
        self._under_way.acquire()
        return slot

    def give_back(self, slot: Slot) -> None:
        """There is no product for this place."""
        self._free.put(slot)
        self._under_way.release()

    def send(self, mark: Any, tile: Tile, slot: Slot) -> None:
        """Have a result copied out, once the device has come to the event ``mark``."""
        self._out.put((mark, tile, slot))

    def end(self) -> None:
        """Until all that was sent lies in the host's memory, or has failed."""
        self._out.put(None)
        self._thread.join()

    def drop(self) -> None:
        """Free the places' memory now: the traceback of an error may hold this object until the next collection."""
        for slot in self._slots:
            slot.out = slot.c = None

    def fail(self, error: BaseException) -> None:
        """Nobody gets another tile."""
        self.error = self.error or error
        self._tiles.stop()

    def _drain(self) -> None:
        try:
            device.make_current(self._index)
        except BaseException as error:
            self.fail(error)
        while (item := self._out.get()) is not None:
            mark, tile, slot = item
            futures: list[Future[Any]] = []
            try:
                wait(mark, f"the product of {tile} on GPU {self._index}")
                if self.error is None:
                    assert slot.out is not None
                    futures = self._copiers.download(slot.out.pointer, self._target[tile.slices])
            except BaseException as error:
                self.fail(error)
            if not futures:
                self.give_back(slot)
                continue
            self._under_way.release()
            with self._settled:
                self._going += 1
            when_done(futures, partial(self._arrived, tile, slot))
        with self._settled:
            self._settled.wait_for(lambda: self._going == 0)

    def _arrived(self, tile: Tile, slot: Slot, error: BaseException | None) -> None:
        """A result lies in the host's memory: its tile is finished."""
        try:
            if error is not None:
                self.fail(error)
            if self.error is None:
                with self._calling:
                    if self._tiles.finish(tile) and self._done is not None:
                        self._done(tile.number)
        except BaseException as raised:
            self.fail(raised)
        finally:
            self._free.put(slot)
            with self._settled:
                self._going -= 1
                self._settled.notify_all()
