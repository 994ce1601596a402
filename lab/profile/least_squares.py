"""Robust, regularised least squares: Gauss-Newton with Huber's weights, on a few dozen bounded parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Rows = Sequence[int]
_STEP = 1e-3       # of a numerical derivative, in units of a parameter
_ROUNDS = 12
_ENOUGH = 1e-4     # of the objective, that a round must gain
_HUBER = 0.15      # residuals beyond count by their size, not by its square: a row that the model cannot explain
_NOISE, _PRIOR = 0.05, 0.3  # standard deviations: of a residual, and of a parameter about where it starts
_HALVINGS = 6


def fit(residuals: Callable[[Vector, Rows], Vector], touched: Sequence[Rows], low: Vector, high: Vector,
        weights: Vector) -> Vector:
    """The parameters between ``low`` and ``high`` with the least weighted residuals, from 0 on; deterministic.

    Each parameter is held to 0 as by an observation with a standard deviation of 0.3, beside residuals of 0.05: what
    few rows speak of stays where it was.

    Args:
        residuals: of some rows, by parameters.
        touched: for each parameter the rows that it moves.
        weights: of all rows.
    """
    at, stiffness, every = np.zeros(len(low)), (_NOISE / _PRIOR) ** 2, range(len(weights))
    now = residuals(at, every)
    best = _objective(now, weights, at, stiffness)
    for _ in range(_ROUNDS):
        robust = weights * np.minimum(1.0, _HUBER / np.maximum(np.abs(now), 1e-12))
        slopes = np.zeros((len(now), len(at)))
        for i, rows in enumerate(touched):
            moved = at.copy()
            step = _STEP if at[i] + _STEP <= high[i] else -_STEP
            moved[i] += step
            slopes[rows, i] = (residuals(moved, rows) - now[rows]) / step
        left = slopes.T @ (robust[:, None] * slopes) + stiffness * np.eye(len(at))
        move = np.linalg.solve(left, -(slopes.T @ (robust * now) + stiffness * at))
        for halved in range(_HALVINGS):
            candidate = np.clip(at + move * 0.5**halved, low, high)
            found = residuals(candidate, every)
            objective = _objective(found, weights, candidate, stiffness)
            if objective < best:
                break
        else:
            return at
        gained, at, now, best = best - objective, candidate, found, objective
        if gained < _ENOUGH * best:
            break
    return at


def _objective(residuals: Vector, weights: Vector, at: Vector, stiffness: float) -> float:
    size = np.abs(residuals)
    huber = np.where(size <= _HUBER, size**2 / 2, _HUBER * (size - _HUBER / 2))
    return float((weights * huber).sum() + stiffness * (at**2).sum() / 2)
