"""Integer and logic instructions."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.lanes import DTYPES, Group
from ..front.program import CARRY
from ..front.ptx import BYTES, Imm, Instruction, Pair
from .build import Build, Step, builder

POPULATION = np.array([bin(octet).count("1") for octet in range(256)], np.uint8)
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
    from .float import float_binary

    kind = ins.types[-1]
    if kind.startswith(("f", "bf")):
        return float_binary(b, ins)
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
    signed, kind = kind, "u32" if BYTES[kind] == 4 else "u64"
    put = b.dst(ins, ins.operands[0], kind)
    left, right = (b.src(ins, operand, kind) for operand in ins.operands[-2:])
    if ins.base.startswith("mad"):
        x, y = (b.src(ins, operand, signed) for operand in ins.operands[1:3])
        product = (lambda a, b: mul_high(a, b, signed)) if ins.has("hi") else np.multiply

        def left(group: Group) -> Any:
            return np.asarray(product(x(group), y(group))).astype(DTYPES[kind])

    slot = b.program.slot[CARRY][1] if takes or ins.has("cc") else 0
    minus, gives, dtype = ins.base.startswith("sub"), ins.has("cc"), DTYPES[kind]

    def step(group: Group) -> None:
        x, y = np.asarray(left(group)), np.asarray(right(group))
        flag = group.rows["pred"][slot].astype(dtype) if takes else dtype(0)
        if minus:
            out = x - y - flag
            over = (x < y) | ((x == y) & (flag != 0))
        else:
            out = x + y + flag
            over = (out < x) | ((out == x) & (flag != 0) & (y != 0))
        put(group, out)
        if gives:
            np.copyto(group.rows["pred"][slot], over)

    return step


@builder("mul")
def mul(b: Build, ins: Instruction) -> Step:
    from .float import float_binary

    kind = ins.types[-1]
    if kind.startswith(("f", "bf")):
        return float_binary(b, ins)
    if ins.has("wide"):
        return b.simple(ins, kind, lambda x, y: mul_wide(x, y, kind), WIDER[kind])
    if ins.has("hi"):
        return b.simple(ins, kind, lambda x, y: mul_high(x, y, kind))
    return b.ufunc(ins, kind, np.multiply)


@builder("mul24")
def mul24(b: Build, ins: Instruction) -> Step:
    kind = ins.types[-1]
    if not ins.has("lo"):
        raise ins.unknown()

    def low(x: Any) -> Any:
        return np.asarray(x) << DTYPES[kind](8) >> DTYPES[kind](8)

    return b.simple(ins, kind, lambda x, y: low(x) * low(y))


@builder("mad")
def mad(b: Build, ins: Instruction) -> Step:
    from .float import fused

    kind = ins.types[-1]
    if kind.startswith("f"):
        return fused(b, ins)
    if ins.has("sat"):
        raise ins.unknown()
    if ins.has("cc"):
        return _carry(b, ins, kind, False)
    result = WIDER[kind] if ins.has("wide") else kind
    put = b.dst(ins, ins.operands[0], result)
    x, y = (b.src(ins, operand, kind) for operand in ins.operands[1:3])
    z = b.src(ins, ins.operands[3], result)
    if ins.has("wide"):
        return lambda group: put(group, mul_wide(x(group), y(group), kind) + z(group))
    if ins.has("hi"):
        return lambda group: put(group, mul_high(x(group), y(group), kind) + z(group))
    return lambda group: put(group, x(group) * y(group) + z(group))


@builder("sad")
def sad(b: Build, ins: Instruction) -> Step:
    return b.simple(ins, ins.types[-1], lambda x, y, z: np.where(x < y, y - x, x - y) + z)


@builder("div", "rem")
def div(b: Build, ins: Instruction) -> Step:
    from .float import float_binary

    kind = ins.types[-1]
    if kind.startswith("f"):
        return float_binary(b, ins)
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
    kind = ins.types[-1]
    if kind in ("f16x2", "bf16x2", "bf16"):
        sign = {"f16x2": np.uint32(0x80008000), "bf16x2": np.uint32(0x80008000), "bf16": np.uint16(0x8000)}[kind]
        return b.simple(ins, kind, (lambda x: x & ~sign) if ins.base == "abs" else (lambda x: x ^ sign))
    if kind == "f32" and ins.has("ftz"):
        from ..core.floats import flush

        return b.simple(ins, kind, (lambda x: flush(np.abs(x))) if ins.base == "abs" else (lambda x: flush(-x)))
    return b.simple(ins, kind, np.abs if ins.base == "abs" else np.negative)


@builder("min", "max")
def min_max(b: Build, ins: Instruction) -> Step:
    from .float import float_min_max

    kind = ins.types[-1]
    if kind.startswith(("f", "bf")):
        return float_min_max(b, ins)
    return b.ufunc(ins, kind, np.minimum if ins.base == "min" else np.maximum)


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


@builder("popc", "clz", "brev", "bfind")
def bits(b: Build, ins: Instruction) -> Step:
    kind = ins.types[-1]
    width = 8 * BYTES[kind]
    unsigned = DTYPES[f"u{width}"]

    def clz(x: Any) -> Any:
        x = np.asarray(x).view(unsigned)
        n = np.full(x.shape, width, np.uint32)
        for bit in range(width):
            n[(x >> unsigned(bit)) & unsigned(1) != 0] = width - 1 - bit
        return n

    def bfind(x: Any) -> Any:
        x = np.asarray(x)
        x = np.where(x < 0, ~x, x) if kind.startswith("s") else x
        n = clz(np.ascontiguousarray(x))
        out = n if ins.has("shiftamt") else np.uint32(width - 1) - n
        return np.where(n == width, np.uint32(0xFFFFFFFF), out)

    def brev(x: Any) -> Any:
        out = np.zeros_like(x)
        for bit in range(width):
            out |= ((x >> unsigned(bit)) & unsigned(1)) << unsigned(width - 1 - bit)
        return out

    def broad(function: Any) -> Any:
        return lambda x: function(np.atleast_1d(np.asarray(x)))

    if ins.base == "brev":
        return b.simple(ins, kind, broad(brev))

    def popc(x: Any) -> Any:
        octets = np.ascontiguousarray(x).view(np.uint8).reshape(len(x), -1)
        return POPULATION[octets].sum(axis=1, dtype=np.uint32)

    function = {"popc": popc, "clz": clz, "bfind": bfind}
    return b.simple(ins, kind, broad(function[ins.base]), "u32")


@builder("bfe", "bfi")
def field(b: Build, ins: Instruction) -> Step:
    kind = ins.types[-1]
    width, dtype = 8 * BYTES[kind], DTYPES[kind]
    unsigned = DTYPES[f"u{width}"]
    put = b.dst(ins, ins.operands[0], kind)
    insert = ins.base == "bfi"
    values = [b.src(ins, operand, f"u{width}") for operand in ins.operands[1:3 if insert else 2]]
    where = [b.src(ins, operand, "u32") for operand in ins.operands[-2:]]

    def step(group: Group) -> None:
        position, length = (np.asarray(get(group)).astype(np.int64) & 0xFF for get in where)
        ones = np.where(length >= width, unsigned(np.iinfo(unsigned).max),
                        (unsigned(1) << np.minimum(length, width - 1).astype(unsigned)) - unsigned(1))
        near = np.minimum(position, width - 1).astype(unsigned)
        if insert:
            mask = np.where(position >= width, unsigned(0), ones << near)
            x, y = values[0](group), values[1](group)
            put(group, ((x << near) & mask) | (y & ~mask))
            return
        x = values[0](group)
        kept = np.clip(np.minimum(length, width - position), 0, width)
        mask = np.where(kept >= width, unsigned(np.iinfo(unsigned).max),
                        (unsigned(1) << np.minimum(kept, width - 1).astype(unsigned)) - unsigned(1))
        out = (x >> near) & mask
        if kind.startswith("s"):
            top = np.clip(position + length - 1, 0, width - 1).astype(unsigned)
            sign = (length != 0) & ((x >> top) & unsigned(1) != 0)
            out = np.where(sign, out | ~mask, out)
        put(group, np.asarray(out).view(dtype))

    return step


@builder("prmt")
def permute(b: Build, ins: Instruction) -> Step:
    if len(ins.parts) > 2:
        raise ins.unknown()

    def compute(x: Any, y: Any, selector: Any) -> Any:
        pair = np.asarray(y).astype(np.uint64) << np.uint64(32) | np.asarray(x).astype(np.uint64)
        s = np.asarray(selector).astype(np.uint64)
        out: Any = np.uint64(0)
        for k in range(4):
            pick = (s >> np.uint64(4 * k)) & np.uint64(15)
            byte = (pair >> ((pick & np.uint64(7)) * np.uint64(8))) & np.uint64(255)
            byte = np.where(pick & np.uint64(8), np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0)), byte)
            out = out | byte << np.uint64(8 * k)
        return np.asarray(out).astype(np.uint32)

    return b.simple(ins, "b32", compute)


@builder("dp4a", "dp2a")
def dot(b: Build, ins: Instruction) -> Step:
    first, second = ins.types
    # dp4a: bytes times bytes; dp2a: halves of the first operand times the lower or upper two bytes of the second.
    wide, terms, skipped = (8, 4, 0) if ins.base == "dp4a" else (16, 2, 2 if ins.has("hi") else 0)

    def part(x: Any, k: int, bits: int, kind: str) -> Any:
        field = (np.asarray(x) >> np.uint32(bits * k)) & np.uint32((1 << bits) - 1)
        unsigned = field.astype(f"u{bits // 8}")
        return unsigned.view(f"{'i' if kind.startswith('s') else 'u'}{bits // 8}").astype(np.int64)

    def compute(x: Any, y: Any, z: Any) -> Any:
        total = sum(part(x, k, wide, first) * part(y, k + skipped, 8, second) for k in range(terms))
        return (total + np.asarray(z).astype(np.int64)).astype(np.uint32)

    return b.simple(ins, "b32", compute)
