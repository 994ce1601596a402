"""Streams and copying threads for products of host arrays: kept for the next call, one user at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Lock
from typing import Generic, TypeVar

from ..errors import LaunchFailed
from . import device, pools
from .memory import new_stream, synchronize
from .transfer import IN_THREADS, OUT_THREADS, Downloader, Uploader, threads

K = TypeVar("K")
T = TypeVar("T")


class Lane:
    """What a call uses on device ``index``, one of ``devices``: streams for copies in, computation and copies out, and
    threads that copy.

    ``beside`` is a second stream for computation: the next panel's blocks fill the SMs that the last wave of the one
    before leaves idle.
    """

    def __init__(self, index: int, devices: int) -> None:
        self.inward, self.compute, self.outward, self.beside = (new_stream() for _ in range(4))
        self.index = index
        self.uploader = Uploader(index, self.inward, threads(IN_THREADS, devices))
        self.downloader = Downloader(index, self.outward, threads(OUT_THREADS, devices))

    def close(self) -> None:
        """End the threads."""
        self.uploader.close()
        self.downloader.close()

    def wait(self) -> None:
        """For everything enqueued on the streams.

        Raises:
            LaunchFailed: something of it failed.
        """
        with ExitStack() as each:  # whatever one of them says
            for stream in (self.inward, self.compute, self.outward, self.beside):
                each.callback(synchronize, stream, f"the product on GPU {self.index}")


class Reserve(Generic[K, T]):
    """What calls need for themselves, kept for the next call, one user at a time; ``make`` makes one more of a key."""

    def __init__(self, make: Callable[[K], T]) -> None:
        self._make, self._lock = make, Lock()
        self.free: dict[K, list[T]] = {}

    @contextmanager
    def take(self, key: K) -> Iterator[T]:
        """One of those of ``key``, whose device is current."""
        with self._lock:
            free = self.free.setdefault(key, [])
            mine = free.pop() if free else None
        mine = mine or self._make(key)
        try:
            yield mine
        finally:
            free.append(mine)


_LANES = Reserve[tuple[int, int], Lane](lambda key: Lane(*key))


@contextmanager
def lane(index: int, devices: int = 1) -> Iterator[Lane]:
    """A lane on device ``index``, made current; everything enqueued on it has ended when the block has.

    ``devices``: how many of them share the processor's cores.
    """
    with device.activated(index), pools.used(index), _LANES.take((index, devices)) as mine:
        try:
            yield mine
        except BaseException:
            with suppress(LaunchFailed):  # nothing may still use what is given back, but the first error is told
                mine.wait()
            raise
        mine.wait()
