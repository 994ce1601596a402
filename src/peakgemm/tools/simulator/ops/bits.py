"""Bits, bytes and halves of a word: counts, fields, permutations, dot products, SIMD video instructions."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.lanes import DTYPES, Group, elements, index, word
from ..front.ptx import BYTES, Instruction
from .build import Build, Step, builder

_VIDEO: dict[str, Any] = {"add": np.add, "sub": np.subtract, "absdiff": lambda x, y: np.abs(x - y), "min": np.minimum,
          "max": np.maximum}  # fmt: skip


@builder(*(f"v{name}{parts}" for name in _VIDEO for parts in (2, 4)))
def video(b: Build, ins: Instruction) -> Step:
    """On two halves or four bytes; with ``.add`` the sum of the results and the third operand."""
    function, bits = _VIDEO[ins.base[1:-1]], 32 // int(ins.base[-1])
    to, first, second = (f"{kind[0]}{bits}" for kind in ins.types)
    limits = np.iinfo(DTYPES[to])

    def compute(x: Any, y: Any, z: Any) -> Any:
        out = function(elements(x, first).astype(np.int64), elements(y, second).astype(np.int64))
        out = np.clip(out, limits.min, limits.max) if ins.has("sat") else out
        return (out.sum(axis=1) + z).astype(np.uint32) if ins.has("add") else word(out.astype(DTYPES[to]))

    return b.simple(ins, "u32", compute)


@builder("popc", "clz", "brev", "bfind")
def bits(b: Build, ins: Instruction) -> Step:
    kind = ins.types[-1]
    size, width = BYTES[kind], 8 * BYTES[kind]

    def compute(x: Any) -> Any:
        x = np.atleast_1d(x)
        x = np.where(x < 0, ~x, x) if ins.base == "bfind" else x
        table = np.unpackbits(x.astype(f">u{size}").view(np.uint8).reshape(-1, size), axis=1)  # the highest bit first
        if ins.base == "brev":
            return np.packbits(table[:, ::-1], axis=1).view(f">u{size}")[:, 0].astype(f"u{size}")
        if ins.base == "popc":
            return table.sum(axis=1, dtype=np.uint32)
        first, some = table.argmax(axis=1), table.any(axis=1)
        if ins.base == "clz":
            return np.where(some, first, width).astype(np.uint32)
        return np.where(some, first if ins.has("shiftamt") else width - 1 - first, 0xFFFFFFFF).astype(np.uint32)

    return b.simple(ins, kind, compute, kind if ins.base == "brev" else "u32")


@builder("bfe", "bfi")
def field(b: Build, ins: Instruction) -> Step:
    kind = ins.types[-1]
    width, dtype = 8 * BYTES[kind], DTYPES[kind]
    unsigned = DTYPES[f"u{width}"]
    put = b.dst(ins, ins.operands[0], kind)
    insert = ins.base == "bfi"
    values = [b.src(ins, operand, f"u{width}") for operand in ins.operands[1:3 if insert else 2]]
    where = [b.src(ins, operand, "u32") for operand in ins.operands[-2:]]

    def ones(count: Any) -> Any:
        return np.where(count >= width, unsigned(np.iinfo(unsigned).max),
                        (unsigned(1) << np.minimum(count, width - 1).astype(unsigned)) - unsigned(1))

    def step(group: Group) -> None:
        position, length = (np.asarray(get(group)).astype(np.int64) & 0xFF for get in where)
        near = np.minimum(position, width - 1).astype(unsigned)
        if insert:
            mask = np.where(position >= width, unsigned(0), ones(length) << near)
            x, y = values[0](group), values[1](group)
            put(group, ((x << near) & mask) | (y & ~mask))
            return
        x = values[0](group)
        mask = ones(np.clip(width - position, 0, length))
        out = (x >> near) & mask
        if kind.startswith("s"):
            top = np.clip(position + length - 1, 0, width - 1).astype(unsigned)
            out = np.where((length != 0) & ((x >> top) & unsigned(1) != 0), out | ~mask, out)
        put(group, np.asarray(out).view(dtype))

    return step


@builder("bmsk", "szext")
def masked(b: Build, ins: Instruction) -> Step:
    """``bmsk``: ones from a place on; ``szext``: the lowest bits, the rest zero or the sign."""
    signed, mask = ins.types[-1] == "s32", ins.base == "bmsk"

    def compute(x: Any, n: Any) -> Any:
        x, n = np.asarray(x).astype(np.uint64), np.asarray(n).astype(np.uint64)
        n = n & np.uint64(31) if ins.has("wrap") else np.minimum(n, np.uint64(32))
        ones = (np.uint64(1) << n) - np.uint64(1)
        if mask:
            at = x & np.uint64(31) if ins.has("wrap") else np.minimum(x, np.uint64(32))
            return (ones << at).astype(np.uint32)
        sign = (ones ^ ones >> np.uint64(1)) & x if signed else np.uint64(0)
        return np.where(sign, x | ~ones, x & ones).astype(np.uint32)

    return b.simple(ins, "u32", compute)


@builder("fns")
def find_set(b: Build, ins: Instruction) -> Step:
    """The place of the n-th set bit from ``base`` on, downward where n is negative; of n = 0 ``base`` itself."""
    def one(mask: int, base: int, n: int) -> int:
        order = range(base, -1, -1) if n < 0 else range(base, 32 if n else base + 1)
        places = [place for place in order if mask >> place & 1] if base < 32 else []
        return places[max(abs(n), 1) - 1] if len(places) >= max(abs(n), 1) else 0xFFFFFFFF

    def compute(mask: Any, base: Any, n: Any) -> Any:
        rows = np.broadcast_arrays(*map(np.atleast_1d, (mask, base, np.asarray(n).view(np.int32))))
        return np.array([one(*map(int, row)) for row in zip(*rows, strict=True)], np.uint32)

    return b.simple(ins, "u32", compute)


@builder("prmt")
def permute(b: Build, ins: Instruction) -> Step:
    if len(ins.parts) > 2:
        raise ins.unknown()

    def compute(x: Any, y: Any, selector: Any) -> Any:
        x, y, selector = np.broadcast_arrays(*map(np.atleast_1d, (x, y, selector)))
        octets = np.concatenate([elements(x, "u8"), elements(y, "u8")], axis=1)
        pick = selector[:, None] >> np.arange(0, 16, 4, dtype=np.uint32)
        chosen = np.take_along_axis(octets, index(pick & np.uint32(7)), axis=1)
        return word(np.where(pick & np.uint32(8), (chosen >> 7) * np.uint8(255), chosen))

    return b.simple(ins, "b32", compute)


@builder("dp4a", "dp2a")
def dot(b: Build, ins: Instruction) -> Step:
    first, second = ins.types
    # dp4a: bytes times bytes; dp2a: halves of the first operand times the lower or upper two bytes of the second.
    wide, terms, skipped = (8, 4, 0) if ins.base == "dp4a" else (16, 2, 2 if ins.has("hi") else 0)

    def compute(x: Any, y: Any, z: Any) -> Any:
        factors = elements(y, f"{second[0]}8")[:, skipped:skipped + terms].astype(np.int64)
        total = (elements(x, f"{first[0]}{wide}") * factors).sum(axis=1)
        return (total + np.asarray(z).astype(np.int64)).astype(np.uint32)

    return b.simple(ins, "b32", compute)
