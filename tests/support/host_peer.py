"""A peer, a timer and bound kernels that are not there: NumPy arrays under their own addresses, times as told."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

import stand_in
from peakgemm.problem import Config, Problem
from peakgemm.runtime.device import Gpu
from peakgemm.tools.bench.timer import Comparison

# A small L2, so that a few sets exceed it.
GPU = Gpu(0, "NVIDIA H100 80GB HBM3", "sm_90", 132, 1980, 3352.3, 64 << 10, "13.0")
STATE = {"sm_clock_mhz": 1980, "power_w": 650.0, "temperature_c": 60}


class Array(np.ndarray):
    """A NumPy array with a device array's face."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.__array_interface__


class HostPeer:
    """`Peer` on the host: everything is done when it is enqueued."""

    name = "host"
    captures_cublas = True
    stream = SimpleNamespace(handle=7)

    def __init__(self) -> None:
        self.kept: list[Any] = []
        self.multiplied = 0

    def random(self, rows: int, columns: int, seed: int) -> Any:
        x = self.full(rows, columns, 0.0)
        x[...] = np.random.RandomState(seed).standard_normal((rows, columns))
        return x

    def full(self, rows: int, columns: int, value: float) -> Any:
        room = np.empty(rows * columns + 64, np.float32)
        start = -room.ctypes.data % 256 // 4
        self.kept.append(room)
        flat = room[start:start + rows * columns]
        flat[...] = value
        return flat.reshape(rows, columns).view(Array)

    def strided(self, flat: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        reach = sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
        assert reach < flat.size, "beyond the memory"
        return np.lib.stride_tricks.as_strided(flat, shape, [4 * step for step in strides])

    def copy(self, source: Any, to: Any) -> None:
        to[...] = source

    def multiply(self, a: Any, b: Any, out: Any) -> None:
        self.multiplied += 1
        np.matmul(a, b, out=out)

    def record(self) -> Any:
        raise NotImplementedError

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        return run

    def versions(self) -> dict[str, str]:
        return {"host": "1", "cublas": "13.1.0"}


class HostBound:
    """What a kernel does with a problem, by NumPy at the addresses it is given; ``off`` is added to C."""

    def __init__(self, kernel: Any, config: Config, problem: Problem, gpu: Gpu, off: float = 0.0) -> None:
        self.kernel, self.config, self.problem, self.off = kernel, config, problem, off
        self.workspace_bytes = 1 << 12 if config.split != 1 else 0

    def launch(self, a: int, b: int, c: int, c0: int, workspace: int, stream: int) -> None:
        p = self.problem
        assert (stream, c0, bool(workspace)) == (7, c, self.workspace_bytes > 0)
        for address, alignment in zip((a, b, c), p.alignment, strict=True):
            assert address % alignment == 0 and (alignment == 16 or address % (2 * alignment))
        stand_in.multiply(p, stand_in.host_array, a, b, c, c0)
        out = stand_in.host_array(c, (*p.batch.sizes, p.m, p.n), (*p.batch.c, p.ldc, 1))
        out += np.float32(self.off)


class HostTimer:
    """`Timer` whose clock says what ``ms`` says; every work is run once."""

    def __init__(self, ms: Callable[[Any], float] | None = None) -> None:
        self.ms = ms or (lambda work: 1.0)
        self.compared: list[dict[str, Any]] = []

    def compare(self, ours: Any, baseline: Any, *, capture: bool = True, seconds: float | None = None) -> Comparison:
        for work in (*ours, *baseline):
            work()
        self.compared.append({"sets": len(ours), "capture": capture, "seconds": seconds})
        own, theirs = self.ms(ours[0]), self.ms(baseline[0])
        return Comparison("graph" if capture else "eager", [own] * 5, [theirs] * 5, own if capture else None,
                          dict(STATE))

    def energy(self, works: Any, seconds: float, *, capture: bool = True) -> float | None:
        return 1e-3
