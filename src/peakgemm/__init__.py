"""peakgemm: FP32 matrix multiplication on NVIDIA GPUs, from the naive kernel to past the FP32 peak."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> module that holds it: imported on first use, so that `import peakgemm` stays quick.
_PUBLIC = {
    "Config": "problem",
    "Explanation": "plan",
    "PeakgemmError": "errors",
    "Plan": "plan",
    "Prepared": "prepared",
    "Problem": "problem",
    "addmm": "api",
    "bmm": "api",
    "explain": "api",
    "gemm": "api",
    "matmul": "api",
    "mm": "api",
    "occupancy": "inspect.occupancy",
    "plan": "api",
    "prepare": "api",
    "run_rung": "kernels.execute",
    "sgemm": "api",
    "simulator": "simulator",
    "torch": "integrations.torch",
}
_MODULES = ("simulator", "torch")  # public as modules

__all__ = [
    "Config", "Explanation", "PeakgemmError", "Plan", "Prepared", "Problem", "__version__", "addmm", "bmm", "explain",
    "gemm", "matmul", "mm", "occupancy", "plan", "prepare", "run_rung", "sgemm", "simulator", "torch",
]

if TYPE_CHECKING:
    from . import simulator
    from .api import addmm, bmm, explain, gemm, matmul, mm, plan, prepare, sgemm
    from .errors import PeakgemmError
    from .inspect.occupancy import occupancy
    from .integrations import torch
    from .kernels.execute import run_rung
    from .plan import Explanation, Plan
    from .prepared import Prepared
    from .problem import Config, Problem


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        module = import_module(f".{_PUBLIC[name]}", __name__)
        found = module if name in _MODULES else getattr(module, name)
        globals()[name] = found
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """The package, in which ``plan`` is the function, also once the module of that name has been imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "plan" and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
