"""Bounds of the errors of each arithmetic, over G: see docs/certificate.md."""

from __future__ import annotations

from math import exp, inf, sqrt
from typing import NamedTuple

FALSE_ALARM = 1e-9  # how likely it is, at most, that a product by the model is found wrong
UNIT = 2.0**-24        # of float32's roundings


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
