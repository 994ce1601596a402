"""What the checksums of a product say: its bounds, and which rows and columns are wrong."""

from __future__ import annotations

from functools import cached_property
from math import inf, log, prod, sqrt
from typing import Any, NamedTuple

import numpy as np

from ..errors import InvalidValue
from ..kernels.linalg.checksums import HEAD, SUSPECT, VECTORS, Layout
from .constants import FALSE_ALARM, UNIT, Model, constants

_LARGEST = (2 - 2.0**-23) * 2.0**127


class Lines(NamedTuple):
    """Something of each row and of each column of a product: the batch's shape first; FP64 on the host."""

    rows: Any
    columns: Any


class _Facts(NamedTuple):
    """What the device found of a product whose rows were checked, in this order: of rows, of columns.

    Attributes:
        norms: at most those of the lines of |A||B|.
        factors: their products are at least the elements of |A||B|.
        old: norms of the lines of C0.
        residuals: by what checks of C are off, ``(..., VECTORS, length)``.
        located: of each matrix, whether columns were looked at; else their norms, old norms and residuals are NaN.
    """

    norms: Lines
    factors: Lines
    old: Lines
    residuals: Lines
    located: Any
    seed: int


class _Verdict(NamedTuple):
    """Which lines are wrong, and which not judged, as `_Facts` has them; see `Certificate` for the others."""

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

    def __init__(self, model: Model, kept: Any = None, layout: Layout | None = None, swapped: bool = False) -> None:
        """``model``: of the product, or of its transpose if that is ``swapped``, whose rows were checked."""
        self.k, self.precision, self._model = model.k, model.precision, model
        self.shape = (*model.shape[:-2], *model.shape[:-3:-1]) if swapped else model.shape
        self._kept, self._layout, self._swapped = kept, layout, swapped

    @property
    def ok(self) -> bool:
        """Whether no row or column that was judged is wrong, nor all of them together; waits."""
        return not (self.spread or any(lines.any() for lines in self._verdict.wrong))

    @property
    def rows(self) -> Any:
        """The numbers of the rows that cannot be right; of a batch indices, ``(count, batch dimensions + 1)``. Waits.
        """
        return _indices(self._of_product(self._verdict.wrong).rows)

    @property
    def columns(self) -> Any:
        """The columns that cannot be right, as `rows`; waits."""
        return _indices(self._of_product(self._verdict.wrong).columns)

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
        return Lines(*map(_indices, self._of_product(self._verdict.unjudged)))

    @property
    def residuals(self) -> Lines:
        """By how much checks are off: ``|(C - alpha A B - beta C0) x|``, of columns ``|y (C - ...)|``; the largest of
        all x or y. The shorter lines are always checked; the others where one of them is off, and NaN elsewhere. Waits.
        """
        return self._of_product(Lines(*(abs(each).max(-2) for each in self._facts.residuals)))

    @property
    def thresholds(self) -> Lines:
        """What the `residuals` of a product by the model exceed less often than once in 10^9 products, NaN as they are;
        waits."""
        return self._of_product(self._limits)

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
        (of_a, of_b), old, model = self._facts.factors, self._facts.old.rows, self._model
        beta, weight, absolute = abs(model.beta), _typical(of_b), model.underflow
        with np.errstate(all="ignore"):
            # By the inequality of Cauchy and Schwarz, of vectors of three elements: factors, C0, underflow.
            rows = factor * np.sqrt((model.alpha * of_a)**2 + (beta / weight * old)**2)
            columns = np.sqrt(of_b**2 + (weight * (beta != 0))**2)
            ratio = _typical(rows) / _typical(columns)
            slack = 1 + 4 * model.own
            return self._of_product(Lines(*(
                np.nan_to_num(np.sqrt(x**2 + extra) * slack, nan=inf, posinf=inf)
                for x, extra in ((rows, absolute * ratio), (columns, absolute / ratio)))))

    def missed(self, size: float) -> float:
        """The probability, at most, that `ok` is True although one element of a row and a column that are judged is off
        by ``size``; waits."""
        judged = ~self._verdict.unjudged.rows
        limit = 1.001 * float(np.where(judged, self._limits.rows, 0).max(initial=0))
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

    def _of_product(self, lines: Lines) -> Lines:
        return Lines(*lines[::-1]) if self._swapped else lines

    @cached_property
    def _facts(self) -> _Facts:
        model = self._model
        *batch, m, n = model.shape
        empty = Lines(np.zeros((*batch, m)), np.zeros((*batch, n)))
        if self._layout is None:
            return _Facts(empty, empty, empty, Lines(*(x[..., None, :] for x in empty)), np.zeros(batch, bool), 0)
        kept, layout = self._kept, self._layout
        numbers = _on_host(kept[..., :2 * layout.always])  # nobody may have written the others
        heads = np.ascontiguousarray(numbers[..., :HEAD]).view(np.uint32)
        low, high = heads.reshape(-1, 2 * HEAD)[0, :2]
        located = heads[..., 2 + SUSPECT] != 0
        unseen = (0, layout.size - layout.always)
        numbers = _on_host(kept) if located.any() else np.pad(numbers, (*[(0, 0)] * len(batch), unseen))
        self._kept = None  # what lies on the device is not needed any more

        def taken(name: str, which: Any, nothing: Any) -> Any:
            return layout.taken(numbers, name)[..., which, :] if name in layout else nothing

        def residuals(of_c: str, of_product: str, of_c0: str) -> Any:
            c, product, old = (taken(name, slice(VECTORS), 0.0) for name in (of_c, of_product, of_c0))
            return c - model.alpha * product - model.beta * old

        def seen(columns: Any) -> Any:  # nobody wrote the others
            return np.where(located[(...,) + (None,) * (columns.ndim - located.ndim)], columns, np.nan)

        with np.errstate(all="ignore"):
            return _Facts(Lines(taken("ax", -2, empty.rows), seen(taken("yb", -2, empty.columns))),
                          Lines(taken("ax", -1, empty.rows), taken("b", -1, empty.columns)),
                          Lines(taken("dx", -1, empty.rows), seen(taken("yd", -1, empty.columns))),
                          Lines(residuals("cx", "ax", "dx"), seen(residuals("yc", "yb", "yd"))),
                          located, int(low) | int(high) << 32)

    @cached_property
    def _scales(self) -> tuple[Lines, Lines]:
        """Norms of G's rows and columns, at most; and what comes to a threshold beside errors of that scale: underflow
        and the check's own errors."""
        model, (m, n) = self._model, self._model.shape[-2:]
        with np.errstate(all="ignore"):
            scales = [(abs(model.alpha) * norms + abs(model.beta) * old) * (1 + model.own)
                      for norms, old in zip(self._facts.norms, self._facts.old, strict=True)]
            rest = [sqrt(length) * model.own * scale + model.beside(length)
                    for scale, length in zip(scales, (n, m), strict=True)]
        return Lines(*scales), Lines(*rest)

    @cached_property
    def _limits(self) -> Lines:
        return self._thresholds(certain=False)

    def _thresholds(self, *, certain: bool) -> Lines:
        factor = self._model.factor(certain=certain)
        with np.errstate(all="ignore"):
            return Lines(*(factor * scale + rest for scale, rest in zip(*self._scales, strict=True)))

    def _is_spread(self, residuals: Any, threshold: Any, scale: Any, rest: Any, judged: Any) -> bool:
        """Whether the residuals of all lines that are judged have together a norm above what the model allows: see the
        page. What they have in common is left out: where all lines are the same it is one rounding, not many."""
        weight = np.where(judged & (threshold > 0), 1 / threshold, 0)
        share = np.where(weight[..., None, :] > 0, residuals * weight[..., None, :], 0)
        count = np.maximum((weight > 0).sum(-1), 1)[..., None]
        off = np.sqrt(np.maximum((share**2).sum(-1) - share.sum(-1)**2 / count, 0))
        allowed, x = np.zeros(()), self._model.exponent
        for kind in constants(self.precision, self.k):
            fixed = np.where(weight > 0, (sqrt(2 * x) * kind.fixed * UNIT * scale + rest) * weight, 0)
            random = np.where(weight > 0, kind.random(1) * scale * weight, 0)**2
            allowed = np.maximum(allowed, np.linalg.norm(fixed, axis=-1) + np.sqrt(
                random.sum(-1) + 2 * np.sqrt(x * (random**2).sum(-1)) + 2 * x * random.max(-1, initial=0)))
        return bool((off > allowed[..., None]).any())

    @cached_property
    def _verdict(self) -> _Verdict:
        facts, model, certain, spread = self._facts, self._model, False, False
        looked = Lines(np.ones_like(facts.located), facts.located)
        wrong, unjudged = [], []
        with np.errstate(all="ignore"):
            for seen, own, other, old, residuals, threshold, limit, scale, rest in zip(
                    looked, facts.factors, facts.factors[::-1], facts.old, facts.residuals, self._limits,
                    self._thresholds(certain=True), *self._scales, strict=True):
                residual, seen = abs(residuals).max(-2), seen[..., None]
                largest = np.where(np.isfinite(other), other, 0).max(-1, keepdims=True, initial=0)
                # A B may overflow before a small alpha scales it.
                sums = (max(abs(model.alpha), 1) if model.alpha else 0) * own * largest + max(abs(model.beta), 1) * old
                may_overflow = sums * 1.001 >= _LARGEST
                skipped = ~np.isfinite(own) | seen & (~np.isfinite(old) | (~np.isfinite(residual) & may_overflow))
                off = seen & ~skipped & ~(residual <= threshold)
                unjudged.append(skipped)
                wrong.append(off)
                certain = certain or bool((off & ~(residual <= limit)).any())
                spread = spread or self._is_spread(residuals, threshold, scale, rest, seen & ~skipped & ~off)
        return _Verdict(Lines(*wrong), Lines(*unjudged), certain, spread)


class Certified(NamedTuple):
    """A product, and what is known of it: what ``matmul(..., certify=True)`` returns."""

    product: Any
    certificate: Certificate


def _on_host(kept: Any) -> Any:
    """What the device kept of each matrix, in FP64."""
    values = np.asarray(kept.get() if hasattr(kept, "get") else kept.cpu() if hasattr(kept, "cpu") else kept)
    return np.ascontiguousarray(values).view(np.float64)[..., 0, :]


def _indices(lines: Any) -> Any:
    return np.flatnonzero(lines) if lines.ndim == 1 else np.argwhere(lines)


def _typical(values: Any) -> float:
    """The root mean square of what is finite; 1 where that is 0."""
    finite = values[np.isfinite(values)]
    return float(np.sqrt(np.mean(finite**2))) or 1.0 if finite.size else 1.0
