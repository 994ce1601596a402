"""Rungs of the ladder: arrays that are refused, with the value that is wrong, and what is bound for the others."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import peakgemm.arrays as door
from peakgemm import run_rung
from peakgemm.arrays.base import View
from peakgemm.arrays.numpy import host_view
from peakgemm.calls import rung as rungs
from peakgemm.calls.rung import problem_of
from peakgemm.errors import InvalidType, InvalidValue, MissingComponent
from peakgemm.kernels import bound
from peakgemm.kernels.registry import LADDER, rung
from peakgemm.kernels.validity import violations
from peakgemm.problem import Problem
from peakgemm.runtime import device
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.device import reason_without_gpu
from stand_in import GPU, STREAM, HostMemory, Interpreted, StandIn


def operands(m: int = 4, n: int = 6, k: int = 5) -> list[np.ndarray]:
    return [np.zeros(shape, np.float32) for shape in ((m, k), (k, n), (m, n))]


def read_only(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(("index", "change", "error", "says"), [
    *((index, lambda x, dtype=dtype: x.astype(dtype), InvalidType, [
        f"{'ABC'[index]} is {dtype}; peakgemm multiplies float32",
        "np.empty(shape, np.float32)" if index == 2 else f"{'ABC'[index]}.astype('float32')"])  # no copy of C
      for dtype in ("float64", "float16") for index in range(3)),
    (0, lambda x: x.astype(">f4"), InvalidType, ["A is >f4"]),
    *((0, lambda x, shape=shape: np.zeros(shape, np.float32), InvalidValue,
       [f"A has shape {shape}; a matrix (2-D) is wanted"]) for shape in ((4,), (), (2, 2, 5))),
    (1, lambda x: np.zeros((7, 6), np.float32), InvalidValue,
     ["A is 4 x 5 and B is 7 x 6", "the columns of A (5) must be the rows of B (7)"]),
    (2, read_only, InvalidValue, ["C is a read-only NumPy array"]),
    *((0, lambda x, thing=thing: thing, InvalidType, [f"A is a {name}, which offers neither DLPack nor"])
      for thing, name in (([[1.0]], "list"), (3.0, "float"), (None, "NoneType"), ("matrix", "str"))),
])
def test_refused(index: int, change: Any, error: type[Exception], says: list[str]) -> None:
    arrays = operands()
    arrays[index] = change(arrays[index])
    with pytest.raises(error) as refused:
        run_rung(7, *arrays)
    assert all(text in str(refused.value) for text in says), refused.value


@pytest.mark.skipif(reason_without_gpu() is None, reason="there is a GPU")
def test_no_gpu_names_the_remedy() -> None:
    with pytest.raises(MissingComponent, match="peakgemm doctor"):
        run_rung(7, *operands())


@pytest.mark.parametrize(("shape", "strides", "pointer", "says"), [
    ((3,), (1,), 64, "A has shape (3,); a matrix (2-D) is wanted"),
    ((2, 3), (1, 2), 64, "A has strides (1, 2) (elements); its rows must be contiguous: pass a row-major copy, or"),
    ((2, 3), None, 64, "A has no strides in whole elements; its rows must be contiguous"),
    ((2, 3), (2, 1), 64, "ld of A = 2 is shorter than its row of 3 elements; pass a copy"),
    ((2, 3), (3, 1), 66, "A starts at address 0x42, no multiple of 4 bytes; pass a copy of it"),
])
def test_what_is_no_matrix(shape: Any, strides: Any, pointer: int, says: str) -> None:
    b, c = View.packed((3, 4)), View.packed((2, 4))
    with pytest.raises(InvalidValue) as error:
        problem_of([View(pointer, shape, strides), b, c], 1.0, 0.0)
    assert str(error.value).startswith(says)


@pytest.mark.parametrize(("shape", "strides", "ld"), [
    ((2, 3), (5, 1), 5), ((1, 3), (99, 1), 3), ((2, 1), (4, 7), 4), ((0, 3), (3, 1), 3), ((3, 0), (1, 1), 1)])
def test_leading_dimensions(shape: Any, strides: Any, ld: int) -> None:
    m, k = shape
    problem = problem_of([View(72, shape, strides), View.packed((k, 6)), View.packed((m, 6))], 2.0, 0.5)
    assert problem == Problem(m, 6, k, ld, 6, 6, 2.0, 0.5, (8, 16, 16))


class Device(StandIn):
    """A library of arrays on GPU 1, whose memory is the host's; what is bound there, and the streams asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.bound: list[tuple[Any, ...]] = []
        self.streams: list[int | None] = []

    def admit(self, x: Any, name: str, dtype: str = "float32") -> int:
        return 1

    def read_only(self, x: Any) -> bool:
        return not x.values.flags.writeable

    def view(self, x: Any, name: str, stream: int = -1) -> View:
        return host_view(x.values)

    def scope(self, index: int, stream: int | None) -> Any:
        self.streams.append(stream)
        return super().scope(index, stream)

    def bind(self, *given: Any) -> Interpreted:
        self.bound.append(given)
        return Interpreted(given[2], HostMemory())


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A GPU whose memory is the host's."""
    made = Device()
    monkeypatch.setattr(bound, "bind", made.bind)
    monkeypatch.setattr(device, "require", lambda index=None: replace(GPU, index=index or 0))
    monkeypatch.setattr(door, "_find", lambda x, name, find=door._find: (
        made if isinstance(x, SimpleNamespace) else find(x, name)))
    monkeypatch.setattr(door, "_BY_TYPE", {})
    return made


def test_arrays_on_a_device(there: Device) -> None:
    """On their device, with their leading dimensions; a tile is guarded unless all may be read in vectors."""
    numbers = np.random.default_rng(0)
    wide = numbers.standard_normal((3, 40, 64), dtype=np.float32)
    a, b, c = (SimpleNamespace(values=x) for x in (wide[0, :, 1:34], wide[1, :33, :20], wide[2, :, 4:24]))
    want = 2.0 * (a.values @ b.values) - 0.5 * c.values
    assert run_rung(9, a, b, c, alpha=2.0, beta=-0.5, stream=STREAM) is c
    assert np.allclose(c.values, want, atol=1e-5) and there.streams == [STREAM]
    run_rung(9, a, b, c)
    assert there.streams[1:] == [None]
    kernel, config, problem, gpu = there.bound[0]
    assert (kernel, config, gpu.index) == (rung(9), rung(9).default, 1)
    assert (problem.lda, problem.ldb, problem.ldc) == (64, 64, 64) and problem.alignment[0] == 4
    c.values.flags.writeable = False
    with pytest.raises(InvalidValue, match="C is a read-only stand-in array"):
        run_rung(9, a, b, c)


def test_numpy_arrays_by_copies(there: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may lie as they like, and C's other elements stay."""
    monkeypatch.setattr(rungs, "DeviceMemory", Copies)
    for copy in ("copy_in", "copy_out"):
        monkeypatch.setattr(rungs, copy, lambda to, source, size, stream, pageable: ctypes.memmove(to, source, size))
    monkeypatch.setattr(rungs, "synchronize", lambda stream: None)
    numbers = np.random.default_rng(0)
    a, b = numbers.standard_normal((7, 5), dtype=np.float32), numbers.standard_normal((6, 7), dtype=np.float32).T[::-1]
    whole = np.ones((10, 12), np.float32)
    c = whole[::2, ::2]
    run_rung(1, a.T, b, c, beta=2.0, stream=STREAM)
    assert np.allclose(c, a.T @ b + 2.0, atol=1e-5)
    assert (whole[1::2] == 1).all() and (whole[:, 1::2] == 1).all()
    with pytest.raises(InvalidType, match="A is a NumPy array and B a stand-in array"):
        run_rung(1, a.T, SimpleNamespace(values=b), c)


class Copies:
    """`DeviceMemory` on the host."""

    def __init__(self, size: int, stream: int) -> None:
        self._memory = ctypes.create_string_buffer(size + 16)
        self.pointer = -(-ctypes.addressof(self._memory) // 16) * 16


def test_what_rungs_do_not_compute() -> None:
    problem = replace(Problem.contiguous(64, 64, 64), trans_b=True)
    for kernel in LADDER:
        assert any("layouts and batches are the library's" in why
                   for why in violations(kernel, kernel.default, architecture("sm_90"), problem))


def test_more_blocks_than_a_grid_has() -> None:
    problem = Problem(2**30, 2**30, 8, 8, 2**30, 2**30)
    with pytest.raises(InvalidValue, match=r"asks for 70368744177664 blocks, the limit is 2147483647; use a larger"):
        rung(7).launches(rung(7).default, problem, "sm_90", 132)
    assert rung(7).launches(rung(7).default, replace(problem, m=0), "sm_90", 132).kernels == ()
