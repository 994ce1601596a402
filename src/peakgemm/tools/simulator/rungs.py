"""A rung of the ladder on the simulator: the launch that the GPU would make, on NumPy matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...arrays import admit
from ...arrays.base import View
from ...arrays.numpy import host_view
from ...calls.rung import problem_of
from ...errors import InvalidType
from ...kernels import validity
from ...kernels.registry import Kernel, rung
from ...problem import Config
from ...runtime.architectures import architecture
from .core.observer import Observer
from .library import run_library
from .report import Report


def run_rung(number: int | Kernel, a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], *, alpha: float = 1.0,
             beta: float = 0.0, config: Config | None = None, arch: str = "sm_90", checks: bool = True,
             max_steps: int = 50_000_000, max_memory: int = 4 << 30, observer: Observer | None = None) -> Report:
    """``C = alpha A B + beta C`` by one rung, simulated; ``c`` is updated in place.

    Args:
        number: the rung, or its entry in the table.
        a, b, c: float32, ``A (M, K)``, ``B (K, N)``, ``C (M, N)``, row-major with any leading dimension.
        alpha, beta, config: as in `peakgemm.run_rung`; the compilation (aligned or guarded) is chosen as there.
        arch: the architecture that the kernel is compiled for.
        checks, max_steps, max_memory, observer: as in `peakgemm.tools.simulator.run`.

    Raises:
        InvalidValue, InvalidType: as `peakgemm.run_rung` and `peakgemm.tools.simulator.run`.
    """
    kernel = number if isinstance(number, Kernel) else rung(number)
    problem = problem_of([_view(x, name) for x, name in zip((a, b, c), "ABC", strict=True)], alpha, beta)
    chosen = validity.choose(kernel, config or kernel.config_for(arch), architecture(arch), problem)
    report, = run_library(kernel, chosen, problem, a, b, c, arch=arch, checks=checks, max_steps=max_steps,
                          max_memory=max_memory, observer=observer)
    return report


def _view(x: NDArray[Any], name: str) -> View:
    """A NumPy matrix as the simulator will place it: the array that owns the memory starts aligned."""
    if not isinstance(x, np.ndarray):
        raise InvalidType(f"{name} is a {type(x).__name__}; the simulator takes NumPy arrays")
    admit(x, name)
    if x.size == 0:
        return View.packed(x.shape)
    root = x
    while isinstance(root.base, np.ndarray):
        root = root.base
    view = host_view(x)
    return view._replace(pointer=view.pointer - host_view(root).pointer)
