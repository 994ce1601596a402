"""What `peakgemm.matmul` would run for a case, on the simulator: the choice, each launch's report, the error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...selection.choose import Choice, choose
from ..simulator import Report
from ..simulator.library import run_counted
from .simulated import matrices, worst_error
from .suites import Case


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
    return SimulatedCall(choice, reports, worst_error(a, b, before, c, alpha, beta), rerouted)
