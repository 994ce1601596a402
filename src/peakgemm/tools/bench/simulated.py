"""The ladder without a GPU: results, errors and counters of the simulator, as rows of a record."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.registry import Kernel
from ...problem import Config
from ..simulator import Report, run_rung
from .peers import EPSILON

Matrix = NDArray[np.float32]

# Products up to this many multiply-adds are simulated by default: the slowest, rung 00, takes 15 s there.
LARGEST = 1024**3

COUNTERS = ("shared_loads", "shared_stores", "shared_wavefronts", "shared_wavefronts_ideal", "global_requests",
            "global_sectors", "global_sectors_ideal")


def matrices(shape: tuple[int, int, int], beta: float = 0.0, trans_a: bool = False, trans_b: bool = False,
             lead: tuple[int, ...] = ()) -> tuple[Matrix, Matrix, Matrix]:
    """Normal ``A (*lead, M, K)`` and ``B (*lead, K, N)``, the same for every NumPy; ``trans``: columns are contiguous.
    C is NaN where beta is 0, else normal."""
    m, n, k = shape
    draw = np.random.RandomState(m * 31 + n * 17 + k)
    stored = ((k, m) if trans_a else (m, k)), ((n, k) if trans_b else (k, n)), (m, n)
    a, b, c = (draw.standard_normal((*lead, *s)).astype(np.float32) for s in stored)
    return (a.swapaxes(-1, -2) if trans_a else a, b.swapaxes(-1, -2) if trans_b else b,
            c if beta else np.full_like(c, np.nan))


def worst_error(a: Matrix, b: Matrix, before: Matrix, after: Matrix, alpha: float = 1.0, beta: float = 0.0) -> float:
    """The largest componentwise error of ``after = alpha a b + beta before`` against FP64, in eps |A||B|."""
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    exact, scale = alpha * (a64 @ b64), abs(alpha) * (abs(a64) @ abs(b64))
    if beta:
        exact, scale = exact + beta * before, scale + abs(beta) * abs(before.astype(np.float64))
    error = abs(after - exact) / np.maximum(EPSILON * scale, 1e-300)
    return float(np.where(np.isnan(error), np.inf, error).max(initial=0.0))


def simulated_row(report: Report, a: Matrix, b: Matrix, before: Matrix, after: Matrix, alpha: float = 1.0,
                  beta: float = 0.0) -> dict[str, Any]:
    """The measured fields of a row: largest componentwise error against FP64 in eps, counters, faults."""
    return {"backend": "simulator", "max_error": worst_error(a, b, before, after, alpha, beta),
            "faults": len(report.faults), "simulated_seconds": report.seconds,
            **{name: report.counters.get(name, 0) for name in COUNTERS}}


def simulate(kernel: Kernel, config: Config, arch: str, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Run one rung on packed normal matrices."""
    a, b, c = matrices(shape)
    report = run_rung(kernel, a, b, c, config=config, arch=arch)
    return simulated_row(report, a, b, c, c)
