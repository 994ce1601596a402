"""Bounds of the errors of each arithmetic, over G, and what they make of checks: see docs/certificate.md."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import exp, inf, log, prod, sqrt
from typing import NamedTuple

from ..kernels.linalg.checksums import VECTORS, Judging

FALSE_ALARM = 1e-9  # how likely it is, at most, that a product by the model is found wrong
UNIT = 2.0**-24        # of float32's roundings
UNIT64 = 2.0**-53
_QUANTUM = 2.0**-149
_MARGIN = 0.99         # of what the device calls suspect: it rounds otherwise than the host


class Constants(NamedTuple):
    """A bound of a product's errors: |E| <= fixed u G, beside what roundings to nearest add.

    Attributes:
        fixed: of errors that may have one sign: splits of operands, sums on tensor cores, which truncate.
        height: roundings between a product of two elements and the result, at most.
    """

    fixed: float
    height: float

    def certain(self) -> float:
        """|E| over G, whatever the roundings do; infinite where there are too many for a bound."""
        errors = (self.fixed + self.height) * UNIT
        return errors / (1 - errors) if errors < 1 else inf

    def random(self, deviations: float) -> float:
        """What independent roundings of mean 0 add up to, over G, but for a probability of 2 exp(-deviations^2 / 2)."""
        growth = (self.height + self.fixed) * UNIT
        return deviations * UNIT * sqrt(self.height) * exp(growth) if growth < 100 else inf


def constants(precision: str, k: int) -> list[Constants]:
    """Of each arithmetic that a precision may take, of products with an inner dimension of ``k``."""
    chain = Constants(0, k + 3)        # multiply-adds, or products and sums, in any order; then alpha and beta
    tensor = Constants(50, k / 8 + 4)  # docs/emulation.md: the bound; at least 8 of K are summed before a promotion
    return {"ieee": [chain], "reproducible": [chain], "emulated": [chain, tensor]}.get(precision, [tensor])


@dataclass(frozen=True)
class Model:
    """A product whose roundings are independent.

    Attributes:
        shape: ``(..., M, N)``.
        k: the inner dimension.
        precision: of the arithmetic.
    """

    shape: tuple[int, ...]
    k: int
    alpha: float
    beta: float
    precision: str

    @property
    def underflow(self) -> float:
        """What subnormal results of single operations add to an element's error, at most."""
        return (abs(self.alpha) * self.k + 3) * _QUANTUM

    @cached_property
    def exponent(self) -> float:
        """x: an event of probability exp(-x) is rarer than `FALSE_ALARM`, were it to happen to each of all lines."""
        lines = max(prod(self.shape[:-2]) * sum(self.shape[-2:]), 1)
        return log(8 * VECTORS * lines / FALSE_ALARM)  # of a vector: two signs; roundings, signs; lines alone, together

    @property
    def own(self) -> float:
        """The check's own roundings, over the sums of magnitudes."""
        return 4 * (sum(self.shape[-2:]) + self.k + 16) * UNIT64

    @property
    def deviations(self) -> float:
        """t of the page."""
        return sqrt(2 * self.exponent)

    def factor(self, *, certain: bool = False) -> float:
        """Of a threshold over the norm of a line of G, by the model; or ``certain``: whatever roundings do, by the
        random signs alone."""
        return max(self.deviations * (kind.certain() if certain else kind.fixed * UNIT + kind.random(1))
                   for kind in constants(self.precision, self.k))

    def beside(self, length: int) -> float:
        """What underflow adds to the check of a line of so many elements."""
        return sqrt(length) * self.deviations * self.underflow

    def judging(self, length: int) -> Judging:
        """When a line of so many elements is suspect: at a little less than its threshold."""
        of_scale = (self.factor() + sqrt(length) * self.own) * (1 + self.own)
        return Judging(self.alpha, self.beta, _MARGIN * of_scale, _MARGIN * self.beside(length))
