"""Results of tiles on a device, on their way to the host's memory."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import Any

from ...runtime import device
from ...runtime.lanes import Lane
from ...runtime.memory import GrowingMemory, wait
from ...runtime.transfer import when_done
from .grid import Tile
from .tile_queue import Job

# Results on the device, where they take no more than an eighth of it: one being computed, others queued or going out.
# 16,384 "emulated" took 209 ms with 6 of them and 6 threads out, 177 with 32 and 10 (docs/notebook/23-host-arrays.md).
SLOTS = 32
# Products enqueued, each stream's and one more, where several devices share: what is enqueued no other one can take.
# By 32 one of two GPUs had no tile left while the other had enqueued 65 ms of them: 30,000 at 1.61 of one GPU's speed,
# by 3, in another run, at 1.72 (docs/notebook/23-host-arrays.md).
UNDER_WAY = 3


class Slot:
    """Memory for a result on the device, and for the tile of ``c`` beside it."""

    def __init__(self) -> None:
        self.out, self.c = GrowingMemory(), GrowingMemory()


class Results:
    """``slots`` results on the device of a lane, and a thread that has them copied out.

    Within a ``with`` block products may be sent; at its end all that was lies in the host's memory, or has failed. The
    thread that copies a result's last chunk finishes its tile.
    """

    def __init__(self, way: Lane, job: Job, slots: int) -> None:
        self._way, self._job = way, job
        self._slots = [Slot() for _ in range(slots)]
        self._free: SimpleQueue[Slot] = SimpleQueue()
        for slot in self._slots:
            self._free.put(slot)
        self._under_way = Semaphore(slots if job.workers == 1 else UNDER_WAY)
        self._sent: SimpleQueue[tuple[Any, Tile, Slot] | None] = SimpleQueue()
        self._thread = Thread(target=self._drain, name=f"peakgemm-drain-{way.index}", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._sent.put(None)
        self._thread.join()
        for _slot in self._slots:  # each comes back when its result has gone
            self._free.get()

    def take_slot(self) -> Slot:
        """One for the next product, once there is one and few enough products are under way."""
        self._under_way.acquire()
        return self._free.get()

    def give_back(self, slot: Slot) -> None:
        """There is no product for this slot."""
        self._free.put(slot)
        self._under_way.release()

    def send(self, mark: Any, tile: Tile, slot: Slot) -> None:
        """Have a result copied out, once the device has come to the event ``mark``."""
        self._sent.put((mark, tile, slot))

    def free(self) -> None:
        """Free the slots' memory now: the traceback of an error may hold this object until the next collection."""
        for slot in self._slots:
            slot.out.free()
            slot.c.free()

    def _drain(self) -> None:
        queue = self._job.queue
        try:
            device.make_current(self._way.index)
        except BaseException as error:
            queue.fail(error, of_result=True)
        while (item := self._sent.get()) is not None:
            mark, tile, slot = item
            futures: list[Future[Any]] = []
            try:
                wait(mark, f"the product of {tile} on GPU {self._way.index}")
                if queue.error is None:
                    futures = self._way.downloader.download(slot.out.pointer, self._job.request.out[tile.slices])
            except BaseException as error:
                queue.fail(error, of_result=True)
            self._under_way.release()
            when_done(futures, partial(self._arrived, tile, slot))

    def _arrived(self, tile: Tile, slot: Slot, error: BaseException | None) -> None:
        """A result lies in the host's memory, or something has failed before."""
        queue = self._job.queue
        try:
            if error is None and queue.error is None:
                queue.finish(tile)
        except BaseException as raised:
            error = raised
        if error is not None:
            queue.fail(error, of_result=True)
        self._free.put(slot)
