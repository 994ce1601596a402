"""Where the suite's operands lie: as NumPy arrays in the host's memory, or as torch tensors on a GPU.

NumPy draws all data, so that a seed gives the same operands everywhere; results are measured where they lie. Both
modules answer to the same operators and to ``xp.where``, ``xp.isnan`` and their like; what differs is here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from typing import Any

import numpy as np

from ...errors import InvalidType, InvalidValue, MissingComponent
from ...runtime import device

Shape = tuple[int, ...]


class Numpy:
    """Arrays in the host's memory."""

    name = "numpy"
    xp: Any = np
    single_type: Any = np.float32

    def take(self, x: Any) -> Any:
        """A NumPy array of any type as an array of this module."""
        return x

    def host(self, x: Any) -> Any:
        """An array of this module as NumPy's."""
        return x

    def single(self, x: Any) -> Any:
        """Rounded to float32, to nearest even; beyond FLT_MAX to an infinity."""
        return x.astype(np.float32)

    def double(self, x: Any) -> Any:
        """As float64, exactly."""
        return x.astype(np.float64)

    def copy(self, x: Any) -> Any:
        """A packed copy."""
        return np.array(x, order="C")

    def bits(self, x: Any) -> Any:
        """float32's bits as int32."""
        return np.ascontiguousarray(x).view(np.int32)

    def is_own(self, x: Any) -> bool:
        """Whether ``x`` is an array of this module, in its memory."""
        return isinstance(x, np.ndarray)

    def ways(self) -> dict[str, AbstractContextManager[Any]]:
        """Circumstances under which a call must give the same bits."""
        return {f"call {i}": nullcontext() for i in (2, 3)}


class Torch:
    """torch tensors on a device: ``cuda``, or ``cpu`` for a trial. The methods are `Numpy`'s.

    Raises:
        MissingComponent: torch is not installed, or has no GPU to put them on.
    """

    name = "torch"

    def __init__(self, device_type: str = "cuda") -> None:
        try:
            self.xp: Any = import_module("torch")
        except ImportError:
            raise MissingComponent("torch is not installed; run: pip install torch") from None
        if device_type == "cuda" and not self.xp.cuda.is_available():
            raise MissingComponent("torch sees no GPU; install a CUDA build of torch, or leave the data on the host")
        self.single_type = self.xp.float32
        self.device = device_type

    def take(self, x: Any) -> Any:
        return self.xp.from_numpy(np.ascontiguousarray(x)).to(self.device)

    def host(self, x: Any) -> Any:
        return x.cpu().numpy()

    def single(self, x: Any) -> Any:
        return x.float()

    def double(self, x: Any) -> Any:
        return x.double()

    def copy(self, x: Any) -> Any:
        return x.clone(memory_format=self.xp.contiguous_format)

    def bits(self, x: Any) -> Any:
        return x.contiguous().view(self.xp.int32)

    def is_own(self, x: Any) -> bool:
        return isinstance(x, self.xp.Tensor) and x.device.type == self.device

    def ways(self) -> dict[str, AbstractContextManager[Any]]:
        plain = Numpy().ways()
        if self.device != "cuda":
            return plain
        return {**plain, "another stream": self._stream(load=False), "under load": self._stream(load=True)}

    @contextmanager
    def _stream(self, load: bool) -> Iterator[None]:
        """Another current stream; ``load``: while a third one multiplies."""
        cuda = self.xp.cuda
        cuda.synchronize()
        if load:
            with cuda.stream(cuda.Stream()):
                work = self.xp.ones(2048, 2048, device=self.device)
                for _ in range(20):
                    self.xp.mm(work, work)
        with cuda.stream(cuda.Stream()):
            yield
        cuda.synchronize()


Arrays = Numpy | Torch


def find(host: bool = False) -> Arrays:
    """torch on the GPU at hand; NumPy with ``host``, or where there is no GPU or no torch for it."""
    if host or device.find() is None:
        return Numpy()
    try:
        return Torch()
    except MissingComponent:
        return Numpy()


def check(arrays: Arrays, result: Any, shape: Shape) -> Any:
    """A GEMM's result, if it is what an FP32 GEMM returns.

    Raises:
        InvalidType: no array of the module that the operands came in, or not float32.
        InvalidValue: another shape.
    """
    if not arrays.is_own(result):
        raise InvalidType(f"returned a {type(result).__name__}; return the product as a {arrays.name} array, where the "
                          "operands are")
    if result.dtype != arrays.single_type:
        raise InvalidType(f"returned {result.dtype}; an FP32 GEMM returns float32")
    if tuple(result.shape) != shape:
        raise InvalidValue(f"returned shape {tuple(result.shape)}, not {shape}; return op(A) op(B) whole")
    return result
