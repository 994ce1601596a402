"""The error of a product against FP64: componentwise, rowwise, normwise, in units of eps = 2^-23.

The product of two float32 numbers is exact in FP64 (48 bits of 53), and none over- or underflows there (2^-298 to
2^256); a sum of K of them is wrong by at most K 2^-53 |A||B|, that is 2^-30 K of the unit in which errors are told:
6e-5 at K = 65536. Nothing more exact is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

from ..bench.errors import EPSILON
from .arrays import Arrays

QUANTUM = 2.0**-149  # the smallest subnormal
LARGEST = (2.0 - EPSILON) * 2.0**127  # FLT_MAX


@dataclass(frozen=True, slots=True)
class Figures:
    """``largest`` and ``mean``: |Chat - C| / (eps (|alpha||A||B| + |beta||C0|) + 2^-149), of all elements;
    ``rowwise``: the largest |Chat - C|_ij / (eps |alpha| ||A(i,:)|| ||B(:,j)|| + ...); ``normwise``: Frobenius norms.
    """

    largest: float
    mean: float
    rowwise: float
    normwise: float

    @staticmethod
    def pooled(draws: list[Figures]) -> Figures:
        """Of several draws of one size: the largest of all, the mean of all."""
        return Figures(max(f.largest for f in draws), sum(f.mean for f in draws) / len(draws),
                       max(f.rowwise for f in draws), max(f.normwise for f in draws))


class Exact:
    """``alpha A B + beta C0`` in FP64, and how far a result is from it.

    ``a (M, K)``, ``b (K, N)``, ``c (M, N)``, float32. As in BLAS ``c`` is not read where beta is 0, nor ``a`` and
    ``b`` where alpha is.
    """

    def __init__(self, arrays: Arrays, a: Any, b: Any, c: Any = None, alpha: float = 1.0, beta: float = 0.0) -> None:
        self._arrays, self._k = arrays, a.shape[1]
        if alpha == 0:
            self.value = self.scale = self._rows = arrays.xp.zeros_like(arrays.double(c))
            self._norms = 0.0
        else:
            a64, b64 = arrays.double(a), arrays.double(b)
            self.value = alpha * (a64 @ b64)
            self.scale = abs(alpha) * (abs(a64) @ abs(b64))
            rows, columns = ((a64 * a64).sum(1) ** 0.5)[:, None], ((b64 * b64).sum(0) ** 0.5)[None, :]
            self._rows = abs(alpha) * rows * columns
            self._norms = abs(alpha) * sqrt(float((rows * rows).sum()) * float((columns * columns).sum()))
        if beta != 0:
            c64 = beta * arrays.double(c)
            self.value, self.scale, self._rows = self.value + c64, self.scale + abs(c64), self._rows + abs(c64)
            self._norms += sqrt(float((c64 * c64).sum()))

    def differences(self, got: Any) -> Any:
        """|got - C|, float64 ``(M, N)``: infinite where ``got`` is of another class than IEEE arithmetic gives.

        NaN and infinities must be where they belong. Where the products of one sign exceed FLT_MAX, the order of the
        sum may decide whether it overflows: that infinity is right too, and where those of the other sign do so as
        well, whatever is not finite. A finite result is measured, unless C is beyond FLT_MAX by more than rounding.
        """
        xp, c, size = self._arrays.xp, self.value, abs(self.value)
        got64 = self._arrays.double(got)
        limit, top = LARGEST / (1 + self._k * EPSILON), LARGEST * (1 + (self._k + 1) * EPSILON)
        own, other = (self.scale + size) / 2, (self.scale - size) / 2  # sums of the products of either sign
        right = xp.isnan(c) & xp.isnan(got)
        right = right | ((own >= limit) & (got64 == xp.where(c > 0, inf, -inf)))
        right = right | ((other >= limit) & xp.isfinite(c) & ~xp.isfinite(got))
        measured = xp.isfinite(got) & (size <= top)
        difference = xp.where(right, 0.0, xp.where(measured, abs(got64 - c), inf))
        return xp.where(xp.isnan(difference), inf, difference)

    def errors(self, got: Any) -> Any:
        """The componentwise errors, ``(M, N)``; no NaN among them."""
        return self._over(self.differences(got), self.scale)

    def _over(self, difference: Any, scale: Any) -> Any:
        xp = self._arrays.xp
        errors = difference / (EPSILON * scale + QUANTUM)
        return xp.where(difference == 0, 0.0, xp.where(xp.isnan(errors) | xp.isinf(difference), inf, errors))

    def figures(self, got: Any) -> Figures:
        """All grades of a result."""
        difference = self.differences(got)
        errors = self._over(difference, self.scale)
        norm = float((difference * difference).sum()) ** 0.5 / (EPSILON * self._norms + QUANTUM)
        return Figures(float(errors.max()), float(errors.mean()), float(self._over(difference, self._rows).max()),
                       norm)

    def rounding(self) -> Figures:
        """The most that the exact result errs by when it is rounded once to float32: half a unit in the last place
        of |C|. No float32 result can be asked to do better."""
        xp = self._arrays.xp
        half = xp.where(xp.isfinite(self._arrays.single(self.value)), abs(self.value) * (EPSILON / 2), 0.0)
        half = xp.where(half < QUANTUM / 2, QUANTUM / 2, half)
        errors = half / (EPSILON * self.scale + QUANTUM)
        return Figures(float(errors.max()), float(errors.mean()), inf, inf)
