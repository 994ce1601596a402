"""Results of tiles on a device and on their way to the host's memory, several at a time, while others are computed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from threading import Condition, Lock, Semaphore, Thread
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..runtime import device
from ..runtime.memory import DeviceMemory, wait
from .grid import Tile

if TYPE_CHECKING:
    from ..runtime.transfer import Copiers
    from .deal import Deal

Array = NDArray[np.float32]
# Results on the device, where they take no more than an eighth of it: one being computed, others queued or going out.
# 16,384 "emulated" took 209 ms with 6 of them and 6 threads out, 177 with 32 and 10 (docs/notebook/23-host-arrays.md).
SLOTS = 32
# Products enqueued, each stream's and one more, where several devices share: what is enqueued no other one can take.
# By 32 one of two GPUs had no tile left while the other had enqueued 65 ms of them: 30,000 at 1.61 of one GPU's speed,
# by 3, in another run, at 1.72 (docs/notebook/23-host-arrays.md).
UNDER_WAY = 3


class Slot:
    """A result on the device, and the tile of ``c`` beside it; ``left``: chunks on their way out."""

    def __init__(self) -> None:
        self.out: DeviceMemory | None = None
        self.c: DeviceMemory | None = None
        self.left = 0


class Results:
    """Places for ``slots`` results on device ``index``, and a thread that has them copied into ``out``.

    The thread that copies a result's last chunk finishes its tile, and tells ``done`` where all of the grid's tile lies
    there. ``alone``: no other device takes tiles of the deal.

    Attributes:
        error: the first one here; nobody gets a tile of the deal any more.
    """

    def __init__(self, index: int, copiers: Copiers, out: Array, deal: Deal, done: Callable[[int], None] | None,
                 slots: int, alone: bool) -> None:
        self.error: BaseException | None = None
        self._index, self._copiers, self._target, self._deal, self._done = index, copiers, out, deal, done
        self._slots = [Slot() for _ in range(slots)]
        self._free: SimpleQueue[Slot] = SimpleQueue()
        for slot in self._slots:
            self._free.put(slot)
        self._under_way = Semaphore(slots if alone else UNDER_WAY)
        self._out: SimpleQueue[tuple[Any, Tile, Slot] | None] = SimpleQueue()
        self._going, self._settled, self._telling = 0, Condition(), Lock()  # results on their way out
        self._thread = Thread(target=self._drain, name=f"peakgemm-drain-{index}", daemon=True)

    def begin(self) -> None:
        """Start the thread, which `end` ends."""
        self._thread.start()

    def place(self) -> Slot:
        """One for the next product, once there is one and few enough products are under way."""
        slot = self._free.get()
        self._under_way.acquire()
        return slot

    def give_up(self, slot: Slot) -> None:
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
        self._deal.stop()

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
                self.give_up(slot)
                continue
            self._under_way.release()
            slot.left = len(futures)
            with self._settled:
                self._going += 1
            for future in futures:
                future.add_done_callback(partial(self._arrived, tile, slot))
        with self._settled:
            self._settled.wait_for(lambda: self._going == 0)

    def _arrived(self, tile: Tile, slot: Slot, future: Future[Any]) -> None:
        """A chunk of a result lies in the host's memory; with the last one the tile is finished."""
        error = future.exception()
        if error is not None:
            self.fail(error)
        with self._settled:
            slot.left -= 1
            if slot.left:
                return
        try:
            if self.error is None:
                with self._telling:
                    if self._deal.finish(tile) and self._done is not None:
                        self._done(tile.number)
        except BaseException as error:
            self.fail(error)
        finally:
            self._free.put(slot)
            with self._settled:
                self._going -= 1
                self._settled.notify_all()
