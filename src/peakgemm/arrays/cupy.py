"""CuPy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cupy

from ..errors import InvalidType
from .base import FLOAT, DeviceLibrary, View, by_bytes, check_dtype, dtype_name


class Cupy(DeviceLibrary):
    """CuPy's arrays, through their own attributes: always on a device."""

    name = "CuPy"

    def admit(self, x: Any, name: str, dtype: str = "float32") -> int:
        """See `Library.admit`."""
        if not isinstance(x, cupy.ndarray):
            raise InvalidType(f"{name} is a {type(x).__name__} of CuPy, no array; pass a cupy.ndarray")
        check_dtype(dtype_name(x.dtype), name, dtype)
        return int(x.device.id)

    def view(self, x: Any, name: str, stream: int = -1) -> View:
        """See `Library.view`."""
        return by_bytes(int(x.data.ptr), tuple(x.shape), tuple(x.strides))

    def as_real(self, x: Any) -> tuple[Any, bool]:
        """See `Library.as_real`."""
        return cupy.ndarray((*x.shape, 2), cupy.float32, x.data, strides=(*x.strides, FLOAT)), False

    def as_complex(self, x: Any) -> Any:
        """See `Library.as_complex`."""
        return cupy.ndarray(x.shape[:-1], cupy.complex64, x.data)

    @contextmanager
    def scope(self, device: int, stream: int | None) -> Iterator[int]:
        """CuPy's own device and stream: its pool keeps memory by stream."""
        with cupy.cuda.Device(device):
            if stream is None:
                yield int(cupy.cuda.get_current_stream().ptr)
            else:
                with cupy.cuda.ExternalStream(stream, device):
                    yield stream

    def empty(self, shape: tuple[int, ...], like: Any, stream: int, dtype: str = "float32") -> Any:
        """See `DeviceLibrary.empty`."""
        return cupy.empty(shape, dtype)

    def copy(self, x: Any, shape: tuple[int, ...]) -> Any:
        """See `DeviceLibrary.copy`."""
        return _readable(cupy.broadcast_to(x, shape)).copy(order="C")

    def assign(self, to: Any, source: Any) -> None:
        """See `DeviceLibrary.assign`."""
        if to.data.ptr % FLOAT:
            _bytes(to)[...] = _bytes(source)
        else:
            to[...] = source

    def out_of_memory(self, error: Exception) -> bool:
        """See `DeviceLibrary.out_of_memory`."""
        return isinstance(error, cupy.cuda.memory.OutOfMemoryError)


def _bytes(x: Any) -> Any:
    """The same memory as bytes, four in a last dimension: CuPy's kernels fault on floats at an odd address."""
    return cupy.ndarray((*x.shape, FLOAT), cupy.uint8, x.data, strides=(*x.strides, 1))


def _readable(x: Any) -> Any:
    """``x``, or its values at an address that kernels can read."""
    return _bytes(x).copy(order="C").view(cupy.float32)[..., 0] if x.data.ptr % FLOAT else x
