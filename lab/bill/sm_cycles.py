"""Cycles between places on a stream, counted by the SMs' own clocks.

Times tell cycles only with the clock, and NVML's may be wrong by what matters: it knows no clock above 1980 MHz of an
H100 whose SMs counted 1995 MHz for minutes, and 1980 later. Their counters agreed with ncu's cycles. They go on from
kernel to kernel, so a tiny kernel before and one behind see what lies between them, in 20 ms to 0.03 %.
"""

from __future__ import annotations

import ctypes
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from peakgemm.runtime import driver
from peakgemm.runtime.compile import compile_source
from peakgemm.runtime.convention import Convention
from peakgemm.runtime.device import Gpu, activated
from peakgemm.runtime.launch import Launcher, load
from peakgemm.runtime.memory import DeviceMemory

SOURCE = Path(__file__).with_suffix(".cu")
ENTRY, THREADS = "sm_cycles", 1024
MOST = 4096  # marks between two calls of `spans`


class SmCycles:
    """Marks on ``stream`` of ``gpu``.

    Raises:
        MissingComponent, CompileFailed: see `runtime.compile`.
    """

    def __init__(self, gpu: Gpu, stream: Any) -> None:
        self._gpu, self._stream, self._marks = gpu, stream, 0
        self._each = 8 * gpu.sm_count
        compiled = compile_source(SOURCE.read_text(encoding="utf-8"), ENTRY, gpu.arch, name=SOURCE.name)
        self._kernel = Launcher(load(compiled, 0, gpu), "", gpu, gpu.sm_count, THREADS, b"",
                                convention=Convention(addresses=(0,), dependent=False))
        with activated(gpu.index):
            self._clocks = DeviceMemory(MOST * self._each, int(stream.handle))
            driver.demand("clearing device memory", "cuMemsetD8Async", ctypes.c_uint64(self._clocks.pointer),
                          ctypes.c_ubyte(0), ctypes.c_size_t(MOST * self._each), ctypes.c_void_p(int(stream.handle)))

    def mark(self) -> None:
        """Enqueue a look at the clocks; of more than `MOST` the last replaces the one before."""
        place = self._clocks.pointer + min(self._marks, MOST - 1) * self._each
        self._kernel.enqueue(place, 0, 0, 0, 0, int(self._stream.handle))
        self._marks += 1

    def spans(self) -> list[float]:
        """Cycles from each mark to the next, medians over the SMs; then there are none.

        Waits for the stream.
        """
        marks, sms = min(self._marks, MOST), self._gpu.sm_count
        read = (ctypes.c_int64 * (marks * sms))()
        with activated(self._gpu.index):
            driver.demand("waiting for the device", "cuStreamSynchronize", ctypes.c_void_p(int(self._stream.handle)))
            driver.demand("a copy between host and device", "cuMemcpyDtoH_v2", ctypes.byref(read),
                          ctypes.c_uint64(self._clocks.pointer), ctypes.c_size_t(marks * self._each))
        self._marks = 0
        looks = [read[mark * sms:(mark + 1) * sms] for mark in range(marks)]
        return [median(after - before for before, after in zip(first, second, strict=True) if before and after)
                for first, second in pairwise(looks)]
