"""Kernels with the types and intrinsics of CUDA's own headers."""

from functools import cache

import numpy as np
import pytest

from peakgemm.runtime.compile import compile_source
from peakgemm.runtime.source import assemble
from peakgemm.tools.simulator.front import includes
from simulator_cases import FIXTURES, clean

pytestmark = pytest.mark.skipif(includes.toolkit() is None, reason="no headers of CUDA: pip install "
                                "nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl")
RNG = np.random.default_rng(5)
N = 64
LANE = np.arange(N)


@cache
def compiled(arch):
    return compile_source(assemble(FIXTURES / "intrinsics.cu"), "", arch, kind="ptx",
                          include=includes.folders([])).text


def go(entry, args, arch="sm_90"):
    clean(compiled(arch), entry, 1, N, args, arch=arch)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("kind", ["__half", "__nv_bfloat16"])
def test_halves(kind, arch):
    def near(x):
        """Float32, exact to more than 16 bits need, to the type."""
        word = np.asarray(x, "f4").view("u4")
        return np.asarray(x, "f4").astype("f2").astype("f4") if kind == "__half" else \
            ((word + 0x7FFF + (word >> 16 & 1)) & np.uint32(0xFFFF0000)).view("f4")

    a, b, c = (near(RNG.integers(-12, 12, N) / 8) for _ in range(3))
    b[::4] = a[::4]
    given = [x.astype("f2") if kind == "__half" else (x.view("u4") >> 16).astype("u2") for x in (a, b, c)]
    out = np.zeros((14, N), "f4")
    go(f"halves<{kind}>", [*given, out, N], arch)
    fused, relu = near(a * b + c), near(np.maximum(a * c + c, 0))
    want = [fused, np.maximum(fused, 0), np.clip(fused, 0, 1), np.clip(near(a + b), 0, 1), np.maximum(a, b),
            np.minimum(a, c), a < b, a == b, np.abs(a), np.ones(N), 16 * (a > c), np.ones(N), relu, a[LANE ^ 9]]
    for row, expected in enumerate(want):
        assert (out[row] == expected).all(), row


def test_eight_bits():
    types = pytest.importorskip("ml_dtypes")
    x, out = (RNG.standard_normal(N) * 4.0**RNG.integers(-3, 3, N)).astype("f4"), np.zeros((5, N), "f4")
    for arch in ("sm_80", "sm_90"):  # by integers, by cvt
        go("eight", [x, out, N], arch)
        first, second = (x.astype(t).astype("f4") for t in (types.float8_e4m3fn, types.float8_e5m2))
        of_half = x.astype("f2").astype(types.float8_e5m2).astype("f4")
        of_brain = x.astype(types.bfloat16).astype(types.float8_e4m3fn).astype("f4")
        assert (out == np.stack([first, second, 2 * first, of_half, of_brain])).all()


def test_sums():
    h, b, s, f = np.zeros(4, "f2"), np.zeros((4, 2), "u2"), np.zeros(4, "u2"), np.zeros((4, 2), "f4")
    go("sums", [h, b, s, f])
    assert list(h) == [LANE[k::4].sum() for k in range(4)] and list(s) == [4, 1, 2, 3]
    assert ((b.astype("u4") << 16).view("f4") == [[16, 16 * k] for k in range(4)]).all()
    assert (f == [[LANE[k::4].sum(), 8] for k in range(4)]).all()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_warps_and_tiles(arch):
    x = RNG.integers(-9, 99, N).astype("i4")
    x[[0, 17, 33, 48]] |= 1
    out = np.zeros((8, N), "i4")
    go("warps", [x, out, N], arch)
    tiles = {size: x.reshape(-1, size) for size in (8, 16, 32)}
    upper = LANE % 32 >= 16
    halves = tiles[16]
    odd = np.array([[(k + 16 * (n % 2)) for k in np.flatnonzero(half & 1)] for n, half in enumerate(halves)], object)
    want = [np.repeat(halves.sum(axis=1), 16), np.where(upper, np.repeat(halves.min(axis=1), 16),
                                                        np.repeat(halves.max(axis=1), 16)),
            np.where(upper, 0xFFFF0000, 0xFFFF).astype("u4").view("i4") + 1,
            np.repeat([places[1] if len(places) > 1 else -1 for places in odd], 16),
            np.repeat(tiles[8].sum(axis=1), 8), halves.cumsum(axis=1).ravel(),
            np.concatenate([np.where(w & 1, w[w & 1 == 1].max() * 100 + (w & 1).sum(), 0) for w in tiles[32]]),
            np.array([max(j for j in LANE if j // 32 == t // 32 and x[j] & 3 == x[t] & 3) for t in LANE])]
    for row, expected in enumerate(want):
        assert list(out[row]) == list(expected), row


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_parts_of_words(arch):
    a, b = (RNG.integers(0, 2**32, N, dtype=np.uint64).astype("u4") for _ in range(2))
    out = np.zeros((9, N), "u4")
    go("parts", [a, b, out, N], arch)
    x, y, low, high = a.view("u1").astype(int), b.view("u1").astype(int), a.view("u2"), b.view("u2")
    apart = np.abs(x - y)
    signed, other = low.view("i2"), high.view("i2")

    def low24(v):
        return v.view("i4").astype("i8") << 40 >> 40

    want = [apart.astype("u1").view("u4"), apart.reshape(-1, 4).sum(axis=1), (low + high).view("u4"),
            np.maximum(signed, other).view("u4"), np.minimum(x, y).astype("u1").view("u4"),
            np.minimum(x + y, 255).astype("u1").view("u4"), np.maximum(np.maximum(a.view("i4"), b.view("i4")), 5),
            np.maximum(np.minimum(signed, other), 0).view("u4"), (low24(a) * low24(b)).astype("u4")]
    for row, expected in enumerate(want):
        assert list(out[row]) == list(expected), row
