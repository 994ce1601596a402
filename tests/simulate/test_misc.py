"""Less common CUDA C++, against the same arithmetic in Python."""

import random
from functools import partial

import numpy as np
import pytest

from peakgemm.runtime.compile import compile_source
from peakgemm.tools.simulator import launch, run
from seldom import exhaustive
from simulator_cases import FIXTURES, clean

RNG = np.random.default_rng(8)
go = partial(clean, FIXTURES / "misc.cu")


def wrap(value, bits):
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


@pytest.mark.parametrize("arch", ["sm_80", "sm_100"])
def test_integers_structs_and_constants(arch):
    x = RNG.integers(-(2**31), 2**31, 256).astype("i4")
    y = RNG.integers(-(2**31), 2**31, 256).astype("i4")
    out = np.zeros(256, "i8")
    params = np.array((7, 1.5, -12345), np.dtype([("scale", "i4"), ("bias", "f4"), ("offset", "i8")]))[()]
    go("integers", 1, 256, [x, y, out, params], arch=arch)
    table = [3, 1, 4, 1, 5, 9, 2, 6]
    for a, b, got in zip(x.tolist(), y.tolist(), out.tolist(), strict=True):
        ua, ub = a & 0xFFFFFFFF, b & 0xFFFFFFFF
        r = a * 7 - 12345
        n, d = a << 20, b | 1
        r += abs(n) // abs(d) * (-1 if (n < 0) != (d < 0) else 1)
        r = wrap(r, 64)
        r ^= (r & (2**64 - 1)) % 1000003
        r = wrap(r, 64)
        brev = int(f"{ub:032b}"[::-1], 2)
        r += bin(ua).count("1") + 32 - ub.bit_length() + (ua & -ua).bit_length() + brev % 17 + table[a & 7]
        r += (ua & 255) | (ub & 255) << 8  # selector 0x5140: bytes 0, 4, 1, 5
        high = (ua * ub) >> 32
        low24 = wrap(wrap(a, 24) * wrap(b, 24), 32)
        r += (high + low24) & 0xFFFFFFFF
        assert got == wrap(r, 64)


def test_warp_operations():
    x, out = RNG.integers(0, 8, 64).astype("i4"), np.zeros(64, "i4")
    go("warp_ops", 1, 64, [x, out])
    for w in range(2):
        v, lane = x[32 * w:32 * w + 32].astype(int), np.arange(32)
        r = (v > 3).sum() * 1000 + (v == 7).any() * 100 + (v >= 0).all() * 200 + v[(lane + 5) & 31]
        r = r + np.where(lane >= 3, v[lane - 3], v) + np.where((lane ^ 9) >> 4 == lane >> 4, v[lane ^ 9], v)
        r = r + np.array([(v == k).sum() for k in v]) * 10000 + v.sum() * 100000
        assert list(out[32 * w:32 * w + 32]) == list(r)


def test_atomics_that_return():
    counter, where = np.zeros(1, "i4"), np.full(200, -1, "i4")
    go("slots", 3, 96, [counter, where])
    want = [b * 96 + t for b in range(3) for t in range(0, 96, 3)]
    assert counter[0] == len(want) and sorted(where[: len(want)].tolist()) == want


def test_bytes_do_not_race_within_a_word():
    x, s = RNG.integers(0, 256, 256).astype("u1"), RNG.integers(-128, 128, 256).astype("i1")
    out, wide = np.zeros(256, "u1"), np.zeros(256, "i2")
    go("bytes", 1, 256, [x, out, s, wide])
    assert (out == x[::-1] + np.uint8(1)).all() and (wide == s.astype("i2") * 3).all()


def test_diverged_lanes_meet_at_a_shuffle():
    x, out = RNG.integers(0, 40, 64).astype("i4"), np.zeros(64, "i4")
    go("meet", 1, 64, [x, out])

    def way(t, v):
        if t & 1:
            i = 0
            while i < v:
                v += (i & 3) - 1
                i += 1
                if i > 5000:
                    break
        else:
            i = v
            while i > 0:
                v ^= i
                i >>= 1
        return v

    assert list(out) == [way(t ^ 1, int(x[t ^ 1])) for t in range(64)]


def program(rng, depth=0):
    """Random nested branches and loops over three variables."""
    out = ""
    for _ in range(rng.randint(1, 3)):
        kind, v, w, c = rng.random(), rng.choice("abc"), rng.choice("abc"), rng.randint(1, 9)
        if kind < 0.4 or depth > 3:
            out += f"{v} = {v} {rng.choice('+-*^')} ({w} + {c});"
        elif kind < 0.65:
            out += f"if (({v} & {c}) == {rng.randint(0, c)}) {{ {program(rng, depth + 1)} }}"
            out += f"else {{ {program(rng, depth + 1)} }}"
        elif kind < 0.9:
            out += f"for (int i{depth} = 0; i{depth} < ({v} & {c}); ++i{depth}) {{ {program(rng, depth + 1)}"
            out += f"if (({w} & 31) == {c}) break; }}"
        else:
            out += f"if (({v} & 15) == {c}) {{ out[t] = a + b * 3 + c; return; }}"
    return out


@pytest.mark.parametrize("seed", [*range(6), *map(exhaustive, range(6, 12))])
def test_divergent_lanes_do_what_single_lanes_do(seed, monkeypatch):
    body = program(random.Random(seed))
    source = (f'extern "C" __global__ void k(const int* x, int* out) {{ int t = blockIdx.x * blockDim.x + threadIdx.x;'
              f"int a = x[t], b = t, c = 7; {body} out[t] = a + b * 3 + c; }}")
    compiled = compile_source(source, "k", "sm_90", kind="ptx")
    x = np.random.default_rng(seed).integers(-1000, 1000, 192).astype("i4")
    together, alone = np.zeros(192, "i4"), np.zeros(192, "i4")
    assert run(compiled, grid=2, block=96, args=[x, together]).clean
    monkeypatch.setattr(launch, "MOST", 32)
    monkeypatch.setattr(launch, "LEAST", 1)
    assert run(compiled, grid=192, block=1, args=[x, alone]).clean
    assert (together == alone).all()
