"""Operands of the ladder's rungs: row-major matrices on the device, and copies of NumPy arrays there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InvalidValue
from ..problem import Problem
from ..runtime.memory import DeviceMemory, copy_in, copy_out, event, wait
from . import admit
from .base import FLOAT, HOST, View, stream_handle
from .interop import LEGACY


@dataclass(frozen=True, slots=True)
class Matrix:
    """A row-major FP32 matrix on the device: ``rows x columns``, ``ld`` elements from row to row.

    ``owner`` keeps the memory alive.
    """

    pointer: int
    rows: int
    columns: int
    ld: int
    owner: Any

    @property
    def alignment(self) -> int:
        """Largest power of two up to 16 that divides the address."""
        return View(self.pointer, (), ()).alignment


def matrix(array: Any, name: str) -> Matrix:
    """Describe a device array without copying it.

    Args:
        array: 2-D, float32, unit stride along its rows, on the GPU.
        name: what errors call it.

    Raises:
        InvalidType: not an array, or not float32.
        InvalidValue: not 2-D, not on a GPU, or rows that are not contiguous.
    """
    library, index = admit(array, name)
    if index == HOST:
        raise InvalidValue(f"{name} is a torch tensor on {array.device}; move it to the GPU with {name}.cuda()"
                           if library.name == "torch" else
                           f"{name} ({type(array).__name__}) is not on a GPU; move it there first")
    pointer, shape, strides, _ = library.view(array, name)
    _check_rank(shape, name)
    if pointer % FLOAT:
        raise InvalidValue(f"{name} starts at address {pointer:#x}, no multiple of {FLOAT} bytes; pass a copy of it")
    rows, columns = shape
    if strides is None or (columns > 1 and strides[1] != 1):
        found = "no strides in whole elements" if strides is None else f"strides {strides} (elements)"
        raise InvalidValue(f"{name} has {found}; its rows must be contiguous: "
                           f"pass a row-major copy, or swap the operands (C^T = B^T A^T) for column-major data")
    ld = strides[0] if rows > 1 else max(columns, 1)
    if ld < columns:
        raise InvalidValue(f"ld of {name} = {ld} is shorter than its row of {columns} elements; pass a copy")
    return Matrix(pointer, rows, columns, max(ld, 1), array)


def check_host(array: np.ndarray[Any, Any], name: str) -> None:
    """Refuse a NumPy array that is not a float32 matrix."""
    admit(array, name)
    _check_rank(array.shape, name)


def _check_rank(shape: tuple[int, ...], name: str) -> None:
    if len(shape) != 2:
        raise InvalidValue(f"{name} has shape {shape}; a matrix (2-D) is wanted")


def problem_of(operands: Sequence[Matrix], alpha: float, beta: float) -> Problem:
    """The problem that A, B and C make.

    Raises:
        InvalidValue: shapes that do not match; the message gives both.
    """
    a, b, c = operands
    if a.columns != b.rows:
        raise InvalidValue(f"A is {a.rows} x {a.columns} and B is {b.rows} x {b.columns}: "
                           f"the columns of A ({a.columns}) must be the rows of B ({b.rows})")
    if (c.rows, c.columns) != (a.rows, b.columns):
        raise InvalidValue(f"C is {c.rows} x {c.columns}; A B is {a.rows} x {b.columns}")
    return Problem(a.rows, b.columns, a.columns, a.ld, b.ld, c.ld, float(alpha), float(beta),
                   (a.alignment, b.alignment, c.alignment))


class DeviceCopy:
    """A packed copy of a NumPy array on the current device, freed with the object.

    ``stream`` is a ``cuda.core.Stream``, or anything else that `stream_handle` takes.
    """

    def __init__(self, array: np.ndarray[Any, Any], stream: Any) -> None:
        self.host = np.ascontiguousarray(array)
        self._stream = stream_handle(stream)
        self._memory = DeviceMemory(self.host.nbytes, self._stream)
        copy_in(self.pointer, self.host.ctypes.data, self.host.nbytes, self._stream, pageable=True)

    @property
    def pointer(self) -> int:
        """The device address."""
        return self._memory.pointer

    @property
    def matrix(self) -> Matrix:
        """The copy of a matrix as a device matrix."""
        rows, columns = self.host.shape
        return Matrix(self.pointer, rows, columns, max(columns, 1), self)

    def download(self) -> np.ndarray[Any, Any]:
        """The device's content as a NumPy array; waits for the stream."""
        out = np.empty_like(self.host)
        copy_out(out.ctypes.data, self.pointer, out.nbytes, self._stream, pageable=True)
        wait(event(self._stream))
        return out


def stream_of(array: Any) -> Any:
    """The current stream of the array's library, a ``cuda.core.Stream``: the default one where it has none."""
    from cuda.core import LEGACY_DEFAULT_STREAM, Stream

    library: Any
    library, index = admit(array, "array")
    handle = LEGACY
    if index != HOST:
        with library.scope(index, None) as current:
            handle = current
    return LEGACY_DEFAULT_STREAM if handle == LEGACY else Stream.from_handle(handle)
