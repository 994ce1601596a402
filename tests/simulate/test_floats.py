"""Floating-point instructions against the C library's fma and exact fractions, in every format and mode."""

import ctypes
import math
from fractions import Fraction

import numpy as np
import pytest

from peakgemm.tools.simulator.core import floats
from peakgemm.tools.simulator.core.lanes import Group, LaneSet
from peakgemm.tools.simulator.ops import fma
from simulator_cases import apply, libm, random_floats

N = 1024
FORMATS = {"f16": (10, -14, 65504.0), "bf16": (7, -126, (2 - 2.0**-7) * 2.0**127), "tf32": (10, -126, None),
           "e4m3": (3, -6, 448.0), "e5m2": (2, -14, 57344.0), "e2m3": (3, 0, 7.5), "e3m2": (2, -2, 28.0),
           "f32": (23, -126, None), "f64": (52, -1022, None)}  # fraction bits, the least exponent, the largest number
RNG = np.random.default_rng(7)


def nearest(exact, kind, mode="rn"):
    """A fraction rounded to a format of any range upwards, as a fraction."""
    fraction, least, _ = FORMATS[kind]
    if not exact:
        return exact
    size = abs(exact)
    top = size.numerator.bit_length() - size.denominator.bit_length()
    top -= size < Fraction(2)**top
    unit = Fraction(2)**(max(top, least) - fraction)
    how = {"rn": round, "rm": math.floor, "rp": math.ceil, "rz": int}[mode]
    return how(exact / unit) * unit


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


@pytest.mark.parametrize("seed", range(2))
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


# ---- sixteen bits and fewer, and directed modes ----------------------------------------------


def held(bits, kind):
    """Bits of float16 or bfloat16 as float64."""
    bits = np.asarray(bits, np.uint16)
    with np.errstate(invalid="ignore"):
        return (bits.view(np.float16) if kind == "f16" else (bits.astype("u4") << 16).view("f4")).astype(float)


def bits_of(values, kind):
    """Numbers of a format to its bits, NaN the canonical one."""
    with np.errstate(over="ignore"):
        values = np.asarray(values, float)
        bits = values.astype(np.float16).view("u2") if kind == "f16" else (values.astype("f4").view("u4") >> 16)
    return np.where(np.isnan(values), 0x7FFF, bits).astype(np.uint16)


def operands(kind, seed, n=512):
    """Bits of all magnitudes with special values among them, and neighbours in size, so that sums cancel."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 16, n).astype(np.uint16)
    bits[n // 2:] = bits_of(rng.standard_normal(n - n // 2), kind)
    special = bits_of([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2.0**-24, 0.5, FORMATS[kind][2]], kind)
    bits[:100] = rng.permutation(np.repeat(special, 10))
    return bits


def reference(function, kind, *values):
    """``function`` on fractions, rounded; on special values by float64."""
    out = []
    for items in zip(*values, strict=True):
        with np.errstate(invalid="ignore", over="ignore"):
            plain = float(function(*map(np.float64, items)))
        if np.isfinite(items).all():
            near = nearest(function(*map(Fraction, items)), kind)
            plain = math.copysign(float(near), plain)  # of a zero the sign
            if abs(near) > Fraction(FORMATS[kind][2]):
                plain = math.copysign(np.inf, plain)
        out.append(plain)
    return np.array(out)


def run_on(text, kind, packed, *inputs):
    """Bits of ``text`` on bits of ``kind``; in pairs where ``packed``, the upper half from the reversed inputs."""
    if not packed:
        return apply(text, "b16", *(("b16", x) for x in inputs))
    words = [x.astype("u4") | x[::-1].astype("u4") << 16 for x in inputs]
    got = apply(text, "b32", *(("b32", x) for x in words))
    assert ((got >> 16) == (got & 0xFFFF)[::-1]).all()
    return (got & 0xFFFF).astype(np.uint16)


ARITHMETIC = {"add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y,
              "fma.rn": lambda x, y, z: x * y + z}
ENDS = {"": lambda v: v, ".sat": lambda v: np.where(v > 0, np.minimum(v, 1), 0.0),
        ".relu": lambda v: np.where(v <= 0, 0.0, v)}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize(("name", "end"), [(name, end) for name in ARITHMETIC for end in ENDS
                                           if end != ".relu" or name == "fma.rn"])
def test_arithmetic_of_sixteen_bits(name, end, kind, packed):
    count = 3 if name == "fma.rn" else 2
    inputs = [operands(kind, seed) for seed in range(count)]
    want = ENDS[end](reference(ARITHMETIC[name], kind, *(held(x, kind) for x in inputs)))
    text = f"{name}{end}.{kind}{'x2' * packed} %o, {', '.join(f'%i{i}' for i in range(count))};"
    assert list(run_on(text, kind, packed, *inputs)) == list(bits_of(want, kind))


def test_ftz_of_float16_flushes_its_own_subnormals():
    a, b = bits_of([2.0**-20, 2.0**-14, 1, -(2.0**-15)], "f16"), bits_of([2.0**-20, -(2.0**-15), 2.0**-15, 0], "f16")
    got = run_on("add.ftz.f16 %o, %i0, %i1;", "f16", False, a, b)
    assert list(held(got, "f16")) == [0, 2.0**-14, 1, 0]


def extreme(kind, function, nan):
    def of(*values):
        values = np.array(values)
        bad = np.isnan(values)
        if nan and bad.any():
            return np.nan
        values = values[~bad]
        return sorted(values, key=lambda v: (v, math.copysign(1, v)))[0 if function == "min" else -1] if len(values) \
            else np.nan
    return of


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("how", ["", ".NaN", ".xorsign.abs"])
def test_extremes_of_sixteen_bits(name, kind, how, packed):
    a, b = operands(kind, 3), operands(kind, 4)
    choose, x, y = extreme(kind, name, "NaN" in how), held(a, kind), held(b, kind)
    if "xorsign" in how:
        want = [math.copysign(choose(abs(u), abs(v)), math.copysign(1, u) * math.copysign(1, v))
                for u, v in zip(x, y, strict=True)]
    else:
        want = [choose(u, v) for u, v in zip(x, y, strict=True)]
    got = run_on(f"{name}{how}.{kind}{'x2' * packed} %o, %i0, %i1;", kind, packed, a, b)
    assert list(got) == list(bits_of(want, kind))


ORDERED = {"eq": np.equal, "ne": lambda x, y: (x != y) & (x == x) & (y == y), "lt": np.less, "le": np.less_equal,
           "gt": np.greater, "ge": np.greater_equal, "num": lambda x, y: (x == x) & (y == y)}
COMPARISONS = ORDERED | {"nan": lambda x, y: ~ORDERED["num"](x, y)} | {
    f"{name}u": (lambda x, y, of=of: of(x, y) | ~ORDERED["num"](x, y))
    for name, of in ORDERED.items() if name != "num"}  # fmt: skip


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_of_sixteen_bits(name, kind):
    a, b = operands(kind, 5), operands(kind, 6)
    a[-50:] = b[-50:]
    want = COMPARISONS[name](held(a, kind), held(b, kind))
    one = int(bits_of([1], kind)[0])
    assert list(run_on(f"set.{name}.{kind}.{kind} %o, %i0, %i1;", kind, False, a, b)) == list(want * one)
    assert list(run_on(f"set.{name}.{kind}x2.{kind}x2 %o, %i0, %i1;", kind, True, a, b)) == list(want * one)
    assert list(run_on(f"set.{name}.u32.{kind}x2 %o, %i0, %i1;", kind, True, a, b)) == list(want * 0xFFFF)
    got = apply(f"set.{name}.s32.{kind} %o, %i0, %i1;", "b32", ("b16", a), ("b16", b))
    assert list(got) == list(want * 0xFFFFFFFF)
    text = f"setp.{name}.{kind} %p1, %i0, %i1; selp.b16 %o, 1, 0, %p1;"
    assert list(run_on(text, kind, False, a, b)) == list(want)
    text = (f"setp.{name}.{kind}x2 %p1|%p2, %i0, %i1; selp.b16 %h1, 1, 0, %p1; selp.b16 %h2, 1, 0, %p2;"
            "mov.b32 %o, {%h1, %h2};")
    assert list(run_on(text, kind, True, a, b)) == list(want)


def test_set_takes_a_third_condition():
    a, b, gate = np.array([1, 1, 2, 2], "u4"), np.array([1, 2, 1, 3], "u4"), np.array([0, 1, 0, 1], "u4")
    text = "setp.ne.u32 %p1, %i2, 0; set.lt.{}.{}.u32 %o, %i0, %i1, {}%p1;"
    for logic, sign, want in (("and", "", [0, 1, 0, 1]), ("or", "", [0, 1, 0, 1]), ("xor", "", [0, 0, 0, 0]),
                              ("or", "!", [1, 1, 1, 1]), ("and", "!", [0, 0, 0, 0])):
        got = apply(text.format(logic, "u32", sign), "u32", ("u32", a), ("u32", b), ("u32", gate))
        assert list(got) == [0xFFFFFFFF * x for x in want], (logic, sign)
        got = apply(text.format(logic, "f32", sign), "f32", ("u32", a), ("u32", b), ("u32", gate))
        assert list(got) == want


def codes_of(kind):
    """The value of each code of a format of 8 bits or fewer, from its definition."""
    fraction, least, largest = FORMATS[kind]
    size = 32 if kind in ("e2m3", "e3m2") else 128
    values = []
    for code in range(size):
        exponent, part = divmod(code, 1 << fraction)
        value = (part + (exponent > 0) * 2**fraction) * 2.0**(max(exponent, 1) - 1 + least - fraction)
        values.append(value if value <= largest else np.inf if kind == "e5m2" and not part else np.nan)
    return np.array(values + [-value for value in values])


@pytest.mark.parametrize("kind", ["e4m3", "e5m2", "e2m3", "e3m2"])
def test_formats_of_eight_bits(kind):
    values, largest = codes_of(kind), FORMATS[kind][2]
    count = len(values)
    codes = np.arange(count, dtype=np.uint16)
    words = apply(f"cvt.rn.f16x2.{kind}x2 %o, %i0;", "b32", ("b16", codes | codes[::-1] << 8))
    assert list(words & 0xFFFF) == list(bits_of(values, "f16")) == list((words >> 16)[::-1])
    x = np.concatenate([values[np.isfinite(values)], RNG.standard_normal(300) * 4.0**RNG.integers(-8, 9, 300),
                        [1e30, -1e30, np.inf, -np.inf, np.nan]]).astype(np.float32)
    finite = np.sort(np.unique(values[np.isfinite(values)]))
    x = np.concatenate([x, (finite[1:] + finite[:-1]) / 2]).astype(np.float32)[-900:]  # ties

    def code(value, relu):
        if np.isnan(value):
            return 0x7F if count == 256 else 31
        if relu and value <= 0:
            value = 0.0
        near = nearest(Fraction(float(np.clip(value, -largest, largest))), kind)
        near = min(abs(float(near)), largest)
        return int(np.flatnonzero(values[:count // 2] == near)[0]) | (count // 2 if np.signbit(value) else 0)

    for relu in (False, True):
        text = f"cvt.rn.satfinite{'.relu' * relu}.{kind}x2.f32 %o, %i0, %i1;"
        got = apply(text, "b16", ("f32", x[::-1]), ("f32", x))
        want = [code(value, relu) for value in x]
        assert list(got & 0xFF) == want and list(got >> 8) == want[::-1]
    halves = operands("f16", 9)
    got = apply(f"cvt.rn.satfinite.{kind}x2.f16x2 %o, %i0;", "b16", ("b32", halves.astype("u4") | 0x3C000000))
    assert list(got & 0xFF) == [code(value, False) for value in held(halves, "f16")] and len(set(got >> 8)) == 1


def test_powers_of_two_in_eight_bits():
    x = np.array([0, 1, 1.5, 3, -4, 2.0**-127, 3e38, 0.75, np.inf, np.nan], np.float32)
    for mode, want in (("rz", [0, 127, 127, 128, 129, 0, 254, 126, 254, 255]),
                       ("rp", [0, 127, 128, 129, 129, 0, 254, 127, 254, 255])):
        got = apply(f"cvt.{mode}.satfinite.ue8m0x2.f32 %o, %i0, %i0;", "b16", ("f32", x))
        assert list(got & 0xFF) == want == list(got >> 8)
    got = apply("cvt.rn.bf16x2.ue8m0x2 %o, %i0;", "b32", ("b16", [127 | 130 << 8, 255 | 0 << 8]))
    assert [hex(word) for word in got] == ["0x41003f80", "0x407fff"]


@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32"])
@pytest.mark.parametrize("how", ["", ".relu", ".satfinite"])
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_conversions_to_fewer_bits(kind, how, mode):
    random = RNG.integers(0, 2**32, 500, dtype=np.uint64).astype("u4").view("f4")
    x = np.concatenate([random[~np.isnan(random)],
                        [0.0, -0.0, 65504, 65519, 65520, -65536, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 2.0**-25,
                         1.00390625, 1.01171875, -1e-45]]).astype(np.float32)
    limit = FORMATS[kind][2] or (2 - 2.0**-10) * 2.0**127

    def want(value):
        if np.isnan(value) or (np.isinf(value) and how != ".satfinite"):
            return np.inf if value > 0 else (0.0 if how == ".relu" else -np.inf) if np.isinf(value) else np.nan
        if how == ".relu" and value <= 0:
            return 0.0
        value = float(np.clip(value, -limit, limit)) if how == ".satfinite" else float(value)
        near = nearest(Fraction(value), kind, mode)
        if abs(near) > Fraction(limit):
            up = mode == "rn" or mode == ("rp" if near > 0 else "rm")
            return math.copysign(np.inf if up else limit, near)
        return math.copysign(float(near), value)

    expected = np.array([want(value) for value in x])
    got = apply(f"cvt.{mode}{how}.{kind}.f32 %o, %i0;", "b32" if kind == "tf32" else "b16", ("f32", x))
    if kind == "tf32":
        bits = expected.astype("f4").view("u4")
        assert list(got) == list(np.where(np.isnan(expected), 0x7FFFFFFF, bits))
        return
    assert list(got) == list(bits_of(expected, kind))
    got = apply(f"cvt.{mode}{how}.{kind}x2.f32 %o, %i1, %i0;", "b32", ("f32", x), ("f32", x[::-1]))
    assert list(got & 0xFFFF) == list(bits_of(expected, kind)) == list(got >> 16)[::-1]


def test_integers_to_sixteen_bits_in_every_mode():
    x = np.array([257, -257, 65519, 2**31 - 1, -(2**31), 3, 131071], np.int32)
    for kind in ("f16", "bf16"):
        for mode in ("rn", "rz", "rm", "rp"):
            near = [nearest(Fraction(int(v)), kind, mode) for v in x]
            limit = Fraction(FORMATS[kind][2])
            want = [float(v) if abs(v) <= limit else math.copysign(
                np.inf if mode == "rn" or mode == ("rp" if v > 0 else "rm") else float(limit), v) for v in near]
            assert list(apply(f"cvt.{mode}.{kind}.s32 %o, %i0;", "b16", ("s32", x))) == list(bits_of(want, kind)), mode


DOUBLES = np.concatenate([RNG.standard_normal(60) * 2.0**RNG.integers(-60, 60, 60), [5e-324, -5e-324, 1e308, -1.7e308],
                          [2.0**-1022, 1.0, -1.0, 0.0, -0.0, np.inf, np.nan, 3.0, 1e-200, -1e-200]])
EXACT = {"add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y,
         "fma": lambda x, y, z: x * y + z, "rcp": lambda x: 1 / x}


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("name", EXACT)
def test_directed_modes(name, mode, kind):
    inputs = hard_operands(3) if kind == "f32" else (DOUBLES, np.roll(DOUBLES, 11), np.roll(-DOUBLES, 5))
    inputs = inputs[:EXACT[name].__code__.co_argcount]
    if name in ("add", "sub"):
        inputs[1][:8] = inputs[0][:8] * (-1 if name == "add" else 1)
    names, limits = ", ".join(f"%i{i}" for i in range(len(inputs))), np.finfo(inputs[0].dtype)
    got = apply(f"{name}.{mode}.{kind} %o, {names};", kind, *((kind, x) for x in inputs))
    checked = 0
    for value, *items in zip(got.tolist(), *(x.tolist() for x in inputs), strict=True):
        if not np.isfinite(items).all() or (name in ("div", "rcp") and items[-1] == 0):
            continue
        exact = EXACT[name](*map(Fraction, items))
        near = nearest(exact, kind, mode)
        if abs(near) > Fraction(float(limits.max)):
            up = mode == ("rp" if near > 0 else "rm")
            assert value == (np.inf if up else limits.max) * (1 if near > 0 else -1)
        else:
            assert Fraction(value) == near, (items, value)
        if not exact and name in ("add", "sub"):
            first, second = items[0], items[1] if name == "add" else -items[1]
            opposite = math.copysign(1, first) != math.copysign(1, second)
            assert math.copysign(1, value) == (-1 if mode == "rm" else 1) if opposite else math.copysign(1, first)
        checked += 1
    assert checked > 40


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_roots_and_integers_in_directed_modes(mode):
    for kind, x in (("f32", np.abs(hard_operands(3)[0])), ("f64", np.abs(DOUBLES))):
        x = x[np.isfinite(x)]
        for value, root in zip(x, apply(f"sqrt.{mode}.{kind} %o, %i0;", kind, (kind, x)), strict=True):
            other = np.nextafter(root, root.dtype.type(np.inf if mode != "rp" else -np.inf))
            low, high = (root, other) if mode != "rp" else (other, root)
            low, root, high = (Fraction(float(v)) for v in (low, root, high))
            assert root**2 == Fraction(float(value)) or low**2 < Fraction(float(value)) < high**2
    whole = np.array([2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**60 + 3, 7], np.int64)
    got = apply(f"cvt.{mode}.f64.s64 %o, %i0;", "f64", ("s64", whole))
    assert [Fraction(v) for v in got.tolist()] == [nearest(Fraction(int(v)), "f64", mode) for v in whole]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_approximations_of_sixteen_bits(kind):
    x = bits_of(np.linspace(-3, 3, 64), kind)
    for name, function in (("tanh.approx", np.tanh), ("ex2.approx.ftz" if kind == "bf16" else "ex2.approx", np.exp2)):
        want = function(held(x, kind))
        for packed in (False, True):
            got = held(run_on(f"{name}.{kind}{'x2' * packed} %o, %i0;", kind, packed, x), kind)
            np.testing.assert_allclose(got, want, rtol=2.0**-FORMATS[kind][0], atol=0)


@pytest.mark.parametrize("text", ["add.rn", "mul.rz", "fma.rp"])
def test_pairs_of_float32(text):
    rng = np.random.default_rng(2)
    a, b, c = (rng.standard_normal((64, 2)).astype("f4") for _ in range(3))
    a[0] = np.inf, np.nan
    names = "%i0, %i1, %i2" if "fma" in text else "%i0, %i1"
    inputs = (a, b, c)[:names.count("%")]
    got = apply(f"{text}.f32x2 %o, {names};", "u64", *(("u64", x.view("u8")[:, 0]) for x in inputs)).view("u4")
    want = [apply(f"{text}.f32 %o, {names};", "b32", *(("f32", x[:, k]) for x in inputs)) for k in (0, 1)]
    assert (got.reshape(-1, 2) == np.stack(want, axis=1)).all()
