"""A device that is not there: NumPy memory under device addresses, and kernels that are interpreted or simulated.

`on_device` runs with it as it does for a library of GPU arrays.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from peakgemm.arrays.base import DeviceLibrary, View, by_bytes
from peakgemm.errors import InvalidType
from peakgemm.problem import Batch, Problem
from peakgemm.runtime.device import Gpu

GPU = Gpu(0, "stand-in", "sm_90", 132, 1980, 3350.0, 50 << 20, "13.0")
STREAM = 7


class Memory:
    """Addresses of flat arrays: each starts at a multiple of 256, and none is found twice."""

    def __init__(self) -> None:
        self._flats: list[tuple[int, Any]] = []
        self._next = 1 << 20

    def address(self, x: Any) -> int:
        """Where the first element of ``x`` lies."""
        if x.size == 0:
            return 0
        root = x
        while root.base is not None:
            under = root.base if isinstance(root.base, np.ndarray) else getattr(root.base, "base", None)
            if under is None:  # what is no array lends its memory
                break
            root = under  # by as_strided's holder, too
        start = next((start for start, flat in self._flats if flat is root), None)
        if start is None:
            start = self._next
            self._next += (root.nbytes // 256 + 16) * 256
            self._flats.append((start, root))
        return start + x.__array_interface__["data"][0] - root.__array_interface__["data"][0]

    def flat(self, address: int) -> Any:
        """The memory from an address on."""
        for start, flat in self._flats:
            if start <= address < start + flat.nbytes:
                assert (address - start) % 4 == 0, "a float at an address that is no multiple of 4"
                return flat.ravel("K").view(np.float32)[(address - start) // 4:]
        raise AssertionError(f"{address:#x} is no array's")


class HostMemory:
    """The process's own memory, for arrays of the host that are taken as the device's."""

    def flat(self, address: int) -> Any:
        """The memory from an address on."""
        return np.ctypeslib.as_array((ctypes.c_float * 100_000).from_address(address))


class StandIn(DeviceLibrary):
    """`DeviceLibrary` over `Memory`."""

    name = "stand-in"

    def __init__(self) -> None:
        self.memory = Memory()
        self.copies = 0

    def admit(self, x: Any, name: str, dtype: str = "float32") -> int:
        if x.dtype != dtype:
            raise InvalidType(f"{name} is {x.dtype}")
        return 0

    def view(self, x: Any, name: str, stream: int = -1) -> View:
        return by_bytes(self.memory.address(x), x.shape, x.strides)

    def read_only(self, x: Any) -> bool:
        return False

    @contextmanager
    def scope(self, device: int, stream: int | None) -> Iterator[int]:
        yield STREAM if stream is None else stream

    def as_real(self, x: Any) -> tuple[Any, bool]:
        return x[..., None].view(np.float32), False

    def empty(self, shape: tuple[int, ...], like: Any, stream: int, dtype: str = "float32") -> Any:
        return np.full(shape, -1 if dtype == "int32" else np.nan, dtype)

    def copy(self, x: Any, shape: tuple[int, ...]) -> Any:
        self.copies += 1
        return np.array(np.broadcast_to(x, shape), order="C")

    def assign(self, to: Any, source: Any) -> None:
        np.copyto(to, source)

    def deliver(self, result: Any, like: Any, stream: int, inputs: tuple[Any, ...]) -> Any:
        return result


def multiply(p: Problem, at: Callable[[int, tuple[int, ...], tuple[int, ...]], Any], a: int, b: int, c: int,
             c0: int) -> None:
    """What a kernel does with a problem, by NumPy; ``at`` gives the array at an address, with a shape and strides."""
    def matrices(address: int, rows: int, columns: int, steps: tuple[int, int], batch: tuple[int, ...]) -> Any:
        return at(address, (*p.batch.sizes, rows, columns), (*batch, *steps))

    out = matrices(c, p.m, p.n, (p.ldc, 1), p.batch.c)
    result = np.zeros(out.shape, np.float32)
    if p.alpha != 0 and p.k > 0:
        left = matrices(a, p.m, p.k, (1, p.lda) if p.trans_a else (p.lda, 1), p.batch.a)
        right = matrices(b, p.k, p.n, (1, p.ldb) if p.trans_b else (p.ldb, 1), p.batch.b)
        result = np.float32(p.alpha) * np.matmul(left, right)
    if p.beta != 0:
        result = result + np.float32(p.beta) * matrices(c0, p.m, p.n, p.c0 or (p.ldc, 1), p.batch.c0)
    out[...] = result


def host_array(address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """The array at an address of the host."""
    reach = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    flat = np.ctypeslib.as_array((ctypes.c_float * reach).from_address(address))
    return np.lib.stride_tricks.as_strided(flat, shape, [4 * step for step in strides])


class Interpreted:
    """A bound kernel: `multiply` on the same addresses."""

    workspace_bytes = 0

    def __init__(self, problem: Problem, memory: Memory | HostMemory) -> None:
        self.problem, self._memory = problem, memory

    def launch(self, a: int, b: int, c: int, c0: int, workspace: int, stream: int) -> None:
        p = self.problem
        assert stream == STREAM and (p.c0 or (c0 == c and p.batch.c0 == p.batch.c))
        reads = p.alpha != 0 and p.k > 0
        for address, alignment, used in zip((a, b, c), p.alignment, (reads, reads, True), strict=True):
            assert not used or address % alignment == 0
        multiply(p, self._at, a, b, c, c0)

    def _at(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        flat = self._memory.flat(address)
        assert min(strides) >= 0, "the drawing has no negative strides"
        assert sum(step * (size - 1) for step, size in zip(strides, shape, strict=True)) < flat.size, "out of bounds"
        return np.lib.stride_tricks.as_strided(flat, shape, [4 * step for step in strides])


class Simulated:
    """The kernel's PTX on the simulator, on the same addresses."""

    workspace_bytes = 0

    def __init__(self, kernel: Any, config: Any, problem: Problem, memory: Memory) -> None:
        self.kernel, self.config, self.problem, self._memory = kernel, config, problem, memory

    def launch(self, a: int, b: int, c: int, c0: int, workspace: int, stream: int) -> None:
        from peakgemm.tools.simulator.library import run_library

        unread = np.zeros(4, np.float32)
        reads = self.problem.alpha != 0 and self.problem.k > 0
        first, second = ((self._memory.flat(x) for x in (a, b)) if reads else (unread, unread))
        target = self._memory.flat(c)
        start = None if c0 == c else self._memory.flat(c0)
        reports = run_library(self.kernel, self.config, self.problem, first, second, target, start, sm_count=2)
        assert all(report.clean for report in reports), [str(report) for report in reports]


def merged_once(batch: Batch) -> bool:
    """Whether no two neighbouring dimensions of a batch could be one."""
    return Batch.merged(batch.sizes, batch.a, batch.b, batch.c, batch.c0) == batch
