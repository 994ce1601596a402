"""What the accuracy suite measures with: its FP64 reference against rational arithmetic, its classes, its data."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from peakgemm.tools.accuracy.arrays import Numpy
from peakgemm.tools.accuracy.families import FAMILIES
from peakgemm.tools.accuracy.measure import LARGEST, Exact
from peakgemm.tools.accuracy.verdict import slope
from peakgemm.tools.bench.errors import bound

f32, f64 = np.float32, np.float64


def exactly(a: Any, b: Any) -> list[list[tuple[Fraction, Fraction]]]:
    """C and |A||B|, in rational numbers."""
    x, y = ([[Fraction(float(v)) for v in row] for row in matrix] for matrix in (a, b))
    columns = list(zip(*y, strict=True))
    return [[(sum((p * q for p, q in zip(r, s, strict=True)), Fraction()),
              sum((abs(p * q) for p, q in zip(r, s, strict=True)), Fraction())) for s in columns] for r in x]


@pytest.mark.parametrize("family", FAMILIES)
def test_families_and_their_reference(family: str) -> None:
    """FP64's errors are those of rational arithmetic; no partial sum can overflow; nothing is all zeros."""
    arrays = Numpy()
    m, n, k = 4, 5, 33
    with np.errstate(all="ignore"):
        a, b = FAMILIES[family](np.random.default_rng(7), m, n, k)
        got = a @ b
        measured = Exact(arrays, a, b).errors(got)
    assert (a.dtype, b.dtype, a.shape, b.shape) == (f32, f32, (m, k), (k, n))
    assert np.isfinite(a).all() and np.isfinite(b).all() and np.isfinite(got).all()
    truth = exactly(a, b)
    for i, j in itertools.product(range(m), range(n)):
        value, scale = truth[i][j]
        assert scale < Fraction(LARGEST) and (value != 0 or family == "cancellation")
        error = abs(Fraction(float(got[i, j])) - value) / (scale * Fraction(2) ** -23 + Fraction(2) ** -149)
        assert measured[i, j] == pytest.approx(float(error), rel=1e-6, abs=k * 2.0**-30)
    assert measured.max() <= bound(k)


def test_families_are_what_they_say() -> None:
    drawn = {name: FAMILIES[name](np.random.default_rng(1), 64, 64, 64) for name in FAMILIES}
    tiny, top = 2.0**-126, LARGEST / 2
    for x in drawn["subnormal"]:
        assert ((abs(x) > 0) & (abs(x) < tiny)).mean() == 0.5
    for x in drawn["huge"]:
        assert (abs(x) >= top * 0.999).mean() == 0.5
    for x in drawn["log-uniform"]:
        assert (abs(x) < tiny).any() and (abs(x) > 2.0**120).any()
    assert drawn["uniform"][0].min() >= 0 and drawn["uniform"][0].max() <= 1
    widths = [float(np.log(abs(drawn[f"exp{phi}"][0].astype(f64))).std()) for phi in ("0", "0.5", "1", "2", "4")]
    assert widths == sorted(widths) and widths[-1] > 3.5
    a, b = (x.astype(f64) for x in drawn["cancellation"])
    assert abs(a @ b).mean() < 2.0**-10 * (abs(a) @ abs(b)).mean()


@pytest.mark.parametrize(("terms", "got", "right"), [
    ([3 * 2.0**126] * 2, np.inf, True), ([3 * 2.0**126] * 2, LARGEST, False), ([3 * 2.0**126] * 2, np.nan, False),
    ([3 * 2.0**126] * 2, -np.inf, False), ([-3 * 2.0**126] * 2, -np.inf, True), ([-3 * 2.0**126] * 2, np.inf, False),
    # Rounding decides at the edge.
    ([2.0**127, 2.0**127], np.inf, True), ([2.0**127, 2.0**127], LARGEST, True), ([2.0**127] * 2, np.nan, False),
    # A partial sum may overflow or not: the order decides, and a finite result must be the right one.
    ([2.0**127, 2.0**127, -(2.0**127)], np.inf, True), ([2.0**127, 2.0**127, -(2.0**127)], 2.0**127, True),
    ([2.0**127, 2.0**127, -(2.0**127)], 2.0**126, False), ([2.0**127, 2.0**127, -(2.0**127)], -np.inf, False),
    ([2.0**127, 2.0**127, -(2.0**127)], np.nan, False), ([2.0**127] * 2 + [-(2.0**127)] * 3, np.nan, True),
    ([2.0**126, 2.0**126, -(2.0**127)], np.inf, False),
    ([1.0, np.nan], np.nan, True), ([1.0, np.nan], 1.0, False), ([np.inf, -1.0], np.inf, True),
    ([np.inf, -1.0], -np.inf, False), ([np.inf, -np.inf], np.nan, True), ([np.inf, -np.inf], 0.0, False),
    ([1.0, 2.0], np.nan, False), ([1.0, 2.0], np.inf, False), ([1.0, 2.0], 3.0, True), ([0.0, 0.0], -0.0, True),
    ([0.0, 0.0], 2.0**-149, True), ([0.0, 0.0], 2.0**-140, False),
])
def test_classes(terms: list[float], got: float, right: bool) -> None:
    a, b = np.array([terms], f32), np.ones((len(terms), 1), f32)
    with np.errstate(all="ignore"):
        error = Exact(Numpy(), a, b).errors(np.array([[got]], f32))
    assert (error[0, 0] <= bound(len(terms))) == right


def test_figures_by_hand() -> None:
    a, b = np.array([[3, 4], [0, 1]], f32), np.array([[1, 0], [0, 1]], f32)
    eps = 2.0**-23
    got = (a @ b).astype(f64)
    got[0, 0] += 6 * eps
    figures = Exact(Numpy(), a, b).figures(got.astype(f32))
    assert figures.largest == pytest.approx(2)
    assert figures.mean == pytest.approx(2 / 4)
    assert figures.rowwise == pytest.approx(6 / 5)
    assert figures.normwise == pytest.approx(6 / (26**0.5 * 2**0.5))
    half = Exact(Numpy(), a, b).rounding()
    assert (half.largest, half.mean) == (pytest.approx(0.5), pytest.approx((0.5 * 3 + 0.5) / 4, rel=1e-3))
    c = np.full((2, 2), 2.0, f32)
    exact = Exact(Numpy(), a, b, c, -2.0, 3.0)
    assert (exact.value == -2.0 * (a @ b) + 6).all()
    assert (exact.scale == 2.0 * (a @ b) + 6).all()


def test_slope() -> None:
    assert slope([(2.0**i, 3.0 * 2.0**i) for i in range(4, 9)]) == pytest.approx(1)
    assert slope([(2.0**i, 2.0 ** (i / 2)) for i in range(4, 9)]) == pytest.approx(0.5)
    assert slope([(16, 1.0), (32, 1.0)]) is None
    assert slope([(16, 0.0), (32, 1.0), (64, float("inf"))]) is None
