"""CuPy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cupy

from .base import View, check_dtype, in_elements


class Cupy:
    """CuPy's arrays, through their own attributes: always on a device."""

    name = "CuPy"

    def device(self, x: Any) -> int:
        """See `Library.device`."""
        return int(x.device.id)

    def view(self, x: Any, name: str, stream: int = -1) -> View:
        """See `Library.view`."""
        check_dtype(str(x.dtype), name)
        return View(int(x.data.ptr), tuple(x.shape), in_elements(x.strides))

    def read_only(self, x: Any) -> bool:
        """CuPy has no such arrays."""
        return False

    @contextmanager
    def scope(self, device: int, stream: int | None) -> Iterator[int]:
        """CuPy's own device and stream: its pool keeps memory by stream."""
        with cupy.cuda.Device(device):
            if stream is None:
                yield int(cupy.cuda.get_current_stream().ptr)
            else:
                with cupy.cuda.ExternalStream(stream, device):
                    yield stream

    def empty(self, shape: tuple[int, ...], like: Any, stream: int) -> Any:
        """See `DeviceLibrary.empty`."""
        return cupy.empty(shape, cupy.float32)

    def copy(self, x: Any, shape: tuple[int, ...]) -> Any:
        """See `DeviceLibrary.copy`."""
        return cupy.broadcast_to(x, shape).copy(order="C")

    def assign(self, to: Any, source: Any) -> None:
        """See `DeviceLibrary.assign`."""
        to[...] = source

    def deliver(self, result: Any, like: Any, stream: int, inputs: tuple[Any, ...]) -> Any:
        """``result`` itself; CuPy's pool frees by stream."""
        return result

    def out_of_memory(self, error: Exception) -> bool:
        """See `DeviceLibrary.out_of_memory`."""
        return isinstance(error, cupy.cuda.memory.OutOfMemoryError)
