"""What `Plan.autotune` asks: the tuner lies above the calls, so the package's root, which imports both, sets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..kernels.registry import Kernel
    from ..problem import Config, Problem
    from ..runtime.device import Gpu

#: The best kernel and configuration of a problem, device and precision.
search: Callable[[Problem, Gpu, str], tuple[Kernel, Config]]
