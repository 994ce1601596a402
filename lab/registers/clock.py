"""The cycles that streams take on the GPU at hand, by each SM's own clock.

A block an SM, of one warp, of one a scheduler or of two; a block takes from its first warp's start to its last warp's
end. All registers hold zero, so that any may be an address. The figure is the median over the SMs, the least of some
launches, less what the loop itself costs: that is what a stream of NOPs takes beyond a cycle each.
"""

from __future__ import annotations

import ctypes
from statistics import median
from types import TracebackType
from typing import NamedTuple

from lab.registers.streams import ARCH, ENTRY, RZ, SHARED_BYTES, WORDS, Bed, Op, Stream
from peakgemm.errors import InvalidValue
from peakgemm.runtime import driver
from peakgemm.runtime.compile import Compiled
from peakgemm.runtime.convention import Convention
from peakgemm.runtime.device import Gpu, activated
from peakgemm.runtime.launch import Launcher, Loaded, Resident
from peakgemm.runtime.memory import DeviceMemory

SCHEDULERS, LANES = 4, 32
TURNS, LAUNCHES = 60, 3
# Copies of a stream on the device at once, of which the fastest counts: six streams in a row once took 10 cycles a turn
# of the loop more than elsewhere, by where the driver had put their code, it is thought.
COPIES = 2
_WARM_UP = 20
_INPUT_FLOATS, _SINK_WORDS = 256, 256
_LEGACY = 0  # the default stream: nothing else runs
_CONVENTION = Convention(addresses=(0, 1), values="iq", dependent=False)  # sink, input; turns, clocks


class Cycles(NamedTuple):
    """Cycles that a scheduler takes for an instruction: one warp alone on its SM, one a scheduler, two a scheduler."""

    alone: float
    one_warp: float
    two_warps: float


_WARPS = (1, SCHEDULERS, 2 * SCHEDULERS)  # of a block


class Clock:
    """Measures streams on ``gpu``; a context manager, in which the device's context is current.

    Raises:
        InvalidValue: a GPU whose instructions are not those that streams are made of.
    """

    def __init__(self, gpu: Gpu, bed: Bed) -> None:
        if gpu.arch != ARCH:
            raise InvalidValue(f"{gpu.name} is {gpu.arch}, streams and model are for {ARCH}; --dry-run shows the model")
        self._gpu, self._bed, self._context = gpu, bed, activated(gpu.index)
        self.overhead = Cycles(0, 0, 0)

    def __enter__(self) -> Clock:
        self._context.__enter__()
        warps = 2 * SCHEDULERS * self._gpu.sm_count
        self._clocks = (ctypes.c_int64 * (2 * warps))()
        self._on_device = DeviceMemory(ctypes.sizeof(self._clocks), 0)
        self._data = DeviceMemory(4 * (_INPUT_FLOATS + _SINK_WORDS), 0)
        zeros = (ctypes.c_float * (_INPUT_FLOATS + _SINK_WORDS))()
        driver.demand("a copy between host and device", "cuMemcpyHtoD_v2", ctypes.c_uint64(self._data.pointer),
                      ctypes.byref(zeros), ctypes.c_size_t(ctypes.sizeof(zeros)))
        nops = self._load((Op(RZ, name="NOP"),))
        for _ in range(_WARM_UP):
            self._run(nops[0], 2 * SCHEDULERS)
        self.overhead = Cycles(*(self._least(nops, each) - 1 for each in _WARPS))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        del self._on_device, self._data
        self._context.__exit__(kind, error, trace)

    def cycles(self, stream: Stream) -> Cycles:
        """Cycles for an instruction of ``stream``, without what the loop itself costs.

        Raises:
            LaunchFailed: the driver's refusal.
        """
        loaded = self._load(stream)
        return Cycles(*(self._least(loaded, each) - more for each, more in zip(_WARPS, self.overhead, strict=True)))

    def _load(self, stream: Stream) -> list[Loaded]:
        patched: Compiled = self._bed.patched(stream)
        return [Loaded(Resident(patched), ENTRY, SHARED_BYTES) for _ in range(COPIES)]

    def _least(self, loaded: list[Loaded], warps: int) -> float:
        return min(self._run(one, warps) for one in loaded for _ in range(LAUNCHES))

    def _run(self, loaded: Loaded, warps: int) -> float:
        """One launch with ``warps`` a block: cycles an instruction of a scheduler, loop included."""
        blocks, each = self._gpu.sm_count, warps
        Launcher(loaded, f"{each} warps", self._gpu, blocks, each * LANES,
                 _CONVENTION.pack(TURNS, self._on_device.pointer), convention=_CONVENTION).enqueue(
            self._data.pointer + 4 * _INPUT_FLOATS, self._data.pointer, 0, 0, 0, _LEGACY)
        driver.demand(f"{ENTRY}: waiting for the device", "cuCtxSynchronize")
        driver.demand("a copy between host and device", "cuMemcpyDtoH_v2", ctypes.byref(self._clocks),
                      ctypes.c_uint64(self._on_device.pointer), ctypes.c_size_t(16 * blocks * each))
        taken = []
        for block in range(blocks):
            mine = self._clocks[2 * each * block:2 * each * (block + 1)]
            taken.append(max(mine[1::2]) - min(mine[::2]))
        return median(taken) / (TURNS * WORDS * max(each // SCHEDULERS, 1))
