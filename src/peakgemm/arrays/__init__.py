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


def locate(arrays: dict[str, Any]) -> tuple[Any, int]:
    """The library and the device that all arrays of a call share: a `HostLibrary` where that is `HOST`, else a
    `DeviceLibrary`. Every array argument of every call passes this door before anything asks for its address.

    Args:
        arrays: by the arguments' names. The first one says what the others must be.

    Raises:
        InvalidType, InvalidValue: as `admit`; arrays of several libraries, or on several devices.
    """
    library: Any = None
    index = HOST
    for name, x in arrays.items():
        other, device = admit(x, name)
        if library is None:
            first, library, index = name, other, device
        elif other is not library:
            raise InvalidType(f"{first} is a {library.name} array and {name} a {other.name} array; convert one, so "
                              "that all are of one library")
        elif device != index:
            raise InvalidValue(f"{first} is on {place(index)} and {name} on {place(device)}; move one, so that all are "
                               "in one place")
    return library, index


def admit(x: Any, name: str) -> tuple[Any, int]:
    """The library of ``x`` and the device where it lies.

    Args:
        x: what the caller passed.
        name: the argument's name, for messages; ``out``, ``workspace`` and ``C`` are written.

    Raises:
        InvalidType: no array, none that is plain, or not float32; see `Library.admit`.
        InvalidValue: in no place that kernels reach, without memory, or read-only and written.
    """
    library = _BY_TYPE.get(type(x)) or library_of(x, name)
    index = library.admit(x, name)
    if name in _WRITTEN and library.read_only(x):
        raise InvalidValue(f"{name} is a read-only {library.name} array; pass one that can be written"
                           + (", or leave it out" if name == "out" else ""))
    return library, index


def library_of(x: Any, name: str) -> Library:
    """The library that ``x`` belongs to, remembered for its type.

    Raises:
        InvalidType: no array. ``name`` is what the message calls it.
    """
    library = _find(x, name)
    if len(_BY_TYPE) > 256:  # types made on the fly must not pile up
        _BY_TYPE.clear()
    _BY_TYPE[type(x)] = library
    return library


def _find(x: Any, name: str) -> Library:
    if isinstance(x, np.ndarray):
        return _made("numpy.Numpy")
    for base in type(x).__mro__:
        module = _MODULES.get(base.__module__.partition(".")[0])
        if module is not None:
            return _made(module)
    if not (hasattr(x, "__dlpack__") or hasattr(x, "__cuda_array_interface__")) or isinstance(x, np.generic):
        raise InvalidType(f"{name} is a {type(x).__name__}, which offers neither DLPack nor the CUDA array "
                          "interface; pass a torch, CuPy, JAX or NumPy array")
    key = type(x).__module__.partition(".")[0]
    if key not in _MADE:
        from .interop import Interop

        _MADE[key] = Interop(key)
    return _MADE[key]


def _made(where: str) -> Library:
    if where not in _MADE:
        module, _, kind = where.partition(".")
        _MADE[where] = getattr(import_module(f".{module}", __name__), kind)()
    return _MADE[where]
