"""What `peakgemm.matmul` would run for a case, on the simulator: the choice, each launch's report, the error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..select import Choice, choose
from ..simulator import Report
from ..simulator.emulated import run_emulated
from ..simulator.library import run_library
from .peers import EPSILON
from .suites import Case

Matrices = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SimulatedCall:
    """``reports``: a launch each, in order; ``max_error`` in eps |A||B| against FP64; ``rerouted``: half tiles that a
    tensor-core kernel's guard gave to FFMAs, None of another kernel."""

    choice: Choice
    reports: list[Report]
    max_error: float
    rerouted: int | None

    @property
    def product(self) -> Report:
        """Of the kernel that was chosen; the others prepare operands or add up partial sums."""
        return next(report for report in self.reports if report.kernel == self.choice.kernel.entry)


def arrays(case: Case, beta: float = 0.0) -> tuple[Matrices, Matrices, Matrices]:
    """Normal ``A (..., M, K)`` and ``B (..., K, N)`` that lie as the case says, the same for every NumPy; ``C (..., M,
    N)`` is NaN where beta is 0, else normal."""
    draw = np.random.RandomState(case.m * 31 + case.n * 17 + case.k)
    lead = (case.batch,) if case.batch > 1 else ()

    def normal(rows: int, columns: int, transposed: bool = False) -> Matrices:
        stored = draw.standard_normal((*lead, columns, rows) if transposed else (*lead, rows, columns))
        found: Matrices = stored.astype(np.float32)
        return found.swapaxes(-1, -2) if transposed else found

    a, b = normal(case.m, case.k, case.trans_a), normal(case.k, case.n, case.trans_b)
    c = normal(case.m, case.n) if beta else np.full((*lead, case.m, case.n), np.nan, np.float32)
    return a, b, c


def simulate_call(case: Case, precision: str, arch: str, sm_count: int, alpha: float = 1.0, beta: float = 0.0,
                  **limits: Any) -> SimulatedCall:
    """``C = alpha A B + beta C`` by what is chosen for ``arch`` with ``sm_count`` SMs; ``limits`` as of the simulator.

    Raises:
        InvalidValue: see `select.choose`.
    """
    posed, swapped = case.problem()
    problem = replace(posed, alpha=alpha, beta=beta)
    choice = choose(problem, arch, sm_count, "", precision)
    a, b, c = arrays(case, beta)
    before = c.astype(np.float64)
    first, second = (b, a) if swapped else (a, b)
    rerouted = None
    how = {"arch": arch, "sm_count": sm_count, **limits}
    if choice.kernel.folder == "tensor":
        reports, rerouted = run_emulated(choice.kernel, choice.config, problem, first, second, c, **how)
    else:
        reports = run_library(choice.kernel, choice.config, problem, first, second, c, **how)
    exact, scale = alpha * (a.astype(float) @ b), abs(alpha) * (abs(a.astype(float)) @ abs(b))
    if beta:
        exact, scale = exact + beta * before, scale + abs(beta) * abs(before)
    error = abs(c - exact) / np.maximum(EPSILON * scale, 1e-300)
    return SimulatedCall(choice, reports, float(np.where(np.isnan(error), np.inf, error).max(initial=0.0)), rerouted)
