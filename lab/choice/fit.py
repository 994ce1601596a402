"""A profile fitted to the times of candidates: least squares, then what the choices lose.

Each section of a profile is fitted to the rows of its kernels by robust least squares of log(model / time), near rows
counting most; then each number is moved by small steps while the choices lose less. Products that are held out are not
looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from lab.choice.rows import KERNELS, SCHEME, Row, Rows
from peakgemm.kernels.profile import Machine, Profile
from peakgemm.selection.choose import EMULATED_K
from peakgemm.selection.profile_file import LIMITS

Vector = NDArray[np.float64]
IEEE, TENSOR = ("tiled", "small", "skinny"), ("emulated",)  # the first has the bandwidth of others
SECTIONS = IEEE + TENSOR
_ROUNDS, _STEP, _ENOUGH = 12, 1e-3, 1e-3
_HUBER = 0.15                # residuals beyond count by their size: a row that the model cannot explain
_NOISE, _PRIOR = 0.05, 0.3   # standard deviations: of a residual, and of a number's logarithm about where it starts
_MOVES = 1.15, 1 / 1.15, 1.05, 1 / 1.05
_NEAR, _ERROR = 1.25, 0.1    # the model's error of rows so near the fastest counts so much beside the loss,
_LEAST = 2e-4                # of which a move must gain so much
_WORTH = tuple(round(0.8 + 0.005 * i, 3) for i in range(41))
_GAIN = 1.02                 # over IEEE, in the mean: below that tensor cores are not worth their test


class Fit:
    """The models' times of what was timed, as the numbers of a profile are moved."""

    def __init__(self, rows: Sequence[Rows], gpu: Machine) -> None:
        self.products = [product for product in rows if not product.held_out]
        self.gpu = gpu
        self.us = {name: self._modelled(name) for name in SECTIONS}

    def _modelled(self, section: str) -> list[dict[Row, float]]:
        """For each product the modelled microseconds of its rows that a section has the numbers of."""
        kernels = [kernel for kernel in KERNELS.values() if kernel.family.numbers == section
                   and kernel.is_for(self.gpu.arch) and kernel.family.scheme in (None, SCHEME)]
        return [{(kernel, config): us for kernel in kernels
                 for config, us in kernel.family.candidates(kernel, product.problem, self.gpu, "")
                 if (kernel, config) in product.us} for product in self.products]

    def moved(self, section: str, **changes: float | None) -> Fit:
        """The same with other numbers of a section."""
        other = object.__new__(Fit)
        profile = self.gpu.profile
        numbers = replace(getattr(profile, section), **changes)
        other.products, other.gpu = self.products, replace(self.gpu, profile=replace(profile, **{section: numbers}))
        again = SECTIONS if {"bandwidth_share", "overlap_us"} & set(changes) and section == "tiled" else (section,)
        other.us = self.us | {name: other._modelled(name) for name in again}
        return other

    def numbers(self, section: str) -> dict[str, float]:
        """What a section is fitted by."""
        found = asdict(getattr(self.gpu.profile, section))
        return {name: value for name, value in found.items() if value and name != "worth_share"}

    def score(self) -> float:
        """Mean logarithm of what the choices lose, of tensor cores half, and a tenth of the models' error."""
        lost: list[float] = []
        errors: list[float] = []
        for i, product in enumerate(self.products):
            for tensor, sections in ((False, IEEE), (True, TENSOR)):
                us = {row: us for name in sections for row, us in self.us[name][i].items()}
                if us:
                    least = min(product.us[row] for row in us)
                    lost.append((0.5 if tensor else 1.0) * log(product.us[min(us, key=us.__getitem__)] / least))
                    errors += [min(abs(log(max(us[row], 1e-3) / product.us[row])), 0.4) for row in us
                               if product.us[row] < _NEAR * least]
        return sum(lost) / len(self.products) + _ERROR * sum(errors) / len(errors)


def fitted(rows: Sequence[Rows], gpu: Machine) -> Profile:
    """The profile of ``gpu`` with its numbers fitted to the products that are not held out."""
    fit = Fit(rows, gpu)
    for section in SECTIONS:
        if any(fit.us[section]):
            squares = _least_squares(fit, section)
            fit = squares if squares.score() < fit.score() + _LEAST else fit
    for section in SECTIONS:
        if any(fit.us[section]):
            fit = _searched(fit, section)
    return fit.moved("emulated", worth_share=_worth(fit)).gpu.profile


def _residuals(fit: Fit, section: str) -> tuple[Vector, Vector]:
    """Logarithms of modelled over measured times, and weights: the square of how near a row is to the fastest."""
    found = [(log(max(us, 1e-3) / product.us[row]),
              (min(product.us[other] for other in product.of(row[0].family.scheme is not None)) / product.us[row])**2)
             for product, modelled in zip(fit.products, fit.us[section], strict=True) for row, us in modelled.items()]
    return np.array([each for each, _ in found]), np.array([weight for _, weight in found])


def _least_squares(fit: Fit, section: str) -> Fit:
    """Gauss-Newton with Huber's weights on the logarithms of a section's numbers, each held to where it starts."""
    begun = fit.numbers(section)
    stiffness = (_NOISE / _PRIOR)**2

    def at(x: Vector) -> Fit:
        return fit.moved(section, **{name: _bounded(name, value * exp(by))
                                     for (name, value), by in zip(begun.items(), x, strict=True)})

    def objective(residuals: Vector, x: Vector) -> float:
        size = np.abs(residuals)
        huber = np.where(size <= _HUBER, size**2 / 2, _HUBER * (size - _HUBER / 2))
        return float((weights * huber).sum() + stiffness * (x**2).sum() / 2)

    x = np.zeros(len(begun))
    now, weights = _residuals(fit, section)
    best = objective(now, x)
    for _ in range(_ROUNDS):
        robust = weights * np.minimum(1.0, _HUBER / np.maximum(np.abs(now), 1e-12))
        slopes = np.stack([(_residuals(at(x + step), section)[0] - now) / _STEP for step in _STEP * np.eye(len(x))], 1)
        left = slopes.T @ (robust[:, None] * slopes) + stiffness * np.eye(len(x))
        move = np.linalg.solve(left, -(slopes.T @ (robust * now) + stiffness * x))
        for halved in range(6):
            candidate = x + move * 0.5**halved
            residuals = _residuals(at(candidate), section)[0]
            if (least := objective(residuals, candidate)) < best:
                break
        else:
            break
        gained, x, now, best = best - least, candidate, residuals, least
        if gained < _ENOUGH * best:
            break
    return at(x)


def _searched(fit: Fit, section: str) -> Fit:
    """Each number moved by small steps while that makes the score less, once over all of them."""
    score = fit.score()
    for name in fit.numbers(section):
        for factor in _MOVES:
            moved = fit.moved(section, **{name: _bounded(name, fit.numbers(section)[name] * factor)})
            if (less := moved.score()) < score - _LEAST:
                fit, score = moved, less
    return fit


def _bounded(name: str, value: float) -> float:
    most = next(limit for end, limit in LIMITS.items() if name.endswith(end))
    return min(float(f"{value:.4g}"), most)


def _worth(fit: Fit) -> float | None:
    """By how much tensor cores must be faster by the model for "emulated" to take them: what gains most over the
    products that were timed both ways; None: no 2 % of IEEE."""
    both = []
    for i, product in enumerate(fit.products):
        ieee = {row: us for name in IEEE for row, us in fit.us[name][i].items()}
        tensor = {row: us for name in TENSOR for row, us in fit.us[name][i].items()}
        if ieee and tensor and product.problem.k >= EMULATED_K:
            a, b = min(ieee, key=ieee.__getitem__), min(tensor, key=tensor.__getitem__)
            both.append((tensor[b] / ieee[a], log(product.us[a] / product.us[b])))
    gained = {worth: sum(gain for share, gain in both if share < worth) / max(len(both), 1) for worth in _WORTH}
    best = max(gained, key=gained.__getitem__)
    return best if gained[best] >= log(_GAIN) else None
