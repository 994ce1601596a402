"""Streams, events, and memory in a stream's order: allocated, copied to and from, kept until a stream is done, freed.

The context of the device must be current: see `device.activated`.
What the driver refuses, or what has failed on the device before, is a `LaunchFailed`.
"""

from __future__ import annotations

from collections import deque
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from threading import Lock
from typing import Any

from . import device, driver
from .pools import pool

_NO_TIMING, _BLOCKING = 2, 1  # CU_EVENT_DISABLE_TIMING, CU_EVENT_BLOCKING_SYNC
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_RESERVED, _USED = 5, 7  # CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, _USED_MEM_CURRENT


class DeviceMemory:
    """``size`` bytes of the current device, allocated in the order of ``stream`` and freed so with the object."""

    def __init__(self, size: int, stream: int) -> None:
        self.size, self._stream, self._index = max(size, 16), c_void_p(stream), device.current() or 0
        self._address, self._free = c_void_p(), driver.library().cuMemFreeAsync
        driver.demand(f"{self.size:,} bytes of device memory", "cuMemAllocFromPoolAsync", byref(self._address),
                      c_size_t(self.size), c_void_p(pool(self._index)), self._stream)

    @property
    def pointer(self) -> int:
        """The device address."""
        return self._address.value or 0

    def __del__(self) -> None:
        if getattr(self, "_address", None):
            # In whatever thread lets go of it last; at the interpreter's end there may be no driver left to tell, nor
            # what this module has imported.
            try:
                with device.activated(self._index):
                    self._free(self._address, self._stream)
            except Exception:
                pass


class GrowingMemory:
    """Device memory that serves one use after the other, and is allocated anew where one asks for more."""

    def __init__(self) -> None:
        self._memory: DeviceMemory | None = None

    @property
    def pointer(self) -> int:
        """The device address; 0: there is none yet."""
        return 0 if self._memory is None else self._memory.pointer

    def reserve(self, size: int, stream: int) -> int:
        """The address of ``size`` bytes, which are allocated in the order of ``stream`` where it has fewer."""
        if self._memory is None or self._memory.size < size:
            self._memory = None  # first, so that both need not fit
            self._memory = DeviceMemory(size, stream)
        return self._memory.pointer

    def free(self) -> None:
        """Give it back."""
        self._memory = None


class _Pending:
    """Arrays that a stream still reads, let go when later calls find it done."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[c_void_p, Any]] = deque()
        self._lock = Lock()

    def keep(self, arrays: Any, stream: int) -> None:
        """Hold ``arrays`` until what is enqueued on ``stream`` by now has run."""
        mark, calls = event(stream), driver.library()
        with self._lock:
            self._waiting.append((mark, arrays))
            done = []
            while self._waiting and calls.cuEventQuery(self._waiting[0][0]) == 0:
                done.append(self._waiting.popleft())
        for mark, _ in done:
            calls.cuEventDestroy_v2(mark)


PENDING = _Pending()


def order(first: int, second: int) -> None:
    """What is enqueued on ``second`` from now on waits for what ``first`` holds by now."""
    behind(event(first), second)


def behind(mark: c_void_p, *streams: int) -> None:
    """What is enqueued on ``streams`` from now on waits for an event, also of another device; it is destroyed."""
    for stream in streams:
        driver.demand("one stream waiting for another", "cuStreamWaitEvent", c_void_p(stream), mark, 0)
    driver.gil_library().cuEventDestroy_v2(mark)  # the driver frees it once the wait is over


def free_bytes() -> int:
    """What the current device has free, beside what other libraries keep for themselves."""
    free, total, reserved, used = c_size_t(), c_size_t(), c_uint64(), c_uint64()
    driver.demand("the free memory", "cuMemGetInfo_v2", byref(free), byref(total))
    for attribute, size in ((_RESERVED, reserved), (_USED, used)):
        driver.demand("a pool's memory", "cuMemPoolGetAttribute", c_void_p(pool(device.current() or 0)), attribute,
                      byref(size))
    return free.value + reserved.value - used.value


def copy_in(pointer: int, address: int, size: int, stream: int, *, pageable: bool = False) -> None:
    """Enqueue a copy of ``size`` bytes at a host address to the device address ``pointer``.

    ``pageable``: of memory that need not be pinned. The driver stages it meanwhile, and other threads have the
    interpreter.
    """
    _copy("cuMemcpyHtoDAsync_v2", pointer, address, size, stream, pageable)


def copy_out(address: int, pointer: int, size: int, stream: int, *, pageable: bool = False) -> None:
    """`copy_in` the other way."""
    _copy("cuMemcpyDtoHAsync_v2", address, pointer, size, stream, pageable)


def _copy(call: str, to: int, source: int, size: int, stream: int, pageable: bool) -> None:
    if size:
        make = driver.demand if pageable else driver.enqueue
        make(f"copy of {size:,} bytes between host and device", call, c_void_p(to), c_void_p(source), c_size_t(size),
             c_void_p(stream))


def clear(pointer: int, size: int, stream: int) -> None:
    """Enqueue zeros for ``size`` bytes of device memory."""
    if size:
        driver.enqueue(f"clearing {size:,} bytes", "cuMemsetD8Async", c_void_p(pointer), 0, c_size_t(size),
                       c_void_p(stream))


def new_stream() -> int:
    """A stream of the current device, which waits for no other one."""
    stream = c_void_p()
    driver.demand("a stream", "cuStreamCreate", byref(stream), _NON_BLOCKING)
    return stream.value or 0


def synchronize(stream: int, what: str = "the product") -> None:
    """Wait for everything enqueued on ``stream``; ``what`` that is, for errors."""
    driver.demand(what, "cuStreamSynchronize", c_void_p(stream))


def is_capturing(stream: int) -> bool:
    """Whether a CUDA graph is being captured from ``stream`` of the current device. So it is taken to be where the
    driver refuses to say, as of the default stream while another one is captured."""
    status = c_int()
    try:
        driver.check("cuStreamIsCapturing", c_void_p(stream), byref(status))
    except RuntimeError:
        return True
    return status.value != 0


def event(stream: int, sleeping: bool = False) -> c_void_p:
    """An event after what is enqueued on ``stream`` by now; a thread that waits for it sleeps, or else spins."""
    mark = c_void_p()
    driver.demand("an event", "cuEventCreate", byref(mark), _NO_TIMING | _BLOCKING * sleeping)
    driver.demand("recording an event", "cuEventRecord", mark, c_void_p(stream))
    return mark


def wait(mark: c_void_p, what: str = "the product", keep: bool = False) -> None:
    """Until the device has come to an event; ``what`` is before it, for errors. Unless ``keep``, it is destroyed."""
    if driver.gil_library().cuEventQuery(mark):  # not there yet, or an error, which is told here
        driver.demand(what, "cuEventSynchronize", mark)
    if not keep:
        driver.gil_library().cuEventDestroy_v2(mark)
