"""NumPy arrays, and what the host's memory needs of any library."""

from __future__ import annotations

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
