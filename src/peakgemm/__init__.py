"""peakgemm: FP32 matrix multiplication on NVIDIA GPUs: a ladder of kernels, a library, and instruments."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .calls import hooks as _hooks
from .version import __version__

# Public name -> module that holds it, and its name there where that differs: imported on first use, so that `import
# peakgemm` stays quick.
_PUBLIC = {
    "Certificate": "certificate",
    "Config": "kernels.rung:RungConfig",
    "Explanation": "calls.plan",
    "PeakgemmError": "errors",
    "Plan": "calls.plan",
    "Prepared": "calls.prepared",
    "Problem": "problem",
    "addmm": "api",
    "bmm": "api",
    "certify": "certificate",
    "cupy": "cupy",
    "distributed": "distributed",
    "dot": "contraction",
    "einsum": "contraction",
    "explain": "api",
    "gemm": "api",
    "jax": "jax",
    "linalg": "linalg",
    "matmul": "api",
    "mm": "api",
    "multiply_files": "calls.host.files",
    "occupancy": "tools.bench.occupancy",
    "plan": "api",
    "precisions": "tools.accuracy.precisions",
    "prepare": "api",
    "replay": "api",
    "run_rung": "calls.rung",
    "sgemm": "api",
    "simulator": "tools.simulator",
    "tensordot": "contraction",
    "torch": "torch",
    "use": "rerouting",
    "vecdot": "contraction",
}
_MODULES = ("cupy", "distributed", "jax", "linalg", "simulator", "torch")  # public as modules

__all__ = [
    "Certificate", "Config", "Explanation", "PeakgemmError", "Plan", "Prepared", "Problem", "__version__", "addmm",
    "bmm", "certify", "cupy", "distributed", "dot", "einsum", "explain", "gemm", "jax", "linalg", "matmul", "mm",
    "multiply_files", "occupancy", "plan", "precisions", "prepare", "replay", "run_rung", "sgemm", "simulator",
    "tensordot", "torch", "use", "vecdot",
]

if TYPE_CHECKING:
    from . import cupy, distributed, jax, linalg, torch
    from .api import addmm, bmm, explain, gemm, matmul, mm, plan, prepare, replay, sgemm
    from .calls.host.files import multiply_files
    from .calls.plan import Explanation, Plan
    from .calls.prepared import Prepared
    from .calls.rung import run_rung
    from .certificate import Certificate, certify
    from .contraction import dot, einsum, tensordot, vecdot
    from .errors import PeakgemmError
    from .kernels.registry import Kernel
    from .kernels.rung import RungConfig as Config
    from .problem import Problem
    from .rerouting import use
    from .runtime.device import Gpu
    from .tools import simulator
    from .tools.accuracy.precisions import precisions
    from .tools.bench.occupancy import occupancy


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        path, _, attribute = _PUBLIC[name].partition(":")
        module = import_module(f".{path}", __name__)
        public = module if name in _MODULES else getattr(module, attribute or name)
        globals()[name] = public
        return public
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _search(problem: Problem, gpu: Gpu, precision: str) -> tuple[Kernel, Any]:
    """The tuner, which lies above the plan that asks for it; imported when it is asked."""
    from .tools.tune.search import best

    return best(problem, gpu, precision)


def _multi_dot(arrays: Any, **options: Any) -> Any:
    """The contractions, which lie above the linear algebra that shows this one."""
    from .contraction import multi_dot

    return multi_dot(arrays, **options)


def _traced(operation: Any) -> Any:
    """The primitive of linear algebra in JAX."""
    from .integrations.jax_linalg import traced

    return traced(operation)


_hooks.search, _hooks.multi_dot, _hooks.traced = _search, _multi_dot, _traced
