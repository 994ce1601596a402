"""Whether two arrays share memory, or bytes of a file: exact, for the interleaved layouts of blocked solvers."""

from __future__ import annotations

import mmap
import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidValue
from .base import View

_MOST_WORK: Any = 100_000  # candidate solutions that NumPy tries


def overlaps(x: View, y: View) -> bool:
    """Whether an element of ``x`` lies where one of ``y`` does; True also where that is too hard to tell."""
    (x_low, x_high), (y_low, y_high) = x.span, y.span
    if x.pointer + x_low >= y.pointer + y_high or y.pointer + y_low >= x.pointer + x_high:
        return False
    if x_low == x_high or y_low == y_high:
        return False
    try:  # addresses and strides alone are looked at, so device memory may be described
        return bool(np.shares_memory(np.asarray(_Described(x)), np.asarray(_Described(y)), max_work=_MOST_WORK))
    except Exception:  # NumPy's TooHardError moved between modules
        return True


def refuse_overlap(views: dict[str, View], beta: float, arrays: dict[str, Any] | None = None) -> None:
    """``out`` may be ``c`` itself; it shares no other memory with an input, and with ``arrays``, the NumPy arrays of
    these views, no bytes of a file.

    Raises:
        InvalidValue: it does; the message says with which.
    """
    out = views.get("out")
    for name, view in views.items():
        if out is None or name == "out" or (name == "c" and (view == out or beta == 0)):
            continue
        if overlaps(view, out):
            raise InvalidValue(f"out overlaps {name} in memory, which would be overwritten while it is read; pass an "
                               f"out of its own{', or c itself as out' if name == 'c' else ''}")
        target = _mapped(arrays["out"], out) if arrays else None
        source = _mapped(arrays[name], view) if arrays and target else None
        # A private mapping's writes do not reach the file; two shared ones of it have addresses of their own.
        if target and source and target.file == source.file and not target.private and overlaps(
                source.view, target.view):
            raise InvalidValue(f"out overlaps {name} in {target.path}, which both map and which would be overwritten "
                               "while it is read; map a file of its own as out"
                               f"{', or pass c itself as out' if name == 'c' else ''}")


class _Mapped(NamedTuple):
    """The file whose pages an array is, and where the array lies in it: ``view``, its pointer an offset in the file."""

    file: tuple[int, int]  # device, inode
    view: View
    path: str
    private: bool  # mode "c"


def _mapped(x: NDArray[Any], view: View) -> _Mapped | None:
    """The file below ``x``, which lies at ``view``; None where its root is no `numpy.memmap` of a file with a name."""
    root: Any = x
    while isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or not isinstance(root.base, mmap.mmap) or root.filename is None:
        return None
    try:
        status = os.stat(root.filename)
    except OSError:  # the name has gone
        return None
    offset = root.offset + view.pointer - root.__array_interface__["data"][0]
    return _Mapped((status.st_dev, status.st_ino), view._replace(pointer=offset), str(root.filename), root.mode == "c")


class _Described:
    def __init__(self, view: View) -> None:
        self.__array_interface__ = {"data": (view.pointer, True), "shape": view.shape, "strides": view.byte_strides,
                                    "typestr": "<f4", "version": 3}
