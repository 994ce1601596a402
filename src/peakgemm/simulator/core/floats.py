"""IEEE arithmetic as a GPU does it, on NumPy arrays: every rounding exact, NaN canonical.

What a fused multiply-add of binary32 numbers needs lies in `peakgemm.fma`, which products on a CPU use too.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...fma import NAN32 as NAN32
from ...fma import TINY32 as TINY32
from ...fma import canonical as canonical
from ...fma import odd_sum as odd_sum

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
    """Subnormal float32 to zero of the same sign (``.ftz``)."""
    return np.where(np.abs(x) < np.float32(2.0**-126), np.copysign(np.float32(0), x), x)


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
    return narrow(s, np.float32, mode)


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


def float_to_bfloat(s: Array, mode: str = "rn") -> Array:
    """Float64 (exact or rounded to odd) to the bits of bfloat16; ``rn`` or ``rz``."""
    near = narrow(s, np.float32, "rz")
    bits = near.view(np.uint32).copy()
    bits |= (near.astype(np.float64) != s).astype(np.uint32)  # sticky: what was cut off still breaks ties
    out = bits >> np.uint32(16)
    if mode == "rn":
        out = (bits + np.uint32(0x7FFF) + (out & np.uint32(1))) >> np.uint32(16)
    return np.asarray(np.where(np.isnan(s), np.uint16(0x7FFF), out.astype(np.uint16)))


def float_to_tf32(x: Array) -> Array:
    """``cvt.rna.tf32.f32``: 10 fraction bits, ties away from zero; the bits as uint32."""
    bits = x.view(np.uint32)
    out = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.asarray(np.where(np.isnan(x), NAN32, np.where(np.isinf(x), bits, out)))
