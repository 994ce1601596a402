"""A module that looks like CuPy to `peakgemm.cupy.use`, over NumPy's arrays, and a `cupyx`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

import peakgemm.integrations


class Base(np.ndarray):
    """In the place of CuPy's compiled class."""


class ndarray(Base):
    """In the place of the class of Python's on top of it."""


def array(x: Any, dtype: Any = np.float32) -> Any:
    return np.asarray(x, dtype).view(ndarray)


def forget(monkeypatch: Any) -> None:
    """Let what imported one CuPy be imported anew."""
    monkeypatch.delitem(sys.modules, "peakgemm.integrations.cupy_use", raising=False)
    monkeypatch.delattr(peakgemm.integrations, "cupy_use", raising=False)


def install(monkeypatch: Any) -> ModuleType:
    """The module, under CuPy's name; ``compute_type`` is what its FP32 products run in."""
    cupy, core, cupyx = ModuleType("cupy"), ModuleType("cupy._core"), ModuleType("cupyx")
    routines: Any = ModuleType("cupy._core._routines_linalg")

    def own(function: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*(x.view(np.ndarray) if isinstance(x, Base) else x for x in args), **kwargs)
            return result.view(ndarray) if isinstance(result, np.ndarray) else result
        call.reduce = "an attribute"  # type: ignore[attr-defined]
        return call

    for name in ("matmul", "dot", "inner", "tensordot", "einsum", "isnan", "where", "zeros_like"):
        setattr(cupy, name, own(getattr(np, name)))
    linalg: Any = ModuleType("cupy.linalg")
    for name in ("cholesky", "solve", "inv", "det", "slogdet", "qr"):
        setattr(linalg, name, own(getattr(np.linalg, name)))
    linalg.matmul = cupy.matmul  # type: ignore[attr-defined]
    routines.get_compute_type = lambda dtype: cupy.compute_type  # type: ignore[attr-defined]
    routines.COMPUTE_TYPE_TF32 = 3
    members = {"ndarray": ndarray, "linalg": linalg, "dtype": np.dtype, "_core": core, "compute_type": 1,
               "__version__": "0.0"}
    vars(cupy).update(members)
    vars(cupyx)["geterr"] = lambda: {"linalg": "ignore"}
    vars(core)["_routines_linalg"] = routines
    for module in (cupy, core, cupyx, routines, linalg):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    forget(monkeypatch)
    return cupy
