"""Certificates by NumPy: bounds that hold, no false alarm, faults found and located; and how they are asked for."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest

import peakgemm as pg
from peakgemm.certificate.constants import FALSE_ALARM, constants
from peakgemm.errors import InvalidType, InvalidValue
from peakgemm.tools.accuracy.arrays import Numpy
from peakgemm.tools.accuracy.families import FAMILIES
from peakgemm.tools.accuracy.measure import Exact

RNG = np.random.default_rng(5)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def chain(a: Any, b: Any, c: Any = 0.0, beta: float = 0.0) -> Any:
    """One FP32 sum after the other: the longest there is."""
    with np.errstate(all="ignore"):
        sums = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for k in range(a.shape[1]):
            sums = (sums.astype(float) + a[:, k, None].astype(float) * b[k].astype(float)).astype(np.float32)
        return (sums + np.float32(beta) * c).astype(np.float32)


def truncated(x: Any) -> Any:
    """As TF32 tensor cores see it."""
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("m", "n", "k"), [(48, 40, 32), (20, 30, 300)])
def test_bounds_hold_and_nothing_is_wrong(family: str, m: int, n: int, k: int) -> None:
    a, b = FAMILIES[family](RNG, m, n, k)
    c0 = normal(m, n) * np.float32(abs(a @ b).max() / 16)
    for c, options in ((chain(a, b), {}), (a @ b, {}), (chain(a, b, c0, 0.5), {"beta": 0.5, "c0": c0})):
        certificate = pg.certify(a, b, c, **options)
        assert certificate.ok and not certificate.certain and not certificate.spread, str(certificate)
        assert not len(certificate.unjudged.rows)
        exact = Exact(Numpy(), a, b, options.get("c0"), 1.0, options.get("beta", 0.0))
        bounds = [rows[:, None] * columns for rows, columns in (certificate.bounds(1e-9), certificate.bounds())]
        assert all((abs(c - exact.value) <= bound).all() for bound in bounds) and (bounds[0] <= bounds[1]).all()


def test_the_bound_of_one_product_is_the_textbooks() -> None:
    """K u |a| |b|, of vectors along each other, and not much more."""
    a, b = np.full((1, 100), 0.5, np.float32), np.full((100, 1), 0.5, np.float32)
    rows, columns = pg.certify(a, b, a @ b).bounds()
    assert 103 * 2.0**-24 * 25 <= rows[0] * columns[0] <= 103.001 * 2.0**-24 * 25


def test_scales_of_the_inner_dimension_do_not_matter() -> None:
    """Columns of A times powers of two, and rows of B by the same, change neither product nor bounds."""
    a, b = normal(40, 50), normal(50, 60)
    scale = np.exp2(RNG.integers(-40, 40, 50)).astype(np.float32)
    plain, scaled = pg.certify(a, b, a @ b, seed=3), pg.certify(a * scale, b / scale[:, None], a @ b, seed=3)
    for each, other in zip((*plain.thresholds, *plain.residuals), (*scaled.thresholds, *scaled.residuals), strict=True):
        assert np.allclose(each, other, rtol=1e-9, atol=1e-12, equal_nan=True)  # columns are not looked at
    assert np.isfinite(plain.thresholds.columns).all()
    bounds = [rows[:, None] * columns for rows, columns in (plain.bounds(), scaled.bounds())]
    assert np.allclose(*bounds, rtol=1e-9)
    assert (bounds[0] <= 3 * (53 * 2.0**-24) * (abs(a) @ abs(b))).all()


@pytest.mark.parametrize("k", [64, 512, 2048])
def test_tf32_is_found_out(k: int) -> None:
    a, b = normal(128, k), normal(k, 128)
    assert not pg.certify(a, b, truncated(a) @ truncated(b)).ok
    assert pg.certify(a, b, a @ b).ok


def test_all_together_may_be_off_though_no_row_is() -> None:
    """An element of each row off by a quarter of the row's threshold may be rounding errors; not 600 of them."""
    a, b = normal(600, 64), normal(64, 8)
    right = pg.certify(a, b, a @ b, seed=9)
    size = 0.25 * right.thresholds.rows * RNG.choice([-1, 1], 600)
    c = a @ b
    c[np.arange(600), RNG.integers(0, 8, 600)] += size.astype(np.float32)
    wrong = pg.certify(a, b, c, seed=9)
    assert wrong.spread and not wrong.ok and not len(wrong.rows) + len(wrong.columns)
    assert "together" in str(wrong)


def test_each_fault_above_the_threshold_is_found_and_located() -> None:
    """Bits flipped in the result, in an operand behind the product's back, lost and transposed tiles, swapped rows."""
    m, n, k = 96, 80, 64
    a, b = normal(m, k), normal(k, n)
    right = a @ b
    thresholds = pg.certify(a, b, right).thresholds
    for draw in range(60):
        c, i, j = right.copy(), *RNG.integers(0, (m, n))
        c.view(np.uint32)[i, j] ^= np.uint32(1) << np.uint32(RNG.integers(0, 32))
        with np.errstate(over="ignore", invalid="ignore"):
            size = abs(c[i, j].astype(float) - right[i, j])
        found = pg.certify(a, b, c)
        seen = (found.rows.tolist(), found.columns.tolist())
        if not size <= 2 * max(thresholds.rows[i], thresholds.columns[j]):
            assert seen == ([i], [j]), (draw, size)
        else:
            assert seen[0] in ([], [i]) and seen[1] in ([], [j])
    flipped = a.copy()
    flipped[17, 5] *= -2
    assert pg.certify(flipped, b, right).rows.tolist() == [17]
    flipped = b.copy()
    flipped[5, 17] *= -2
    assert pg.certify(a, flipped, right).columns.tolist() == [17]
    lost, turned, swapped = right.copy(), right.copy(), right.copy()
    lost[32:64, 16:48] = 0
    turned[32:64, 16:48] = right[32:64, 16:48].T
    swapped[[3, 70]] = right[[70, 3]]
    for c in (lost, turned):
        found = pg.certify(a, b, c)
        assert set(found.rows) <= set(range(32, 64)) and set(found.columns) <= set(range(16, 48))
        assert min(len(found.rows), len(found.columns)) > 28 and found.certain
    assert pg.certify(a, b, swapped).rows.tolist() == [3, 70]


def test_how_likely_an_error_is_missed() -> None:
    a, b = normal(50, 40), normal(40, 30)
    c = a @ b
    certificate = pg.certify(a, b, c)
    limit = min(x.max() for x in certificate.thresholds)
    assert [certificate.missed(x * limit) for x in (0.5, 1.1, -3, inf)] == [1, 0.25, FALSE_ALARM, FALSE_ALARM]
    assert certificate.missed(float("nan")) == 1
    missed = 0
    for _ in range(300):  # of a product without rounding errors to speak of, an error above the threshold is seen
        c[7, 8] += (error := np.float32(1.1 * limit))
        missed += pg.certify(a, b, c).ok
        c[7, 8] -= error
    assert missed == 0


@pytest.mark.parametrize("precision", ["ieee", "emulated", "fp16x3", "bf16x9", "reproducible"])
def test_precisions(precision: str) -> None:
    """Bounds of what may run: that of FP32 sums grows with K, that of tensor cores is 25 eps and hardly grows."""
    certain = {k: max(x.certain() for x in constants(precision, k)) / 2**-24 for k in (16, 4096)}
    if precision in ("ieee", "reproducible"):
        assert certain == pytest.approx({16: 19, 4096: 4099}, rel=1e-3)
    elif precision == "emulated":
        assert certain == pytest.approx({16: 56, 4096: 4099}, rel=1e-3)
    else:
        assert certain == pytest.approx({16: 56, 4096: 566}, rel=1e-3)
    a, b = normal(30, 40), normal(40, 30)
    assert pg.certify(a[0], b[:, 0], a[0] @ b[:, 0], precision=precision).ok  # a NumPy scalar
    assert pg.certify(a, b, pg.matmul(a, b, reproducible=precision == "reproducible"), precision=precision).ok


def test_overflow_and_what_is_not_finite() -> None:
    """What may have overflowed is not judged; an infinity where nothing can overflow is wrong."""
    a, b = normal(20, 30), normal(30, 10)
    a[3] *= np.float32(2.0**126)
    with np.errstate(over="ignore", invalid="ignore"):
        c = a @ b * 8
    c /= 8
    assert np.isinf(c[3]).any()
    certificate = pg.certify(a, b, c)
    assert certificate.ok and certificate.unjudged.rows.tolist() == [3]
    assert "not judged" in str(certificate)
    c[5, 2] = -inf
    assert pg.certify(a, b, c).rows.tolist() == [5]
    c0 = np.full(10, np.nan, np.float32)
    assert pg.certify(a, b, c, beta=0, c0=c0).rows.tolist() == [5]  # not read
    assert pg.certify(a, b, c, beta=1, c0=c0).unjudged.rows.tolist() == list(range(20))


def test_what_subnormal_numbers_lose_is_allowed_and_no_more() -> None:
    a, b = normal(20, 30) * np.float32(2.0**-75), normal(30, 10) * np.float32(2.0**-74)
    c = chain(a, b)
    assert pg.certify(a, b, c).ok
    c[:, 3] += np.float32(2.0**-135)
    assert not pg.certify(a, b, c).ok


@pytest.mark.parametrize(("shapes", "c0"), [
    (((4, 20, 6), (6, 9)), (9,)), (((20, 6), (3, 6, 9)), (3, 1, 9)), (((2, 1, 5, 6), (3, 6, 9)), (5, 1)),
    (((6,), (6, 9)), (9,)), (((2, 5, 6), (6,)), ()), (((6,), (6,)), ())])
def test_shapes(shapes: Any, c0: tuple[int, ...]) -> None:
    """Those of `matmul`; a C0 that broadcasts; a fault is found in its matrix."""
    a, b = (normal(*shape) for shape in shapes)
    old = normal(*c0)
    c = np.asarray(np.matmul(a, b) + old, np.float32)
    assert pg.certify(a, b, c, c0=old).ok
    c[(0,) * c.ndim] += 1
    found = pg.certify(a, b, c, c0=old)
    batch = len(found.shape) - 2
    assert not found.ok and found.rows.tolist() == ([[0] * (batch + 1)] if batch else [0])


def test_nothing_to_check() -> None:
    zeros = np.zeros
    for m, n, k in ((0, 4, 3), (4, 0, 3), (0, 0, 0)):
        empty = pg.certify(zeros((m, k), "f4"), zeros((k, n), "f4"), zeros((m, n), "f4"))
        assert empty.ok and empty.seed == 0 and len(empty.bounds().rows) == m
    a, b = zeros((4, 0), "f4"), zeros((0, 3), "f4")
    assert pg.certify(a, b, zeros((4, 3), "f4")).ok and not pg.certify(a, b, np.ones((4, 3), "f4")).ok
    c0 = normal(4, 3)
    nan = np.full((4, 4), np.nan, np.float32)
    assert pg.certify(nan, nan[:, :3], 2 * c0, alpha=0, beta=2, c0=c0).ok  # operands are not read
    assert not pg.certify(nan, nan[:, :3], c0, alpha=0, beta=2, c0=c0).ok


def test_with_the_product() -> None:
    a, b = normal(2, 20, 6), normal(6, 9)
    out = np.empty((2, 20, 9), np.float32)
    product, certificate = pg.matmul(a, b, out=out, certify=True)
    assert product is out and certificate.ok and certificate.shape == out.shape and certificate.k == 6
    assert pg.matmul(a, b, reproducible=True, certify=True).certificate.precision == "reproducible"
    assert pg.matmul(a, pg.prepare(b), certify=True).certificate.ok
    with pytest.raises(InvalidType, match="complex"):
        pg.matmul(a.astype("c8"), b.astype("c8"), certify=True)


def test_refusals() -> None:
    a, b = normal(5, 6), normal(6, 7)
    c = a @ b
    for wrong in ((a[0, 0:1].reshape(()),) * 3, (a, b, c.T), (a, a, c), (a, b, c[0])):
        with pytest.raises(InvalidValue, match="are not the operands"):
            pg.certify(*wrong)
    for options, message in (({"alpha": inf}, "not finite"), ({"beta": 1}, "without c"), ({"seed": 0}, "seed"),
                             ({"precision": "tf32"}, "unknown"), ({"c0": c[:3]}, "are not the operands")):
        with pytest.raises(InvalidValue, match=message):
            pg.certify(a, b, c, **options)
    with pytest.raises(InvalidType, match="float32"):
        pg.certify(a, b, c.astype(float))
    with pytest.raises(InvalidValue, match="probability"):
        pg.certify(a, b, c).bounds(2)


def test_sums_that_overflow_before_a_small_alpha_are_not_judged() -> None:
    a = np.full((4, 4), 3e20, np.float32)
    with np.errstate(over="ignore"):
        c = a @ a * np.float32(1e-10)
    certificate = pg.certify(a, a, c, alpha=1e-10)
    assert np.isinf(c).all() and certificate.ok and certificate.unjudged.rows.tolist() == [0, 1, 2, 3]


def test_a_process_that_asks_for_reproducible_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEAKGEMM_REPRODUCIBLE", "1")
    a = np.eye(4, dtype=np.float32)
    assert pg.certify(a, a, a).ok and pg.matmul(a, a, certify=True)[1].ok
