"""What devices and copying threads do when: spans of the calls within `recorded`.

The library knows nothing of it: while something is recorded, its functions that copy, compute and wait are replaced
by ones that measure as well. Threads' spans are read off the host's clock, a device's from pairs of events on its
streams, set against the host's clock by one event when the recording begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ctypes import byref, c_float, c_void_p
from time import perf_counter
from typing import Any, NamedTuple
from unittest import mock

from peakgemm.calls.host import worker
from peakgemm.calls.host.panel import Panel
from peakgemm.calls.host.results import Results
from peakgemm.kernels.emulated.product import SplitOperand
from peakgemm.runtime import device, driver, peers, transfer
from peakgemm.runtime.memory import new_stream, synchronize
from peakgemm.runtime.transfer import PinnedBuffer


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

    def of_thread(self, what: str, call: Callable[[], Any], size: int = 0) -> Any:
        """Make a call and record when this thread did so, for its current device."""
        start = perf_counter()
        try:
            return call()
        finally:
            self._host.append((device.current() or 0, what, start, perf_counter(), size))

    def of_stream(self, what: str, call: Callable[[], Any], stream: int, size: int = 0) -> Any:
        """Make a call and record when the current device does what it enqueues on ``stream``."""
        first = _mark(stream)
        try:
            return call()
        finally:
            self._marks.append((device.current() or 0, what, first, _mark(stream), size))

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
    timeline = Timeline(indices)
    with ExitStack() as patches:
        for owner, name, wrapper in _wrappers(timeline):
            call = getattr(owner, name)

            def measured(*args: Any, wrapper: Any = wrapper, call: Any = call) -> Any:
                return wrapper(lambda: call(*args), *args)

            patches.enter_context(mock.patch.object(owner, name, measured))
        yield timeline
    timeline.close()


def _wrappers(line: Timeline) -> list[tuple[Any, str, Callable[..., Any]]]:
    """Functions of the library, and what records a call of each: it takes the call, and the call's arguments."""
    def staged(what: str) -> Callable[..., Any]:
        def wrapper(call: Callable[[], Any], buffer: PinnedBuffer, part: Any) -> Any:
            line.of_thread("wait for a buffer", buffer.wait)
            return line.of_thread(what, call, part.nbytes)
        return wrapper

    return [
        (PinnedBuffer, "fill", staged("stage")),
        (PinnedBuffer, "empty_into", staged("unstage")),
        (transfer, "copy_in", lambda call, to, source, size, stream: line.of_stream("copy in", call, stream, size)),
        (transfer, "copy_out", lambda call, to, source, size, stream: line.of_stream("copy out", call, stream, size)),
        (transfer, "copy_rows", lambda call, x, pointer, stream, inward: line.of_stream(
            "copy in" if inward else "copy out", call, stream, x.nbytes)),
        (peers, "copy", lambda call, to, to_index, source, source_index, size, stream: line.of_stream(
            "copy from a peer", call, stream, size)),
        (SplitOperand, "launch", lambda call, split, operand, memory, stream: line.of_stream(
            "split", call, stream, split.bytes)),
        (worker, "enqueue", lambda call, bound, canonical, views, workspace, stream: line.of_stream(
            "product", call, stream)),
        (Panel, "wait", lambda call, *_: line.of_thread("wait for a panel", call)),
        (Results, "take_slot", lambda call, *_: line.of_thread("wait for a result's place", call)),
    ]


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
