"""Tests with a bound of their own, whatever other GEMMs do: structure, exactness, repeatability.

Each is ``(draw, (m, n, k), gemm) -> Finding``; the same seed gives every GEMM the same operands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isqrt, log2
from typing import Any

import numpy as np

from ..bench.errors import EPSILON
from .arrays import Arrays
from .contenders import Gemm
from .families import Draw, normal, signs, single

Shape = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a test found: ``figure`` must be at most ``limit``, both in ``unit``; ``note``: more, in words."""

    figure: float
    limit: float
    unit: str
    note: str = ""

    @property
    def passed(self) -> bool:
        """A NaN does not pass."""
        return self.figure <= self.limit


Test = Callable[[Draw, Shape, Gemm], Finding]


def strassen(draw: Draw, shape: Shape, gemm: Gemm) -> Finding:
    """Is it Strassen-like? For N / 2 random pairs (i, j), A(i, S) = 0 and B(not S, j) = 0 with a random proper subset S
    of the inner index, all else N(0, 1): C(i, j) is a sum of zeros, and what mixes columns or rows first leaves dirt.
    """
    m, n, k = shape
    pairs = min(m, n) // 2
    a, b = normal(draw, m, n, k)
    rows, columns = draw.permutation(m)[:pairs], draw.permutation(n)[:pairs]
    inside = draw.integers(0, 2, (pairs, k)) == 1
    at = draw.permutation(k)
    inside[:, at[0]], inside[:, at[1]] = True, False  # proper: neither empty nor all
    a[rows] = np.where(inside, 0, a[rows])
    b[:, columns] = np.where(~inside.T, 0, b[:, columns])
    return _count(~(_product(gemm, a, b)[rows, columns] == 0), "pairs not 0")


def fixed_point(draw: Draw, shape: Shape, gemm: Gemm) -> Finding:
    """Is it fixed-point? x in [1, 2], D powers of two from 2^max to 2^-max; A(i, j) = (x D)[(i + j) mod n],
    B(i, j) = (x / D)[(i + j) mod n]: the diagonal of C is the sum of x^2, within 10 n u. Schemes that align a row, a
    column or a tensor to its largest element lose the small factors that meet large ones. max = 0, 1, 2, 4, ... up to
    64 - log2(n) - 2.
    """
    n = shape[0]
    x = single(1 + draw.random(n)).astype(np.float64)
    at = (np.arange(n)[:, None] + np.arange(n)[None, :]) % n
    truth = float((x * x).sum())

    def wrong(top: int) -> Any:
        y, z = (single(np.ldexp(x, sign * _steps(top, n)))[at] for sign in (1, -1))
        return abs(gemm.arrays.double(_product(gemm, y, z)).diagonal() - truth) / truth

    return _sweep(wrong, n, int(64 - log2(n) - 2))


def scaled_blocks(draw: Draw, shape: Shape, gemm: Gemm) -> Finding:
    """A = U[1, 2] D, B = D^-1 U[1, 2], D repeating 16 shuffled powers of two from 2^max to 2^-max; the last row of A
    and the last column of B times the largest scale: the block before them is within 10 n u. One scale for a tensor, a
    row or a column does not do.
    """
    n, arrays = shape[0], gemm.arrays
    a, b = (arrays.double(arrays.take(single(1 + draw.random((n, n))))) for _ in range(2))
    order = draw.permutation(16)[np.arange(n) % 16]
    truth = a[:-1] @ b[:, :-1]

    def wrong(top: int) -> Any:
        steps = _steps(top, 16)[order]
        last = np.where(np.arange(n) == n - 1, top, 0)
        down, up, stretch = (arrays.take(np.ldexp(1.0, x)) for x in (steps, -steps, last))
        left, right = a * down[None, :] * stretch[:, None], b * up[:, None] * stretch[None, :]
        got = gemm.multiply(arrays.single(left), arrays.single(right))
        return abs(arrays.double(got[:-1, :-1]) - truth) / truth

    return _sweep(wrong, n, int((124 - log2(n)) // 2))  # the corner, n 4 2^(2 max), stays below 2^127


def _steps(top: int, count: int) -> Any:
    """``count`` exponents from ``top`` down to ``-top`` in linear steps, rounded."""
    return np.rint(np.linspace(top, -top, count)).astype(np.int64)


def _sweep(wrong: Callable[[int], Any], n: int, limit: int) -> Finding:
    """The worst relative error in n u over all spans, and how far it held; the bound is 10 n u."""
    tops = [0, *(2**i for i in range(limit.bit_length()) if 2**i < limit), limit]
    worst, held = 0.0, True
    reach = -1
    for top in tops:
        error = wrong(top)
        units = inf if bool((~(error < inf)).any()) else float(error.max()) / (n * EPSILON / 2)
        worst, held = max(worst, units), held and units <= 10
        reach = top if held else reach
    return Finding(worst, 10.0, "n u", f"holds up to 2^+-{reach} of 2^+-{limit}" if reach >= 0 else
                   "fails without any scaling")


def integers(draw: Draw, shape: Shape, gemm: Gemm) -> Finding:
    """Integers in A and B of like size whose sums of products stay below 2^24: no rounding, in any order."""
    top = max(isqrt((2**24 - 1) // shape[2]), 1)
    return _integers(draw, shape, gemm, top, top)


def wide_integers(draw: Draw, shape: Shape, gemm: Gemm) -> Finding:
    """As `integers`, with B's from -1 to 1: A's use as many of their 24 bits as K leaves."""
    return _integers(draw, shape, gemm, (2**24 - 1) // shape[2], 1)


def _integers(draw: Draw, shape: Shape, gemm: Gemm, left: int, right: int) -> Finding:
    (m, n, k), arrays = shape, gemm.arrays
    a, b = draw.integers(-left, left + 1, (m, k)), draw.integers(-right, right + 1, (k, n))
    x, y = (arrays.take(single(values)) for values in (a, b))
    return _count(~(arrays.double(gemm.multiply(x, y)) == arrays.double(x) @ arrays.double(y)), "wrong")


def identity(draw: Draw, shape: Shape, gemm: Gemm) -> Finding:
    """I X and X I are X bit for bit; X has exponents over all of float32's range, subnormals too."""
    n = shape[0]
    eye = np.eye(n, dtype=np.float32)
    x = signs(draw, (n, n)) * (1 + draw.random((n, n)))
    x = single(np.ldexp(x, draw.integers(-149, 127, (n, n))))
    right = gemm.arrays.take(x)
    return _count(_differ(gemm.arrays, _product(gemm, eye, x), right)
                  | _differ(gemm.arrays, _product(gemm, x, eye), right), "differ")


def powers(draw: Draw, shape: Shape, gemm: Gemm) -> Finding:
    """Rows of A and columns of B times powers of two, from 2^-20 to 2^20: C's are scaled by them, bit for bit."""
    (m, n, k), arrays = shape, gemm.arrays
    a, b = normal(draw, m, n, k)
    rows, columns = (np.ldexp(1.0, draw.integers(-20, 21, s)) for s in ((m, 1), (1, n)))
    scaled, plain = _product(gemm, single(a * rows), single(b * columns)), _product(gemm, a, b)
    wanted = arrays.single(arrays.double(plain) * arrays.take(rows) * arrays.take(columns))
    return _count(_differ(arrays, scaled, wanted) | ~arrays.xp.isfinite(plain), "differ")


def repeat(draw: Draw, shape: Shape, gemm: Gemm) -> Finding:
    """The same call gives the same bits: again, and on a GPU on another stream and under other load."""
    arrays = gemm.arrays
    a, b = map(arrays.take, normal(draw, *shape))
    first = arrays.copy(gemm.multiply(a, b))
    counts = {}
    for name, way in arrays.ways().items():
        with way:
            again = arrays.copy(gemm.multiply(a, b))
        counts[name] = int(_differ(arrays, again, first).sum())
    return Finding(sum(counts.values()), 0, "differ", ", ".join(name for name, count in counts.items() if count))


def _product(gemm: Gemm, a: Any, b: Any) -> Any:
    """Of NumPy's float32 arrays, as an array of the GEMM's module."""
    return gemm.multiply(gemm.arrays.take(a), gemm.arrays.take(b))


def _differ(arrays: Arrays, x: Any, y: Any) -> Any:
    return arrays.bits(x) != arrays.bits(y)


def _count(wrong: Any, unit: str) -> Finding:
    return Finding(float(wrong.sum()), 0, unit)


STRUCTURE: dict[str, Test] = {"strassen": strassen, "fixed-point": fixed_point, "scaled-blocks": scaled_blocks}
EXACT: dict[str, Test] = {"integers": integers, "wide-integers": wide_integers, "identity": identity, "powers": powers}
