"""Tests with a bound of their own, whatever other GEMMs do: structure, exactness, repeatability.

Each is ``(arrays, draw, (m, n, k), gemm) -> Finding``; the same seed gives every GEMM the same operands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isqrt, log2
from typing import Any

import numpy as np

from ..bench.peers import EPSILON
from .arrays import Arrays, Draw
from .contenders import Gemm

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


Test = Callable[[Arrays, Draw, Shape, Gemm], Finding]


def strassen(arrays: Arrays, draw: Draw, shape: Shape, gemm: Gemm) -> Finding:
    """Is it Strassen-like? For N / 2 random pairs (i, j), A(i, S) = 0 and B(not S, j) = 0 with a random proper subset S
    of the inner index, all else N(0, 1): C(i, j) is a sum of zeros, and what mixes columns or rows first leaves dirt.
    """
    m, n, k = shape
    pairs = min(m, n) // 2
    a, b = arrays.single(draw.normal((m, k))), arrays.single(draw.normal((k, n)))
    rows, columns = draw.permutation(m)[:pairs], draw.permutation(n)[:pairs]
    inside = draw.integers(0, 1, (pairs, k)) == 1
    at = draw.permutation(k)
    inside[:, at[0]], inside[:, at[1]] = True, False  # proper: neither empty nor all
    a[rows] = arrays.xp.where(inside, arrays.full((1, 1), 0.0), a[rows])
    b[:, columns] = arrays.xp.where(~inside.T, arrays.full((1, 1), 0.0), b[:, columns])
    return _count(~(gemm.multiply(a, b)[rows, columns] == 0), "pairs not 0")


def fixed_point(arrays: Arrays, draw: Draw, shape: Shape, gemm: Gemm) -> Finding:
    """Is it fixed-point? x in [1, 2], D powers of two from 2^max to 2^-max; A(i, j) = (x D)[(i + j) mod n],
    B(i, j) = (x / D)[(i + j) mod n]: the diagonal of C is the sum of x^2, within 10 n u. Schemes that align a row, a
    column or a tensor to its largest element lose the small factors that meet large ones. max = 0, 1, 2, 4, ... up to
    64 - log2(n) - 2.
    """
    n = shape[0]
    x = arrays.double(arrays.single(1 + draw.uniform((n,))))
    at = (arrays.range(n)[:, None] + arrays.range(n)[None, :]) % n
    truth = float((x * x).sum())

    def wrong(top: int) -> Any:
        down = arrays.take(_steps(top, n))
        y, z = arrays.single(x * arrays.power(down)), arrays.single(x * arrays.power(-down))
        return abs(arrays.double(gemm.multiply(y[at], z[at])).diagonal() - truth) / truth

    return _sweep(wrong, n, int(64 - log2(n) - 2))


def scaled_blocks(arrays: Arrays, draw: Draw, shape: Shape, gemm: Gemm) -> Finding:
    """A = U[1, 2] D, B = D^-1 U[1, 2], D repeating 16 shuffled powers of two from 2^max to 2^-max; the last row of A
    and the last column of B times the largest scale: the block before them is within 10 n u. One scale for a tensor, a
    row or a column does not do.
    """
    n = shape[0]
    a, b = (arrays.double(arrays.single(1 + draw.uniform((n, n)))) for _ in range(2))
    order = draw.permutation(16)[arrays.range(n) % 16]
    truth = a[:-1] @ b[:, :-1]
    last = arrays.range(n) == n - 1

    def wrong(top: int) -> Any:
        scale = arrays.take(_steps(top, 16))[order]
        stretch = arrays.power(arrays.xp.where(last, top, 0))
        left = a * arrays.power(scale)[None, :] * stretch[:, None]
        right = b * arrays.power(-scale)[:, None] * stretch[None, :]
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
        found = inf if bool((~(error < inf)).any()) else float(error.max()) / (n * EPSILON / 2)
        worst, held = max(worst, found), held and found <= 10
        reach = top if held else reach
    return Finding(worst, 10.0, "n u", f"holds up to 2^+-{reach} of 2^+-{limit}" if reach >= 0 else
                   "fails without any scaling")


def integers(arrays: Arrays, draw: Draw, shape: Shape, gemm: Gemm) -> Finding:
    """Integers in A and B of like size whose sums of products stay below 2^24: no rounding, in any order."""
    top = max(isqrt((2**24 - 1) // shape[2]), 1)
    return _integers(arrays, draw, shape, gemm, top, top)


def wide_integers(arrays: Arrays, draw: Draw, shape: Shape, gemm: Gemm) -> Finding:
    """As `integers`, with B's from -1 to 1: A's use as many of their 24 bits as K leaves."""
    return _integers(arrays, draw, shape, gemm, (2**24 - 1) // shape[2], 1)


def _integers(arrays: Arrays, draw: Draw, shape: Shape, gemm: Gemm, left: int, right: int) -> Finding:
    m, n, k = shape
    a, b = arrays.double(draw.integers(-left, left, (m, k))), arrays.double(draw.integers(-right, right, (k, n)))
    got = gemm.multiply(arrays.single(a), arrays.single(b))
    return _count(~(arrays.double(got) == a @ b), "wrong")


def identity(arrays: Arrays, draw: Draw, shape: Shape, gemm: Gemm) -> Finding:
    """I X and X I are X bit for bit; X has exponents over all of float32's range, subnormals too."""
    n = shape[0]
    eye = arrays.single(arrays.range(n)[:, None] == arrays.range(n)[None, :])
    x = (1 - 2 * arrays.double(draw.integers(0, 1, (n, n)))) * (1 + draw.uniform((n, n)))
    x = arrays.single(x * arrays.power(draw.integers(-149, 126, (n, n))))
    return _count(_differ(arrays, gemm.multiply(eye, x), x) | _differ(arrays, gemm.multiply(x, eye), x), "differ")


def powers(arrays: Arrays, draw: Draw, shape: Shape, gemm: Gemm) -> Finding:
    """Rows of A and columns of B times powers of two, from 2^-20 to 2^20: C's are scaled by them, bit for bit."""
    m, n, k = shape
    a, b = arrays.single(draw.normal((m, k))), arrays.single(draw.normal((k, n)))
    rows, columns = (arrays.power(draw.integers(-20, 20, s)) for s in ((m, 1), (1, n)))
    scaled = gemm.multiply(arrays.single(a * rows), arrays.single(b * columns))
    plain = gemm.multiply(a, b)
    differ = _differ(arrays, scaled, arrays.single(arrays.double(plain) * rows * columns))
    return _count(differ | ~arrays.xp.isfinite(plain), "differ")


def repeat(arrays: Arrays, draw: Draw, shape: Shape, gemm: Gemm) -> Finding:
    """The same call gives the same bits: again, and on a GPU on another stream and under other load."""
    m, n, k = shape
    a, b = arrays.single(draw.normal((m, k))), arrays.single(draw.normal((k, n)))
    first = arrays.copy(gemm.multiply(a, b))
    found = {}
    for name, way in arrays.ways().items():
        with way:
            again = arrays.copy(gemm.multiply(a, b))
        found[name] = int(_differ(arrays, again, first).sum())
    return Finding(sum(found.values()), 0, "differ", ", ".join(name for name, count in found.items() if count))


def _differ(arrays: Arrays, x: Any, y: Any) -> Any:
    return arrays.bits(x) != arrays.bits(y)


def _count(wrong: Any, unit: str) -> Finding:
    return Finding(float(wrong.sum()), 0, unit)


STRUCTURE: dict[str, Test] = {"strassen": strassen, "fixed-point": fixed_point, "scaled-blocks": scaled_blocks}
EXACT: dict[str, Test] = {"integers": integers, "wide-integers": wide_integers, "identity": identity, "powers": powers}
