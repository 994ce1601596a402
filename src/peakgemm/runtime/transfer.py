"""Copies between the host's arrays and a device by several threads, each through pinned buffers of its own.

One thread copies 8 to 10 GB/s of pageable memory, a PCIe 5 link takes 54 each way: so many threads as it needs stage
chunks, which the copy engines then move. NumPy's copies release the interpreter. Memory that is pinned already is
not staged.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from ctypes import Structure, byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from math import prod
from queue import SimpleQueue
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import LaunchFailed
from . import device, driver
from .memory import await_event, event, new_event, wait
from .staging import Pinned, copy
from .timeline import span, stream_span

Array = NDArray[np.float32]
Chunks = deque[tuple[Array, int]]  # with the device address of each
FLOAT = 4
CHUNK_BYTES = 8 << 20  # of one copy: 150 us on PCIe 5, beside which a driver call (3 us) and an event vanish
LEAST_BYTES = 4 << 20  # of a task: by 2 MB, not 0.5, 4096^3 took 26.5 ms, not 34.4 (docs/notebook/23-host-arrays.md)
# At most; `python -m lab.scale --gpus 1` times the copies by others. The same page has 4 to 16 each way. By 8
# and 10 a machine of 16 cores has more threads than cores, and the one that launches tiles waits for its turn: 4096 to
# 30,000 took 2.7 % longer in the mean. Results into new pages take longer than what comes in.
IN_THREADS, OUT_THREADS = 6, 8
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


class Copiers:
    """Threads and pinned buffers for copies to and from device ``index``, both ways at a time.

    ``inward`` and ``outward`` are the streams of the copies; each way is a queue of chunks. Made once for a lane and
    kept; `close` ends the threads.
    """

    def __init__(self, index: int, inward: int, outward: int, inward_threads: int, outward_threads: int,
                 chunk_bytes: int = CHUNK_BYTES) -> None:
        self._ways = tuple(_Way(index, stream, count, chunk_bytes)
                           for stream, count in ((inward, inward_threads), (outward, outward_threads)))

    def upload(self, x: Array, pointer: int) -> list[Future[Any]]:
        """Copy ``x`` packed to the device address ``pointer``; with the last future all is enqueued. They give the
        event behind the copy, where it is the only one, else None."""
        way = self._ways[0]
        if pitched(x) and is_locked(x):
            return [way.pool.submit(way.direct, x, pointer, True)]
        return way.spread(way.send, x, pointer)

    def download(self, pointer: int, out: Array) -> list[Future[Any]]:
        """Copy packed floats at ``pointer`` into ``out``; with the last future they lie there."""
        way = self._ways[1]
        if pitched(out) and is_locked(out):
            return [way.pool.submit(way.direct, out, pointer, False)]
        return way.spread(way.fetch, out, pointer)

    def close(self) -> None:
        """End the threads, after what is queued; free the buffers."""
        for way in self._ways:
            way.close()


class _Way:
    """One direction: a stream, threads, and two buffers for each thread, one filled while the other is moved.

    Threads take the chunks of an array one after the other until none is left: a task a thread, not a chunk.
    """

    def __init__(self, index: int, stream: int, count: int, chunk: int) -> None:
        self._index, self._stream, self._count, self._chunk = index, stream, count, chunk
        self.pool = ThreadPoolExecutor(count, f"peakgemm-copy-{index}", device.make_current, (index,))
        self._free: SimpleQueue[tuple[_Buffer, _Buffer]] = SimpleQueue()
        self._pairs = [(_Buffer(chunk), _Buffer(chunk)) for _ in range(count)]
        for pair in self._pairs:
            self._free.put(pair)

    def spread(self, work: Callable[[Chunks], None], x: Array, pointer: int) -> list[Future[Any]]:
        """Have the threads do ``work`` on the chunks of ``x``, which lies packed at ``pointer``."""
        # All threads get one, of no less than `LEAST_BYTES`.
        limit = min(self._chunk, max(LEAST_BYTES, x.nbytes // self._count))
        chunks = deque((part, pointer + FLOAT * offset) for offset, part in parts(x, limit))
        return [self.pool.submit(work, chunks) for _ in range(min(self._count, len(chunks)))]

    def send(self, chunks: Chunks) -> None:
        pair = self._free.get()
        try:
            for turn, (part, pointer) in enumerate(_taken(chunks)):
                buffer = pair[turn % 2]
                with span(self._index, "wait for a buffer"):
                    buffer.wait()
                with span(self._index, "stage", part.nbytes):
                    np.copyto(buffer.array(part.shape), part)
                with stream_span(self._index, "copy in", self._stream, part.nbytes):
                    copy("cuMemcpyHtoDAsync_v2", pointer, buffer.address, part.nbytes, self._stream)
                buffer.mark(self._stream)
        finally:
            self._free.put(pair)

    def fetch(self, chunks: Chunks) -> None:
        pair = self._free.get()
        try:
            before: tuple[_Buffer, Array] | None = None
            for turn, (part, pointer) in enumerate(_taken(chunks)):
                buffer = pair[turn % 2]
                with stream_span(self._index, "copy out", self._stream, part.nbytes):
                    copy("cuMemcpyDtoHAsync_v2", buffer.address, pointer, part.nbytes, self._stream)
                buffer.mark(self._stream)
                if before is not None:
                    self._unstage(*before)
                before = buffer, part
            if before is not None:
                self._unstage(*before)
        finally:
            self._free.put(pair)

    def _unstage(self, buffer: _Buffer, part: Array) -> None:
        buffer.wait()
        with span(self._index, "unstage", part.nbytes):
            np.copyto(part, buffer.array(part.shape))

    def direct(self, x: Array, pointer: int, inward: bool) -> Any:
        with stream_span(self._index, "copy in" if inward else "copy out", self._stream, x.nbytes):
            copy_pitched(x, pointer, self._stream, inward)
        mark = event(self._stream)
        if inward:
            return mark
        wait(mark)
        return None

    def close(self) -> None:
        self.pool.shutdown(wait=True)
        for pair in self._pairs:
            for buffer in pair:
                buffer.free()


def _taken(chunks: Chunks) -> Iterator[tuple[Array, int]]:
    """Chunks until none is left for this thread."""
    while True:
        try:
            yield chunks.popleft()
        except IndexError:
            return


class _Buffer:
    """A pinned buffer, allocated at its first use, with an event of its own behind the copy that still reads it.

    An event that is made anew for each chunk is two calls of the driver more.
    """

    def __init__(self, size: int) -> None:
        self._size, self._flat, self._event, self._marked = size, np.empty(0, np.float32), c_void_p(), False
        self._pinned: Pinned | None = None

    @property
    def address(self) -> int:
        """Where it lies."""
        if self._pinned is None:
            self._pinned = Pinned(self._size)
            self._flat = self._pinned.array((self._size // FLOAT,))
        return self._pinned.address

    def array(self, shape: tuple[int, ...]) -> Array:
        """Its first bytes as an array."""
        assert self.address
        return self._flat[:prod(shape)].reshape(shape)

    def mark(self, stream: int) -> None:
        """`wait` waits for what is enqueued on ``stream`` by now."""
        if not self._event:
            self._event = new_event()
        driver.enqueue("recording an event", "cuEventRecord", self._event, c_void_p(stream))
        self._marked = True

    def wait(self) -> None:
        """Nothing reads or writes it any more."""
        if self._marked:
            await_event(self._event)
            self._marked = False  # last: after a refusal the copy may still read it

    def free(self) -> None:
        """Give the memory back."""
        if self._pinned is not None:
            with suppress(LaunchFailed):
                self.wait()
            self._pinned.free()
            self._pinned, self._flat = None, np.empty(0, np.float32)
        if self._event:
            driver.library().cuEventDestroy_v2(self._event)
            self._event = c_void_p()


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
    first, reach = x.__array_interface__["data"][0], sum(
        step * (size - 1) for step, size in zip(x.strides, x.shape, strict=True))
    flags = c_uint()
    return bool(x.size) and all(driver.library().cuMemHostGetFlags(byref(flags), c_void_p(place)) == 0
                                for place in (first, first + reach))


class _Copy2D(Structure):
    """CUDA_MEMCPY2D of cuda.h."""

    _fields_ = [
        ("srcXInBytes", c_size_t), ("srcY", c_size_t), ("srcMemoryType", c_int), ("srcHost", c_void_p),
        ("srcDevice", c_uint64), ("srcArray", c_void_p), ("srcPitch", c_size_t),
        ("dstXInBytes", c_size_t), ("dstY", c_size_t), ("dstMemoryType", c_int), ("dstHost", c_void_p),
        ("dstDevice", c_uint64), ("dstArray", c_void_p), ("dstPitch", c_size_t),
        ("WidthInBytes", c_size_t), ("Height", c_size_t)]


def copy_pitched(x: Array, pointer: int, stream: int, inward: bool) -> None:
    """One copy between `pitched` pinned memory and packed floats on the device.

    Raises:
        LaunchFailed: the driver refused.
    """
    rows, columns = x.shape
    place, pitch, width = x.__array_interface__["data"][0], x.strides[0], FLOAT * columns
    if rows == 1 or pitch == width:
        call = "cuMemcpyHtoDAsync_v2" if inward else "cuMemcpyDtoHAsync_v2"
        to, source = (pointer, place) if inward else (place, pointer)
        copy(call, to, source, x.nbytes, stream)
        return
    how = _Copy2D(WidthInBytes=width, Height=rows)
    if inward:
        how.srcMemoryType, how.srcHost, how.srcPitch = _HOST, place, pitch
        how.dstMemoryType, how.dstDevice, how.dstPitch = _DEVICE, pointer, width
    else:
        how.srcMemoryType, how.srcDevice, how.srcPitch = _DEVICE, pointer, width
        how.dstMemoryType, how.dstHost, how.dstPitch = _HOST, place, pitch
    driver.demand(f"copy of {x.nbytes:,} bytes between host and device", "cuMemcpy2DAsync_v2", byref(how),
                  c_void_p(stream))
