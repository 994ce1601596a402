"""Floating-point instructions.

``add``, ``sub``, ``mul``, ``fma``, ``div``, ``rcp``, ``sqrt`` with a rounding mode are exact; the
``.approx`` and ``.full`` forms are computed correctly rounded here, where a GPU is allowed a few
units in the last place, so results that depend on them need not be bit-equal to a GPU's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.floats import (
    MODES,
    add32,
    bfloat_to_float,
    div32,
    float_to_bfloat,
    flush,
    fma32,
    fma64,
    maximum32,
    minimum32,
    mul32,
    narrow,
    odd_sum,
    sqrt32,
)
from ..front.ptx import Instruction
from .build import Build, Step, builder


def mode_of(ins: Instruction) -> str:
    """The rounding mode, ``rn`` where none is given."""
    return next((mode for mode in MODES if mode in ins.parts), "rn")


def finish(ins: Instruction, compute: Any) -> Any:
    """``compute`` with the instruction's ``.ftz`` and ``.sat`` applied to float32."""
    ftz, sat = ins.has("ftz"), ins.has("sat")
    if not (ftz or sat):
        return compute

    def wrapped(*values: Any) -> Any:
        out = np.asarray(compute(*[flush(np.asarray(v)) for v in values] if ftz else values))
        if ftz:
            out = flush(out)
        if sat:
            out = np.where(np.isnan(out), out.dtype.type(0), np.clip(out, 0, 1)).astype(out.dtype)
        return out

    return wrapped


def _halves(compute: Any, load: Any, store: Any) -> Any:
    """An operation on packed pairs from one on single halves."""

    def packed(*values: Any) -> Any:
        out: Any = np.uint32(0)
        for shift in (np.uint32(0), np.uint32(16)):
            parts = [load(((np.asarray(v) >> shift) & np.uint32(0xFFFF)).astype(np.uint16)) for v in values]
            out = out | np.asarray(store(compute(*parts))).astype(np.uint32) << shift
        return out

    return packed


def _half_bits(x: Any) -> Any:
    bits = np.asarray(x, np.float16).view(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FFF), bits)


def small(b: Build, ins: Instruction, compute: Any) -> Step:
    """A step on f16, bf16 and their pairs; ``compute`` takes and gives float64, rounded to odd."""
    kind = ins.types[-1]
    if ins.has("ftz", "sat", "relu"):
        raise ins.unknown()
    brain = kind.startswith("bf")

    def load(x: Any) -> Any:
        return (bfloat_to_float(x) if brain else x.view(np.float16)).astype(np.float64)

    def store(s: Any) -> Any:
        return float_to_bfloat(s) if brain else _half_bits(narrow(s, np.float16, "rn"))

    if kind.endswith("x2"):
        return b.simple(ins, kind, _halves(compute, load, store))
    return b.simple(ins, f"u{16}", lambda *v: store(compute(*[load(np.asarray(x)) for x in v])))


def float_binary(b: Build, ins: Instruction) -> Step:
    """add, sub, mul, div of every float type."""
    kind, mode = ins.types[-1], mode_of(ins)
    if kind in ("f16", "f16x2", "bf16", "bf16x2"):
        wide = {"add": odd_sum, "sub": lambda x, y: odd_sum(x, -y), "mul": lambda x, y: x * y}
        if ins.base not in wide or mode != "rn":
            raise ins.unknown()
        return small(b, ins, wide[ins.base])
    if kind == "f64":
        if mode != "rn":
            raise ins.unknown("float64 arithmetic is simulated in round to nearest only")
        return b.ufunc(ins, kind, {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[ins.base])
    if kind != "f32":
        raise ins.unknown()
    if mode == "rn" and not ins.has("ftz", "sat"):
        return b.ufunc(ins, kind, {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[ins.base])
    compute = {"add": lambda x, y: add32(x, y, mode), "sub": lambda x, y: add32(x, -y, mode),
               "mul": lambda x, y: mul32(x, y, mode), "div": lambda x, y: div32(x, y, mode)}[ins.base]
    return b.simple(ins, kind, finish(ins, compute))


@builder("fma")
def fused(b: Build, ins: Instruction) -> Step:
    kind, mode = ins.types[-1], mode_of(ins)
    if kind in ("f16", "f16x2", "bf16", "bf16x2") and mode == "rn":
        return small(b, ins, lambda x, y, z: odd_sum(x * y, z))
    if kind == "f64" and mode == "rn":
        return b.simple(ins, kind, fma64)
    if kind != "f32":
        raise ins.unknown("fused arithmetic is simulated on float32 in every rounding mode, else to nearest")
    return b.simple(ins, kind, finish(ins, lambda x, y, z: fma32(x, y, z, mode)))


def float_min_max(b: Build, ins: Instruction) -> Step:
    """min and max of every float type."""
    kind, least, nan = ins.types[-1], ins.base == "min", ins.has("NaN")
    if ins.has("xorsign") or len(ins.operands) != 3:
        raise ins.unknown()
    compute = minimum32 if least else maximum32
    if kind in ("f16", "f16x2", "bf16", "bf16x2"):
        return small(b, ins, lambda x, y: compute(x, y, nan))
    return b.simple(ins, kind, finish(ins, lambda x, y: compute(np.asarray(x), np.asarray(y), nan)))


def _one(compute32: Any, compute64: Any) -> Any:
    def build(b: Build, ins: Instruction) -> Step:
        kind = ins.types[-1]
        if kind == "f64":
            if mode_of(ins) != "rn":
                raise ins.unknown("float64 arithmetic is simulated in round to nearest only")
            return b.simple(ins, kind, compute64)
        if kind != "f32":
            raise ins.unknown()
        mode = mode_of(ins)
        return b.simple(ins, kind, finish(ins, lambda x: compute32(np.asarray(x), mode)))

    return build


def _through_double(function: Any) -> Any:
    return lambda x, mode: np.asarray(function(x.astype(np.float64))).astype(np.float32)



builder("rcp")(_one(lambda x, mode: div32(np.float32(1), x, mode), lambda x: 1.0 / x))
builder("sqrt")(_one(sqrt32, np.sqrt))
builder("rsqrt")(_one(_through_double(lambda x: 1.0 / np.sqrt(x)), lambda x: 1.0 / np.sqrt(x)))
builder("ex2")(_one(_through_double(np.exp2), np.exp2))
builder("lg2")(_one(_through_double(np.log2), np.log2))
builder("sin")(_one(_through_double(np.sin), np.sin))
builder("cos")(_one(_through_double(np.cos), np.cos))
builder("tanh")(_one(_through_double(np.tanh), np.tanh))


@builder("copysign")
def copysign(b: Build, ins: Instruction) -> Step:
    return b.simple(ins, ins.types[-1], lambda x, y: np.copysign(y, x))


@builder("testp")
def testp(b: Build, ins: Instruction) -> Step:
    name, kind = ins.parts[1], ins.types[-1]
    tiny = np.float32(2.0**-126) if kind == "f32" else np.float64(2.0**-1022)
    tests: dict[str, Any] = {
        "finite": np.isfinite, "infinite": np.isinf, "number": lambda x: ~np.isnan(x), "notanumber": np.isnan,
        "normal": lambda x: np.isfinite(x) & (np.abs(x) >= tiny),
        "subnormal": lambda x: (x != 0) & (np.abs(x) < tiny),
    }  # fmt: skip
    return b.simple(ins, kind, tests[name], "pred")


# ---- conversions ---------------------------------------------------------------------------------

_INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@builder("cvt")
def cvt(b: Build, ins: Instruction) -> Step:
    if len(ins.types) != 2:
        raise ins.unknown()
    to, source = ins.types
    if to in ("f16x2", "bf16x2"):
        return _cvt_pair(b, ins, to, source)
    if ins.has("relu", "satfinite", "rs"):
        raise ins.unknown()
    get = b.src(ins, ins.operands[1], "u16" if source == "bf16" else source)
    put = b.dst(ins, ins.operands[0], "u16" if to == "bf16" else to)
    floating = {"f16", "bf16", "f32", "f64"}
    if to == "tf32":
        from ..core.floats import float_to_tf32

        if not ins.has("rna"):
            raise ins.unknown()
        return lambda group: put(group, float_to_tf32(np.asarray(get(group))))
    if source in floating and to in floating:
        convert = _float_to_float(ins, to, source)
    elif source in floating:
        convert = _float_to_int(ins, to, source)
    elif to in floating:
        convert = _int_to_float(ins, to)
    else:
        convert = _int_to_int(ins, to)
    return lambda group: put(group, convert(np.asarray(get(group))))


def _int_to_int(ins: Instruction, to: str) -> Any:
    from ..core.lanes import DTYPES

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

    def convert(x: Any) -> Any:
        if to == "f64" and mode == "rn":
            return x.astype(np.float64)
        if to == "f32" and mode == "rn":
            return x.astype(np.float32)
        near = x.astype(np.float64)  # exact to 53 bits; the rest decides only where float64 was rounded
        if x.dtype.itemsize == 8:
            high = (x >> x.dtype.type(32)).astype(np.float64) * 2.0**32
            near = odd_sum(high, (x & x.dtype.type(0xFFFFFFFF)).astype(np.float64))
        if to == "f64":
            raise ins.unknown("directed rounding of integers to float64")
        return float_to_bfloat(near, mode) if to == "bf16" else narrow(near, np.float16 if to == "f16" else np.float32,
                                                                       mode)

    return convert


def _float_to_int(ins: Instruction, to: str, source: str) -> Any:
    from ..core.lanes import DTYPES

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


def _float_to_float(ins: Instruction, to: str, source: str) -> Any:
    mode = mode_of(ins)
    integral = next((part for part in ins.parts if part in _INTEGRAL), None)
    target = {"f16": np.float16, "f32": np.float32, "f64": np.float64}.get(to)

    def convert(x: Any) -> Any:
        if source == "bf16":
            x = bfloat_to_float(x)
        if integral is not None:
            x = _INTEGRAL[integral](x)
        if to == "bf16":
            return float_to_bfloat(x.astype(np.float64), mode)
        if x.dtype == target:
            return np.array(x)
        if to == "f64":
            return x.astype(np.float64)
        out = narrow(x.astype(np.float64), target, mode)
        bad = np.isnan(out)
        if bad.any():
            out.view(f"u{out.itemsize}")[bad] = 0x7FFF if to == "f16" else 0x7FFFFFFF
        return out

    return finish(ins, convert)


def _cvt_pair(b: Build, ins: Instruction, to: str, source: str) -> Step:
    if source != "f32" or ins.has("relu", "satfinite", "rs"):
        raise ins.unknown()
    mode = mode_of(ins)
    put = b.dst(ins, ins.operands[0], "b32")
    high, low = (b.src(ins, operand, "f32") for operand in ins.operands[1:3])

    def half(x: Any) -> Any:
        wide = np.asarray(x).astype(np.float64)
        return float_to_bfloat(wide, mode) if to == "bf16x2" else _half_bits(narrow(wide, np.float16, mode))

    return lambda group: put(group, np.asarray(half(high(group))).astype(np.uint32) << np.uint32(16)
                             | np.asarray(half(low(group))).astype(np.uint32))
