"""Any library that speaks DLPack or the CUDA array interface."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidType, InvalidValue
from ..runtime import device
from ..runtime.memory import PENDING, DeviceMemory, order
from .base import FLOAT, HOST, DeviceLibrary, HostLibrary, View, check_dtype, dtype_name, packed

LEGACY = 1  # CU_STREAM_LEGACY: the default stream, under the name that DLPack has for it


class Interop(HostLibrary, DeviceLibrary):
    """Arrays known by protocol alone. Results come back through the library's own ``from_dlpack``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def admit(self, x: Any, name: str, dtype: str = "float32") -> int:
        """See `Library.admit`."""
        seen = _seen(x, name, -1)
        check_dtype(dtype_name(seen.dtype), name, dtype)
        if not seen.ptr and 0 not in seen.shape:
            raise InvalidValue(f"{name} is a {type(x).__name__} of shape {tuple(seen.shape)} at address 0: it has no "
                               "memory; pass one that has")
        return int(seen.device_id) if seen.is_device_accessible else HOST

    def view(self, x: Any, name: str, stream: int = -1) -> View:
        """See `Library.view`; the library makes ``stream`` wait for the values."""
        if isinstance(x, Fresh):
            return x.view
        seen = _seen(x, name, stream)
        shape = tuple(seen.shape)
        return View(int(seen.ptr), shape, packed(shape) if seen.strides is None else tuple(seen.strides))

    def read_only(self, x: Any) -> bool:
        """What the protocol says."""
        return bool(_seen(x, self.name, -1).readonly)

    @contextmanager
    def scope(self, index: int, stream: int | None) -> Iterator[int]:
        """The device's primary context and, where none is named, the legacy default stream."""
        with device.activated(index):
            yield LEGACY if stream is None else stream

    def empty(self, shape: tuple[int, ...], like: Any, stream: int, dtype: str = "float32") -> Any:
        """See `DeviceLibrary.empty`."""
        return Fresh(shape, stream, dtype)

    def copy(self, x: Any, shape: tuple[int, ...]) -> Any:
        """See `DeviceLibrary.copy`.

        Raises:
            InvalidType: the library does not follow the array API.
            InvalidValue: an address that is no multiple of 4.
        """
        start = self.view(x, self.name).pointer
        if start % FLOAT:
            raise InvalidValue(f"a {self.name} array starts at address {start:#x}, no multiple of {FLOAT} bytes; pass "
                               "a copy of it")
        xp = self._namespace(x, "has strides that no kernel takes, and peakgemm cannot copy it")
        return xp.asarray(xp.broadcast_to(x, shape), copy=True)

    def assign(self, to: Any, source: Any) -> None:
        """See `DeviceLibrary.assign`; ``source`` is a `Fresh`."""
        raise InvalidType(f"out is a {self.name} array with no unit stride; pass a row-major or column-major out")

    def deliver(self, result: Any, like: Any, stream: int, inputs: tuple[Any, ...]) -> Any:
        """See `DeviceLibrary.deliver`. Inputs are kept until they are read: the library may not free by stream."""
        PENDING.keep((inputs, result), stream)
        return self._adopt(result, like) if isinstance(result, Fresh) else result

    def host(self, x: Any, name: str) -> NDArray[np.float32]:
        """The NumPy view of the memory that DLPack describes."""
        array: NDArray[Any] = np.from_dlpack(x)
        return array

    def wrap(self, x: NDArray[np.float32], like: Any) -> Any:
        """Through the library's own ``from_dlpack``."""
        return self._namespace(like, "cannot hold the result").from_dlpack(x)

    def _adopt(self, fresh: Fresh, like: Any) -> Any:
        return self._namespace(like, "cannot hold the result").from_dlpack(fresh)

    def _namespace(self, x: Any, why: str) -> Any:
        if not hasattr(x, "__array_namespace__"):
            raise InvalidType(f"a {self.name} array {why}: its library does not follow the array API; pass out=, "
                              "with operands that have a unit stride")
        return x.__array_namespace__()


class Fresh:
    """Packed device memory that another library will adopt through DLPack."""

    def __init__(self, shape: tuple[int, ...], stream: int, dtype: str = "float32") -> None:
        self._stream, self._shape, self._dtype = stream, shape, np.dtype(dtype)
        self._memory = DeviceMemory(self._dtype.itemsize * prod(shape), stream)
        self._device = device.current() or 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of its elements."""
        return self._dtype

    @property
    def view(self) -> View:
        """Where it lies."""
        return View(self._memory.pointer, self._shape, packed(self._shape))

    def __dlpack_device__(self) -> tuple[int, int]:
        """CUDA, and the device's index."""
        return 2, self._device

    def __dlpack__(self, *, stream: int | None = None, **kwargs: Any) -> Any:
        """A capsule; ``stream``, the consumer's, is made to wait for what writes the memory."""
        from cuda.core import Buffer
        from cuda.core.utils import StridedMemoryView

        if stream != -1:
            order(self._stream, stream or LEGACY)
        device.introduce(self._device)
        buffer = Buffer.from_handle(self._memory.pointer, self._memory.size, owner=self._memory)
        seen = StridedMemoryView.from_buffer(buffer, self._shape, dtype=self._dtype)
        return seen.__dlpack__(stream=-1, **kwargs)


def _seen(x: Any, name: str, stream: int) -> Any:
    from cuda.core.utils import StridedMemoryView

    try:
        return StridedMemoryView.from_any_interface(_at_version_3(x), stream_ptr=stream)
    except Exception as error:
        raise InvalidType(f"{name} is a {type(x).__name__}, which offers neither DLPack nor the CUDA array "
                          f"interface ({error}); pass a torch, CuPy, JAX or NumPy array") from None


def _at_version_3(x: Any) -> Any:
    """``x``, or a stand-in where all it offers is an interface older than cuda.core takes: torch's is of version 2.

    Version 3 differs from 2 by the ``stream`` alone. None to wait for is named: with versions before 3 the caller sees
    to that.
    """
    interface = None if hasattr(x, "__dlpack__") else getattr(x, "__cuda_array_interface__", None)
    if interface is None or interface["version"] >= 3:
        return x
    return SimpleNamespace(__cuda_array_interface__={**interface, "version": 3, "stream": None}, owner=x)
