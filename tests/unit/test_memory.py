"""Memory, streams, events and copies, on stand-in devices that run as late as they may."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from lazy_driver import NOT_READY, OUT_OF_MEMORY, Devices, present
from peakgemm.errors import LaunchFailed
from peakgemm.runtime import driver, lanes, memory, transfer


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Devices]:
    with present(monkeypatch, Devices(1)) as devices:
        yield devices
        devices.fail = lambda name: 0


def refuse(gpu: Devices, **statuses: int) -> None:
    """From now on these calls, and no others, answer so."""
    gpu.fail = lambda name: statuses.get(name, 0)


def test_device_memory_comes_and_goes_in_the_order_of_its_stream(gpu: Devices) -> None:
    stream = memory.new_stream()
    held = memory.DeviceMemory(100, stream)
    assert (held.size, gpu.used) == (100, [100]) and not gpu.there
    memory.synchronize(stream)
    assert list(gpu.there) == [held.pointer]
    del held
    assert gpu.used == [0] and gpu.there
    memory.synchronize(stream)
    assert not gpu.there
    refuse(gpu, cuMemAllocFromPoolAsync=OUT_OF_MEMORY)
    with pytest.raises(LaunchFailed, match=r"^1,000,000,000 bytes of device memory: CUDA_ERROR_OUT_OF_MEMORY .*doctor"):
        memory.DeviceMemory(10**9, stream)


def test_streams_wait_for_each_other_and_leave_no_event(gpu: Devices) -> None:
    done = list[str]()
    first, second, third = (memory.new_stream() for _ in range(3))
    for stream, name in ((first, "first"), (third, "third"), (second, "second")):
        gpu.enqueue(stream, name, lambda name=name: done.append(name))
        if stream == first:
            memory.order(first, second)
    memory.wait(memory.event(second))
    assert done == ["first", "second"] and not gpu.events


def test_a_lane_waits_for_all_of_its_streams_whatever_fails(gpu: Devices) -> None:
    asked = list[str]()
    gpu.fail = lambda name: asked.append(name) or OUT_OF_MEMORY * (name == "cuStreamSynchronize")
    with pytest.raises(LaunchFailed, match=r"the product on GPU 0: CUDA_ERROR_OUT_OF_MEMORY"), lanes.lane(0) as way:
        pass
    assert asked.count("cuStreamSynchronize") == 4
    gpu.fail = lambda name: 0
    with lanes.lane(0) as again:
        assert again is way


@pytest.mark.parametrize("locked", [True, False])
def test_copies_there_and_back(gpu: Devices, locked: bool) -> None:
    refuse(gpu, cuMemHostAlloc=0 if locked else OUT_OF_MEMORY)
    values, result = np.arange(300, dtype=np.float32), np.zeros(300, np.float32)
    with lanes.lane(0) as way:
        pinned, held = transfer.PinnedBuffer(values.nbytes), memory.DeviceMemory(values.nbytes, way.inward)
        pinned.fill(values)
        memory.copy_in(held.pointer, pinned.address, values.nbytes, way.inward)
        memory.order(way.inward, way.outward)
        memory.wait(memory.event(way.inward))
        pinned.fill(result)
        memory.copy_out(pinned.address, held.pointer, values.nbytes, way.outward)
        memory.synchronize(way.outward)
        pinned.empty_into(result)
        assert (result == values).all() and (len(gpu.memory) == 2) == locked
        refuse(gpu, cuMemcpyHtoDAsync_v2=OUT_OF_MEMORY)
        with pytest.raises(LaunchFailed, match=r"^copy of 1,200 bytes between host and device: CUDA_ERROR_OUT_OF_MEM"):
            memory.copy_in(held.pointer, pinned.address, values.nbytes, way.inward)
        del held
    pinned.free()
    assert not gpu.memory


def test_arrays_are_kept_until_a_stream_has_read_them(gpu: Devices) -> None:
    class Kept:
        pass

    pending, kept, stream = memory._Pending(), Kept(), memory.new_stream()
    alive = weakref.ref(kept)
    gpu.enqueue(stream, "reads", lambda: None)
    pending.keep(kept, stream)
    del kept
    pending.keep(None, stream)
    assert alive() is not None and len(gpu.events) == 2
    memory.synchronize(stream)
    pending.keep(None, stream)
    assert alive() is None and not gpu.events


def test_a_buffer_is_waited_for_until_the_wait_is_accepted(gpu: Devices) -> None:
    """A refused wait is not taken for one that has ended: else the buffer is filled while it is still read."""
    buffer, stream, done = transfer.PinnedBuffer(1 << 10), memory.new_stream(), list[bool]()
    assert buffer.address
    gpu.enqueue(stream, "reads", lambda: done.append(True))
    buffer.mark(stream)
    refuse(gpu, cuEventQuery=NOT_READY, cuEventSynchronize=OUT_OF_MEMORY)
    for _ in range(2):
        with pytest.raises(LaunchFailed):
            buffer.wait()
    refuse(gpu)
    buffer.wait()
    assert done
    buffer.mark(stream)
    refuse(gpu, cuEventQuery=NOT_READY, cuEventSynchronize=719)
    buffer.free()
    assert not gpu.memory and not gpu.events


def test_a_thread_keeps_the_interpreter_only_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[str]()

    def ask() -> None:
        driver.check("cuInit", 0)

    for name in ("library", "gil_library"):
        calls = type(name, (), {"cuInit": lambda self, flags, name=name: made.append(name)})()
        monkeypatch.setattr(driver, name, lambda calls=calls: calls)
    with driver.hold_gil():
        ask()
        other = threading.Thread(target=ask)
        other.start()
        other.join()
        with driver.hold_gil():
            pass
        ask()
    ask()
    assert made == ["gil_library", "library", "gil_library", "library"]
