"""Kernels that are not ours: they compute what they should, and the checks find nothing in them."""

from functools import partial

import numpy as np
import pytest

from simulator_cases import FIXTURES, clean

go = partial(clean, FIXTURES / "foreign.cu")


@pytest.fixture
def rng():
    return np.random.default_rng(11)


@pytest.mark.parametrize("n", [1, 1000, 5000])
def test_reduction(rng, n):
    x, out = rng.standard_normal(n).astype("f4"), np.zeros(1, "f4")
    go("reduce", 7, 96, [x, out, n])
    np.testing.assert_allclose(out[0], x.astype("f8").sum(), atol=1e-3)


def test_transpose(rng):
    x, out = rng.standard_normal((70, 45)).astype("f4"), np.zeros((45, 70), "f4")
    report = go("transpose", (2, 3), (32, 8), [x, out, 70, 45])
    assert (out == x.T).all()
    assert report.counters["shared_wavefronts"] == report.counters["shared_wavefronts_ideal"]


def test_softmax(rng):
    x = rng.standard_normal((9, 77)).astype("f4")
    out = np.zeros_like(x)
    go("softmax", 9, 32, [x, out, 77], shared_bytes=77 * 4)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=1e-5)


def test_stencil(rng):
    x = rng.standard_normal((37, 50)).astype("f4")
    out = np.zeros_like(x)
    go("stencil", (4, 3), (16, 16), [x, out, 50, 37])
    p = np.pad(x, 1, mode="edge")
    want = 0.5 * x + 0.125 * (p[1:-1, :-2] + p[1:-1, 2:] + p[:-2, 1:-1] + p[2:, 1:-1])
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)


def test_histogram(rng):
    x, bins = rng.integers(0, 256, 5000).astype("u1"), np.zeros(256, "u4")
    go("histogram", 4, 128, [x, 5000, bins])
    assert (bins == np.bincount(x, minlength=256)).all()


def test_mma(rng):
    m, n, k = 32, 16, 64
    a, b = rng.integers(-8, 9, (m, k)).astype("f2"), rng.integers(-8, 9, (n, k)).astype("f2")
    c = np.zeros((m, n), "f4")
    report = go("mma_gemm", (n // 8, m // 16), 32, [a, b, c, m, n, k])
    assert (c == a.astype("f4") @ b.T.astype("f4")).all()  # small integers: every sum is exact
    matrices = [item for item in report.instructions if item.opcode.startswith("ldmatrix")]
    assert sum(item.executions for item in matrices) == 2 * (n // 8) * (m // 16) * (k // 16)


def test_mma_truncates_like_hopper(rng):
    m, n, k = 16, 8, 16
    a, b = rng.standard_normal((m, k)).astype("f2"), rng.standard_normal((n, k)).astype("f2")
    c = np.zeros((m, n), "f4")
    go("mma_gemm", (1, 1), 32, [a, b, c, m, n, k])
    exact = a.astype("f8") @ b.T.astype("f8")
    biggest = np.abs(a.astype("f8")[:, None] * b.astype("f8")[None]).max(axis=2)
    assert (np.abs(c - exact) <= 17 * biggest * 2.0**-24).all()
    assert (c != exact.astype("f4")).any()


# ---- PTX as other compilers write it; each text says at its top which one, and of what --------


def ptx(name, *given, **options):
    return clean(FIXTURES / "foreign" / f"{name}.ptx", *given, **options)


@pytest.mark.parametrize(("entry", "dtype"), [("rows<float, 8>", "f4"), ("rows<float,16>", "f4"),
                                              ("sums::rows<double, 8>", "f8")])
def test_nvrtc(rng, entry, dtype):
    x, y = rng.standard_normal((5, 37)).astype(dtype), np.zeros(5, dtype)
    report = ptx("nvrtc", entry, 5, 32, [x, y, 37])
    np.testing.assert_allclose(y, x.astype("f8").sum(1), rtol=1e-4 if dtype == "f4" else 1e-12)
    assert report.instructions[-2].file == "nvrtc.cu"


def test_nvcc_for_the_debugger(rng):
    x, y = rng.standard_normal(70).astype("f4"), np.zeros(70, "f4")
    report = ptx("nvcc_debug", None, 3, 32, [x, y, 70])
    c, n = np.array([1, -2, 0.5, 0.25]), 1 + np.arange(70) % 4
    want = sum(np.where(k < n, c[k] * x.astype("f8") ** k, 0) for k in range(4))
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
    assert {item.line for item in report.instructions if item.executions} >= {2, 5, 6, 7}


def test_clang(rng):
    x, y = rng.standard_normal(100).astype("f4"), np.zeros(100, "f4")
    ptx("clang", None, 2, 64, [x, y, 3.0, 100])
    padded = np.pad(x, (0, 28)).reshape(2, 64)
    np.testing.assert_allclose(y, (3 * padded + np.roll(padded, 1, axis=1)).ravel()[:100], rtol=1e-6)


def test_numba(rng):
    x, y = rng.standard_normal(50).astype("f4"), np.zeros(50, "f4")
    arrays = [value for array in (x, y) for value in (None, None, 50, 4, array, 50, 4)]
    ptx("numba", "gelu", 2, 32, [*arrays, 50])
    np.testing.assert_allclose(y, x / (1 + np.exp(-1.702 * x.astype("f8"))), rtol=1e-6)


def test_triton(rng):
    x = rng.standard_normal((6, 100)).astype("f4")
    y = np.zeros_like(x)
    ptx("triton", None, 6, 128, [x, y, 100, None, None], shared_bytes=16)
    e = np.exp(x.astype("f8") - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)


def test_tinygrad(rng):
    a, b = (0.2 * rng.standard_normal(shape).astype("f4") for shape in ((32, 48), (48, 16)))
    c = np.zeros((32, 16), "f4")
    ptx("tinygrad", None, (16, 32), 16, [c, a, b])
    np.testing.assert_allclose(c, np.exp(a.astype("f8") @ b), rtol=1e-5)
