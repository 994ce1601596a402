"""Integer, logic, conversion and select instructions against Python integers."""

import numpy as np
import pytest

from simulator_cases import apply

EDGES = [0, 1, 2, 3, 5, 31, 32, 33, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32 - 2, 0x12345678]
A = np.array([a for a in EDGES for _ in EDGES], np.uint32)
B = np.array([b for _ in EDGES for b in EDGES], np.uint32)
C = np.roll(A, 7) ^ B


def signed(v, bits=32):
    v = int(v) & ((1 << bits) - 1)
    return v - (1 << bits) if v >> (bits - 1) else v


def trunc_div(a, b):
    q = abs(a) // abs(b)
    return -q if (a < 0) != (b < 0) else q


def bfe(a, position, length, sign):
    fill = a >> min(position + length - 1, 31) & 1 if sign and length else 0
    return sum((a >> position + i & 1 if i < length and position + i < 32 else fill) << i for i in range(32))


TWO = {
    "add.s32": lambda a, b: a + b, "sub.u32": lambda a, b: a - b, "mul.lo.s32": lambda a, b: a * b,
    "mul.hi.u32": lambda a, b: a * b >> 32, "mul.hi.s32": lambda a, b: signed(a) * signed(b) >> 32,
    "and.b32": lambda a, b: a & b, "or.b32": lambda a, b: a | b, "xor.b32": lambda a, b: a ^ b,
    "min.s32": lambda a, b: min(signed(a), signed(b)), "max.u32": max,
    "shl.b32": lambda a, b: a << b if b < 32 else 0, "shr.u32": lambda a, b: a >> b if b < 32 else 0,
    "shr.s32": lambda a, b: signed(a) >> min(b, 31),
    "div.u32": lambda a, b: a // b if b else 2**32 - 1, "rem.u32": lambda a, b: a % b if b else a,
    "div.s32": lambda a, b: trunc_div(signed(a), signed(b)) if b else -1,
    "rem.s32": lambda a, b: signed(a) - signed(b) * trunc_div(signed(a), signed(b)) if b else a,
    "mul24.lo.s32": lambda a, b: signed(a, 24) * signed(b, 24),
    "mul24.lo.u32": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "mul24.hi.s32": lambda a, b: signed(a, 24) * signed(b, 24) >> 16,
    "mul24.hi.u32": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 16,
    "max.relu.s32": lambda a, b: max(signed(a), signed(b), 0), "min.relu.s32": lambda a, b: max(
        min(signed(a), signed(b)), 0),
    "add.u16x2": lambda a, b: parts(a, b, 16, False, lambda x, y: x + y),
    "add.s16x2": lambda a, b: parts(a, b, 16, True, lambda x, y: x + y),
    "min.u16x2": lambda a, b: parts(a, b, 16, False, min), "max.s16x2": lambda a, b: parts(a, b, 16, True, max),
    "min.s16x2": lambda a, b: parts(a, b, 16, True, min), "max.u16x2": lambda a, b: parts(a, b, 16, False, max),
    "max.s16x2.relu": lambda a, b: parts(a, b, 16, True, lambda x, y: max(x, y, 0)),
    "bmsk.clamp.b32": lambda a, b: ((1 << min(b, 32)) - 1) << min(a, 32),
    "bmsk.wrap.b32": lambda a, b: ((1 << (b & 31)) - 1) << (a & 31),
    "szext.clamp.u32": lambda a, b: a & (1 << min(b, 32)) - 1,
    "szext.wrap.u32": lambda a, b: a & (1 << (b & 31)) - 1,
    "szext.clamp.s32": lambda a, b: signed(a, min(b, 32)) if b else 0,
    "szext.wrap.s32": lambda a, b: signed(a, b & 31) if b & 31 else 0,
    "cvt.pack.sat.s16.s32": lambda a, b: clamp(a, 16, True) << 16 | clamp(b, 16, True),
    "cvt.pack.sat.u16.s32": lambda a, b: clamp(a, 16, False) << 16 | clamp(b, 16, False),
}  # fmt: skip


def parts(a, b, bits, sign, function):
    """``function`` on each part of ``bits`` of two words."""
    ones, out = (1 << bits) - 1, 0
    for place in range(0, 32, bits):
        x, y = (v >> place & ones for v in (a, b))
        out |= (function(signed(x, bits), signed(y, bits)) if sign else function(x, y)) % (ones + 1) << place
    return out


def clamp(a, bits, sign):
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if sign else (0, (1 << bits) - 1)
    return min(max(signed(a), low), high) & ((1 << bits) - 1)


def video(bits, sign, total, function, saturate=False):
    """A SIMD video instruction; ``total``: the sum of its results and the third operand."""
    def of(a, b, c):
        def element(x, y):
            value = function(x, y)
            limits = (-(1 << bits - 1), (1 << bits - 1) - 1) if sign else (0, (1 << bits) - 1)
            values.append(min(max(value, limits[0]), limits[1]) if saturate else value)
            return values[-1]
        values = []
        out = parts(a, b, bits, sign, element)
        return sum(values) + c if total else out
    return of


def find_set(mask, base, n):
    """As the PTX ISA has ``fns``."""
    if n == 0:
        return base if base < 32 and mask >> base & 1 else 0xFFFFFFFF
    place, left = base, abs(n)
    while 0 <= place < 32:
        left -= mask >> place & 1
        if not left:
            return place
        place += 1 if n > 0 else -1
    return 0xFFFFFFFF


@pytest.mark.parametrize("text", TWO)
def test_two_operands(text):
    got = apply(f"{text} %o, %i0, %i1;", "b32", ("b32", A), ("b32", B))
    want = [TWO[text](int(a), int(b)) & 0xFFFFFFFF for a, b in zip(A, B, strict=False)]
    assert list(got) == want


THREE = {
    "mad.lo.s32": lambda a, b, c: a * b + c, "mad.hi.u32": lambda a, b, c: (a * b >> 32) + c,
    "sad.u32": lambda a, b, c: abs(a - b) + c,
    "bfe.u32": lambda a, b, c: bfe(a, b, c, False), "bfe.s32": lambda a, b, c: bfe(a, b, c, True),
    "shf.l.wrap.b32": lambda a, b, c: ((b << 32 | a) << (c & 31)) >> 32,
    "shf.r.clamp.b32": lambda a, b, c: (b << 32 | a) >> min(c, 32),
    "dp4a.s32.s32": lambda a, b, c: c + sum(signed(a >> 8 * k, 8) * signed(b >> 8 * k, 8) for k in range(4)),
    "dp2a.lo.u32.u32": lambda a, b, c: c + sum((a >> 16 * k & 0xFFFF) * (b >> 8 * k & 255) for k in range(2)),
    "dp2a.hi.s32.s32": lambda a, b, c: c + sum(signed(a >> 16 * k, 16) * signed(b >> 8 * k + 16, 8) for k in range(2)),
    "lop3.b32": lambda a, b, c: (a & b) ^ c,
    "mad24.lo.s32": lambda a, b, c: signed(a, 24) * signed(b, 24) + c,
    "mad24.hi.u32": lambda a, b, c: ((a & 0xFFFFFF) * (b & 0xFFFFFF) >> 16) + c,
    "vabsdiff4.u32.u32.u32": video(8, False, False, lambda x, y: abs(x - y)),
    "vabsdiff4.u32.s32.s32": video(8, True, False, lambda x, y: abs(x - y)),
    "vabsdiff4.u32.u32.u32.add": video(8, False, True, lambda x, y: abs(x - y)),
    "vabsdiff2.u32.u32.u32.add": video(16, False, True, lambda x, y: abs(x - y)),
    "vabsdiff2.s32.s32.s32": video(16, True, False, lambda x, y: abs(x - y)),
    "vadd4.u32.u32.u32.sat": video(8, False, False, lambda x, y: x + y, True),
    "vadd2.s32.s32.s32.sat": video(16, True, False, lambda x, y: x + y, True),
    "vsub4.s32.s32.s32": video(8, True, False, lambda x, y: x - y),
    "vmin2.s32.s32.s32": video(16, True, False, min), "vmax4.u32.u32.u32": video(8, False, False, max),
    "fns.b32": lambda a, b, c: find_set(a, b, signed(c)),
    "cvt.pack.sat.u8.s32.b32": lambda a, b, c: c << 16 | clamp(a, 8, False) << 8 | clamp(b, 8, False),
    "cvt.pack.sat.s4.s32.b32": lambda a, b, c: c << 8 | clamp(a, 4, True) << 4 | clamp(b, 4, True),
    "cvt.pack.sat.u2.s32.b32": lambda a, b, c: c << 4 | clamp(a, 2, False) << 2 | clamp(b, 2, False),
}  # fmt: skip


@pytest.mark.parametrize("text", THREE)
def test_three_operands(text):
    tail = ", 0x6a" if text == "lop3.b32" else ""
    small = C & np.uint32(63) if text.startswith(("bfe", "shf")) else C
    middle = B & np.uint32(63) if text.startswith(("bfe", "fns")) else B
    small = (C & np.uint32(15)) - np.uint32(7) if text.startswith("fns") else small
    got = apply(f"{text} %o, %i0, %i1, %i2{tail};", "b32", ("b32", A), ("b32", middle), ("b32", small))
    want = [THREE[text](int(a), int(b), int(c)) & 0xFFFFFFFF for a, b, c in zip(A, middle, small, strict=False)]
    assert list(got) == want


X = A.astype(np.uint64) * np.uint64(0x100000001)
Y = B.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
PAIRS = "mov.b64 {%r1, %r2}, %i0; mov.b64 {%r3, %r4}, %i1;"
BYTES = np.array([0, 1, 127, 128, 255, 256, 65535], np.uint32)
OTHERS = [  # text, type of the result, types and values of the operands, what it is
    ("prmt.b32 %o, %i0, %i1, 0x3715;", "b32", (("b32", A), ("b32", B)), lambda a, b: sum(
        ((b << 32 | a) >> 8 * k & 255) << 8 * i for i, k in enumerate((5, 1, 7, 3)))),
    ("bfi.b32 %o, %i0, %i1, 4, 8;", "b32", (("b32", A), ("b32", B)), lambda a, b: b & ~0xFF0 | (a & 255) << 4),
    ("popc.b32 %o, %i0;", "b32", (("b32", A),), lambda a: bin(a).count("1")),
    ("clz.b32 %o, %i0;", "b32", (("b32", A),), lambda a: 32 - a.bit_length()),
    ("brev.b32 %o, %i0;", "b32", (("b32", A),), lambda a: int(f"{a:032b}"[::-1], 2)),
    ("bfind.u32 %o, %i0;", "b32", (("b32", A),), lambda a: a.bit_length() - 1),
    ("mul.wide.s32 %o, %i0, %i1;", "b64", (("b32", A), ("b32", B)), lambda a, b: signed(a) * signed(b)),
    ("mul.hi.u64 %o, %i0, %i1;", "b64", (("u64", X), ("u64", Y)), lambda a, b: a * b >> 64),
    ("mul.hi.s64 %o, %i0, %i1;", "b64", (("u64", X), ("u64", Y)), lambda a, b: signed(a, 64) * signed(b, 64) >> 64),
    (f"{PAIRS} add.cc.u32 %r5, %r1, %r3; addc.u32 %r6, %r2, %r4; mov.b64 %o, {{%r5, %r6}};", "b64",
     (("u64", X), ("u64", Y)), lambda a, b: a + b),
    (f"{PAIRS} mul.lo.u32 %r5, %r1, %r3; mul.hi.u32 %r6, %r1, %r3; mad.lo.cc.u32 %r6, %r1, %r4, %r6;"
     "madc.hi.u32 %r7, %r1, %r4, 0; mad.lo.cc.u32 %r6, %r2, %r3, %r6; madc.hi.cc.u32 %r7, %r2, %r3, %r7;"
     "addc.u32 %r8, 0, 0; mad.lo.cc.u32 %r7, %r2, %r4, %r7; madc.hi.u32 %r8, %r2, %r4, %r8; mov.b64 %o, {%r7, %r8};",
     "b64", (("u64", X), ("u64", Y)), lambda a, b: a * b >> 64),
    ("cvt.s32.s8 %o, %i0;", "b32", (("b32", BYTES),), lambda a: signed(a, 8)),
    ("cvt.u32.u16 %o, %i0;", "b32", (("b16", BYTES),), lambda a: a),
    ("cvt.s64.s32 %o, %i0;", "b64", (("b32", A),), signed),
    ("cvt.sat.u8.s32 %r1, %i0; cvt.u32.u8 %o, %r1;", "b32", (("b32", A),), lambda a: clamp(a, 8, False)),
]


@pytest.mark.parametrize(("text", "result", "operands", "function"), OTHERS, ids=[row[0][:30] for row in OTHERS])
def test_other_forms(text, result, operands, function):
    want = [function(*map(int, values)) % 2 ** int(result[1:]) for values in zip(
        *(values for _, values in operands), strict=True)]
    assert list(apply(text, result, *operands)) == want


def test_predicates():
    text = ("setp.lt.s32 %p1, %i0, %i1; setp.eq.and.u32 %p2|%p3, %i0, %i1, %p1; not.pred %p4, %p1;"
            "@%p4 add.s32 %i0, %i0, 100; @!%p4 sub.s32 %i0, %i0, 100; selp.b32 %o, %i0, %i1, !%p3;")
    text = text.replace("!%p3", "%p3")
    a, b = np.array([1, 5, 3], np.int32), np.array([2, 2, 3], np.int32)
    assert list(apply(text, "s32", ("s32", a), ("s32", b))) == [-99, 2, 3]


def test_comparisons_with_nan():
    a = np.array([np.nan, 1, 2], np.float32)
    b = np.array([1, 1, 1], np.float32)
    for name, want in (("eq", [0, 1, 0]), ("ne", [0, 0, 1]), ("equ", [1, 1, 0]), ("neu", [1, 0, 1]), ("gtu", [1, 0, 1]),
                       ("le", [0, 1, 0]), ("num", [0, 1, 1]), ("nan", [1, 0, 0])):
        got = apply(f"setp.{name}.f32 %p1, %i0, %i1; selp.u32 %o, 1, 0, %p1;", "u32", ("f32", a), ("f32", b))
        assert list(got) == want, name
