"""NumPy arrays, and what the host's memory needs of any library."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidType
from .base import HOST, View, check_dtype, in_elements


class Numpy:
    """NumPy's arrays: always on the host."""

    name = "NumPy"

    def device(self, x: Any) -> int:
        """The host."""
        return HOST

    def view(self, x: Any, name: str, stream: int = -1) -> View:
        """See `Library.view`."""
        return host_view(self.host(x, name))

    def read_only(self, x: Any) -> bool:
        """NumPy's own flag."""
        return not x.flags.writeable

    def scope(self, device: int, stream: int | None) -> AbstractContextManager[int]:
        """Not for the host: `host.multiply` runs these arrays."""
        raise NotImplementedError

    def empty(self, shape: tuple[int, ...], like: Any, stream: int) -> Any:
        """See `Library.empty`."""
        return np.empty(shape, np.float32)

    def copy(self, x: Any, shape: tuple[int, ...]) -> Any:
        """See `Library.copy`."""
        return np.ascontiguousarray(np.broadcast_to(x, shape))

    def assign(self, to: Any, source: Any) -> None:
        """See `Library.assign`."""
        np.copyto(to, source)

    def deliver(self, result: Any, like: Any, stream: int, inputs: tuple[Any, ...]) -> Any:
        """``result`` itself."""
        return result

    def host(self, x: Any, name: str) -> NDArray[np.float32]:
        """The array, without a subclass's own idea of ``*``.

        Raises:
            InvalidType: not float32, or a masked array, whose mask would be lost.
        """
        if isinstance(x, np.ma.MaskedArray):
            raise InvalidType(f"{name} is a masked array, whose mask a product would lose; pass {name}.filled(...)")
        check_dtype(str(x.dtype), name)
        return np.asarray(x)

    def wrap(self, x: NDArray[np.float32], like: Any) -> Any:
        """``x`` itself."""
        return x


def host_view(x: NDArray[Any]) -> View:
    """Describe a NumPy array."""
    return View(x.__array_interface__["data"][0], x.shape, in_elements(x.strides))
