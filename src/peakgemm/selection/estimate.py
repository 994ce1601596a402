"""Microseconds of a product, by the cost models that choose its kernel."""

from __future__ import annotations

from functools import lru_cache

from ..kernels.emulated.schemes import SCHEMES
from ..problem import Problem
from .candidates import candidates, chains
from .choose import choose
from .emulated_model import estimate_us
from .machine import machine


@lru_cache(maxsize=4096)
def product_us(problem: Problem, arch: str, sm_count: int, device_name: str, precision: str = "ieee") -> float:
    """What ``problem`` takes on a GPU; good for rankings, and to some 10 % besides.

    Raises:
        InvalidValue: see `choose`.
    """
    if problem.is_empty:
        return 0.0
    gpu = machine(arch, sm_count, device_name)
    chosen = choose(problem, arch, sm_count, device_name, precision)
    if chosen.kernel.folder == "emulated" and chosen.kernel.name in SCHEMES:
        return estimate_us(chosen.kernel, chosen.config, problem, gpu)
    ranked = chains(problem, gpu) if precision == "reproducible" else candidates(problem, gpu)
    return next((us for kernel, config, us in ranked if (kernel, config) == (chosen.kernel, chosen.config)),
                ranked[0][2])
