"""Copies between the host's arrays and a device by several threads, each through pinned buffers of its own.

One thread copies 8 to 10 GB/s of pageable memory, a PCIe 5 link takes 54 each way: so many threads as it needs stage
chunks, which the copy engines then move. NumPy's copies release the interpreter. Memory that is pinned already is
not staged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from ctypes import Structure, byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from math import prod
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import device, driver
from .memory import event, wait
from .staging import Pinned, copy
from .timeline import span, stream_span

Array = NDArray[np.float32]
FLOAT = 4
CHUNK_BYTES = 8 << 20  # of one copy: 150 us on PCIe 5, beside which a driver call (3 us) and an event vanish
LEAST_BYTES = 512 << 10  # below it one thread copies; not timed yet
# At most. A first choice: 30000 as IEEE reaches 92 % of in-core speed by them (results/h200-x2/scale.json); others were
# not timed yet, which `peakgemm bench --suite scale --gpus 1` does.
IN_THREADS, OUT_THREADS = 8, 6
_HOST, _DEVICE = 1, 2  # CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE


def threads(most: int, devices: int = 1) -> int:
    """How many threads copy one way for each of ``devices``: ``most``, where the cores suffice."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        cores = os.cpu_count() or 1
    return max(1, min(most, cores // devices))


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
        """Copy ``x`` packed to the device address ``pointer``; each future is done when its chunk is enqueued, and
        gives the event behind it, where it is the only one, else None."""
        way = self._ways[0]
        if pitched(x) and is_locked(x):
            return [way.pool.submit(way.direct, x, pointer, True)]
        return [way.pool.submit(way.send, part, pointer + FLOAT * offset) for offset, part in parts(x, way.share(x))]

    def download(self, pointer: int, out: Array) -> list[Future[Any]]:
        """Copy packed floats at ``pointer`` into ``out``; each future is done when its chunk lies there."""
        way = self._ways[1]
        if pitched(out) and is_locked(out):
            return [way.pool.submit(way.direct, out, pointer, False)]
        return [way.pool.submit(way.fetch, part, pointer + FLOAT * offset)
                for offset, part in parts(out, way.share(out))]

    def close(self) -> None:
        """End the threads, after what is queued; free the buffers."""
        for way in self._ways:
            way.close()


class _Way:
    """One direction: a stream, threads, and two buffers for each thread, one filled while the other is moved."""

    def __init__(self, index: int, stream: int, count: int, chunk: int) -> None:
        self._index, self._stream, self._count, self._chunk = index, stream, count, chunk
        self.pool = ThreadPoolExecutor(count, f"peakgemm-copy-{index}", device.make_current, (index,))
        self._free: SimpleQueue[_Buffer] = SimpleQueue()
        self._buffers = [_Buffer(chunk) for _ in range(2 * count)]
        for buffer in self._buffers:
            self._free.put(buffer)

    def share(self, x: Array) -> int:
        """Bytes of a chunk of ``x``: all threads get one, of no less than `LEAST_BYTES`."""
        return min(self._chunk, max(LEAST_BYTES, x.nbytes // self._count))

    def send(self, part: Array, pointer: int) -> None:
        buffer = self._free.get()
        try:
            with span(self._index, "wait for a buffer"):
                pinned = buffer.ready()
            with span(self._index, "stage", part.nbytes):
                np.copyto(pinned.array(part.shape), part)
            with stream_span(self._index, "copy in", self._stream, part.nbytes):
                copy("cuMemcpyHtoDAsync_v2", pointer, pinned.address, part.nbytes, self._stream)
            buffer.moved = event(self._stream)
        finally:
            self._free.put(buffer)

    def fetch(self, part: Array, pointer: int) -> None:
        buffer = self._free.get()
        try:
            pinned = buffer.ready()
            with stream_span(self._index, "copy out", self._stream, part.nbytes):
                copy("cuMemcpyDtoHAsync_v2", pinned.address, pointer, part.nbytes, self._stream)
            wait(event(self._stream))
            with span(self._index, "unstage", part.nbytes):
                np.copyto(part, pinned.array(part.shape))
        finally:
            self._free.put(buffer)

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
        for buffer in self._buffers:
            buffer.free()


class _Buffer:
    """A pinned buffer, allocated at its first use, and the copy that still reads it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._pinned: Pinned | None = None
        self.moved: Any = None

    def ready(self) -> Pinned:
        if self.moved is not None:
            mark, self.moved = self.moved, None
            wait(mark)
        if self._pinned is None:
            self._pinned = Pinned(self._size)
        return self._pinned

    def free(self) -> None:
        if self._pinned is not None:
            self.ready().free()
            self._pinned = None


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
