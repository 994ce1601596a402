"""Memory, streams and copies, against a driver of the real one's binary interface over the host's memory."""
# ruff: noqa: F401, F811  (fixtures of tests/support)

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np
import pytest

from host_driver import DEVICE, HIGH, Driver, gpu
from peakgemm.errors import LaunchFailed
from peakgemm.runtime import driver, lanes, memory, transfer


def test_device_memory_comes_and_goes_in_the_order_of_its_stream(gpu: Driver) -> None:
    held = memory.DeviceMemory(100, HIGH + 3)
    assert held.pointer > DEVICE and (held.size, list(gpu.held)) == (100, [held.pointer])
    pointer = held.pointer
    del held
    assert gpu.log == [("cuMemAllocFromPoolAsync", 100, HIGH, HIGH + 3), ("cuMemFreeAsync", pointer, HIGH + 3)]


def test_no_memory(gpu: Driver) -> None:
    gpu.answers["cuMemAllocFromPoolAsync"] = 2
    with pytest.raises(LaunchFailed) as error:
        memory.DeviceMemory(10**9, 1)
    assert str(error.value) == ("1,000,000,000 bytes of device memory: CUDA_ERROR_OUT_OF_MEMORY (out of memory); see: "
                                "peakgemm doctor")
    del error
    assert gpu.calls("cuMemFreeAsync") == []


def test_streams_wait_for_each_other_and_leave_no_event(gpu: Driver) -> None:
    with lanes.lane(0) as way:
        streams = set(gpu.held)
        assert streams == {way.inward, way.compute, way.outward, way.beside} and min(streams) > HIGH
        gpu.log.clear()
        memory.order(way.inward, way.compute)
        memory.wait(memory.event(way.outward))
    assert [call[0] for call in gpu.log] == [
        "cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuEventDestroy_v2",
        "cuEventCreate", "cuEventRecord", "cuEventQuery", "cuEventDestroy_v2", *["cuStreamSynchronize"] * 4]
    assert gpu.log[1][2] == way.inward and gpu.log[2][1] == way.compute and gpu.log[5][2] == way.outward
    assert set(gpu.held) == streams


def test_a_lane_waits_for_all_of_its_streams_whatever_fails(gpu: Driver) -> None:
    gpu.answers["cuStreamSynchronize"] = 2
    with pytest.raises(LaunchFailed, match=r"the product on GPU 0: CUDA_ERROR_OUT_OF_MEMORY"), lanes.lane(0) as way:
        pass
    assert {call[1] for call in gpu.calls("cuStreamSynchronize")} == {way.inward, way.compute, way.outward, way.beside}
    assert lanes._LANES.free[0, 1] == [way]  # given back all the same


@pytest.mark.parametrize("locked", [True, False])
def test_copies_there_and_back(gpu: Driver, locked: bool) -> None:
    if not locked:
        gpu.answers["cuMemHostAlloc"] = 2
    values, found = np.arange(300, dtype=np.float32), np.zeros(300, np.float32)
    with lanes.lane(0) as way:
        pinned, held = transfer.PinnedBuffer(values.nbytes), memory.DeviceMemory(values.nbytes, way.compute)
        pinned.fill(values)
        memory.copy_in(held.pointer, pinned.address, values.nbytes, way.inward)
        pinned.fill(found)
        memory.copy_out(pinned.address, held.pointer, values.nbytes, way.outward)
        pinned.empty_into(found)
        assert (found == values).all()
        del held
    assert (pinned.address in gpu.held) == locked
    pinned.free()
    assert (len(gpu.calls("cuMemFreeHost")), len(gpu.held)) == (int(locked), 4)  # the lane's streams
    gpu.answers["cuMemcpyHtoDAsync_v2"] = 2
    with pytest.raises(LaunchFailed, match=r"^copy of 1,200 bytes between host and device: CUDA_ERROR_OUT_OF_MEMORY"):
        memory.copy_in(DEVICE, values.ctypes.data, values.nbytes, way.inward)


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


def test_who_keeps_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pageable copy takes as long as the driver stages it: others run meanwhile. No bytes are no call."""
    made = list[str]()
    for name in ("demand", "enqueue"):
        monkeypatch.setattr(driver, name, lambda what, *args, name=name: made.append(name))
    for pageable in (False, True):
        memory.copy_in(DEVICE, 64, 4, 0, pageable=pageable)
        memory.copy_out(64, DEVICE, 0, 0, pageable=pageable)
    assert made == ["enqueue", "demand"]


def test_a_buffer_is_waited_for_until_the_wait_is_accepted(gpu: Driver) -> None:
    """A refused wait was taken for one that had ended, and the buffer was filled while it was still read."""
    buffer = transfer.PinnedBuffer(1 << 10)
    assert buffer.address
    buffer.mark(HIGH)
    gpu.answers |= {"cuEventQuery": 600, "cuEventSynchronize": 2}
    for _ in range(2):
        with pytest.raises(LaunchFailed):
            buffer.wait()
    gpu.answers.clear()
    gpu.log.clear()
    buffer.wait()
    buffer.wait()
    assert [call[0] for call in gpu.log] == ["cuEventQuery"]
    buffer.mark(HIGH)
    gpu.answers |= {"cuEventQuery": 600, "cuEventSynchronize": 719}
    buffer.free()
    assert gpu.calls("cuMemFreeHost") and not gpu.held


def test_a_thread_keeps_the_interpreter_only_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[tuple[str, str]]()

    class Library:
        def __init__(self, name: str) -> None:
            self.name = name

        def cuInit(self, flags: int) -> int:
            made.append((self.name, threading.current_thread().name))
            return 0

    monkeypatch.setattr(driver, "library", lambda: Library("lets go"))
    monkeypatch.setattr(driver, "gil_library", lambda: Library("keeps"))
    with driver.hold_gil():
        driver.check("cuInit", 0)
        other = threading.Thread(target=lambda: driver.check("cuInit", 0), name="other")
        other.start()
        other.join()
        with driver.hold_gil():
            pass
        driver.check("cuInit", 0)
    driver.check("cuInit", 0)
    main = threading.current_thread().name
    assert made == [("keeps", main), ("lets go", "other"), ("keeps", main), ("lets go", main)]
