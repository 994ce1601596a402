"""What `Plan.autotune` asks. The tuner lies above the calls: the package's root, which imports both, registers it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import MissingComponent

if TYPE_CHECKING:
    from ..kernels.registry import Kernel
    from ..problem import Config, Problem
    from ..runtime.device import Gpu

Searcher = Callable[["Problem", "Gpu", str], "tuple[Kernel, Config]"]
_searcher: Searcher | None = None


def register(searcher: Searcher | None) -> None:
    """Say what finds the best kernel and configuration of a problem, device and precision."""
    global _searcher
    _searcher = searcher


def search(problem: Problem, gpu: Gpu, precision: str) -> tuple[Kernel, Config]:
    """The best kernel and configuration.

    Raises:
        MissingComponent: nothing is registered.
    """
    if _searcher is None:
        raise MissingComponent("autotune() needs peakgemm.tools.tune, which is not installed; plan without it")
    return _searcher(problem, gpu, precision)
