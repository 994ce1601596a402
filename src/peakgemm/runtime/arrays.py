"""Arrays in: torch, CuPy, anything with DLPack or the CUDA array interface, NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InvalidType, InvalidValue, LaunchFailed


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
        return 16 if self.pointer == 0 else min(16, self.pointer & -self.pointer)


def is_host(array: Any) -> bool:
    """Whether it is a NumPy array, which has to be copied to the device."""
    return isinstance(array, np.ndarray)


def matrix(array: Any, name: str) -> Matrix:
    """Describe a device array without copying it.

    Args:
        array: 2-D, float32, unit stride along its rows, on the GPU.
        name: what errors call it.

    Raises:
        InvalidType: not an array, or not float32.
        InvalidValue: not 2-D, not on a GPU, or rows that are not contiguous.
    """
    pointer, shape, strides, dtype = _describe(array, name)
    _check_dtype(dtype, name)
    if len(shape) != 2:
        raise InvalidValue(f"{name} has shape {tuple(shape)}; a matrix (2-D) is wanted")
    rows, columns = shape
    row_stride, column_stride = strides if strides is not None else (max(columns, 1), 1)
    if columns > 1 and column_stride != 1:
        raise InvalidValue(f"{name} has strides {tuple(strides or ())} (elements); its rows must be contiguous: "
                           f"pass a row-major copy, or swap the operands (C^T = B^T A^T) for column-major data")
    ld = row_stride if rows > 1 else max(columns, 1)
    if ld < columns:
        raise InvalidValue(f"ld of {name} = {ld} is shorter than its row of {columns} elements; pass a copy")
    return Matrix(pointer, rows, columns, max(ld, 1), array)


def _describe(array: Any, name: str) -> tuple[int, tuple[int, ...], tuple[int, ...] | None, str]:
    if type(array).__module__.partition(".")[0] == "torch":  # its own attributes: no protocol overhead
        if not array.is_cuda:
            raise InvalidValue(f"{name} is a torch tensor on {array.device}; move it to the GPU with {name}.cuda()")
        return array.data_ptr(), tuple(array.shape), tuple(array.stride()), str(array.dtype).removeprefix("torch.")
    from cuda.core.utils import StridedMemoryView

    try:
        view = StridedMemoryView.from_any_interface(array, stream_ptr=-1)
    except Exception as error:
        raise InvalidType(f"{name} is a {type(array).__name__}, which offers neither DLPack nor the CUDA array "
                          f"interface ({error}); pass a torch, CuPy, JAX or NumPy array") from None
    if not view.is_device_accessible:
        raise InvalidValue(f"{name} ({type(array).__name__}) is not on a GPU; move it there first")
    return view.ptr, tuple(view.shape), view.strides, str(view.dtype)


def check_host(array: np.ndarray[Any, Any], name: str) -> None:
    """Refuse a NumPy array that is not a float32 matrix."""
    _check_dtype(str(array.dtype), name)
    if array.ndim != 2:
        raise InvalidValue(f"{name} has shape {array.shape}; a matrix (2-D) is wanted")


def _check_dtype(dtype: str, name: str) -> None:
    if dtype != "float32":
        raise InvalidType(f"{name} is {dtype}; peakgemm multiplies float32: convert it with {name}.astype('float32') "
                          f"({name}.float() in torch)")


class DeviceCopy:
    """A packed copy of a NumPy array on the device, freed with the object."""

    def __init__(self, array: np.ndarray[Any, Any], stream: Any) -> None:
        from cuda.core import Device

        self._stream = stream
        self.host = np.ascontiguousarray(array)
        self.buffer = Device().allocate(max(self.host.nbytes, 16), stream=stream)
        _copy("cuMemcpyHtoDAsync", self.pointer, self.host.ctypes.data, self.host.nbytes, stream)

    @property
    def pointer(self) -> int:
        """The device address."""
        return int(self.buffer.handle)

    @property
    def matrix(self) -> Matrix:
        """The copy of a matrix as a device matrix."""
        rows, columns = self.host.shape
        return Matrix(self.pointer, rows, columns, max(columns, 1), self)

    def download(self) -> np.ndarray[Any, Any]:
        """The device's content as a NumPy array; waits for the stream."""
        out = np.empty_like(self.host)
        _copy("cuMemcpyDtoHAsync", out.ctypes.data, self.pointer, out.nbytes, self._stream)
        self._stream.sync()
        return out


def _copy(call: str, to: int, source: int, size: int, stream: Any) -> None:
    from cuda.bindings import driver

    if size:
        (status,) = getattr(driver, call)(to, source, size, int(stream.handle))
        if status != driver.CUresult.CUDA_SUCCESS:
            raise LaunchFailed(f"copy of {size} bytes between host and device failed: {status.name}")


def stream_of(array: Any) -> Any:
    """The caller's current stream: torch's or CuPy's for their arrays, else the default stream."""
    from cuda.core import LEGACY_DEFAULT_STREAM, Stream

    library = type(array).__module__.partition(".")[0]
    if library == "torch":
        import torch

        return Stream.from_handle(torch.cuda.current_stream(array.device).cuda_stream)
    if library == "cupy":
        import cupy

        return Stream.from_handle(cupy.cuda.get_current_stream().ptr)
    return LEGACY_DEFAULT_STREAM
