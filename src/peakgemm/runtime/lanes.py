"""Streams and copying threads for products of host arrays: kept for the next call, one user at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Lock
from typing import Generic, TypeVar

from ..errors import LaunchFailed
from . import device, pools
from .memory import new_stream, synchronize
from .transfer import IN_THREADS, OUT_THREADS, Copiers, threads

T = TypeVar("T")


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


class Reserve(Generic[T]):
    """What calls need for themselves on a device, kept for the next call, one user at a time.

    Args:
        make: makes one more for the current device, by its index.
    """

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make, self._lock = make, Lock()
        self.free: dict[int, list[T]] = {}

    @contextmanager
    def take(self, index: int) -> Iterator[T]:
        """One for device ``index``, the current one."""
        with self._lock:
            free = self.free.setdefault(index, [])
            mine = free.pop() if free else None
        mine = mine or self._make(index)
        try:
            yield mine
        finally:
            free.append(mine)


_LANES = Reserve(Lane)


@contextmanager
def lane(index: int) -> Iterator[Lane]:
    """A lane on device ``index``, made current; everything enqueued on it has ended when the block has."""
    with device.activated(index), pools.used(index), _LANES.take(index) as mine:
        try:
            yield mine
        except BaseException:
            with suppress(LaunchFailed):  # nothing may still use what is given back, but the first error is told
                mine.wait()
            raise
        mine.wait()
