"""Copies between the host's arrays and a device by several threads, each through pinned buffers of its own.

One thread copies 8 to 10 GB/s of pageable memory, a PCIe 5 link takes 54 each way: so many threads as it needs stage
chunks, which the copy engines then move. NumPy's copies release the interpreter. Memory that is pinned already is
not staged.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager, suppress
from ctypes import Structure, byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from itertools import cycle
from math import prod
from queue import SimpleQueue
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import LaunchFailed
from . import device, driver
from .memory import behind, copy_in, copy_out, event, wait

Array = NDArray[np.float32]
Chunks = deque[tuple[Array, int]]  # with the device address of each
FLOAT = 4
CHUNK_BYTES = 8 << 20  # of one copy: 150 us on PCIe 5, beside which a driver call (3 us) and an event vanish
LEAST_BYTES = 4 << 20  # of a task: by 2 MB, not 0.5, 4096^3 took 26.5 ms, not 34.4 (docs/notebook/23-host-arrays.md)
# At most; `python -m lab.scale --gpus 1` times the copies by others. The same page has 4 to 16 each way. By 8
# and 10 a machine of 16 cores has more threads than cores, and the one that launches tiles waits for its turn: 4096 to
# 30,000 took 2.7 % longer in the mean. Results into new pages take longer than what comes in.
IN_THREADS, OUT_THREADS = 6, 8
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE
_HOST, _DEVICE = 1, 2  # CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE


def threads(most: int, devices: int = 1) -> int:
    """How many threads copy one way for each of ``devices``: ``most``, where the cores suffice."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        cores = os.cpu_count() or 1
    return max(1, min(most, cores // devices))


def when_done(futures: list[Future[Any]], call: Callable[[BaseException | None], None]) -> None:
    """Call it in the thread that ends the last of the futures, with the first error."""
    left, errors, lock = len(futures), list[BaseException](), Lock()

    def ended(future: Future[Any]) -> None:
        nonlocal left
        error = future.exception()
        with lock:
            left -= 1
            if error is not None:
                errors.append(error)
            if left:
                return
        call(errors[0] if errors else None)

    for future in futures:
        future.add_done_callback(ended)
    if not futures:
        call(None)


class Upload:
    """A copy to a device that threads enqueue on ``stream``, or of which ``mark`` is the event behind it.

    ``futures``: with the last one all is enqueued. One of memory that is pinned gives the event behind its copy.
    """

    def __init__(self, stream: int, futures: Sequence[Future[Any]] = (), mark: Any = None) -> None:
        self._stream, self.futures, self._mark, self._ordered = stream, futures, mark, False

    @property
    def is_enqueued(self) -> bool:
        """Whether no thread is at it any more."""
        return all(future.done() for future in self.futures)

    def order(self, *streams: int) -> None:
        """What ``streams`` do from now on waits for the copy, all of which is enqueued when this returns. The first
        call counts.

        Raises:
            LaunchFailed: the driver refused it; no thread is at it any more.
        """
        if self._ordered:
            return
        wait_for(self.futures)
        marks = [mark for mark in (self._mark, *[future.result() for future in self.futures]) if mark is not None]
        self._ordered = True
        for mark in marks or [event(self._stream)]:
            behind(mark, *streams)


class _Copier(ABC):
    """``count`` threads that copy one way between the host and device ``index``, on ``stream``, and as many pairs of
    pinned buffers: one is filled while the other is moved. Kept for the next call.

    Threads take the chunks of an array one after the other until none is left: a task a thread, not a chunk. Each
    begins with the first buffer of its pair, so that arrays of few chunks use half of the buffers, which the
    processor's caches still hold.
    """

    def __init__(self, index: int, stream: int, count: int, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._stream, self.count, self._chunk_bytes = stream, count, chunk_bytes
        self._pool = ThreadPoolExecutor(count, f"peakgemm-copy-{index}", device.make_current, (index,))
        self._pairs: SimpleQueue[tuple[PinnedBuffer, PinnedBuffer]] = SimpleQueue()  # those that no thread has
        for _ in range(count):
            self._pairs.put((PinnedBuffer(chunk_bytes), PinnedBuffer(chunk_bytes)))

    def close(self) -> None:
        """End the threads, after what is queued; free the buffers."""
        self._pool.shutdown(wait=True)
        while not self._pairs.empty():
            for buffer in self._pairs.get():
                buffer.free()

    def _start(self, x: Array, pointer: int) -> list[Future[Any]]:
        if pitched(x) and is_locked(x):
            return [self._pool.submit(self._copy_pinned, x, pointer)]
        # All threads get a chunk, of no less than `LEAST_BYTES`.
        limit = min(self._chunk_bytes, max(LEAST_BYTES, x.nbytes // self.count))
        chunks = deque((part, pointer + FLOAT * offset) for offset, part in parts(x, limit))
        return [self._pool.submit(self._copy, chunks) for _ in range(min(self.count, len(chunks)))]

    @contextmanager
    def _pair(self) -> Iterator[tuple[PinnedBuffer, PinnedBuffer]]:
        pair = self._pairs.get()
        try:
            yield pair
        finally:
            self._pairs.put(pair)

    @abstractmethod
    def _copy(self, chunks: Chunks) -> None:
        """Take chunks until none is left, and copy each by way of pinned buffers."""

    @abstractmethod
    def _copy_pinned(self, x: Array, pointer: int) -> Any:
        """Copy `pitched` memory that is pinned already."""


class Uploader(_Copier):
    """Threads that copy to a device."""

    def upload(self, x: Array, pointer: int) -> Upload:
        """Copy ``x`` packed to the device address ``pointer``."""
        return Upload(self._stream, self._start(x, pointer))

    def _copy(self, chunks: Chunks) -> None:
        with self._pair() as pair:
            for buffer, (part, pointer) in zip(cycle(pair), _taken(chunks)):
                buffer.fill(part)
                copy_in(pointer, buffer.address, part.nbytes, self._stream)
                buffer.mark(self._stream)

    def _copy_pinned(self, x: Array, pointer: int) -> Any:
        copy_pitched(x, pointer, self._stream, inward=True)
        return event(self._stream)


class Downloader(_Copier):
    """Threads that copy from a device."""

    def download(self, pointer: int, out: Array) -> list[Future[Any]]:
        """Copy packed floats at ``pointer`` into ``out``; with the last future they lie there."""
        return self._start(out, pointer)

    def _copy(self, chunks: Chunks) -> None:
        with self._pair() as pair:
            before: tuple[PinnedBuffer, Array] | None = None
            for buffer, (part, pointer) in zip(cycle(pair), _taken(chunks)):
                copy_out(buffer.address, pointer, part.nbytes, self._stream)
                buffer.mark(self._stream)
                if before is not None:
                    before[0].empty_into(before[1])
                before = buffer, part
            if before is not None:
                before[0].empty_into(before[1])

    def _copy_pinned(self, x: Array, pointer: int) -> Any:
        copy_pitched(x, pointer, self._stream, inward=False)
        wait(event(self._stream))


def _taken(chunks: Chunks) -> Iterator[tuple[Array, int]]:
    """Chunks until none is left for this thread."""
    with suppress(IndexError):
        while True:
            yield chunks.popleft()


class PinnedBuffer:
    """A page-locked buffer of ``size`` bytes, allocated at its first use: copies of it run beside everything else.

    Where the system locks no more pages it is ordinary memory, and copies wait. An event of its own stands behind the
    copy that still uses it; one that is made anew for each chunk is two calls of the driver more.
    """

    def __init__(self, size: int) -> None:
        self._size, self._event, self._marked, self._locked = size, c_void_p(), False, False
        self._flat: Array | None = None

    def _memory(self) -> Array:
        if self._flat is None:
            start, count = c_void_p(), self._size // FLOAT
            self._locked = driver.library().cuMemHostAlloc(byref(start), c_size_t(self._size), _PORTABLE) == 0
            self._flat = (np.ctypeslib.as_array((c_float * count).from_address(start.value or 0)) if self._locked else
                          np.empty(count, np.float32))
        return self._flat

    @property
    def address(self) -> int:
        """Where it lies."""
        return address_of(self._memory())

    def fill(self, part: Array) -> None:
        """Copy ``part`` to its begin, once no copy reads what it has."""
        self.wait()
        np.copyto(self._memory()[:part.size].reshape(part.shape), part)

    def empty_into(self, part: Array) -> None:
        """Copy its begin into ``part``, once it has been written."""
        self.wait()
        np.copyto(part, self._memory()[:part.size].reshape(part.shape))

    def mark(self, stream: int) -> None:
        """`wait` waits for what is enqueued on ``stream`` by now."""
        if not self._event:
            self._event = event(stream)
        else:
            driver.enqueue("recording an event", "cuEventRecord", self._event, c_void_p(stream))
        self._marked = True

    def wait(self) -> None:
        """Until no copy uses it."""
        if self._marked:
            wait(self._event, keep=True)
            self._marked = False  # last: after a refusal the copy may still read it

    def free(self) -> None:
        """Give the memory back."""
        with suppress(LaunchFailed):
            self.wait()
        if self._locked:
            driver.library().cuMemFreeHost(c_void_p(self.address))
        if self._event:
            driver.library().cuEventDestroy_v2(self._event)
        self._flat, self._event, self._locked = None, c_void_p(), False


def parts(x: Array, limit: int) -> Iterator[tuple[int, Array]]:
    """``x`` in pieces of at most ``limit`` bytes, each packed in one run of a packed copy, with its offset there
    (elements)."""
    if not x.size:
        return
    inner = prod(x.shape[1:])
    if FLOAT * inner > limit and x.ndim > 1:
        for i in range(x.shape[0]):
            for offset, part in parts(x[i], limit):
                yield i * inner + offset, part
        return
    step = max(1, limit // (FLOAT * inner))
    for low in range(0, x.shape[0], step):
        yield low * inner, x[low:low + step]


def pitched(x: Array) -> bool:
    """Whether ``x`` is rows without gaps at an even pitch, which one copy of the engine moves."""
    return x.ndim == 2 and (x.shape[1] == 1 or x.strides[1] == FLOAT) and (
        x.shape[0] == 1 or x.strides[0] >= FLOAT * x.shape[1])


def is_locked(x: Array) -> bool:
    """Whether the pages of ``x`` are pinned already, as of torch's ``pin_memory()``."""
    reach, flags = sum(step * (size - 1) for step, size in zip(x.strides, x.shape, strict=True)), c_uint()
    return bool(x.size) and all(driver.library().cuMemHostGetFlags(byref(flags), c_void_p(address)) == 0
                                for address in (address_of(x), address_of(x) + reach))


def address_of(x: Array) -> int:
    """Where its first element lies."""
    return int(x.__array_interface__["data"][0])


class _Copy2D(Structure):
    """CUDA_MEMCPY2D of cuda.h."""

    _fields_ = [
        ("srcXInBytes", c_size_t), ("srcY", c_size_t), ("srcMemoryType", c_int), ("srcHost", c_void_p),
        ("srcDevice", c_uint64), ("srcArray", c_void_p), ("srcPitch", c_size_t),
        ("dstXInBytes", c_size_t), ("dstY", c_size_t), ("dstMemoryType", c_int), ("dstHost", c_void_p),
        ("dstDevice", c_uint64), ("dstArray", c_void_p), ("dstPitch", c_size_t),
        ("WidthInBytes", c_size_t), ("Height", c_size_t)]


def copy_pitched(x: Array, pointer: int, stream: int, inward: bool) -> None:
    """Enqueue a copy between `pitched` pinned memory and packed floats on the device.

    Raises:
        LaunchFailed: the driver refused.
    """
    if x.shape[0] > 1 and x.strides[0] != FLOAT * x.shape[1]:
        copy_rows(x, pointer, stream, inward)
    elif inward:
        copy_in(pointer, address_of(x), x.nbytes, stream)
    else:
        copy_out(address_of(x), pointer, x.nbytes, stream)


def copy_rows(x: Array, pointer: int, stream: int, inward: bool) -> None:
    """`copy_pitched` where there is something between the rows."""
    address, pitch, width = address_of(x), x.strides[0], x.shape[1] * FLOAT
    how = _Copy2D(WidthInBytes=width, Height=x.shape[0])
    if inward:
        how.srcMemoryType, how.srcHost, how.srcPitch = _HOST, address, pitch
        how.dstMemoryType, how.dstDevice, how.dstPitch = _DEVICE, pointer, width
    else:
        how.srcMemoryType, how.srcDevice, how.srcPitch = _DEVICE, pointer, width
        how.dstMemoryType, how.dstHost, how.dstPitch = _HOST, address, pitch
    driver.demand(f"copy of {x.nbytes:,} bytes between host and device", "cuMemcpy2DAsync_v2", byref(how),
                  c_void_p(stream))
