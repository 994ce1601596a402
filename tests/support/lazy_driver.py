"""Devices whose streams run as late as they may: what one enqueues is done when something waits for it, no sooner.

So a missing wait shows: the copy or product that should have been waited for has not been made, and its memory holds
NaN. Memory that is freed is filled with NaN when its stream comes to it. Addresses are the host's.

What belongs to a device stays there: streams, events and memory of one are not used with another's, threads have a
context before they need one, and access to a pool changes only while nothing is under way.
"""

from __future__ import annotations

import ctypes
import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import stand_in
from peakgemm.calls import cache
from peakgemm.calls.host import multi_gpu, panel, small_host, worker
from peakgemm.calls.host.grid import Tile
from peakgemm.calls.host.tile_queue import TileQueue
from peakgemm.problem import Problem
from peakgemm.runtime import device, driver, lanes, peers, pools

OUT_OF_MEMORY, NOT_READY = 2, 600
ERRORS = {OUT_OF_MEMORY: "CUDA_ERROR_OUT_OF_MEMORY"}
POOL, CONTEXT = 1 << 44, 1000  # the pool and the context of device 0; the others' follow


class Devices:
    """Several devices, of ``room`` bytes each; ``eager`` in 0 to 1: how likely it is that a stream runs by itself."""

    def __init__(self, count: int = 1, room: int = 1 << 40, eager: float = 0.0, seed: int = 0) -> None:
        self.gpus = [replace(stand_in.GPU, index=i, sm_count=132 if i != 3 else 66) for i in range(count)]
        self.room, self.eager, self.random = [room] * count, eager, random.Random(seed)
        self.used, self.most = [0] * count, [0] * count
        self.lock, self.here = threading.RLock(), threading.local()
        self.streams: dict[int, deque[tuple[str, Any]]] = {}
        self.events: dict[int, tuple[int, int]] = {}  # event -> stream, how many operations of it lie before
        self.passed: dict[int, int] = {}
        self.memory: dict[int, tuple[int, Any]] = {}
        self.sizes: dict[int, int] = {}
        self.locked: list[tuple[int, int]] = []  # pages that the user has pinned
        self.problems: list[tuple[int, Problem]] = []
        self.computing = set[int]()  # streams of products
        self.copied = {"in": 0, "out": 0, "peer": 0}
        self.there: dict[int, tuple[int, Any]] = {}  # first address -> end, memory: what streams have come to allocate
        self.stale: list[str] = []  # what touched device memory before or after that
        self.astray: list[str] = []  # what was asked of one device with another's stream, event or memory
        self.home: dict[int, int] = {}  # the devices of streams and events
        self.granted: set[tuple[int, int]] = set()  # whose pool, to whom
        self.threshold: dict[int, int] = {}  # of pools, by device
        self.trimmed: list[tuple[int, int]] = []  # devices whose pools were, and to how many bytes
        self._next = 1 << 40
        self.fail: Callable[[str], int] = lambda call: 0

    # Streams ---------------------------------------------------------------------------------------------------------
    def enqueue(self, stream: int, kind: str, what: Any) -> None:
        with self.lock:
            self.streams[stream].append((kind, what))
            if self.random.random() < self.eager:
                self.run(stream, self.passed[stream] + len(self.streams[stream]))

    def run(self, stream: int, until: int) -> None:
        with self.lock:
            while self.passed[stream] < until:
                kind, what = self.streams[stream].popleft()
                self.passed[stream] += 1
                if kind == "wait":
                    self.run(*what)
                else:
                    what()

    # Calls -----------------------------------------------------------------------------------------------------------
    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        body = getattr(type(self), "_" + name)

        def call(*args: Any) -> int:
            with self.lock:
                self.astray += [f"{name} takes {x:#x} as an int of 32 bits" for x in args
                                if isinstance(x, int) and x >> 31]
                status = self.fail(name)
                return status or int(body(self, *(_plain(x) for x in args)) or 0)
        return call

    def _handle(self, place: Any) -> int:
        self._next += 1 << 12
        place._obj.value = self._next
        self.home[self._next] = self.current("a stream or an event")
        return self._next

    # Whose it is -----------------------------------------------------------------------------------------------------
    def current(self, what: str) -> int:
        """The device of this thread's context, which ``what`` is made in."""
        index = getattr(self.here, "index", None)
        if index is None:
            self.astray.append(f"{what} in {threading.current_thread().name}, which has no context")
        return index or 0

    def owner(self, at: int) -> int | None:
        """The device whose memory holds an address, as far as the host has allocated it and not freed it."""
        # A copy: what a collection lets go of meanwhile, in this thread, is freed here too.
        return next((index for start, (index, room) in self.memory.copy().items()
                     if index >= 0 and start <= at < room.ctypes.data + room.nbytes), None)

    def belongs(self, what: str, stream: int, *addresses: int) -> None:
        """``what`` is enqueued on a stream with memory of the same device."""
        with self.lock:
            index = self.home[stream]
            self.astray += [f"{what} on a stream of GPU {index}, memory of {owner}" for at in addresses
                            if (owner := self.owner(at)) != index]

    def at_rest(self, index: int) -> bool:
        """Whether no copy and no kernel is under way on a device."""
        return all(kind in ("alloc", "free", "wait") for stream, ahead in self.streams.items()
                   if self.home[stream] == index for kind, _ in ahead)

    def _cuStreamCreate(self, place: Any, flags: int) -> None:
        stream = self._handle(place)
        self.streams[stream], self.passed[stream] = deque(), 0

    def _cuStreamSynchronize(self, stream: int) -> None:
        self.run(stream, self.passed[stream] + len(self.streams[stream]))

    def _cuEventCreate(self, place: Any, flags: int) -> None:
        self.events[self._handle(place)] = (0, 0)

    def _cuEventRecord(self, event: int, stream: int) -> None:
        if self.home[event] != self.home[stream]:
            self.astray.append(f"an event of GPU {self.home[event]} on a stream of GPU {self.home[stream]}")
        self.events[event] = stream, self.passed[stream] + len(self.streams[stream])

    def _cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        self.enqueue(stream, "wait", self.events[event])

    def _cuEventQuery(self, event: int) -> int:
        stream, until = self.events[event]
        return NOT_READY * (self.passed.get(stream, 0) < until)

    def _cuEventSynchronize(self, event: int) -> None:
        self.run(*self.events[event])

    def _cuEventDestroy_v2(self, event: int) -> None:
        del self.events[event], self.home[event]

    def _cuEventElapsedTime(self, place: Any, first: int, last: int) -> int:
        (stream, before), (other, after) = self.events[first], self.events[last]
        if self.passed[stream] < before or self.passed[other] < after:
            return NOT_READY
        place._obj.value = 1e3 * (after - before if stream == other else after)  # a second an operation
        return 0

    def _cuMemPoolCreate(self, place: Any, props: Any) -> None:
        p = props._obj
        assert (p.allocType, p.locationType, p.handleTypes, p.maxSize) == (1, 1, 0, 0)
        place._obj.value = POOL + p.locationId

    def _cuMemPoolSetAttribute(self, pool: int, attribute: int, value: Any) -> None:
        assert (pool >= POOL, attribute) == (True, 4) and value._obj.value > 0
        self.threshold[pool - POOL] = value._obj.value

    def _cuMemPoolTrimTo(self, pool: int, size: int) -> None:
        self.trimmed.append((pool - POOL, size))

    def _cuDeviceTotalMem_v2(self, place: Any, index: int) -> None:
        place._obj.value = self.room[index]

    def _cuMemPoolGetAttribute(self, pool: int, attribute: int, value: Any) -> None:
        assert attribute in (5, 7)
        value._obj.value = self.used[pool - POOL]

    def _cuMemAllocFromPoolAsync(self, place: Any, size: int, pool: int, stream: int) -> int:
        index = self.current("memory")
        assert pool == POOL + index == POOL + self.home[stream]
        if self.used[index] + size > self.room[index]:
            return OUT_OF_MEMORY
        room = np.full(size // 4 + 64, np.nan, np.float32)
        start = -(-room.ctypes.data // 256) * 256
        self.memory[start] = index, room
        self.used[index] += size
        self.most[index] = max(self.most[index], self.used[index])
        place._obj.value, self.sizes[start] = start, size
        self.enqueue(stream, "alloc", lambda: self.there.update({start: (start + size, room)}))
        return 0

    def _cuMemFreeAsync(self, at: int, stream: int) -> None:
        self.belongs("memory freed", stream, at)
        index, room = self.memory.pop(at)
        self.used[index] -= self.sizes.pop(at)

        def freed() -> None:
            room[...] = np.nan
            del self.there[at]
        self.enqueue(stream, "free", freed)

    def _cuMemHostAlloc(self, place: Any, size: int, flags: int) -> None:
        self.current("pinned memory")
        room = np.full(size // 4 + 64, np.nan, np.float32)
        place._obj.value = room.ctypes.data
        self.memory[-room.ctypes.data] = -1, room

    def _cuMemFreeHost(self, at: int) -> None:
        del self.memory[-at]

    def _cuMemHostGetFlags(self, place: Any, at: int) -> int:
        return 0 if any(low <= at < high for low, high in self.locked) else 1

    def _cuMemGetInfo_v2(self, free: Any, total: Any) -> None:
        index = self.here.index
        free._obj.value, total._obj.value = self.room[index] - self.used[index], self.room[index]

    def touch(self, what: str, at: int, size: int) -> None:
        """An operation that runs now reads or writes device memory."""
        if not any(start <= at and at + size <= end for start, (end, _) in self.there.copy().items()):
            self.stale.append(f"{what} of {size} bytes at {at:x}")

    def _copy(self, way: str, stream: int, to: int, source: int, size: int, rows: int = 1, to_pitch: int = 0,
              from_pitch: int = 0) -> None:
        """Of rows of ``size`` bytes each."""
        self.copied[way] += size * rows
        self.belongs(f"copy {way}", stream, source if way == "out" else to)

        def move() -> None:
            for name, at, pitch in (("to", to, to_pitch), ("from", source, from_pitch)):
                if way == "peer" or (way == "in") == (name == "to"):
                    self.touch(f"copy {way}, {name}", at, (rows - 1) * pitch + size)
            for row in range(rows):
                ctypes.memmove(to + row * to_pitch, source + row * from_pitch, size)
        self.enqueue(stream, f"copy {way}", move)

    def _cuMemcpyHtoDAsync_v2(self, to: int, source: int, size: int, stream: int) -> None:
        self._copy("in", stream, to, source, size)

    def _cuMemcpyDtoHAsync_v2(self, to: int, source: int, size: int, stream: int) -> None:
        self._copy("out", stream, to, source, size)

    def _cuMemcpyPeerAsync(self, to: int, here: int, source: int, there: int, size: int, stream: int) -> None:
        to_index, index = here - CONTEXT, there - CONTEXT
        assert to_index == self.home[stream] and (index, to_index) in self.granted
        if self.owner(source) != index:
            self.astray.append(f"copy from GPU {index}, memory of {self.owner(source)}")
        self._copy("peer", stream, to, source, size)

    def _cuMemcpy2DAsync_v2(self, place: Any, stream: int) -> None:
        h = place._obj
        inward = h.srcMemoryType == 1
        to, source = (h.dstDevice, h.srcHost) if inward else (h.dstHost, h.srcDevice)
        self._copy("in" if inward else "out", stream, to, source, h.WidthInBytes, h.Height, h.dstPitch, h.srcPitch)

    def _cuDeviceCanAccessPeer(self, place: Any, to: int, source: int) -> None:
        place._obj.value = 1

    def _cuMemPoolSetAccess(self, pool: int, access: Any, count: int) -> None:
        source, (kind, to, flags) = pool - POOL, access._obj
        assert source >= 0 and source != to and (kind, flags) == (1, 3)
        busy = [index for index in (source, to) if not self.at_rest(index)]
        self.astray += [f"access of GPU {to} to GPU {source} while GPU {index} is at work" for index in busy]
        self.granted.add((source, to))

    def _cuGetErrorName(self, status: int, place: Any) -> None:
        place._obj.value = ERRORS.get(status, "CUDA_ERROR_LAUNCH_FAILED").encode()

    def _cuGetErrorString(self, status: int, place: Any) -> None:
        place._obj.value = ERRORS.get(status, "CUDA_ERROR_LAUNCH_FAILED")[11:].replace("_", " ").lower().encode()


def _plain(x: Any) -> Any:
    return (x.value or 0) if isinstance(x, ctypes._SimpleCData) else x


class _Product:
    """What a kernel does with a problem, when its stream comes to it."""

    workspace_bytes = 0

    def __init__(self, problem: Problem, devices: Devices) -> None:
        self.problem, self._devices = problem, devices

    def launch(self, a: int, b: int, c: int, c0: int, workspace: int, stream: int) -> None:
        p, devices = self.problem, self._devices
        devices.problems.append((devices.here.index, p))
        devices.computing.add(stream)
        devices.belongs("product", stream, a, b, c, *[c0] * (p.beta != 0), *[workspace] * (self.workspace_bytes > 0))

        def at(address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
            reach = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
            devices.touch("product", address, 4 * reach)
            return stand_in.host_array(address, shape, strides)

        devices.enqueue(stream, "product", lambda: stand_in.multiply(p, at, a, b, c, c0))


def await_that(happens: Callable[[], Any]) -> None:
    """Wait until something happens in another thread."""
    end = time.monotonic() + 20
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.002)


def each_begins(patch: pytest.MonkeyPatch, count: int) -> None:
    """From now on each of ``count`` devices takes a tile before any of them takes a second one."""
    begun, together, take = set[int](), threading.Barrier(count), TileQueue.take

    def taken(self: TileQueue, worker: int) -> Tile | None:
        tile = take(self, worker)
        if worker not in begun:
            begun.add(worker)
            together.wait(20)
        return tile

    patch.setattr(TileQueue, "take", taken)


@contextmanager
def present(monkeypatch: pytest.MonkeyPatch, devices: Devices) -> Iterator[Devices]:
    """Within it, those are the machine's devices."""
    @contextmanager
    def activated(index: int) -> Iterator[None]:
        before = getattr(devices.here, "index", None)
        devices.here.index = index
        try:
            yield
        finally:
            devices.here.index = before

    devices.here.index = 0
    reserves = lanes._LANES, small_host._SCRATCH
    with monkeypatch.context() as patch:
        for module, stand_ins in (
                (driver, {"library": lambda: devices, "gil_library": lambda: devices}),
                (device, {"current": lambda: getattr(devices.here, "index", None),
                          "make_current": lambda index: setattr(devices.here, "index", index), "activated": activated,
                          "find": lambda index=None: devices.gpus[0] if index is None else None,
                          "count": lambda: len(devices.gpus), "require": lambda index: devices.gpus[index],
                          "primary_context": lambda index: CONTEXT + index}),
                (multi_gpu, {"activated": activated}), (panel, {"activated": activated}),
                (pools, {"_rests": lambda index: None}),  # a thread that outlives the test
                *((reserve, {"free": {}}) for reserve in reserves),
                *((module, {"choice_for": lambda *args: None,
                            "bound_for": lambda problem, gpu, choice=None: _Product(problem, devices)})
                  for module in (small_host, worker))):
            for name, stand_in in stand_ins.items():
                patch.setattr(module, name, stand_in)
        cache.calls.clear()
        peers._known.clear()
        pools._POOLS.clear()
        try:
            yield devices
            assert not devices.stale, devices.stale[:5]
            assert not devices.astray, devices.astray[:5]
        finally:
            for each in itertools.chain(*(kept for reserve in reserves for kept in reserve.free.values())):
                each.close()
            small_host._SCRATCH.free.clear()
            peers._known.clear()
            pools._POOLS.clear()
