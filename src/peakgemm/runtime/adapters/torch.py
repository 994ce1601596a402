"""torch tensors, on CUDA and on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import InvalidType, InvalidValue
from .base import HOST, View, check_dtype


class Torch:
    """torch's tensors, through their own attributes: no protocol's overhead."""

    name = "torch"

    def device(self, x: Any) -> int:
        """See `Library.device`.

        Raises:
            InvalidValue: neither on CUDA nor on the CPU.
        """
        if x.is_cuda:
            return int(x.get_device())
        if x.device.type == "cpu":
            return HOST
        raise InvalidValue(f"a torch tensor is on {x.device}; move it to the GPU with .cuda()")

    def view(self, x: Any, name: str, stream: int = -1) -> View:
        """See `Library.view`."""
        _check(x, name)
        return View(x.data_ptr(), tuple(x.shape), None if x.is_neg() else tuple(x.stride()))

    def read_only(self, x: Any) -> bool:
        """Writing to a lazily negated view would write the wrong sign."""
        return bool(x.is_neg())

    @contextmanager
    def scope(self, device: int, stream: int | None) -> Iterator[int]:
        """torch's own device and stream: its allocator follows them."""
        if stream is None:
            with torch.cuda.device(device):
                yield torch.cuda.current_stream(device).cuda_stream
        else:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):
                yield stream

    def empty(self, shape: tuple[int, ...], like: Any, stream: int) -> Any:
        """See `DeviceLibrary.empty`."""
        return torch.empty(shape, dtype=torch.float32, device=like.device)

    def copy(self, x: Any, shape: tuple[int, ...]) -> Any:
        """See `DeviceLibrary.copy`."""
        return x.detach().resolve_neg().expand(shape).clone(memory_format=torch.contiguous_format)

    def assign(self, to: Any, source: Any) -> None:
        """See `DeviceLibrary.assign`."""
        with torch.no_grad():
            to.copy_(source)

    def deliver(self, result: Any, like: Any, stream: int, inputs: tuple[Any, ...]) -> Any:
        """``result`` itself; torch's allocator frees by stream."""
        return result

    def out_of_memory(self, error: Exception) -> bool:
        """See `DeviceLibrary.out_of_memory`."""
        return isinstance(error, torch.cuda.OutOfMemoryError)

    def host(self, x: Any, name: str) -> NDArray[np.float32]:
        """The NumPy view of a CPU tensor's memory."""
        _check(x, name)
        array: NDArray[np.float32] = x.detach().resolve_neg().numpy()
        return array

    def wrap(self, x: NDArray[np.float32], like: Any) -> Any:
        """A CPU tensor over the same memory."""
        return torch.from_numpy(x)

    def record(self, tensors: tuple[Any, ...], stream: int, device: int) -> None:
        """Memory that ``stream`` uses is not given to others before it is done."""
        side = torch.cuda.ExternalStream(stream, device=device)
        for x in tensors:
            if x is not None:
                x.record_stream(side)


def _check(x: Any, name: str) -> None:
    check_dtype(str(x.dtype).removeprefix("torch."), name)
    if x.layout is not torch.strided:
        raise InvalidType(f"{name} is a {str(x.layout).removeprefix('torch.')} tensor; peakgemm multiplies dense ones: "
                          f"pass {name}.to_dense()")
