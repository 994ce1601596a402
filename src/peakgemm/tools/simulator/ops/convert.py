"""Conversions: ``cvt`` between integers, floats and the formats of 8 bits, ``cvt.pack``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.floats import bfloat_to_float, directed64, flush, from_tiny, narrow, odd_sum, shortened, to_tiny
from ..core.lanes import DTYPES, elements, word
from ..front.ptx import BYTES, Instruction
from .build import Build, Step, builder
from .float import mode_of

_INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
_TINY = ("e4m3", "e5m2", "e2m3", "e3m2", "ue8m0")
_LARGEST = {"f16": 65504.0, "bf16": 2.0**128 - 2.0**120, "tf32": 2.0**128 - 2.0**117, "f32": 2.0**128 - 2.0**104}
_FLOATS = ("f16", "bf16", "f32", "f64", "tf32", *_TINY)


@builder("cvt")
def cvt(b: Build, ins: Instruction) -> Step:
    if ins.has("pack"):
        return _pack(b, ins)
    if len(ins.types) != 2 or ins.has("rs", "scaled"):
        raise ins.unknown()
    (to, pair), (source, of_pair) = ((kind.removesuffix("x2"), kind.endswith("x2")) for kind in ins.types)
    if source in _FLOATS and to in _FLOATS:
        convert = _float_to_float(ins, to, source)
    else:
        convert = _float_to_int(ins, to, source) if source in _FLOATS else \
            _int_to_float(ins, to) if to in _FLOATS else _int_to_int(ins, to)
    put = b.dst(ins, ins.operands[0], f"u{8 * BYTES[ins.types[0]]}" if to in _FLOATS else to)
    gets = [b.src(ins, one, f"u{8 * BYTES[ins.types[1]]}" if of_pair or source in ("bf16", "tf32") else source)
            for one in ins.operands[1:]]
    if len(gets) != 1 + (pair and not of_pair):
        raise ins.unknown(f"it has {len(gets)} sources")
    if not pair and not of_pair:
        return lambda group: put(group, convert(np.asarray(gets[0](group))))
    if of_pair:
        part = {1: "u8", 2: source}[BYTES[ins.types[1]] // 2]
        return lambda group: put(group, word(convert(elements(gets[0](group), part))))
    high, low = gets
    return lambda group: put(group, word(convert(np.stack(np.broadcast_arrays(*map(np.atleast_1d, (
        low(group), high(group)))), axis=1))))


def _int_to_int(ins: Instruction, to: str) -> Any:
    dtype = DTYPES[to]
    if not ins.has("sat"):
        return lambda x: x.astype(dtype)
    info = np.iinfo(dtype)

    def saturate(x: Any) -> Any:
        own = np.iinfo(x.dtype)
        return np.clip(x, max(info.min, own.min), min(info.max, own.max)).astype(dtype)

    return saturate


def _int_to_float(ins: Instruction, to: str) -> Any:
    mode = mode_of(ins)
    if ins.has("sat"):
        raise ins.unknown()

    def convert(x: Any) -> Any:
        if to == "f64":
            near = x.astype(np.float64)
            near = near if mode == "rn" else directed64(near, mode, lambda x, r: x - r, (x,))
            return near.view(np.uint64)
        if to == "f32" and mode == "rn":
            return x.astype(np.float32).view(np.uint32)
        near = x.astype(np.float64)  # exact to 53 bits; the rest decides only where float64 was rounded
        if x.dtype.itemsize == 8:
            high = (x >> x.dtype.type(32)).astype(np.float64) * 2.0**32
            near = odd_sum(high, (x & x.dtype.type(0xFFFFFFFF)).astype(np.float64))
        return _encoded(near, to, mode)

    return convert


def _float_to_int(ins: Instruction, to: str, source: str) -> Any:
    dtype = DTYPES[to]
    info = np.iinfo(dtype)
    rounding = _INTEGRAL[next((part for part in ins.parts if part in _INTEGRAL), "rzi")]
    top = float(info.max) if info.bits < 64 else np.nextafter(float(info.max), 0.0)
    invalid = dtype(0) if info.bits < 64 else np.array(1 << 63, np.uint64).view(dtype)[()]

    def convert(x: Any) -> Any:
        x = bfloat_to_float(x) if source == "bf16" else x
        if ins.has("ftz"):
            x = flush(x)
        y = rounding(x.astype(np.float64))
        bad = np.isnan(y)
        out = np.clip(np.where(bad, 0.0, y), float(info.min), top).astype(dtype)
        out = np.where(y > top, info.max, out).astype(dtype)
        return np.where(bad, invalid, out)

    return convert


def _encoded(s: Any, to: str, mode: str) -> Any:
    """Float64, exact or rounded to odd, to the bits of a format, NaN the canonical one."""
    if to in _TINY:
        return to_tiny(s, to, mode)
    if to in ("bf16", "tf32"):
        bits = shortened(s, 16 if to == "bf16" else 13, mode)
        return bits if to == "tf32" else (bits >> np.uint32(16)).astype(np.uint16)
    if to == "f64":
        return s.view(np.uint64)
    out = np.asarray(narrow(s, DTYPES[to], mode))
    bits = out.view(f"u{out.itemsize}")
    return np.where(np.isnan(out), bits.dtype.type(0x7FFF if to == "f16" else 0x7FFFFFFF), bits)


def _float_to_float(ins: Instruction, to: str, source: str) -> Any:
    mode = "rna" if ins.has("rna") else mode_of(ins)
    integral = next((part for part in ins.parts if part in _INTEGRAL), None)
    if source == "tf32" or (to in _TINY and not ins.has("satfinite")) or (source in _TINY and to[-2:] != "16"):
        raise ins.unknown()
    ftz, sat, relu, satfinite = (ins.has(part) for part in ("ftz", "sat", "relu", "satfinite"))

    def convert(x: Any) -> Any:
        x = bfloat_to_float(x) if source == "bf16" else from_tiny(x, source) if source in _TINY else x
        if ftz and source == "f32":
            x = flush(x)
        s = (_INTEGRAL[integral](x) if integral else x).astype(np.float64)
        if sat:
            s = np.where(s > 0, np.minimum(s, 1.0), 0.0)
        if relu:
            s = np.where(s <= 0, 0.0, s)
        if satfinite and to in _LARGEST:
            s = np.clip(s, -_LARGEST[to], _LARGEST[to])
        bits = _encoded(s, to, mode)
        return flush(bits.view(np.float32)).view(np.uint32) if ftz and to == "f32" else bits

    return convert


def _pack(b: Build, ins: Instruction) -> Step:
    """Two integers, saturated to fields of 16 bits or fewer; narrower ones below what is in the third operand."""
    to, size = ins.parts[3][0], int(ins.parts[3][1:])
    if not ins.has("sat") or (to, size) not in ((s, n) for s in "us" for n in (2, 4, 8, 16)):
        raise ins.unknown()
    if len(ins.operands) != (3 if size == 16 else 4):
        raise ins.unknown(f"it has {len(ins.operands) - 1} sources")
    low, high = (0, (1 << size) - 1) if to == "u" else (-(1 << size - 1), (1 << size - 1) - 1)

    def compute(*values: Any) -> Any:
        above, below, *rest = (np.asarray(x).astype(np.int64) for x in values)
        first, second = (np.clip(x, low, high) & ((1 << size) - 1) for x in (above, below))
        return (sum(x << 2 * size for x in rest) | first << size | second).astype(np.uint32)

    return b.simple(ins, "s32", compute, "u32")
