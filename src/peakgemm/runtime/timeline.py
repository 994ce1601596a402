"""What devices and copying threads do when: spans of one call, kept only where someone asks for them by `recorded`.

Threads' spans are read off the host's clock, a device's from pairs of events on its streams, set against the host's
clock by one event when the recording begins. Where nothing is recorded a span costs one look at a global.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from ctypes import byref, c_float, c_void_p
from time import perf_counter
from typing import NamedTuple

from . import device, driver
from .staging import new_stream, synchronize

_NOTHING: AbstractContextManager[None] = nullcontext()
_active: Timeline | None = None


class Span(NamedTuple):
    """``what`` was done for ``device`` from ``start`` to ``end``, seconds after the recording began; ``bytes`` moved.
    """

    device: int
    what: str
    start: float
    end: float
    bytes: int


class Timeline:
    """Spans as they end; those of devices are known once `close` was called."""

    def __init__(self, indices: Sequence[int]) -> None:
        self._host: list[tuple[int, str, float, float, int]] = []
        self._marks: list[tuple[int, str, c_void_p, c_void_p, int]] = []
        self._base: dict[int, tuple[c_void_p, float]] = {}
        for index in indices:
            with device.activated(index):
                stream = new_stream()
                mark = _mark(stream)
                synchronize(stream)
                self._base[index] = mark, perf_counter()
        self.start, self.end = perf_counter(), 0.0
        self.spans: list[Span] = []

    @contextmanager
    def of_thread(self, index: int, what: str, size: int) -> Iterator[None]:
        """What the block does."""
        start = perf_counter()
        try:
            yield
        finally:
            self._host.append((index, what, start, perf_counter(), size))

    @contextmanager
    def of_stream(self, index: int, what: str, size: int, stream: int) -> Iterator[None]:
        """What the block enqueues on ``stream``. The device is current."""
        first = _mark(stream)
        try:
            yield
        finally:
            self._marks.append((index, what, first, _mark(stream), size))

    def close(self) -> None:
        """Nothing more comes, and all that was enqueued has run."""
        self.end = perf_counter()
        self.spans = [Span(index, what, start - self.start, end - self.start, size)
                      for index, what, start, end, size in self._host]
        for index, what, first, last, size in self._marks:
            base, at = self._base[index]
            with device.activated(index):
                start, end = (at - self.start + _seconds(base, mark) for mark in (first, last))
                for mark in (first, last):
                    driver.library().cuEventDestroy_v2(mark)
            self.spans.append(Span(index, what, start, end, size))
        for index, (base, _) in self._base.items():
            with device.activated(index):
                driver.library().cuEventDestroy_v2(base)
        self.spans.sort(key=lambda span: span.start)


@contextmanager
def recorded(indices: Sequence[int]) -> Iterator[Timeline]:
    """Record what calls within the block do on the devices ``indices``; one recording at a time in a process."""
    global _active
    timeline = _active = Timeline(indices)
    try:
        yield timeline
    finally:
        _active = None
        timeline.close()


def span(index: int, what: str, size: int = 0) -> AbstractContextManager[None]:
    """What this thread does within the block, for device ``index``."""
    return _NOTHING if _active is None else _active.of_thread(index, what, size)


def stream_span(index: int, what: str, stream: int, size: int = 0) -> AbstractContextManager[None]:
    """What the block enqueues on ``stream`` of device ``index``, the current one: from when it may begin."""
    return _NOTHING if _active is None else _active.of_stream(index, what, size, stream)


def _mark(stream: int) -> c_void_p:
    """An event with a time."""
    mark = c_void_p()
    driver.demand("an event", "cuEventCreate", byref(mark), 0)
    driver.demand("recording an event", "cuEventRecord", mark, c_void_p(stream))
    return mark


def _seconds(first: c_void_p, last: c_void_p) -> float:
    ms = c_float()
    driver.demand("the time between two events", "cuEventElapsedTime", byref(ms), first, last)
    return ms.value / 1e3
