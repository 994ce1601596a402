"""NumPy arrays, and what the host's memory needs of any library."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidType
from .base import HOST, HostLibrary, View, by_bytes, check_dtype, dtype_name, remedy


class Numpy(HostLibrary):
    """NumPy's arrays: always on the host."""

    name = "NumPy"

    def admit(self, x: Any, name: str, dtype: str = "float32") -> int:
        """See `Library.admit`.

        Raises:
            InvalidType: a masked array, or a subclass with arithmetic of its own: units, say, that a product would
                lose.
        """
        if isinstance(x, np.ma.MaskedArray):
            raise InvalidType(f"{name} is a masked array, whose mask a product would lose; "
                              + remedy(name, f"pass {name}.filled(...)"))
        is_jax = hasattr(x, "aval")  # which wraps NumPy arrays that are arguments of its functions
        if type(x).__array_ufunc__ is not np.ndarray.__array_ufunc__ and not is_jax:
            raise InvalidType(f"{name} is a {type(x).__name__}, a NumPy subclass with arithmetic of its own "
                              f"(__array_ufunc__), which a product would drop; pass np.asarray({name})")
        check_dtype(dtype_name(x.dtype), name, dtype)
        return HOST

    def view(self, x: Any, name: str, stream: int = -1) -> View:
        """See `Library.view`."""
        return host_view(self.host(x, name))

    def read_only(self, x: Any) -> bool:
        """NumPy's own flag."""
        return not x.flags.writeable

    def as_real(self, x: Any) -> tuple[Any, bool]:
        """See `Library.as_real`."""
        return np.asarray(x)[..., None].view(np.float32), False

    def as_complex(self, x: Any) -> Any:
        """See `Library.as_complex`."""
        return x.view(np.complex64)[..., 0]

    def host(self, x: Any, name: str) -> NDArray[np.float32]:
        """The array, without a subclass's own idea of ``*``."""
        return np.asarray(x)

    def wrap(self, x: NDArray[np.float32], like: Any) -> Any:
        """``x`` itself."""
        return x


def host_view(x: NDArray[Any]) -> View:
    """Describe a NumPy array."""
    return by_bytes(x.__array_interface__["data"][0], x.shape, x.strides)
