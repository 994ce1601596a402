"""Integer and logic instructions."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..core.floats import flush
from ..core.lanes import DTYPES, Group
from ..front.program import CARRY
from ..front.ptx import BYTES, Imm, Instruction, Pair, Reg
from .build import Build, Step, builder
from .float import arithmetic, float_min_max, halves

WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def mul_high(a: Any, b: Any, kind: str) -> Any:
    """The upper half of a product."""
    if kind in WIDER:
        wide = np.asarray(a).astype(DTYPES[WIDER[kind]]) * np.asarray(b).astype(DTYPES[WIDER[kind]])
        return (wide >> DTYPES[WIDER[kind]](8 * BYTES[kind])).astype(DTYPES[kind])
    a, b = np.asarray(a), np.asarray(b)
    x, y = a.astype(np.uint64), b.astype(np.uint64)
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x0, x1, y0, y1 = x & low, x >> half, y & low, y >> half
    middle = x1 * y0 + ((x0 * y0) >> half)
    other = x0 * y1 + (middle & low)
    high = x1 * y1 + (middle >> half) + (other >> half)
    if kind == "s64":
        high = high - np.where(a < 0, y, 0) - np.where(b < 0, x, 0)
    return high.astype(DTYPES[kind])


def mul_wide(a: Any, b: Any, kind: str) -> Any:
    """The product in twice the width."""
    dtype = DTYPES[WIDER[kind]]
    return np.multiply(a, b, dtype=dtype)


@builder("add", "sub")
def add(b: Build, ins: Instruction) -> Step:
    kind = ins.types[-1]
    if kind.startswith(("f", "bf")):
        return arithmetic(b, ins)
    function = np.add if ins.base == "add" else np.subtract
    if ins.has("sat"):
        return b.simple(ins, kind, lambda x, y: np.clip(function(np.asarray(x).astype(np.int64), y),
                                                        -2**31, 2**31 - 1).astype(np.int32))
    if ins.has("cc"):
        return _carry(b, ins, kind, False)
    return b.ufunc(ins, kind, function)


@builder("addc", "subc", "madc")
def addc(b: Build, ins: Instruction) -> Step:
    return _carry(b, ins, ins.types[-1], True)


def _carry(b: Build, ins: Instruction, kind: str, takes: bool) -> Step:
    """The flag is the carry of the adder: a subtraction adds the complement, and sets it where nothing is borrowed."""
    signed, kind = kind, f"u{8 * BYTES[kind]}"
    minus, gives, dtype = ins.base.startswith("sub"), ins.has("cc"), DTYPES[kind]
    put = b.results(ins, (ins.operands[0], kind), *[(Reg(CARRY), "pred")] * gives)
    left, right = (b.src(ins, operand, kind) for operand in ins.operands[-2:])
    if ins.base.startswith("mad"):
        x, y = (b.src(ins, operand, signed) for operand in ins.operands[1:3])
        product = (lambda a, b: mul_high(a, b, signed)) if ins.has("hi") else np.multiply

        def left(group: Group) -> Any:
            return np.asarray(product(x(group), y(group))).astype(DTYPES[kind])

    flag = b.src(ins, Reg(CARRY), "pred") if takes else lambda group: np.bool_(minus)

    def step(group: Group) -> None:
        x, y, more = np.asarray(left(group)), np.asarray(right(group)), flag(group).astype(dtype)
        total = x + (~y if minus else y)
        out = total + more
        put(group, out, *[(total < x) | (out < total)] * gives)

    return step


@builder("mul")
def mul(b: Build, ins: Instruction) -> Step:
    kind = ins.types[-1]
    if kind.startswith(("f", "bf")):
        return arithmetic(b, ins)
    if ins.has("wide"):
        return b.simple(ins, kind, lambda x, y: mul_wide(x, y, kind), WIDER[kind])
    if ins.has("hi"):
        return b.simple(ins, kind, lambda x, y: mul_high(x, y, kind))
    return b.ufunc(ins, kind, np.multiply)


@builder("mul24", "mad24")
def mul24(b: Build, ins: Instruction) -> Step:
    kind, shift = ins.types[-1], 0 if ins.has("lo") else 16
    if not ins.has("lo", "hi"):
        raise ins.unknown()

    def product(x: Any, y: Any) -> Any:
        x, y = ((np.asarray(v) << DTYPES[kind](8) >> DTYPES[kind](8)).astype(np.int64) for v in (x, y))
        return (x * y >> shift).astype(DTYPES[kind])

    return b.simple(ins, kind, product if ins.base == "mul24" else lambda x, y, z: product(x, y) + z)


@builder("mad")
def mad(b: Build, ins: Instruction) -> Step:
    kind = ins.types[-1]
    if kind.startswith("f"):
        return arithmetic(b, ins)
    if ins.has("sat"):
        raise ins.unknown()
    if ins.has("cc"):
        return _carry(b, ins, kind, False)
    result = WIDER[kind] if ins.has("wide") else kind
    put = b.dst(ins, ins.operands[0], result)
    x, y = (b.src(ins, operand, kind) for operand in ins.operands[1:3])
    z = b.src(ins, ins.operands[3], result)
    product = partial(mul_wide, kind=kind) if ins.has("wide") else partial(mul_high, kind=kind) if ins.has("hi") else \
        np.multiply
    return lambda group: put(group, product(x(group), y(group)) + z(group))


@builder("sad")
def sad(b: Build, ins: Instruction) -> Step:
    return b.simple(ins, ins.types[-1], lambda x, y, z: np.where(x < y, y - x, x - y) + z)


@builder("div", "rem")
def div(b: Build, ins: Instruction) -> Step:
    kind = ins.types[-1]
    if kind.startswith("f"):
        return arithmetic(b, ins)
    dtype = DTYPES[kind]

    def compute(x: Any, y: Any) -> Any:
        x, y = np.broadcast_arrays(np.asarray(x), np.asarray(y))
        safe = np.where(y == 0, dtype(1), y)
        if kind.startswith("s"):  # C truncates, NumPy floors
            q = x // safe
            r = x - q * safe
            q = q + ((r != 0) & ((x < 0) != (safe < 0)))
        else:
            q = x // safe
        out = q if ins.base == "div" else x - q * safe
        # by zero the hardware's division routine gives all ones, and the dividend as remainder
        return np.where(y == 0, dtype(-1 if kind.startswith("s") else np.iinfo(dtype).max)
                        if ins.base == "div" else x, out).astype(dtype)

    return b.simple(ins, kind, compute)


@builder("abs", "neg")
def abs_neg(b: Build, ins: Instruction) -> Step:
    kind, function = ins.types[-1], np.abs if ins.base == "abs" else np.negative
    if kind in ("bf16", "bf16x2"):
        return halves(b, ins, function)
    return b.simple(ins, kind, (lambda x: flush(function(x))) if ins.has("ftz") else lambda x: function(x))


@builder("min", "max")
def min_max(b: Build, ins: Instruction) -> Step:
    kind, function = ins.types[-1], np.minimum if ins.base == "min" else np.maximum
    if kind.startswith(("f", "bf")):
        return float_min_max(b, ins)
    if ins.has("relu"):
        return b.simple(ins, kind, lambda x, y: np.maximum(function(x, y), x.dtype.type(0)))
    return b.ufunc(ins, kind, function)


@builder("and", "or", "xor")
def logic(b: Build, ins: Instruction) -> Step:
    kind = ins.types[-1]
    if kind == "pred":
        return b.simple(ins, kind, {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}[ins.base])
    return b.ufunc(ins, kind, {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[ins.base])


@builder("not")
def not_(b: Build, ins: Instruction) -> Step:
    return b.simple(ins, ins.types[-1], np.logical_not if ins.types[-1] == "pred" else np.invert)


@builder("cnot")
def cnot(b: Build, ins: Instruction) -> Step:
    kind = ins.types[-1]
    return b.simple(ins, kind, lambda x: np.asarray(x == 0).astype(DTYPES[kind]))


@builder("shl", "shr")
def shift(b: Build, ins: Instruction) -> Step:
    kind = ins.types[-1]
    bits, dtype = 8 * BYTES[kind], DTYPES[kind]
    put = b.dst(ins, ins.operands[0], kind)
    value = b.src(ins, ins.operands[1], kind)
    left, signed = ins.base == "shl", kind.startswith("s")
    if isinstance(ins.operands[2], Imm):
        by = ins.operands[2].value & 0xFFFFFFFF
        if by >= bits and not (signed and not left):
            return lambda group: put(group, dtype(0))
        amount = dtype(min(by, bits - 1))
        function = np.left_shift if left else np.right_shift
        return lambda group: put(group, function(value(group), amount))
    count = b.src(ins, ins.operands[2], "u32")

    def step(group: Group) -> None:
        n = np.asarray(count(group))
        x = value(group)
        near = np.minimum(n, bits - 1).astype(dtype)
        out = np.left_shift(x, near) if left else np.right_shift(x, near)
        if left or not signed:
            out = np.where(n >= bits, dtype(0), out)
        put(group, out)

    return step


@builder("shf")
def funnel(b: Build, ins: Instruction) -> Step:
    wrap, left = ins.has("wrap"), ins.has("l")

    def compute(low: Any, high: Any, count: Any) -> Any:
        pair = np.asarray(high).astype(np.uint64) << np.uint64(32) | np.asarray(low).astype(np.uint64)
        n = np.asarray(count).astype(np.uint64)
        n = n & np.uint64(31) if wrap else np.minimum(n, np.uint64(32))
        out = (pair << n) >> np.uint64(32) if left else pair >> n
        return (out & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    return b.simple(ins, "b32", compute)


@builder("lop3")
def lop3(b: Build, ins: Instruction) -> Step:
    table = ins.operands[4]
    if not isinstance(table, Imm) or isinstance(ins.operands[0], Pair):
        raise ins.unknown()
    put = b.dst(ins, ins.operands[0], "b32")
    get = [b.src(ins, operand, "b32") for operand in ins.operands[1:4]]

    def step(group: Group) -> None:
        x, y, z = (source(group) for source in get)
        out: Any = np.uint32(0)
        for minterm in range(8):
            if table.value >> minterm & 1:
                out = out | ((x if minterm & 4 else ~x) & (y if minterm & 2 else ~y) & (z if minterm & 1 else ~z))
        put(group, out)

    return step
