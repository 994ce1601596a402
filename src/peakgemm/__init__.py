"""peakgemm: FP32 matrix multiplication on NVIDIA GPUs, from the naive kernel to past the FP32 peak."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> module that holds it: imported on first use, so that `import peakgemm` stays quick.
_PUBLIC = {
    "Config": "problem",
    "PeakgemmError": "errors",
    "Problem": "problem",
    "occupancy": "inspect.occupancy",
    "run_rung": "kernels.execute",
    "simulator": "simulator",
}

__all__ = ["Config", "PeakgemmError", "Problem", "__version__", "occupancy", "run_rung", "simulator"]

if TYPE_CHECKING:
    from . import simulator
    from .errors import PeakgemmError
    from .inspect.occupancy import occupancy
    from .kernels.execute import run_rung
    from .problem import Config, Problem


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        module = import_module(f".{_PUBLIC[name]}", __name__)
        return getattr(module, name, module)  # `simulator` is the module itself
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
