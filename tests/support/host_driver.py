"""A driver of the real one's binary interface over the host's memory: everything is done when it is enqueued."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from peakgemm.runtime import device, driver, lanes, pools

PLACE, LONG, SIZE, INT = ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint32
# The pool of memory is at HIGH itself.
HIGH = 7 << 40  # streams and events are addresses: a call that passes 32 bits of one does not find it
DEVICE = 1 << 50  # the device's addresses lie so far above the host's memory under them


class Driver:
    """The calls as cuda.h declares them; ``log`` has them in order. Called through pointers without a prototype, so
    that arguments arrive as wide as the caller passes them."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.held: dict[int, Any] = {}
        self.answers: dict[str, int] = {}
        self._kept: list[Any] = []
        self._handles = HIGH
        for name, types, body in (
            ("cuMemPoolCreate", (PLACE, LONG), lambda place, props: place.__setitem__(0, HIGH) or 0),
            ("cuMemPoolSetAttribute", (LONG, INT, LONG), lambda pool, attribute, place: self._known(pool)),
            ("cuMemPoolTrimTo", (LONG, SIZE), lambda pool, size: self._known(pool)),
            ("cuDeviceTotalMem_v2", (PLACE, INT), lambda place, index: place.__setitem__(0, 80 << 30) or 0),
            ("cuMemAllocFromPoolAsync", (PLACE, SIZE, LONG, LONG), lambda place, size, pool, stream:
             self._known(pool) or self._allocate(place, size, stream)),
            ("cuMemFreeAsync", (LONG, LONG), lambda at, stream: self.held.pop(at) is None),
            ("cuMemHostAlloc", (PLACE, SIZE, INT), lambda place, size, flags: self._allocate(place, size, 0, 0)),
            ("cuMemFreeHost", (LONG,), lambda at: self.held.pop(at) is None),
            ("cuStreamCreate", (PLACE, INT), lambda place, flags: self._handle(place)),
            ("cuStreamSynchronize", (LONG,), lambda stream: self._known(stream)),
            ("cuEventCreate", (PLACE, INT), lambda place, flags: self._handle(place)),
            ("cuEventRecord", (LONG, LONG), lambda event, stream: self._known(event, stream)),
            ("cuStreamWaitEvent", (LONG, LONG, INT), lambda stream, event, flags: self._known(event, stream)),
            ("cuEventSynchronize", (LONG,), lambda event: self._known(event)),
            ("cuEventQuery", (LONG,), lambda event: self._known(event)),
            ("cuEventDestroy_v2", (LONG,), lambda event: self.held.pop(event) is None),
            ("cuMemcpyHtoDAsync_v2", (LONG, LONG, SIZE, LONG), lambda to, source, size, stream:
             ctypes.memmove(to - DEVICE, source, size) * 0),
            ("cuMemcpyDtoHAsync_v2", (LONG, LONG, SIZE, LONG), lambda to, source, size, stream:
             ctypes.memmove(to, source - DEVICE, size) * 0),
            ("cuGetErrorName", (INT, ctypes.POINTER(ctypes.c_char_p)), lambda status, place:
             place.__setitem__(0, b"CUDA_ERROR_OUT_OF_MEMORY") or 0),
            ("cuGetErrorString", (INT, ctypes.POINTER(ctypes.c_char_p)), lambda status, place:
             place.__setitem__(0, b"out of memory") or 0),
        ):
            self._export(name, types, body)

    def _export(self, name: str, types: tuple[Any, ...], body: Any) -> None:
        def call(*args: Any) -> int:
            self.log.append((name, *(x for x in args if isinstance(x, int))))
            return self.answers[name] if name in self.answers else int(body(*args))

        callback = ctypes.CFUNCTYPE(ctypes.c_int, *types)(call)
        self._kept.append(callback)
        setattr(self, name, ctypes.CDLL(None)._FuncPtr(ctypes.cast(callback, ctypes.c_void_p).value))

    def _allocate(self, place: Any, size: int, stream: int, base: int = DEVICE) -> int:
        room = np.full(size // 4 + 1, np.nan, np.float32)
        place[0] = room.ctypes.data + base
        self.held[place[0]] = room
        return 0

    def _handle(self, place: Any) -> int:
        self._handles += 1 << 33
        self.held[self._handles] = place[0] = self._handles
        return 0

    def _known(self, *handles: int) -> int:
        return 0 if all(handle in self.held or handle in (1, HIGH) for handle in handles) else 400

    def calls(self, name: str) -> list[Any]:
        return [call for call in self.log if call[0] == name]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """One device, current everywhere."""
    found = Driver()
    monkeypatch.setattr(driver, "library", lambda: found)
    monkeypatch.setattr(driver, "gil_library", lambda: found)
    monkeypatch.setattr(device, "current", lambda: 0)
    monkeypatch.setattr(device, "activated", lambda index: nullcontext())
    monkeypatch.setattr(pools, "_rests", lambda index: None)  # a thread that outlives the test
    monkeypatch.setattr(lanes._LANES, "free", {})
    pools._POOLS.clear()
    pools.pool(0)  # made once, before what a test counts
    found.log.clear()
    yield found
    gc.collect()  # what a failed test holds is freed while this driver is there
    pools._POOLS.clear()
