"""Floating-point instructions.

``add``, ``sub``, ``mul``, ``fma``, ``div``, ``rcp``, ``sqrt`` with a rounding mode are exact; the
``.approx`` and ``.full`` forms are computed correctly rounded here, where a GPU is allowed a few
units in the last place, so results that depend on them need not be bit-equal to a GPU's.
"""

from __future__ import annotations

from functools import reduce, wraps
from typing import Any

import numpy as np

from ..core.floats import (
    MODES,
    add32,
    bfloat_to_float,
    canonical,
    directed64,
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

# For each instruction: exact or rounded to odd in float64, for formats of 16 bits; on float32 in any mode; on float64
# to nearest; what the exact value has over a result, in fractions; of a sum its two addends.
_ROUNDED: dict[str, tuple[Any, Any, Any, Any, Any]] = {
    "add": (odd_sum, add32, np.add, lambda x, y, r: x + y - r, lambda x, y: (x, y)),
    "sub": (lambda x, y: odd_sum(x, -y), lambda x, y, mode: add32(x, -y, mode), np.subtract,
            lambda x, y, r: x - y - r, lambda x, y: (x, -y)),
    "mul": (lambda x, y: x * y, mul32, np.multiply, lambda x, y, r: x * y - r, None),
    "fma": (lambda x, y, z: odd_sum(x * y, z), fma32, fma64, lambda x, y, z, r: x * y + z - r,
            lambda x, y, z: (x * y, z)),
    "div": (None, div32, np.divide, lambda x, y, r: x / y - r, None),
    "rcp": (None, lambda x, mode: div32(np.float32(1), x, mode), lambda x: 1.0 / x, lambda x, r: 1 / x - r, None),
    "sqrt": (None, sqrt32, np.sqrt, lambda x, r: x - r * r, None),
}
_APPROXIMATE: dict[str, Any] = {"rsqrt": lambda x: 1.0 / np.sqrt(x), "ex2": np.exp2, "lg2": np.log2, "sin": np.sin,
                                "cos": np.cos, "tanh": np.tanh}  # fmt: skip


def mode_of(ins: Instruction) -> str:
    """The rounding mode, ``rn`` where none is given."""
    return next((mode for mode in MODES if mode in ins.parts), "rn")


def finish(ins: Instruction, compute: Any) -> Any:
    """``compute`` with the instruction's ``.ftz``, ``.sat`` and ``.relu`` applied."""
    ftz, sat, relu = ins.has("ftz"), ins.has("sat"), ins.has("relu")
    if not (ftz or sat or relu):
        return compute

    @wraps(compute)
    def wrapped(*values: Any) -> Any:
        out = np.asarray(compute(*[flush(np.asarray(v)) for v in values] if ftz else values))
        zero = out.dtype.type(0)
        if ftz:
            out = flush(out)
        if sat:
            out = np.where(out > 0, np.minimum(out, out.dtype.type(1)), zero)
        return np.where(out <= 0, zero, out) if relu else out

    return wrapped


def on_bits(kind: str, compute: Any) -> Any:
    """From ``compute``, which takes and gives float16, or float32 holding bfloat16, the same on their bits."""
    @wraps(compute)
    def wrapped(*values: Any) -> Any:
        if kind.startswith("bf"):
            out = compute(*[bfloat_to_float(np.asarray(v).view(np.uint16)) for v in values])
            return np.where(np.isnan(out), np.uint16(0x7FFF), (out.view(np.uint32) >> np.uint32(16)).astype(np.uint16))
        out = np.asarray(compute(*[np.asarray(v).view(np.float16) for v in values]))
        return np.where(np.isnan(out), np.uint16(0x7FFF), out.view(np.uint16))

    return wrapped


def halves(b: Build, ins: Instruction, compute: Any) -> Step:
    """A step on f16, bf16 and their pairs from what `on_bits` takes."""
    kind = ins.types[-1]
    return b.simple(ins, kind if kind.endswith("x2") else "u16", on_bits(kind, compute))


def rounded(s: Any, kind: str, mode: str = "rn") -> Any:
    """Float64, exact or rounded to odd, to float16, or to float32 holding bfloat16."""
    return bfloat_to_float(float_to_bfloat(s, mode)) if kind.startswith("bf") else narrow(s, np.float16, mode)


def _small(b: Build, ins: Instruction, compute: Any) -> Step:
    """The same from ``compute`` that takes and gives float64, exact or rounded to odd."""
    @wraps(compute)
    def narrowed(*values: Any) -> Any:
        return rounded(compute(*[v.astype(np.float64) for v in values]), ins.types[-1])

    return halves(b, ins, finish(ins, narrowed))


@builder("fma", "rcp", "sqrt")
def arithmetic(b: Build, ins: Instruction) -> Step:
    """The instructions of `_ROUNDED`, of every float type."""
    kind, mode = ins.types[-1], mode_of(ins)
    small, single, near, side, addends = _ROUNDED["fma" if ins.base == "mad" else ins.base]
    if len(ins.types) != 1:
        raise ins.unknown("of sums of two types none is simulated")
    if len(ins.operands) != (wanted := side.__code__.co_argcount):
        raise ins.unknown(f"it has {len(ins.operands) - 1} sources, {wanted - 1} are wanted")
    if kind in ("f16", "f16x2", "bf16", "bf16x2"):
        if small is None or mode != "rn":
            raise ins.unknown()
        return _small(b, ins, small)
    if kind == "f64" and mode != "rn":
        def directed(*values: Any) -> Any:
            first, second = addends(*values) if addends else (0.0, 0.0)
            return directed64(near(*values), mode, side, values, np.signbit(first) != np.signbit(second))

        return b.simple(ins, kind, directed)
    plain = kind == "f64" or (kind == "f32" and mode == "rn" and not ins.has("ftz", "sat"))
    if plain and isinstance(near, np.ufunc) and near.nin == 2:
        return b.ufunc(ins, kind, near)
    if kind == "f64":
        return b.simple(ins, kind, near)
    if kind not in ("f32", "f32x2"):
        raise ins.unknown()
    compute = finish(ins, lambda *values: single(*map(np.asarray, values), mode))
    return b.simple(ins, kind, compute if kind == "f32" else lambda *values: canonical(np.array(compute(*values))))


def float_min_max(b: Build, ins: Instruction) -> Step:
    """min and max of every float type, of two or three."""
    kind, nan = ins.types[-1], ins.has("NaN")
    choose = minimum32 if ins.base == "min" else maximum32
    if len(ins.operands) not in (3, 4):
        raise ins.unknown()

    def compute(*values: Any) -> Any:
        given = [np.asarray(x) for x in values]
        out = reduce(lambda x, y: choose(x, y, nan), map(np.abs, given) if ins.has("abs") else given)
        if not ins.has("xorsign"):
            return out
        return np.copysign(out, np.where(reduce(np.logical_xor, map(np.signbit, given)), -1, 1).astype(out.dtype))

    compute = finish(ins, compute)
    return b.simple(ins, kind, compute) if kind in ("f32", "f64") else halves(b, ins, compute)


@builder(*_APPROXIMATE)
def approximate(b: Build, ins: Instruction) -> Step:
    kind, function = ins.types[-1], _APPROXIMATE[ins.base]
    if kind in ("f16", "f16x2", "bf16", "bf16x2"):
        return _small(b, ins, function)
    if kind == "f64":
        return b.simple(ins, kind, function)
    if kind != "f32":
        raise ins.unknown()
    return b.simple(ins, kind, finish(ins, lambda x: function(np.asarray(x).astype(np.float64)).astype(np.float32)))


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
