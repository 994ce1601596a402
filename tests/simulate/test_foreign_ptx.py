"""PTX as other compilers write it; each text says at its top which one, and of what."""

import numpy as np
import pytest

from peakgemm.tools.simulator import run
from simulator_cases import FIXTURES

FOREIGN = FIXTURES / "foreign"
rng = np.random.default_rng(5)


def go(name, grid, block, args, **options):
    report = run(FOREIGN / f"{name}.ptx", grid=grid, block=block, args=args, **options)
    assert report.clean, str(report)
    return report


@pytest.mark.parametrize(("entry", "dtype"), [("rows<float, 8>", "f4"), ("rows<float,16>", "f4"),
                                              ("sums::rows<double, 8>", "f8")])
def test_nvrtc(entry, dtype):
    x, y = rng.standard_normal((5, 37)).astype(dtype), np.zeros(5, dtype)
    report = go("nvrtc", 5, 32, [x, y, 37], entry=entry)
    np.testing.assert_allclose(y, x.astype("f8").sum(1), rtol=1e-4 if dtype == "f4" else 1e-12)
    assert report.instructions[-2].file == "nvrtc.cu"


def test_nvcc_for_the_debugger():
    x, y = rng.standard_normal(70).astype("f4"), np.zeros(70, "f4")
    report = go("nvcc_debug", 3, 32, [x, y, 70])
    c, n = np.array([1, -2, 0.5, 0.25]), 1 + np.arange(70) % 4
    want = sum(np.where(k < n, c[k] * x.astype("f8") ** k, 0) for k in range(4))
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)
    assert {item.line for item in report.instructions if item.executions} >= {2, 5, 6, 7}


def test_clang():
    x, y = rng.standard_normal(100).astype("f4"), np.zeros(100, "f4")
    go("clang", 2, 64, [x, y, 3.0, 100])
    padded = np.pad(x, (0, 28)).reshape(2, 64)
    np.testing.assert_allclose(y, (3 * padded + np.roll(padded, 1, axis=1)).ravel()[:100], rtol=1e-6)


def test_numba():
    x, y = rng.standard_normal(50).astype("f4"), np.zeros(50, "f4")
    arrays = [value for array in (x, y) for value in (None, None, 50, 4, array, 50, 4)]
    go("numba", 2, 32, [*arrays, 50], entry="gelu")
    np.testing.assert_allclose(y, x / (1 + np.exp(-1.702 * x.astype("f8"))), rtol=1e-6)


def test_triton():
    x = rng.standard_normal((6, 100)).astype("f4")
    y = np.zeros_like(x)
    go("triton", 6, 128, [x, y, 100, None, None], shared_bytes=16)
    e = np.exp(x.astype("f8") - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-5)


def test_tinygrad():
    a, b = (0.2 * rng.standard_normal(shape).astype("f4") for shape in ((32, 48), (48, 16)))
    c = np.zeros((32, 16), "f4")
    go("tinygrad", (16, 32), 16, [c, a, b])
    np.testing.assert_allclose(c, np.exp(a.astype("f8") @ b), rtol=1e-5)
