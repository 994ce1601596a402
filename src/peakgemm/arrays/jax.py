"""JAX arrays, eagerly: in and out through DLPack."""

from __future__ import annotations

from typing import Any

import jax
import jax.dlpack
import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidType, InvalidValue
from .base import HOST, View, check_dtype, dtype_name
from .interop import LEGACY, Fresh, Interop


class Jax(Interop):
    """JAX's arrays: immutable, on one device."""

    def __init__(self) -> None:
        super().__init__("JAX")

    def admit(self, x: Any, name: str, dtype: str = "float32") -> int:
        """See `Library.admit`.

        Raises:
            InvalidType: a tracer, or a description of an array.
            InvalidValue: spread over several devices, on another kind of them, or donated.
        """
        if isinstance(x, jax.core.Tracer):
            raise InvalidType(f"{name} is a JAX array under jit, grad or vmap, which has no memory yet; call "
                              "peakgemm.matmul, gemm, linalg or jax there, and this outside of them")
        if not isinstance(x, jax.Array):
            raise InvalidType(f"{name} is a {type(x).__name__} of JAX, no array; pass a jax.Array")
        if x.is_deleted():
            raise InvalidValue(f"{name} is a JAX array whose memory was donated or deleted; pass one that is alive")
        check_dtype(dtype_name(x.dtype), name, dtype)
        if len(x.devices()) != 1:
            raise InvalidValue(f"{name} is a JAX array spread over {len(x.devices())} devices; gather it on one with "
                               "jax.device_put")
        (place,) = x.devices()
        if place.platform == "cpu":
            return HOST
        if place.platform not in ("gpu", "cuda"):
            raise InvalidValue(f"{name} is a JAX array on {place}; move it to a CUDA device with jax.device_put")
        return int(place.local_hardware_id)

    def read_only(self, x: Any) -> bool:
        """Always."""
        return True

    def as_real(self, x: Any) -> tuple[Any, bool]:
        """See `Library.as_real`: a copy."""
        return jax.numpy.stack((x.real, x.imag), -1), False

    def as_complex(self, x: Any) -> Any:
        """See `Library.as_complex`: a copy."""
        return jax.lax.complex(x[..., 0], x[..., 1])

    def view(self, x: Any, name: str, stream: int = -1) -> View:
        """See `Library.view`. JAX takes DLPack's -1, "wait for nothing", for a stream's handle, which there is not."""
        return super().view(x, name, LEGACY if stream == -1 else stream)

    def copy(self, x: Any, shape: tuple[int, ...]) -> Any:
        """See `DeviceLibrary.copy`."""
        return jax.numpy.array(jax.numpy.broadcast_to(x, shape))

    def out_of_memory(self, error: Exception) -> bool:
        """The driver's error or XLA's, whose class has had several names: its text begins with the status."""
        return super().out_of_memory(error) or (
            isinstance(error, RuntimeError) and str(error).startswith("RESOURCE_EXHAUSTED"))

    def host(self, x: Any, name: str) -> NDArray[np.float32]:
        """The NumPy view of an array on the CPU."""
        return np.asarray(x)

    def wrap(self, x: NDArray[np.float32], like: Any) -> Any:
        """On the device of ``like``."""
        return jax.device_put(_debug_checked(x), next(iter(like.devices())))

    def _adopt(self, fresh: Fresh, like: Any) -> Any:
        return _debug_checked(jax.dlpack.from_dlpack(fresh))


def _debug_checked(result: Any) -> Any:
    """``result``, after the checks that jax_debug_nans and jax_debug_infs make after each operation outside of ``jit``.

    Raises:
        FloatingPointError: as JAX's own operations, where one of them is set.
    """
    for name, found in (("nan", np.isnan), ("inf", np.isinf)):
        if getattr(jax.config, f"jax_debug_{name}s") and found(np.asarray(result)).any():
            raise FloatingPointError(f"invalid value ({name}) encountered in peakgemm's product")
    return result
