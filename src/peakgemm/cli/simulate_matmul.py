"""``peakgemm simulate matmul``: what `peakgemm.matmul` would run, launch by launch, on the CPU."""

from __future__ import annotations

from typing import Any

from ..calls.request import check_precision
from ..errors import InvalidValue
from ..runtime.architectures import architecture
from ..tools.bench.simulated import SimulatedCall, simulate_call
from ..tools.bench.suites import Case, cases
from . import parse
from .console import out, waiting

NAME = "matmul"
_SIZE = 256


def simulated(size: str | None, shape: str | None, alpha: float, beta: float, precision: str, sms: int | None,
              arch: str, limits: dict[str, int]) -> tuple[SimulatedCall, dict[str, Any]]:
    """The call that ``--size`` or ``--shape`` name, printed, and what a record says of it.

    Raises:
        InvalidValue: more than one case, an unknown precision, no SM, or arrays beyond ``max_memory``.
    """
    case = _case(size, shape)
    check_precision(precision)
    if sms is not None and sms < 1:
        raise InvalidValue(f"--sms {sms} must be 1 at least")
    # Operands and result in float32, and both of them and three more results in float64.
    needed = 4 * case.batch * (3 * (case.m * case.k + case.k * case.n) + 7 * case.m * case.n)
    parse.room(needed, limits["max_memory"])
    count = sms or architecture(arch).gpu_sms
    with waiting(f"simulating {case.size}"):
        call = simulate_call(case, precision, arch, count, alpha, beta, max_steps=limits["max_steps"])
    choice = call.choice
    out.print(f"{case.size} on {arch} with {count} SMs: {choice.kernel.label}, {choice.config.label()} "
              f"({choice.source})", markup=False)
    out.print(f"{choice.reason}.", markup=False)
    rerouted = "" if call.rerouted is None else f", {call.rerouted} half tiles rerouted to FFMAs"
    out.print(f"Largest error {call.max_error:.2f} eps |A||B| against FP64{rerouted}; "
              f"{sum(report.seconds for report in call.reports):.2f} s simulated\n", markup=False)
    return call, {"name": NAME, "shape": [case.m, case.n, case.k], "layout": case.layout, "batch": case.batch,
                  "alpha": alpha, "beta": beta, "precision": precision, "sms": count, "kernel": choice.kernel.name,
                  "config": choice.config.to_json(), "max_error": call.max_error}


def _case(size: str | None, shape: str | None) -> Case:
    parse.exclusive(size, shape)
    text = shape or "x".join([size or str(_SIZE)] * 3)
    found = cases(text)
    if len(found) != 1:
        raise InvalidValue(f"simulate takes one shape, not {len(found)}")
    return found[0]
