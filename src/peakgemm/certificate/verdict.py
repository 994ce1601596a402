"""What the checksums of a product say: its bounds, and which rows and columns are wrong."""

from __future__ import annotations

from functools import cached_property
from math import inf, log, prod, sqrt
from typing import Any, NamedTuple

import numpy as np

from ..errors import InvalidValue
from ..kernels.linalg.checksums import VECTORS, Layout
from .constants import FALSE_ALARM, UNIT, constants

_UNIT64, _QUANTUM, _LARGEST = 2.0**-53, 2.0**-149, (2 - 2.0**-23) * 2.0**127


class Lines(NamedTuple):
    """Something of each row and of each column of a product: the batch's shape first; FP64 on the host."""

    rows: Any
    columns: Any


class _Facts(NamedTuple):
    """What the device found: at most the norms of |A||B|'s rows and columns; factors whose products are at least its
    elements; norms of C0; by what checks of C are off, ``(..., VECTORS, length)``."""

    norms: Lines
    factors: Lines
    old: Lines
    residuals: Lines
    seed: int


class _Verdict(NamedTuple):
    """Which rows and columns are wrong, and which not judged; see `Certificate` for the others."""

    wrong: Lines
    unjudged: Lines
    certain: bool
    spread: bool


class Certificate:
    """What is known of a product; made by `peakgemm.certify`.

    What the device found is waited for, once, when an attribute or method that says so is used first.

    Attributes:
        shape: of the product.
        k: its inner dimension.
        precision: whose bounds are taken.
    """

    def __init__(self, shape: tuple[int, ...], k: int, alpha: float, beta: float, precision: str, kept: Any = None,
                 layout: Layout | None = None, swapped: bool = False) -> None:
        self.shape, self.k, self.precision = shape, k, precision
        self._alpha, self._beta, self._kept, self._layout, self._swapped = alpha, beta, kept, layout, swapped

    @property
    def ok(self) -> bool:
        """Whether no row and no column that was judged is wrong, nor all of them together; waits."""
        return not (self.spread or any(lines.any() for lines in self._verdict.wrong))

    @property
    def rows(self) -> Any:
        """The numbers of the rows that cannot be right; of a batch indices, ``(count, batch dimensions + 1)``. Waits.
        """
        return _indices(self._verdict.wrong.rows)

    @property
    def columns(self) -> Any:
        """The columns that cannot be right, as `rows`; waits."""
        return _indices(self._verdict.wrong.columns)

    @property
    def certain(self) -> bool:
        """Whether a row or column is off by more than roundings add up to however they depend on each other; waits."""
        return self._verdict.certain

    @property
    def spread(self) -> bool:
        """Whether rows, or columns, are together off by more than rounding errors, though none may stand out: as of a
        product in TF32. Waits."""
        return self._verdict.spread

    @property
    def unjudged(self) -> Lines:
        """Rows and columns, as `rows` has them, of which nothing is said: an operand is not finite there, or C is not
        and may have overflowed. Waits."""
        return Lines(*map(_indices, self._verdict.unjudged))

    @property
    def residuals(self) -> Lines:
        """By how much checks are off: ``|(C - alpha A B - beta C0) x|``, of columns ``|y (C - ...)|``; the largest of
        all x or y. Waits."""
        return Lines(*(abs(each).max(-2) for each in self._facts.residuals))

    @cached_property
    def thresholds(self) -> Lines:
        """What the `residuals` of a product by the model exceed less often than once in 10^9 products; waits."""
        return self._thresholds(certain=False)

    @property
    def seed(self) -> int:
        """Of the random vectors: pass it to `peakgemm.certify` for the same ones. Waits."""
        return self._facts.seed

    def bounds(self, failure: float | None = None) -> Lines:
        """``|C - alpha A B - beta C0|_ij <= rows_i columns_j``, of all elements of C that are finite; waits.

        Args:
            failure: None: whatever roundings do. Else by the model of independent roundings, but for a probability of
                ``failure`` that some element is off by more.

        Raises:
            InvalidValue: no probability.
        """
        if failure is not None and not 0 < failure < 1:
            raise InvalidValue(f"failure = {failure!r} is no probability; pass a number between 0 and 1, or None for a "
                               "bound that holds whatever roundings do")
        deviations = None if failure is None else sqrt(2 * log(2 * max(prod(self.shape), 1) / failure))
        factor = max(kind.certain() if deviations is None else
                     min(kind.certain(), kind.fixed * UNIT + kind.random(deviations))
                     for kind in constants(self.precision, self.k))
        (of_a, of_b), old = self._facts.factors, self._facts.old
        beta, weight, absolute = abs(self._beta), _typical(of_b), self._underflow()
        with np.errstate(all="ignore"):
            # By the inequality of Cauchy and Schwarz, of vectors of three elements: factors, C0, underflow.
            rows = factor * np.sqrt((self._alpha * of_a)**2 + (beta / weight * old.rows)**2)
            columns = np.sqrt(of_b**2 + (weight * (beta != 0))**2)
            ratio = _typical(rows) / _typical(columns)
            slack = 1 + 16 * (sum(self.shape[-2:]) + self.k + 16) * _UNIT64
            return Lines(*(np.nan_to_num(np.sqrt(x**2 + extra) * slack, nan=inf, posinf=inf) for x, extra in
                           ((rows, absolute * ratio), (columns, absolute / ratio))))

    def missed(self, size: float) -> float:
        """The probability, at most, that `ok` is True although one element of a row and a column that are judged is off
        by ``size``; waits."""
        limits = [np.where(skipped, 0, each).max(-1, initial=0)
                  for each, skipped in zip(self.thresholds, self._verdict.unjudged, strict=True)]
        limit = 1.001 * float(np.minimum(*limits).max(initial=0))
        return 1.0 if not abs(size) > limit else 0.5**VECTORS if abs(size) <= 2 * limit else FALSE_ALARM

    def __str__(self) -> str:
        """The verdict; waits."""
        wrong, skipped = (self.rows, self.columns), sum(map(len, self.unjudged))
        what = f"{' x '.join(map(str, self.shape))} with K = {self.k}, {self.precision}: "
        beside = f"; {skipped} rows and columns hold NaN or infinities and are not judged" if skipped else ""
        if self.ok:
            return f"{what}no row or column is off by more than rounding errors{beside}"
        if not len(self.rows) + len(self.columns):
            return f"{what}all rows or columns together are off by more than independent rounding errors{beside}"
        first = [f"{len(each):,} {name}{'s' * (len(each) > 1)}, {each[:3].tolist()}{' and others' * (len(each) > 3)},"
                 for name, each in zip(("row", "column"), wrong, strict=True) if len(each)]
        errors = "any rounding errors" if self.certain else ("independent rounding errors, which those of constant "
                                                             "operands are not")
        return f"{what}{' and '.join(first)} off by more than {errors}{beside}"

    def __repr__(self) -> str:
        return f"<Certificate of {' x '.join(map(str, self.shape))}>"  # waits for nothing

    @cached_property
    def _facts(self) -> _Facts:
        *batch, m, n = self.shape
        empty = Lines(np.zeros((*batch, m)), np.zeros((*batch, n)))
        if self._layout is None:
            return _Facts(empty, empty, empty, Lines(*(x[..., None, :] for x in empty)), 0)
        kept, layout = self._kept, self._layout
        values = np.asarray(kept.get() if hasattr(kept, "get") else kept.cpu() if hasattr(kept, "cpu") else kept)
        self._kept = values  # of the host: what lies on the device is not needed any more
        numbers = np.ascontiguousarray(values).view(np.float64)[..., 0, :]
        zero = empty[::-1] if self._swapped else empty

        def norms(of_rows: str, of_columns: str, which: int) -> tuple[Any, Any]:
            first, second = (layout.taken(numbers, name)[..., which, :] if name in layout else nothing
                             for name, nothing in zip((of_rows, of_columns), zero, strict=True))
            return first, second

        def residuals(of_c: str, of_product: str, of_c0: str) -> Any:
            c, product, old = (layout.taken(numbers, name)[..., :VECTORS, :] if name in layout else 0.0
                               for name in (of_c, of_product, of_c0))
            return c - self._alpha * product - self._beta * old

        with np.errstate(all="ignore"):
            both_sides = (norms("ax", "yb", -2), norms("ax", "yb", -1), norms("dx", "yd", -1),
                          (residuals("cx", "ax", "dx"), residuals("yc", "yb", "yd")))
        low, high = numbers.reshape(-1, layout.size)[0, :1].view(np.uint32)
        sides, factors, old, off = (Lines(*each[::-1]) if self._swapped else Lines(*each) for each in both_sides)
        return _Facts(sides, factors, old, off, int(low) | int(high) << 32)

    def _underflow(self) -> float:
        """What subnormal results of single operations add to an element's error, at most."""
        return (abs(self._alpha) * self.k + 3) * _QUANTUM

    @cached_property
    def _exponent(self) -> float:
        """x: an event of probability exp(-x) is rarer than `FALSE_ALARM`, were it to happen to each of all lines."""
        lines = max(prod(self.shape[:-2]) * sum(self.shape[-2:]), 1)
        return log(8 * VECTORS * lines / FALSE_ALARM)  # of a vector: two signs; roundings, signs; lines alone, together

    @cached_property
    def _scales(self) -> tuple[Lines, Lines]:
        """Norms of G's rows and columns, at most; and what comes to a threshold beside errors of that scale: underflow
        and the check's own errors."""
        m, n = self.shape[-2:]
        own = 4 * (m + n + self.k + 16) * _UNIT64
        with np.errstate(all="ignore"):
            scales = [(abs(self._alpha) * norms + abs(self._beta) * old) * (1 + own)
                      for norms, old in zip(self._facts.norms, self._facts.old, strict=True)]
            rest = [sqrt(length) * (own * scale + sqrt(2 * self._exponent) * self._underflow())
                    for scale, length in zip(scales, (n, m), strict=True)]
        return Lines(*scales), Lines(*rest)

    def _thresholds(self, *, certain: bool) -> Lines:
        """Of `residuals`: by the model; or ``certain``: whatever roundings do, by the random signs alone."""
        deviations = sqrt(2 * self._exponent)
        factor = max(deviations * kind.certain() if certain else deviations * (kind.fixed * UNIT + kind.random(1))
                     for kind in constants(self.precision, self.k))
        with np.errstate(all="ignore"):
            return Lines(*(factor * scale + rest for scale, rest in zip(*self._scales, strict=True)))

    def _is_spread(self, residuals: Any, threshold: Any, scale: Any, rest: Any, judged: Any) -> bool:
        """Whether the residuals of all lines that are judged have together a norm above what the model allows: see the
        page. What they have in common is left out: where all lines are the same it is one rounding, not many."""
        weight = np.where(judged & (threshold > 0), 1 / threshold, 0)
        share = np.where(weight[..., None, :] > 0, residuals * weight[..., None, :], 0)
        count = np.maximum((weight > 0).sum(-1), 1)[..., None]
        off = np.sqrt(np.maximum((share**2).sum(-1) - share.sum(-1)**2 / count, 0))
        allowed, x = np.zeros(()), self._exponent
        for kind in constants(self.precision, self.k):
            fixed = np.where(weight > 0, (sqrt(2 * x) * kind.fixed * UNIT * scale + rest) * weight, 0)
            random = np.where(weight > 0, kind.random(1) * scale * weight, 0)**2
            allowed = np.maximum(allowed, np.linalg.norm(fixed, axis=-1) + np.sqrt(
                random.sum(-1) + 2 * np.sqrt(x * (random**2).sum(-1)) + 2 * x * random.max(-1, initial=0)))
        return bool((off > allowed[..., None]).any())

    @cached_property
    def _verdict(self) -> _Verdict:
        facts, certain, spread = self._facts, False, False
        wrong, unjudged = [], []
        with np.errstate(all="ignore"):
            for own, other, old, residuals, threshold, limit, scale, rest in zip(
                    facts.factors, facts.factors[::-1], facts.old, facts.residuals, self.thresholds,
                    self._thresholds(certain=True), *self._scales, strict=True):
                residual = abs(residuals).max(-2)
                largest = np.where(np.isfinite(other), other, 0).max(-1, keepdims=True, initial=0)
                # A B may overflow before a small alpha scales it.
                sums = (max(abs(self._alpha), 1) if self._alpha else 0) * own * largest + max(abs(self._beta), 1) * old
                may_overflow = sums * 1.001 >= _LARGEST
                skipped = ~np.isfinite(own) | ~np.isfinite(old) | (~np.isfinite(residual) & may_overflow)
                off = ~skipped & ~(residual <= threshold)
                unjudged.append(skipped)
                wrong.append(off)
                certain = certain or bool((off & ~(residual <= limit)).any())
                spread = spread or self._is_spread(residuals, threshold, scale, rest, ~skipped & ~off)
        return _Verdict(Lines(*wrong), Lines(*unjudged), certain, spread)


class Certified(NamedTuple):
    """A product, and what is known of it: what ``matmul(..., certify=True)`` returns."""

    product: Any
    certificate: Certificate


def _indices(lines: Any) -> Any:
    return np.flatnonzero(lines) if lines.ndim == 1 else np.argwhere(lines)


def _typical(values: Any) -> float:
    """The root mean square of what is finite; 1 where that is 0."""
    finite = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(finite**2))) or 1.0 if finite.size else 1.0
