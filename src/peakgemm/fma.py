"""FP32 fused multiply-adds on a CPU, to the last bit of what a GPU makes of them.

A product of two binary32 numbers is exact in binary64; their sum with a third is not, and rounding it again to binary32
can differ from the one rounding of a fused multiply-add. `odd_sum` therefore rounds the sum to odd, after which any
narrower rounding is right (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
NAN32 = np.uint32(0x7FFFFFFF)
TINY32 = np.float64(2.0**-126)
_LOW, _HALF = np.uint64(0x1FFFFFFF), np.uint64(0x10000000)  # a binary64's bits below binary32's last, and half of it


def odd_sum(p: Array, c: Array) -> Array:
    """``p + c`` of two float64 arrays, rounded to odd."""
    s = p + c
    b = s - p
    error = (p - (s - b)) + (c - b)
    lost = (error != 0) & ((s.view(np.uint64) & 1) == 0) & np.isfinite(s)
    if lost.any():
        s = np.where(lost, np.nextafter(s, np.where(error > 0, np.inf, -np.inf)), s)
    return np.asarray(s)


def canonical(x: Array) -> Array:
    """``x`` with every float32 NaN replaced, in place, by the one NaN that GPU arithmetic makes, 0x7fffffff."""
    bad = np.isnan(x)
    if bad.any():
        x.view(np.uint32)[bad] = NAN32
    return x


class Chain:
    """Sums of one shape: `add` adds a product to each, by one fused multiply-add.

    The second rounding of ``float32(p + c)`` goes wrong only where the float64 sum lies half-way between two float32
    numbers (its low 29 bits are 1000...0) or among the subnormal ones: these few are computed again.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.sums = np.zeros(shape, np.float32)
        self._p, self._c, self._s = (np.empty(shape) for _ in range(3))
        self._low, self._hit = np.empty(shape, np.uint64), np.empty(shape, bool)
        self._small = np.empty(shape, bool)

    def add(self, a: Array, b: Array) -> None:
        """``sums = fma(a, b, sums)``, for float64 arrays of float32 numbers that broadcast to the sums' shape."""
        p, c, s, hit = self._p, self._c, self._s, self._hit
        np.multiply(a, b, out=p)
        np.copyto(c, self.sums)
        np.add(p, c, out=s)
        np.bitwise_and(s.view(np.uint64), _LOW, out=self._low)
        np.equal(self._low, _HALF, out=hit)
        np.copyto(self.sums, s, casting="same_kind")
        np.abs(s, out=s)
        np.less(s, TINY32, out=self._small)
        hit |= self._small
        if hit.any():
            self.sums[hit] = odd_sum(p[hit], c[hit]).astype(np.float32)


def fma32(a: Array, b: Array, c: Array) -> Array:
    """Fused multiply-add of float32 arrays, rounded to nearest."""
    p = np.multiply(a, b, dtype=np.float64)
    return np.asarray(odd_sum(p, np.asarray(c).astype(np.float64)).astype(np.float32))
