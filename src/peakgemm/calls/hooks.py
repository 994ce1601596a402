"""What calls ask of layers above them: the package's root, which imports both, sets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..kernels.registry import Kernel
    from ..problem import Config, Problem
    from ..runtime.device import Gpu

#: The best kernel and configuration of a problem, device and precision, for `Plan.autotune`.
search: Callable[[Problem, Gpu, str], tuple[Kernel, Config]]
#: `peakgemm.linalg.multi_dot`.
multi_dot: Callable[..., Any]
#: The results of an operation of `peakgemm.linalg` of values that JAX traces.
traced: Callable[[Any], Any]
