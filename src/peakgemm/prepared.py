"""A constant right operand, made ready once."""

from __future__ import annotations

from typing import Any

from .boundary import pose
from .request import Request, locate
from .runtime import device
from .runtime.adapters.base import HOST, View


class Prepared:
    """What `peakgemm.prepare` returns: a right operand for `matmul`, `gemm` and `plan`.

    Attributes:
        array: the operand, in strides that kernels take; ``prepare``'s argument itself where it has them.
        shape: its shape.
    """

    __slots__ = ("_kept", "array", "shape")

    def __init__(self, b: Any) -> None:
        library, index = locate(Request(b, b))
        self._kept: Any = None
        if index == HOST:
            from .runtime.adapters.numpy import host_view

            host = library.host(b, "b")
            self.array, view, gpu = b, host_view(host), device.here()
            if gpu is not None and host.size:
                from .staged import Resident

                self._kept = Resident(host, gpu)
        else:
            with library.scope(index, None):
                view = library.view(b, "b")
                rows = (1, view.shape[-2]) if len(view.shape) > 1 else (1, *view.shape)
                copied = "b" in pose(View.packed(rows), view).copies
                self.array = library.copy(b, view.shape) if copied else b
        self.shape = view.shape

    def resident(self) -> View | None:
        """Where a host array's copy lies on the current GPU, if there."""
        gpu = device.here() if self._kept is not None else None
        return self._kept.view if gpu is not None and gpu.index == self._kept.gpu.index else None

    def __repr__(self) -> str:
        return f"Prepared({type(self.array).__name__} of shape {self.shape})"
