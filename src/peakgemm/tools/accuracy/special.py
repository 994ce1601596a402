"""Special values: infinities, NaN, zeros, the largest number, empty matrices, and what BLAS must not read.

Every case is a problem whose IEEE result does not depend on the order of the sum; FP64 gives it, class by class.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any, NamedTuple

import numpy as np

from .contenders import Gemm
from .families import Draw, normal, single
from .fixed import Finding, Shape
from .measure import LARGEST, Exact, bound


class Problem(NamedTuple):
    """``a (M, K)``, ``b (K, N)``, and where alpha and beta are to be tried ``c (M, N)``."""

    a: Any
    b: Any
    c: Any = None
    alpha: float = 1.0
    beta: float = 0.0


class Maker:
    """Random normal operands, and random places to plant something in."""

    def __init__(self, draw: Draw, shape: Shape) -> None:
        self._draw = draw
        self.m, self.n, self.k = shape
        self.a, self.b = normal(draw, *shape)
        self.c = single(draw.standard_normal((self.m, self.n)))

    def places(self, size: int, count: int) -> list[int]:
        """Different random indices below ``size``."""
        return [int(i) for i in self._draw.permutation(size)[:count]]


def nan_in_a(x: Maker) -> Problem:
    """A NaN in A: its row of C is NaN, no other."""
    x.a[x.places(x.m, 1)[0], x.places(x.k, 1)[0]] = nan
    return Problem(x.a, x.b)


def nan_in_b(x: Maker) -> Problem:
    """A NaN in B: its column of C is NaN, no other."""
    x.b[x.places(x.k, 1)[0], x.places(x.n, 1)[0]] = nan
    return Problem(x.a, x.b)


def infinity_in_a(x: Maker) -> Problem:
    """An infinity in A meets B's numbers, half of them powers of two: infinities with their signs, and no NaN that
    infinity times the low part of a split number would invent."""
    i, k = x.places(x.m, 1)[0], x.places(x.k, 1)[0]
    x.a[i, k] = inf
    x.b[k, ::2] = np.where(x.b[k, ::2] > 0, 1.0, -2.0)
    return Problem(x.a, x.b)


def infinity_in_b(x: Maker) -> Problem:
    """The same with minus infinity in B."""
    k, j = x.places(x.k, 1)[0], x.places(x.n, 1)[0]
    x.b[k, j] = -inf
    x.a[::2, k] = np.where(x.a[::2, k] > 0, 1.0, -2.0)
    return Problem(x.a, x.b)


def infinity_times_zero(x: Maker) -> Problem:
    """Infinity times 0 and times -0 is NaN; the rest of the row is infinite."""
    i, k, (j0, j1) = x.places(x.m, 1)[0], x.places(x.k, 1)[0], x.places(x.n, 2)
    x.a[i, k], x.b[k, j0], x.b[k, j1] = inf, 0.0, -0.0
    return Problem(x.a, x.b)


def infinity_minus_infinity(x: Maker) -> Problem:
    """Two infinities in a row: NaN where B's signs differ, an infinity where they agree."""
    i, ks = x.places(x.m, 1)[0], x.places(x.k, 2)
    for k in ks:
        x.a[i, k] = inf
    return Problem(x.a, x.b)


def infinity_everywhere(x: Maker) -> Problem:
    """Infinities all over both operands: every one where IEEE arithmetic puts it."""
    for i in x.places(x.m, x.m // 4):
        x.a[i, x.places(x.k, 1)[0]] = inf
    for j in x.places(x.n, x.n // 4):
        x.b[x.places(x.k, 1)[0], j] = -inf
    return Problem(x.a, x.b)


def signed_zeros(x: Maker) -> Problem:
    """A row of -0 and a column of 0: zeros, whatever their sign."""
    x.a[x.places(x.m, 1)[0], :] = -0.0
    x.b[:, x.places(x.n, 1)[0]] = 0.0
    return Problem(x.a, x.b)


def overflow(x: Maker) -> Problem:
    """A row and a column whose products are all beyond FLT_MAX: infinity; the negative row: minus infinity."""
    (up, down), j = x.places(x.m, 2), x.places(x.n, 1)[0]
    x.a[up, :], x.a[down, :], x.b[:, j] = 2.0**100, -(2.0**100), 2.0**30
    return Problem(x.a, x.b)


def largest(x: Maker) -> Problem:
    """One FLT_MAX in each row of A, where B has 1 and -1: it comes out as it went in."""
    a, b = np.zeros_like(x.a), single(np.where(x.b > 0, 1.0, -1.0))
    for i in range(x.m):
        a[i, i % x.k] = LARGEST
    return Problem(a, b)


def no_rows(x: Maker) -> Problem:
    """M = 0."""
    return Problem(x.a[:0], x.b)


def no_columns(x: Maker) -> Problem:
    """N = 0."""
    return Problem(x.a, x.b[:, :0])


def no_depth(x: Maker) -> Problem:
    """K = 0: C is 0."""
    return Problem(x.a[:, :0], x.b[:0])


def no_depth_scaled(x: Maker) -> Problem:
    """K = 0 with beta: C is beta C0, exactly."""
    return Problem(x.a[:, :0], x.b[:0], x.c, 1.5, -2.0)


def beta_zero(x: Maker) -> Problem:
    """beta = 0 over NaN and infinities in C: it is not read."""
    x.c[::2], x.c[1::2] = nan, inf
    return Problem(x.a, x.b, x.c, 2.0, 0.0)


def alpha_zero(x: Maker) -> Problem:
    """alpha = 0 with NaN in A and infinities in B: neither is read."""
    x.a[::2], x.b[:, ::2] = nan, inf
    return Problem(x.a, x.b, x.c, 0.0, -2.0)


def both_zero(x: Maker) -> Problem:
    """alpha = beta = 0 over NaN everywhere: zeros."""
    x.a[::2], x.b[:, ::2], x.c[1::2] = nan, nan, nan
    return Problem(x.a, x.b, x.c, 0.0, 0.0)


def nan_in_c(x: Maker) -> Problem:
    """beta = 1 with a NaN and an infinity in C: they come out there, and nowhere else."""
    (i, other), j = x.places(x.m, 2), x.places(x.n, 1)[0]
    x.c[i, j], x.c[other, j] = nan, -inf
    return Problem(x.a, x.b, x.c, 1.0, 1.0)


CASES: dict[str, Callable[[Maker], Problem]] = {make.__name__.replace("_", "-"): make for make in (
    nan_in_a, nan_in_b, infinity_in_a, infinity_in_b, infinity_times_zero, infinity_minus_infinity, infinity_everywhere,
    signed_zeros, overflow, largest, no_rows, no_columns, no_depth, no_depth_scaled, beta_zero,
    alpha_zero, both_zero, nan_in_c)}
# No rounding, no NaN: equal to the last bit, but for the sign of 0.
EXACTLY = frozenset({"largest", "no-depth", "no-depth-scaled", "alpha-zero", "both-zero"})
SCALED = frozenset({"no-depth-scaled", "beta-zero", "alpha-zero", "both-zero", "nan-in-c"})  # need alpha and beta
# One shape of whole tiles, one that fits none.
SHAPES = ((192, 160, 128), (33, 65, 31))


def special(draw: Draw, shape: Shape, gemm: Gemm, case: str) -> Finding:
    """Elements of another class than IEEE's, or beyond the bound of float32 arithmetic, `measure.bound`."""
    p, arrays = CASES[case](Maker(draw, shape)), gemm.arrays
    a, b, c = (None if x is None else arrays.take(x) for x in (p.a, p.b, p.c))
    got = gemm.multiply(a, b) if c is None else gemm.scaled(a, b, c, p.alpha, p.beta)
    exact = Exact(arrays, a, b, c, p.alpha, p.beta)
    right = got == arrays.single(exact.value) if case in EXACTLY else exact.errors(got) <= bound(p.a.shape[1])
    return Finding(float((~right).sum()), 0, "wrong")
