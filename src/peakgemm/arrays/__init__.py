"""One small module for each array library; none is imported before an array of that library comes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from ..errors import InvalidType, InvalidValue
from .base import HOST, Library, place

_BY_TYPE: dict[type, Library] = {}
_MODULES = {"torch": "torch.Torch", "cupy": "cupy.Cupy", "jax": "jax.Jax", "jaxlib": "jax.Jax"}
_MADE: dict[str, Library] = {}
_WRITTEN = ("out", "workspace", "C")  # C is a rung's


def locate(arrays: dict[str, Any], dtype: str = "float32") -> tuple[Any, int]:
    """The library and the device that all arrays of a call share: a `HostLibrary` where that is `HOST`, else a
    `DeviceLibrary`. Every array argument of every call passes this door before anything asks for its address.

    Args:
        arrays: by the arguments' names. The first one says what the others must be.
        dtype: of all of them.

    Raises:
        InvalidType, InvalidValue: as `admit`; arrays of several libraries, or on several devices.
    """
    library: Any = None
    index = HOST
    for name, x in arrays.items():
        other, device = admit(x, name, dtype)
        if library is None:
            first, library, index = name, other, device
        elif other is not library:
            raise InvalidType(f"{first} is a {library.name} array and {name} a {other.name} array; convert one, so "
                              "that all are of one library")
        elif device != index:
            raise InvalidValue(f"{first} is on {place(index)} and {name} on {place(device)}; move one, so that all are "
                               "in one place")
    return library, index


def admit(x: Any, name: str, dtype: str = "float32") -> tuple[Any, int]:
    """The library of ``x`` and the device where it lies.

    Args:
        x: what the caller passed.
        name: the argument's name, for messages; ``out``, ``workspace`` and ``C`` are written.
        dtype: that it must have.

    Raises:
        InvalidType: no array, none that is plain, or of another dtype; see `Library.admit`.
        InvalidValue: in no place that kernels reach, without memory, or read-only and written.
    """
    library = library_of(x, name)
    index = library.admit(x, name, dtype)
    if name in _WRITTEN and library.read_only(x):
        raise InvalidValue(f"{name} is a read-only {library.name} array; pass one that can be written"
                           + (", or leave it out" if name == "out" else ""))
    return library, index


def library_of(x: Any, name: str) -> Library:
    """The library that ``x`` belongs to, whether or not it is admitted."""
    return _BY_TYPE.get(type(x)) or _find(x, name)


def _find(x: Any, name: str) -> Library:
    """The library that ``x`` belongs to, remembered for its type."""
    roots = [base.__module__.partition(".")[0] for base in type(x).__mro__]
    where = ("numpy.Numpy" if isinstance(x, np.ndarray) else
             next((_MODULES[root] for root in roots if root in _MODULES), ""))
    if not where and (isinstance(x, np.generic) or not (hasattr(x, "__dlpack__")
                                                        or hasattr(x, "__cuda_array_interface__"))):
        raise InvalidType(f"{name} is a {type(x).__name__}, which offers neither DLPack nor the CUDA array "
                          "interface; pass a torch, CuPy, JAX or NumPy array")
    key = where or roots[0]
    if key not in _MADE:
        module, _, kind = (where or "interop.Interop").partition(".")
        adapter = getattr(import_module(f".{module}", __name__), kind)
        _MADE[key] = adapter() if where else adapter(key)
    if len(_BY_TYPE) > 256:  # types made on the fly must not pile up
        _BY_TYPE.clear()
    return _BY_TYPE.setdefault(type(x), _MADE[key])
