"""Kernels that are not ours: they compute what they should, and the checks find nothing in them."""

import numpy as np
import pytest

from peakgemm.tools.simulator import run
from simulator_cases import FIXTURES

SOURCE = FIXTURES / "foreign.cu"


def go(entry, grid, block, args, **options):
    report = run(SOURCE, entry=entry, grid=grid, block=block, args=args, **options)
    assert report.clean, str(report)
    return report


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
