"""Without a GPU: rungs, and whole calls of `peakgemm.matmul`, on the simulator; counters and errors against FP64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.registry import Kernel
from ...problem import Config
from ...selection.choose import Choice, choose
from ..simulator import Report, run_rung
from ..simulator.library import run_counted
from .errors import errors
from .suites import Case

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


def simulated_row(report: Report, a: Matrix, b: Matrix, before: Matrix, after: Matrix, alpha: float = 1.0,
                  beta: float = 0.0) -> dict[str, Any]:
    """The measured fields of a row: largest componentwise error against FP64 in eps, counters, faults."""
    return {"backend": "simulator", "max_error": errors(a, b, [after], alpha, beta, before)[0],
            "faults": len(report.faults), "simulated_seconds": report.seconds,
            **{name: report.counters.get(name, 0) for name in COUNTERS}}


def simulate(kernel: Kernel, config: Config, arch: str, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Run one rung on packed normal matrices."""
    a, b, c = matrices(shape)
    report = run_rung(kernel, a, b, c, config=config, arch=arch)
    return simulated_row(report, a, b, c, c)


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


def simulate_call(case: Case, precision: str, arch: str, sm_count: int, alpha: float = 1.0, beta: float = 0.0,
                  **limits: Any) -> SimulatedCall:
    """``C = alpha A B + beta C`` by what is chosen for ``arch`` with ``sm_count`` SMs; ``limits`` as of the simulator.

    Raises:
        InvalidValue: see `selection.choose`.
    """
    canonical, swapped = case.problem()
    problem = replace(canonical, alpha=alpha, beta=beta)
    choice = choose(problem, arch, sm_count, "", precision)
    lead = (case.batch,) if case.batch > 1 else ()
    a, b, c = matrices((case.m, case.n, case.k), beta, case.trans_a, case.trans_b, lead)
    before = c.copy()
    first, second = (b, a) if swapped else (a, b)
    reports, counters = run_counted(choice.kernel, choice.config, problem, first, second, c, arch=arch,
                                    sm_count=sm_count, **limits)
    rerouted = None if choice.kernel.family.scheme is None else int(counters.sum())
    return SimulatedCall(choice, reports, errors(a, b, [c], alpha, beta, before)[0], rerouted)
