"""Special values: infinities, NaN, zeros, the largest number, empty matrices, and what BLAS must not read.

Every case is a problem whose IEEE result does not depend on the order of the sum; FP64 gives it, class by class.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

import numpy as np

from ..bench.errors import bound
from .contenders import Gemm
from .families import Draw, normal, single
from .fixed import Finding, Shape
from .measure import LARGEST, Exact


class Operands:
    """Random normal ``a (M, K)``, ``b (K, N)`` and ``c (M, N)``, and random places to plant something in."""

    def __init__(self, draw: Draw, shape: Shape) -> None:
        self._draw = draw
        self.m, self.n, self.k = shape
        self.a, self.b = normal(draw, *shape)
        self.c = single(draw.standard_normal((self.m, self.n)))

    def places(self, size: int, count: int) -> list[int]:
        """Different random indices below ``size``."""
        return [int(i) for i in self._draw.permutation(size)[:count]]

    def place(self, size: int) -> int:
        """One of them."""
        return self.places(size, 1)[0]


def nan_in_a(x: Operands) -> None:
    """A NaN in A: its row of C is NaN, no other."""
    x.a[x.place(x.m), x.place(x.k)] = nan


def nan_in_b(x: Operands) -> None:
    """A NaN in B: its column of C is NaN, no other."""
    x.b[x.place(x.k), x.place(x.n)] = nan


def infinity_in_a(x: Operands) -> None:
    """An infinity in A meets B's numbers, half of them powers of two: infinities with their signs, and no NaN that
    infinity times the low part of a split number would invent."""
    i, k = x.place(x.m), x.place(x.k)
    x.a[i, k] = inf
    x.b[k, ::2] = np.where(x.b[k, ::2] > 0, 1.0, -2.0)


def infinity_in_b(x: Operands) -> None:
    """The same with minus infinity in B."""
    k, j = x.place(x.k), x.place(x.n)
    x.b[k, j] = -inf
    x.a[::2, k] = np.where(x.a[::2, k] > 0, 1.0, -2.0)


def infinity_times_zero(x: Operands) -> None:
    """Infinity times 0 and times -0 is NaN; the rest of the row is infinite."""
    i, k, (j0, j1) = x.place(x.m), x.place(x.k), x.places(x.n, 2)
    x.a[i, k], x.b[k, j0], x.b[k, j1] = inf, 0.0, -0.0


def infinity_minus_infinity(x: Operands) -> None:
    """Two infinities in a row: NaN where B's signs differ, an infinity where they agree."""
    x.a[x.place(x.m), x.places(x.k, 2)] = inf


def infinity_everywhere(x: Operands) -> None:
    """Infinities all over both operands: every one where IEEE arithmetic puts it."""
    for i in x.places(x.m, x.m // 4):
        x.a[i, x.place(x.k)] = inf
    for j in x.places(x.n, x.n // 4):
        x.b[x.place(x.k), j] = -inf


def signed_zeros(x: Operands) -> None:
    """A row of -0 and a column of 0: zeros, whatever their sign."""
    x.a[x.place(x.m), :] = -0.0
    x.b[:, x.place(x.n)] = 0.0


def overflow(x: Operands) -> None:
    """A row and a column whose products are all beyond FLT_MAX: infinity; the negative row: minus infinity."""
    (up, down), j = x.places(x.m, 2), x.place(x.n)
    x.a[up, :], x.a[down, :], x.b[:, j] = 2.0**100, -(2.0**100), 2.0**30


def largest(x: Operands) -> None:
    """One FLT_MAX in each row of A, where B has 1 and -1: it comes out as it went in."""
    x.a[:], x.b[:] = 0.0, np.where(x.b > 0, 1.0, -1.0)
    rows = np.arange(x.m)
    x.a[rows, rows % x.k] = LARGEST


def no_rows(x: Operands) -> None:
    """M = 0."""
    x.a = x.a[:0]


def no_columns(x: Operands) -> None:
    """N = 0."""
    x.b = x.b[:, :0]


def no_depth(x: Operands) -> None:
    """K = 0: C is 0, or with beta exactly beta C0."""
    x.a, x.b = x.a[:, :0], x.b[:0]


def beta_zero(x: Operands) -> None:
    """beta = 0 over NaN and infinities in C: it is not read."""
    x.c[::2], x.c[1::2] = nan, inf


def alpha_zero(x: Operands) -> None:
    """alpha = 0 with NaN in A and infinities in B: neither is read."""
    x.a[::2], x.b[:, ::2] = nan, inf


def both_zero(x: Operands) -> None:
    """alpha = beta = 0 over NaN everywhere: zeros."""
    x.a[::2], x.b[:, ::2], x.c[1::2] = nan, nan, nan


def nan_in_c(x: Operands) -> None:
    """beta = 1 with a NaN and an infinity in C: they come out there, and nowhere else."""
    (i, other), j = x.places(x.m, 2), x.place(x.n)
    x.c[i, j], x.c[other, j] = nan, -inf


CASES: dict[str, Callable[[Operands], None]] = {plant.__name__.replace("_", "-"): plant for plant in (
    nan_in_a, nan_in_b, infinity_in_a, infinity_in_b, infinity_times_zero, infinity_minus_infinity, infinity_everywhere,
    signed_zeros, overflow, largest, no_rows, no_columns, no_depth)}
CASES |= {"no-depth-scaled": no_depth, "beta-zero": beta_zero, "alpha-zero": alpha_zero, "both-zero": both_zero,
          "nan-in-c": nan_in_c}
# Alpha and beta of the cases that need them; the others are plain products.
SCALED = {"no-depth-scaled": (1.5, -2.0), "beta-zero": (2.0, 0.0), "alpha-zero": (0.0, -2.0), "both-zero": (0.0, 0.0),
          "nan-in-c": (1.0, 1.0)}
# No rounding, no NaN: equal to the last bit, but for the sign of 0.
EXACTLY = frozenset({"largest", "no-depth", "no-depth-scaled", "alpha-zero", "both-zero"})
# One shape of whole tiles, one that fits none.
SHAPES = ((192, 160, 128), (33, 65, 31))


def special(draw: Draw, shape: Shape, gemm: Gemm, case: str) -> Finding:
    """Elements of another class than IEEE's, or beyond the bound of float32 arithmetic."""
    x, arrays = Operands(draw, shape), gemm.arrays
    CASES[case](x)
    a, b, c = map(arrays.take, (x.a, x.b, x.c))
    if case in SCALED:
        got, exact = gemm.scaled(a, b, c, *SCALED[case]), Exact(arrays, a, b, c, *SCALED[case])
    else:
        got, exact = gemm.multiply(a, b), Exact(arrays, a, b)
    right = got == arrays.single(exact.value) if case in EXACTLY else exact.errors(got) <= bound(x.a.shape[1])
    return Finding(float((~right).sum()), 0, "wrong")
