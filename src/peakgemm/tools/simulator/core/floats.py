"""IEEE arithmetic as a GPU does it, on NumPy arrays: every rounding exact, NaN canonical.

What a fused multiply-add of binary32 numbers needs lies in `peakgemm.fma`, which products on a CPU use too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....fma import NAN32 as NAN32
from ....fma import TINY32 as TINY32
from ....fma import canonical as canonical
from ....fma import odd_sum as odd_sum

Array = NDArray[Any]
MODES = ("rn", "rz", "rm", "rp")


def narrow(s: Array, dtype: Any, mode: str) -> Array:
    """Round float64 (exact, or rounded to odd) to float32 or float16 in ``rn``, ``rz``, ``rm`` or ``rp``."""
    r = s.astype(dtype)
    if mode == "rn":
        return r
    back = r.astype(np.float64)
    zero, low, high = dtype(0), dtype(-np.inf), dtype(np.inf)
    if mode == "rz":
        return np.where(np.abs(back) > np.abs(s), np.nextafter(r, zero), r)
    if mode == "rm":
        return np.where(back > s, np.nextafter(r, low), r)
    return np.where(back < s, np.nextafter(r, high), r)


def flush(x: Array) -> Array:
    """Subnormal numbers to zero of the same sign (``.ftz``)."""
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.copysign(x.dtype.type(0), x), x)


def fma32(a: Array, b: Array, c: Array, mode: str = "rn") -> Array:
    """Fused multiply-add of float32 arrays in any rounding mode."""
    p = np.multiply(a, b, dtype=np.float64)
    wide = np.asarray(c).astype(np.float64)
    s = odd_sum(p, wide)
    out = narrow(s, np.float32, mode)
    if mode == "rm":  # an exact zero sum of opposite terms is -0 when rounding down
        out = np.where((s == 0) & (np.signbit(p) != np.signbit(wide)), np.float32(-0.0), out)
    return out


def add32(a: Array, b: Array, mode: str = "rn") -> Array:
    """Float32 sum in any rounding mode."""
    return a + b if mode == "rn" else fma32(a, np.float32(1), np.asarray(b), mode)


def mul32(a: Array, b: Array, mode: str = "rn") -> Array:
    """Float32 product in any rounding mode."""
    return a * b if mode == "rn" else narrow(np.multiply(a, b, dtype=np.float64), np.float32, mode)


def div32(a: Array, b: Array, mode: str = "rn") -> Array:
    """Float32 quotient in any rounding mode."""
    q = np.asarray(a / b)
    if mode == "rn":
        return q
    # the remainder's sign says on which side of the exact quotient q lies
    r = odd_sum(-np.multiply(q, b, dtype=np.float64), np.asarray(a).astype(np.float64))
    side = np.sign(r) * np.sign(b)
    s = q.astype(np.float64)
    s = np.where(np.isfinite(s) & (side != 0), np.nextafter(s, np.where(side > 0, np.inf, -np.inf)), s)
    overflows = np.isinf(q) & np.isfinite(a) & (b != 0)
    return narrow(np.where(overflows, np.copysign(2.0**128, s), s), np.float32, mode)


def sqrt32(a: Array, mode: str = "rn") -> Array:
    """Float32 square root in any rounding mode."""
    if mode == "rn":
        return np.asarray(np.sqrt(a))
    q = np.sqrt(a.astype(np.float64))
    side = np.sign(a - np.multiply(q.astype(np.float32), q.astype(np.float32), dtype=np.float64))
    s = q.astype(np.float32).astype(np.float64)
    return narrow(np.where(side != 0, np.nextafter(s, np.where(side > 0, np.inf, -np.inf)), s), np.float32, mode)


def _split(a: Array) -> tuple[Array, Array]:
    t = a * 134217729.0
    high = t - (t - a)
    return high, a - high


def fma64(a: Array, b: Array, c: Array) -> Array:
    """Fused multiply-add of float64 arrays, round to nearest; extreme exponents by exact fractions."""
    a, b, c = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(b, np.float64), np.asarray(c, np.float64))
    p = a * b
    ah, al = _split(a)
    bh, bl = _split(b)
    low = al * bl - (((p - ah * bh) - al * bh) - ah * bl)
    u = c + low
    t = u - c
    ul = (c - (u - t)) + (low - t)
    h = p + u
    t = h - p
    hl = (p - (h - t)) + (u - t)
    out = h + odd_sum(hl, ul)
    extreme = np.zeros(out.shape, bool)
    for x in (a, b, c, p, out):
        magnitude = np.abs(x)
        extreme |= (magnitude > 1e290) | ((magnitude < 1e-270) & (x != 0)) | ~np.isfinite(x)
    if extreme.any():
        out = np.array(out)
        for i in np.flatnonzero(extreme):
            out[i] = _fma_exact(float(a[i]), float(b[i]), float(c[i]))
    exact_zero = (p == 0) | (c == 0)
    return np.where(exact_zero & ~extreme, p + c, out)


def _fma_exact(a: float, b: float, c: float) -> float:
    if not (np.isfinite(a) and np.isfinite(b)):
        return float(np.float64(a) * np.float64(b) + np.float64(c))
    if not np.isfinite(c):
        return c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return float(np.float64(a) * np.float64(b) + np.float64(c))
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")


def directed64(near: Any, mode: str, side: Callable[..., Any], terms: Sequence[Any], cancels: Any = False) -> Array:
    """Float64 ``near``, rounded to nearest from ``terms``, moved to what ``mode`` gives.

    The sign of ``side(*terms, near)``, of fractions, is that of the exact value less ``near``; ``cancels``: where an
    exact zero is a sum of opposite terms, which is -0 when rounding down.
    """
    near, cancels, *terms = np.broadcast_arrays(np.atleast_1d(near), cancels, *terms)
    out = np.array(near, np.float64)
    for i in np.ndindex(out.shape):
        r = float(near[i])
        if not all(np.isfinite(x[i]) for x in terms) or r != r:
            continue
        try:
            over = -np.sign(r) if np.isinf(r) else side(*(Fraction(x[i].item()) for x in terms), Fraction(r))
        except ZeroDivisionError:
            continue
        if over < 0 and (mode == "rm" or (mode == "rz" and r > 0)):
            out[i] = np.nextafter(r, -np.inf)
        elif over > 0 and (mode == "rp" or (mode == "rz" and r < 0)):
            out[i] = np.nextafter(r, np.inf)
        elif over == r == 0 and mode == "rm" and cancels[i]:
            out[i] = -0.0
    return out


def minimum32(a: Array, b: Array, nan: bool = False) -> Array:
    """PTX ``min.f32``: the number where one is NaN (NaN with ``.NaN``), and -0 below +0."""
    r = np.minimum(a, b) if nan else np.fmin(a, b)
    return np.where(a == b, np.where(np.signbit(a), a, b), r)  # of two zeros NumPy gives either


def maximum32(a: Array, b: Array, nan: bool = False) -> Array:
    """PTX ``max.f32``: the number where one is NaN (NaN with ``.NaN``), and +0 above -0."""
    r = np.maximum(a, b) if nan else np.fmax(a, b)
    return np.where(a == b, np.where(np.signbit(a), b, a), r)


def bfloat_to_float(x: Array) -> Array:
    """Bits of bfloat16 (uint16) to float32."""
    return np.asarray((x.astype(np.uint32) << np.uint32(16)).view(np.float32))


def shortened(s: Array, drop: int, mode: str = "rn") -> Array:
    """Float64 (exact or rounded to odd) to the bits of float32 without the last ``drop``, NaN the canonical one.

    ``mode`` is one of `MODES`, or ``rna``: ties away from zero.
    """
    near = narrow(s, np.float32, "rz")
    bits = near.view(np.uint32).copy()
    bits |= (near.astype(np.float64) != s).astype(np.uint32)  # sticky: what was cut off still breaks ties
    half, ones = np.uint32(1 << drop - 1), np.uint32((1 << drop) - 1)
    if mode == "rn":
        bits += half - np.uint32(1) + (bits >> np.uint32(drop) & np.uint32(1))
    elif mode == "rna":
        bits += half
    elif mode != "rz":
        bits += np.where(np.signbit(s) == (mode == "rm"), ones, np.uint32(0))
    return np.asarray(np.where(np.isnan(s), NAN32, np.where(np.isinf(s), near.view(np.uint32), bits & ~ones)))


def float_to_bfloat(s: Array, mode: str = "rn") -> Array:
    """Float64 (exact or rounded to odd) to the bits of bfloat16."""
    return np.asarray((shortened(s, 16, mode) >> np.uint32(16)).astype(np.uint16))


# Formats of 8 bits and fewer: fraction bits, bias, codes of finite numbers, the code that NaN has (of conversions).
_TINY = {"e4m3": (3, 7, 127, 0x7F), "e5m2": (2, 15, 124, 0x7F), "e2m3": (3, 1, 32, 31), "e3m2": (2, 3, 32, 31),
         "ue8m0": (0, 127, 255, 255)}  # fmt: skip


@cache
def _tiny(kind: str) -> Array:
    """The values of a format's codes without sign, as float64, in ascending order; NaN behind them."""
    fraction, bias, finite, _ = _TINY[kind]
    code = np.arange(256 if kind == "ue8m0" else 32 if finite == 32 else 128)
    exponent, part = code >> fraction, code & ((1 << fraction) - 1)
    values = np.ldexp(part + (exponent > 0) * (1.0 * (1 << fraction)), np.maximum(exponent, 1) - bias - fraction)
    if kind == "ue8m0":
        values = np.ldexp(1.0, code - bias)
    values[finite:] = np.nan
    if kind == "e5m2":
        values[finite] = np.inf
    return np.asarray(values)


def from_tiny(code: Array, kind: str) -> Array:
    """Codes (uint8) to float64."""
    values, code = _tiny(kind), code.astype(np.intp)
    return np.asarray(np.where(code & len(values), -1.0, 1.0) * values[code % len(values)])


def to_tiny(x: Array, kind: str, mode: str = "rn") -> Array:
    """Float64 to codes (uint8) in ``rn``, ``rz`` or ``rp``; what is too large gives the largest (``.satfinite``)."""
    _, _, finite, nan = _TINY[kind]
    values, size = _tiny(kind)[:finite], np.abs(x)
    if mode == "rn":
        middle = (values[1:] + values[:-1]) / 2
        code = np.searchsorted(middle, size)
        tie = middle[np.minimum(code, finite - 2)] == size
        code = code + (tie & (code & 1 == 1))
    else:
        code = np.searchsorted(values, size, "right") - 1 if mode == "rz" else np.searchsorted(values, size)
    code = np.clip(code, 0, finite - 1)
    sign = np.signbit(x) * (0 if kind == "ue8m0" else len(_tiny(kind)))
    return np.asarray(np.where(np.isnan(x), nan, code + sign).astype(np.uint8))
