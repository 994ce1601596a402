"""Memory, streams and copies, against a driver of the real one's binary interface over the host's memory."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from peakgemm.arrays.matrix import DeviceCopy, Matrix
from peakgemm.errors import LaunchFailed
from peakgemm.runtime import device, driver, memory, staging

PLACE, LONG, SIZE, INT = ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint32
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
            ("cuMemAllocAsync", (PLACE, SIZE, LONG), self._allocate),
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
        return 0 if all(handle in self.held or handle == 1 for handle in handles) else 400

    def calls(self, name: str) -> list[Any]:
        return [call for call in self.log if call[0] == name]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """One device, current everywhere."""
    found = Driver()
    monkeypatch.setattr(driver, "library", lambda: found)
    monkeypatch.setattr(device, "current", lambda: 0)
    monkeypatch.setattr(device, "activated", lambda index: nullcontext())
    monkeypatch.setattr(staging, "_LANES", {})
    monkeypatch.setattr(staging, "_POOL", staging._Pool())
    yield found
    gc.collect()  # what a failed test holds is freed while this driver is there


def test_device_memory_comes_and_goes_in_the_order_of_its_stream(gpu: Driver) -> None:
    held = memory.DeviceMemory(100, HIGH + 3)
    assert held.pointer > DEVICE and (held.size, list(gpu.held)) == (100, [held.pointer])
    pointer = held.pointer
    del held
    assert gpu.log == [("cuMemAllocAsync", 100, HIGH + 3), ("cuMemFreeAsync", pointer, HIGH + 3)]


def test_no_memory(gpu: Driver) -> None:
    gpu.answers["cuMemAllocAsync"] = 2
    with pytest.raises(LaunchFailed) as error:
        memory.DeviceMemory(10**9, 1)
    assert str(error.value) == ("1,000,000,000 bytes of device memory: CUDA_ERROR_OUT_OF_MEMORY (out of memory); see: "
                                "peakgemm doctor")
    del error
    assert gpu.calls("cuMemFreeAsync") == []


def test_streams_wait_for_each_other_and_leave_no_event(gpu: Driver) -> None:
    with staging.lane(0) as way:
        streams = set(gpu.held)
        assert streams == {way.inward, way.compute, way.outward} and min(streams) > HIGH
        gpu.log.clear()
        memory.order(way.inward, way.compute)
        memory.wait(memory.event(way.outward))
    assert [call[0] for call in gpu.log] == [
        "cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuEventDestroy_v2",
        "cuEventCreate", "cuEventRecord", "cuEventSynchronize", "cuEventDestroy_v2", *["cuStreamSynchronize"] * 3]
    assert gpu.log[1][2] == way.inward and gpu.log[2][1] == way.compute and gpu.log[5][2] == way.outward
    assert set(gpu.held) == streams


def test_a_lane_waits_for_all_of_its_streams_whatever_fails(gpu: Driver) -> None:
    gpu.answers["cuStreamSynchronize"] = 2
    with pytest.raises(LaunchFailed, match=r"the product: CUDA_ERROR_OUT_OF_MEMORY"), staging.lane(0) as way:
        way.pinned(10)
    assert {call[1] for call in gpu.calls("cuStreamSynchronize")} == {way.inward, way.compute, way.outward}
    assert [buffer.size for buffer in staging._POOL._free] == [1 << 20]  # given back all the same


@pytest.mark.parametrize("locked", [True, False])
def test_copies_there_and_back(gpu: Driver, locked: bool) -> None:
    if not locked:
        gpu.answers["cuMemHostAlloc"] = 2
    values = np.arange(300, dtype=np.float32)
    with staging.lane(0) as way:
        pinned, held = way.pinned(values.nbytes), memory.DeviceMemory(values.nbytes, way.compute)
        pinned.array((300,))[...] = values
        staging.copy("cuMemcpyHtoDAsync_v2", held.pointer, pinned.address, values.nbytes, way.inward)
        pinned.array((300,))[...] = 0
        staging.copy("cuMemcpyDtoHAsync_v2", pinned.address, held.pointer, values.nbytes, way.outward)
        assert (pinned.array((300,)) == values).all()
        del held
    assert (pinned.address in gpu.held) == locked
    pinned.free()
    assert (len(gpu.calls("cuMemFreeHost")), pinned.address in gpu.held) == (int(locked), False)
    gpu.answers["cuMemcpyHtoDAsync_v2"] = 2
    with pytest.raises(LaunchFailed, match=r"^copy of 1,200 bytes between host and device: CUDA_ERROR_OUT_OF_MEMORY"):
        staging.copy("cuMemcpyHtoDAsync_v2", DEVICE, values.ctypes.data, values.nbytes, way.inward)


def test_arrays_are_kept_until_a_stream_has_read_them(gpu: Driver) -> None:
    class Kept:
        pass

    pending, kept = memory._Pending(), Kept()
    there = weakref.ref(kept)
    gpu.answers["cuEventQuery"] = 600  # CUDA_ERROR_NOT_READY
    pending.keep(kept, 1)
    del kept
    pending.keep(None, 1)
    assert there() is not None and len(gpu.held) == 2
    del gpu.answers["cuEventQuery"]
    pending.keep(None, 1)
    assert there() is None and gpu.held == {}


def test_a_copy_of_a_numpy_array(gpu: Driver) -> None:
    stream = SimpleNamespace(__cuda_stream__=lambda: (0, 1))
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    copy = DeviceCopy(values.T, stream)
    assert copy.matrix == Matrix(copy.pointer, 4, 3, 3, copy)
    assert (copy.download() == values.T).all()
    del copy
    assert gpu.held == {} and gpu.calls("cuMemFreeAsync")[0][2] == 1
