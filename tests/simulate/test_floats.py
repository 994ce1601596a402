"""Arithmetic against the C library's fma and exact fractions."""

import ctypes
from fractions import Fraction

import numpy as np
import pytest

from peakgemm.tools.simulator.core import floats
from peakgemm.tools.simulator.core.lanes import Group, LaneSet
from peakgemm.tools.simulator.ops import fma
from simulator_cases import apply, libm, random_floats

N = 1024


def same(got, want):
    nan = np.isnan(want)
    assert (np.isnan(got) == nan).all()
    assert (got.view(np.uint32)[~nan] == want.view(np.uint32)[~nan]).all()


def hard_operands(seed):
    """Random bits, results that are subnormal, and sums half-way between two float32."""
    rng = np.random.default_rng(seed)
    a, b, c = (random_floats(N, seed + i) for i in range(3))
    k = N // 4
    a[:k] = rng.integers(1, 2**24, k) * 2.0**-75
    b[:k] = rng.integers(1, 2**24, k) * 2.0**-75
    c[:k] = rng.integers(-(2**20), 2**20, k) * 2.0**-149
    a[k:2 * k] = 4097
    b[k:2 * k] = rng.choice([4097, 4099, -4097], k)
    c[k:2 * k] = rng.choice([2.0**-60, -(2.0**-60), 0.0, 2.0**-20], k)
    return a, b, c


@pytest.mark.parametrize("seed", range(4))
def test_fma_is_bit_equal_to_libm(seed):
    a, b, c = hard_operands(seed)
    fmaf = libm("fmaf", ctypes.c_float)
    want = np.array([fmaf(float(x), float(y), float(z)) for x, y, z in zip(a, b, c, strict=False)], np.float32)
    same(apply("fma.rn.f32 %o, %i0, %i1, %i2;", "f32", ("f32", a), ("f32", b), ("f32", c)), want)
    with fma.Scratch().quiet():
        same(floats.fma32(a, b, c), want)


def test_fma_run_with_dependences():
    """A long run: results feed later members, registers are overwritten, more rows than the cache of wide rows."""
    rng = np.random.default_rng(5)
    slots, n = 90, 64
    group = Group(LaneSet(np.arange(n), 64), {"p": 0, "h": 0, "r": slots, "d": 0})
    rows = [group.rows["f32"][slot] for slot in range(slots)]
    for row in rows:
        row[:] = rng.standard_normal(n)
    want = [row.copy() for row in rows]
    program = [tuple(int(x) for x in rng.integers(0, slots, 4)) for _ in range(500)]
    program = [(d, a, b, np.float32(0.25) if i % 17 == 0 else c) for i, (d, a, b, c) in enumerate(program)]
    with fma.Scratch().quiet():
        for d, a, b, c in program:
            want[d] = floats.fma32(want[a], want[b], want[c] if isinstance(c, int) else np.full(n, c))
        fma.compile_run(program, fma.Scratch())(group)
    for got, expected in zip(rows, want, strict=False):
        same(got, expected.astype(np.float32))


def bounds(value, exact, mode):
    """Whether float32 ``value`` is ``exact`` rounded in a directed mode."""
    if mode == "rz":
        mode = "rm" if exact > 0 else "rp"
    with np.errstate(over="ignore"):
        other = float(np.nextafter(np.float32(value), np.float32(np.inf if mode == "rm" else -np.inf)))
    v = Fraction(float(value))
    if mode == "rm":
        return v <= exact and (np.isinf(other) or Fraction(other) > exact)
    return v >= exact and (np.isinf(other) or Fraction(other) < exact)


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("name", ["fma", "add", "mul", "div", "sqrt"])
def test_directed_rounding(name, mode):
    a, b, c = hard_operands(3)
    if name == "sqrt":
        a = np.abs(a)
    count = {"fma": 3, "sqrt": 1}.get(name, 2)
    operands = ", ".join(f"%i{i}" for i in range(count))
    got = apply(f"{name}.{mode}.f32 %o, {operands};", "f32", *[("f32", x) for x in (a, b, c)[:count]])
    checked = 0
    for x, y, z, r in zip(a, b, c, got, strict=False):
        if not np.isfinite([x, y, z, r]).all() or (name == "div" and y == 0):
            continue
        x, y, z = (Fraction(float(v)) for v in (x, y, z))
        if name == "sqrt":
            v = Fraction(float(r))
            up = Fraction(float(np.nextafter(r, np.float32(np.inf))))
            assert v * v <= x < up * up if mode != "rp" else v * v >= x
            checked += 1
            continue
        exact = {"fma": x * y + z, "add": x + y, "mul": x * y, "div": x / y if y else None}[name]
        if exact != 0:
            assert bounds(r, exact, mode), (name, mode, x, y, z, r)
            checked += 1
    assert checked > 200


def test_fma64_against_libm():
    rng = np.random.default_rng(2)
    a = rng.standard_normal(N) * 10.0 ** rng.integers(-300, 300, N)
    b = rng.standard_normal(N) / np.where(a == 0, 1, a)
    c = rng.standard_normal(N)
    c[: N // 2] = -(a * b)[: N // 2]
    function = libm("fma", ctypes.c_double)
    want = np.array([function(x, y, z) for x, y, z in zip(a, b, c, strict=False)])
    got = apply("fma.rn.f64 %o, %i0, %i1, %i2;", "f64", ("f64", a), ("f64", b), ("f64", c))
    assert (got.view(np.uint64) == want.view(np.uint64)).all()


def test_arithmetic_gives_the_canonical_nan_and_moves_keep_payloads():
    odd = np.array([0x7FC12345, 0xFF800001], np.uint32)
    one = np.ones(2, np.float32)
    for text in ("fma.rn.f32 %o, %i0, %i1, %i1;", "add.f32 %o, %i0, %i1;", "min.NaN.f32 %o, %i0, %i1;"):
        got = apply(text, "f32", ("b32", odd), ("f32", one))
        assert (got.view(np.uint32) == 0x7FFFFFFF).all(), text
    assert (apply("mov.f32 %o, %i0;", "b32", ("b32", odd)) == odd).all()
    inf = np.array([np.inf], np.float32)
    got = apply("fma.rn.f32 %o, %i0, %i1, %i2;", "f32", ("f32", inf), ("f32", one[:1]), ("f32", -inf))
    assert got.view(np.uint32)[0] == 0x7FFFFFFF


def test_min_max_of_nan_and_zeros():
    a = np.array([np.nan, 1, 0.0, -0.0, 3], np.float32)
    b = np.array([2, np.nan, -0.0, 0.0, 2], np.float32)
    low = apply("min.f32 %o, %i0, %i1;", "f32", ("f32", a), ("f32", b))
    high = apply("max.f32 %o, %i0, %i1;", "f32", ("f32", a), ("f32", b))
    assert list(low[[0, 1, 4]]) == [2, 1, 2] and np.signbit(low[2:4]).all()
    assert list(high[[0, 1, 4]]) == [2, 1, 3] and not np.signbit(high[2:4]).any()


def test_flush_to_zero():
    tiny = np.array([1e-40, -1e-40, 2.0**-126], np.float32)
    half = np.full(3, 0.5, np.float32)
    got = apply("mul.ftz.f32 %o, %i0, %i1;", "f32", ("f32", tiny), ("f32", half))
    assert (got.view(np.uint32) == [0, 0x80000000, 0]).all()
    got = apply("mul.f32 %o, %i0, %i1;", "f32", ("f32", tiny), ("f32", half))
    assert (got == tiny * half).all() and got[2] != 0


def test_approximations_are_close():
    x = np.linspace(0.1, 20, 200).astype(np.float32)
    for text, want in (("ex2.approx.f32", np.exp2(x)), ("lg2.approx.f32", np.log2(x)), ("rsqrt.approx.f32", x**-0.5),
                       ("rcp.approx.f32", 1 / x), ("sin.approx.f32", np.sin(x)), ("cos.approx.f32", np.cos(x)),
                       ("tanh.approx.f32", np.tanh(x)), ("sqrt.rn.f32", np.sqrt(x)), ("rcp.rn.f32", 1 / x)):
        np.testing.assert_allclose(apply(f"{text} %o, %i0;", "f32", ("f32", x)), want, rtol=1e-6, atol=1e-6)


def test_half_precision():
    rng = np.random.default_rng(4)
    a, b, c = (rng.standard_normal(256).astype(np.float16) for _ in range(3))
    got = apply("fma.rn.f16 %o, %i0, %i1, %i2;", "f16", ("f16", a), ("f16", b), ("f16", c))
    want = (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float16)
    assert (got == want).all()  # exact in float64 at these magnitudes
    got = apply("cvt.rn.f16.f32 %o, %i0;", "f16", ("f32", a.astype(np.float32) * np.float32(1.0001)))
    assert (got == (a.astype(np.float32) * np.float32(1.0001)).astype(np.float16)).all()
    high, low = [1.0, 1.00390625, 3.4e38], [-2.0, 1.01171875, 0]
    packed = apply("cvt.rn.bf16x2.f32 %o, %i0, %i1;", "b32", ("f32", high), ("f32", low))
    assert [hex(v) for v in packed] == ["0x3f80c000", "0x3f803f82", "0x7f800000"]


@pytest.mark.parametrize(("text", "values", "want"), [
    ("cvt.rzi.s32.f32", [2.9, -2.9, 3e9, -3e9, np.nan], [2, -2, 2**31 - 1, -(2**31), 0]),
    ("cvt.rni.s32.f32", [2.5, 3.5, -2.5, 0.5, 1.5], [2, 4, -2, 0, 2]),
    ("cvt.rmi.s32.f32", [2.9, -2.1, 0, -0.5, 7], [2, -3, 0, -1, 7]),
    ("cvt.rzi.u32.f32", [2.9, -2.9, 5e9, np.nan, 7], [2, 0, 2**32 - 1, 0, 7]),
])
def test_float_to_integer(text, values, want):
    kind = text.split(".")[2]
    assert list(apply(f"{text} %o, %i0;", kind, ("f32", values))) == want


def test_integer_to_float_rounds_in_every_mode():
    x = np.array([16777217, 16777219, -16777217, 2**31 - 1], np.int32)
    assert list(apply("cvt.rn.f32.s32 %o, %i0;", "f32", ("s32", x))) == [16777216, 16777220, -16777216, 2**31]
    assert list(apply("cvt.rz.f32.s32 %o, %i0;", "f32", ("s32", x))) == [16777216, 16777218, -16777216, 2147483520]
    assert list(apply("cvt.rp.f32.s32 %o, %i0;", "f32", ("s32", x))) == [16777218, 16777220, -16777216, 2**31]
