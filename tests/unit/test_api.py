"""The public calls on host arrays: meaning, results and refusals."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import api_cases
import peakgemm as pg
from peakgemm.arrays import interop
from peakgemm.arrays.base import stream_handle
from peakgemm.errors import InvalidType, InvalidValue
from peakgemm.runtime.device import reason_without_gpu


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def normal(*shape: int) -> Any:
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def test_drawn_products() -> None:
    draw = random.Random(1)
    for _ in range(500):
        api_cases.check_call(draw.choice)


def test_gemm_and_its_beta() -> None:
    a, b, c = normal(4, 5), normal(5, 3), normal(4, 3)
    assert np.allclose(pg.gemm(a, b, c), a @ b + c, atol=1e-5)  # c given: beta = 1
    assert np.allclose(pg.gemm(a, b, c, alpha=2, beta=0.5), 2 * (a @ b) + c / 2, atol=1e-5)
    assert np.allclose(pg.gemm(a, b, c[0], beta=2), a @ b + 2 * c[0], atol=1e-5)
    dirty = np.full((4, 3), np.nan, np.float32)
    assert np.allclose(pg.gemm(a, b, dirty, beta=0), a @ b, atol=1e-5)
    assert np.array_equal(pg.gemm(a * np.nan, b, c, alpha=0, beta=2), 2 * c)
    assert pg.gemm(a, b, c, out=c) is c


def test_sgemm_is_scipys() -> None:
    a, b, c = normal(4, 5), normal(3, 5), normal(4, 3)
    assert np.allclose(pg.sgemm(2.0, a, b, trans_b=1), 2 * a @ b.T, atol=1e-5)
    assert np.allclose(pg.sgemm(2.0, a.T, b.T, 0.5, c, trans_a=2), 2 * a @ b.T + c / 2, atol=1e-5)
    before = c.copy()
    assert np.allclose(pg.sgemm(1.0, a, b, c=c, trans_b=1), a @ b.T, atol=1e-5) and np.array_equal(c, before)
    assert np.allclose(pg.sgemm(1.0, a, b, beta=3.0, trans_b=1), a @ b.T, atol=1e-5)  # no c: zeros
    assert pg.sgemm(1.0, a, b, 1.0, c, trans_b=1, overwrite_c=1) is c


def test_torchs_names() -> None:
    a, b = normal(4, 5), normal(5, 3)
    assert np.allclose(pg.mm(a, b), a @ b, atol=1e-5)
    assert np.allclose(pg.addmm(normal(3), a, b, beta=2, alpha=-1), 2 * normal(3) - a @ b, atol=1e-5)
    x, y = normal(2, 4, 5), normal(2, 5, 3)
    out = np.empty((2, 4, 3), np.float32)
    assert pg.bmm(x, y, out=out) is out and np.allclose(out, x @ y, atol=1e-5)


@pytest.mark.parametrize(("call", "error", "match"), [
    (lambda: pg.matmul(ones(2, 2).astype(float), ones(2, 2)), InvalidType, r"a is float64.*astype\('float32'\)"),
    (lambda: pg.matmul(ones(2, 2), ones(2, 2) * 1j), InvalidType, "b is complex64"),
    (lambda: pg.matmul(ones(2, 2), ones(2, 2).astype(int)), InvalidType, "b is int64"),
    (lambda: pg.matmul(ones(2, 2), ones(2, 2).astype(">f4")), InvalidType, "b is >f4"),
    (lambda: pg.matmul([[1.0]], ones(1, 1)), InvalidType, "a is a list, which offers neither"),
    (lambda: pg.matmul(ones(2, 2), None), InvalidType, "b is a NoneType"),
    (lambda: pg.matmul(ones(2, 2), np.float32(2)), InvalidType, "b is a float32"),
    (lambda: pg.matmul(np.ma.masked_array(ones(2, 2)), ones(2, 2)), InvalidType, "a is a masked array"),
    (lambda: pg.matmul(ones(2, 3), ones(2, 3)), InvalidValue, r"a \(2, 3\) and b \(2, 3\) do not match"),
    (lambda: pg.matmul(ones(), ones(2, 2)), InvalidValue, "a 0-D array is no matrix"),
    (lambda: pg.gemm(ones(2), ones(2, 2)), InvalidValue, "a has shape .*gemm wants matrices"),
    (lambda: pg.gemm(ones(2, 2), ones(2, 2), beta=0.5), InvalidValue, "beta = 0.5 without c"),
    (lambda: pg.gemm(ones(2, 2), ones(2, 2), alpha="1"), InvalidType, "alpha is a str"),
    (lambda: pg.gemm(ones(2, 2), ones(2, 2), alpha=1j), InvalidType, "alpha is a complex"),
    (lambda: pg.matmul(ones(2, 2), ones(2, 2), precision="tf32x3"), InvalidValue, "needs a GPU"),
    (lambda: pg.plan(ones(2, 2), ones(2, 2), precision="fp8"), InvalidValue, "unknown; valid ones: 'ieee', 'emulated'"),
    (lambda: pg.matmul(ones(2, 2), ones(2, 2), stream=0), InvalidValue, "leave stream out"),
    (lambda: pg.matmul(ones(2, 2), ones(2, 2), out=ones(2, 3)), InvalidValue, r"out has shape \(2, 3\)"),
    (lambda: pg.matmul(ones(2, 2), ones(2, 2), out=ones(2, 2).astype(float)), InvalidType, "out is float64"),
    (lambda: pg.matmul(ones(2, 2), ones(2, 2), out=np.broadcast_to(ones(2), (2, 2))), InvalidValue, "read-only NumPy"),
    (lambda: pg.mm(ones(2, 2, 2), ones(2, 2)), InvalidValue, "mm wants 2 dimensions"),
    (lambda: pg.bmm(ones(3, 2, 2), ones(1, 2, 2)), InvalidValue, "batches of 3 and 1; bmm does not broadcast"),
    (lambda: pg.addmm(ones(2), ones(2, 2), ones(2)), InvalidValue, "addmm wants 2 dimensions"),
    (lambda: pg.sgemm(1.0, ones(2, 2), ones(2, 2), trans_a=3), InvalidValue, "trans_a = 3"),
    (lambda: pg.sgemm(1.0, ones(2, 2), ones(2, 2), 1.0, ones(2)), InvalidValue, "c has shape"),
    (lambda: pg.prepare(ones(2, 2).astype(float)), InvalidType, "b is float64"),
])
def test_refused(call: Callable[[], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_overlap() -> None:
    flat, b = normal(64, 64), normal(32, 32)
    pg.matmul(flat[:, :32], b, out=flat[:, 32:])
    for bad in (flat[:, :32], flat[:, 31:63]):
        with pytest.raises(InvalidValue, match="out overlaps a"):
            pg.matmul(flat[:, :32], b, out=bad)
    c = normal(64, 32)
    with pytest.raises(InvalidValue, match=r"out overlaps c.*or c itself as out"):
        pg.gemm(flat[:32, :32], b, c[1:33], out=c[:32])


@pytest.mark.skipif(reason_without_gpu() is None, reason="there is a GPU")
def test_it_is_said_where_it_runs() -> None:
    said = pg.explain(ones(3, 4), ones(4, 5))
    assert said.where == f"CPU: NumPy {np.__version__}" and said.kernel == "numpy.matmul" and said.precision == "ieee"
    assert "3 x 5 x 4, ieee, on CPU: NumPy" in str(said)


def test_a_plan_says_what_differs() -> None:
    a, b, c = normal(4, 5), normal(5, 3), normal(4, 3)
    plan = pg.plan(a, b, c, alpha=2.0)
    assert np.allclose(plan.execute(a, b, c), 2 * (a @ b) + c, atol=1e-5)
    assert plan.execute(a, b, c, out=c) is c
    assert np.allclose(pg.plan(a, b, c, beta=0.0).execute(a, b, c), a @ b, atol=1e-5)
    with pytest.raises(InvalidValue, match="needs c"):
        plan.execute(a, b)
    with pytest.raises(InvalidValue, match=r"b has strides \(1, 5\), the plan \(3, 1\)"):
        plan.execute(a, np.asfortranarray(b), c)
    with pytest.raises(InvalidValue, match=r"a has shape \(3, 5\), the plan \(4, 5\)"):
        plan.execute(a[:3], b, c)
    with pytest.raises(InvalidType, match="a is float64"):
        plan.execute(a.astype(float), b, c)
    with pytest.raises(InvalidValue, match="a plan for host arrays is not tuned"):
        plan.autotune()
    with pytest.raises(InvalidValue, match=r"c was given to a plan that was made without c; make the plan with it"):
        pg.plan(a, b).execute(a, b, c)


def test_prepared() -> None:
    a, b = normal(4, 5), normal(5, 3)
    ready = pg.prepare(b)
    assert ready.shape == (5, 3) and np.allclose(pg.matmul(a, ready), a @ b, atol=1e-5)
    assert np.allclose(pg.gemm(a, pg.prepare(b.T), trans_b=True), a @ b, atol=1e-5)
    for made in (pg.plan(a, ready), pg.plan(a, b)):
        for operand in (b, ready):
            assert np.allclose(made.execute(a, operand), a @ b, atol=1e-5)
    with pytest.raises(InvalidValue, match="b has shape"):
        pg.plan(a, b).execute(a, pg.prepare(normal(5, 6)))


def test_streams() -> None:
    class Protocol:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, 77

    class Torch:
        cuda_stream = 78

    class Cupy:
        ptr = 79

    assert [stream_handle(x) for x in (5, Protocol(), Torch(), Cupy())] == [5, 77, 78, 79]
    with pytest.raises(InvalidType, match="stream is a str"):
        stream_handle("0")
    with pytest.raises(InvalidValue, match="stream = -1"):
        stream_handle(-1)


def test_a_library_known_by_dlpack_alone() -> None:
    """Its arrays come in through DLPack, and results go back through its own ``from_dlpack``."""

    class Space:
        @staticmethod
        def from_dlpack(x: Any) -> Array:
            return Array(np.from_dlpack(x))

    class Array:
        def __init__(self, x: Any) -> None:
            self.x, self.shape = x, x.shape

        def __dlpack__(self, **kwargs: Any) -> Any:
            return self.x.__dlpack__(**kwargs)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.x.__dlpack_device__()

        def __array_namespace__(self) -> type[Space]:
            return Space

    a, b = normal(4, 5), normal(5, 3)
    got = pg.matmul(Array(a), Array(b))
    assert isinstance(got, Array) and np.allclose(got.x, a @ b, atol=1e-5)
    with pytest.raises(InvalidType, match=r"a is a .* array and b a NumPy array"):
        pg.matmul(Array(a), b)


def test_an_older_cuda_array_interface() -> None:
    """Version 2, as torch has it, is passed on as version 3: cuda.core takes no other."""

    class Bare:
        def __init__(self, **interface: Any) -> None:
            self.__cuda_array_interface__ = interface

    interface = {"shape": (3, 2), "typestr": "<f4", "data": (1 << 20, True), "strides": (40, 4), "version": 2}
    old, new = Bare(**interface), Bare(**interface | {"version": 3, "stream": 7})
    assert interop._at_version_3(old).__cuda_array_interface__ == interface | {"version": 3, "stream": None}
    assert interop._at_version_3(new) is new
    array = normal(2)
    assert interop._at_version_3(array) is array
    with pytest.raises(InvalidType, match="neither DLPack nor") as error:  # no such memory, with a GPU or without
        interop.Interop("bare").view(old, "a")
    assert "v3" not in str(error.value)
