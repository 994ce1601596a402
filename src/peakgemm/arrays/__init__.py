"""One small module for each array library; none is imported before an array of that library comes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from ..errors import InvalidType, InvalidValue
from .base import Library

_BY_TYPE: dict[type, Library] = {}
_MODULES = {"torch": "torch.Torch", "cupy": "cupy.Cupy", "jax": "jax.Jax", "jaxlib": "jax.Jax"}
_MADE: dict[str, Library] = {}


def admit(x: Any, name: str, *, written: bool = False) -> tuple[Any, int]:
    """The door: every array argument of every call passes it before anything asks for its address.

    Args:
        x: what the caller passed.
        name: the argument's name, for messages.
        written: the call writes to it.

    Returns:
        The library of ``x`` and the device where it lies: a `HostLibrary` where that is `HOST`, else a `DeviceLibrary`.

    Raises:
        InvalidType: no array, none that is plain, or not float32; see `Library.admit`.
        InvalidValue: in no place that kernels reach, without memory, or read-only and ``written``.
    """
    library = library_of(x, name)
    index = library.admit(x, name)
    if written and library.read_only(x):
        raise InvalidValue(f"{name} is a read-only {library.name} array; pass one that can be written"
                           + (", or leave it out" if name == "out" else ""))
    return library, index


def library_of(x: Any, name: str) -> Library:
    """The library that ``x`` belongs to.

    Raises:
        InvalidType: no array. ``name`` is what the message calls it.
    """
    kind = type(x)
    found = _BY_TYPE.get(kind)
    if found is None:
        found = _find(x, name)
        if len(_BY_TYPE) > 256:  # types made on the fly must not pile up
            _BY_TYPE.clear()
        _BY_TYPE[kind] = found
    return found


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
