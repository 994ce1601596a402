"""Streams and copying threads for products of host arrays: kept for the next call, one user at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Lock

from ..errors import LaunchFailed
from . import device, pools
from .memory import new_stream, synchronize
from .transfer import IN_THREADS, OUT_THREADS, Copiers, threads


class Lane:
    """What one call uses: streams for copies in, computation and copies out, and the threads that copy.

    ``beside`` is a second stream for computation: the next panel's blocks fill the SMs that the last wave of the one
    before leaves idle.
    """

    def __init__(self, index: int) -> None:
        self.inward, self.compute, self.outward, self.beside = (new_stream() for _ in range(4))
        self.index = index
        self._copiers: Copiers | None = None

    def copiers(self, devices: int = 1) -> Copiers:
        """The threads that copy, as many as each of ``devices`` may have; kept for the next call that asks for so many.
        """
        counts = threads(IN_THREADS, devices), threads(OUT_THREADS, devices)
        if self._copiers is None or self._copiers.counts != counts:
            if self._copiers is not None:
                self._copiers.close()
            self._copiers = Copiers(self.index, self.inward, self.outward, *counts)
        return self._copiers

    def wait(self) -> None:
        """For everything enqueued on the streams.

        Raises:
            LaunchFailed: something of it failed.
        """
        with ExitStack() as each:  # whatever one of them says
            for stream in (self.inward, self.compute, self.outward, self.beside):
                each.callback(synchronize, stream, f"the product on GPU {self.index}")


_LANES: dict[int, list[Lane]] = {}
_LANES_LOCK = Lock()


@contextmanager
def lane(index: int) -> Iterator[Lane]:
    """A lane on device ``index``, made current; everything enqueued on it has ended when the block has."""
    with ExitStack() as stack:
        stack.enter_context(device.activated(index))
        stack.enter_context(pools.used(index))
        with _LANES_LOCK:
            free = _LANES.setdefault(index, [])
            mine = free.pop() if free else None
        mine = mine or Lane(index)
        try:
            try:
                yield mine
            except BaseException:
                with suppress(LaunchFailed):  # nothing may still use what is given back, but the first error is told
                    mine.wait()
                raise
            mine.wait()
        finally:
            with _LANES_LOCK:
                free.append(mine)
