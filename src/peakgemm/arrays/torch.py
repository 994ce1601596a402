"""torch tensors, on CUDA and on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import InvalidType, InvalidValue
from .base import FLOAT, HOST, DeviceLibrary, HostLibrary, View, check_dtype, remedy

_PROXY = torch._C._TorchDispatchModeKey.PROXY
PLAIN = (torch.Tensor, torch.nn.Parameter)  # what the short ways look at without asking more


class Torch(HostLibrary, DeviceLibrary):
    """torch's tensors, through their own attributes: no protocol's overhead."""

    name = "torch"

    def admit(self, x: Any, name: str, dtype: str = "float32") -> int:
        """See `Library.admit`. Refused is what torch alone can read: subclasses, wrappers of its transforms, sparse and
        nested tensors, and any while a tracer records. `peakgemm.matmul` and `gemm` have given that to torch's
        dispatcher before, where one of their operands is it."""
        if not isinstance(x, torch.Tensor):
            raise InvalidType(f"{name} is a {type(x).__name__} of torch, no tensor; pass a torch.Tensor")
        if type(x).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            raise InvalidType(f"{name} is a {type(x).__name__}, a tensor subclass that torch's dispatcher alone can "
                              "read; pass a plain torch.Tensor (matmul and gemm take subclasses that have a rule for "
                              "it)")
        if torch._C._functorch.is_functorch_wrapped_tensor(x) or is_batched(x):
            raise InvalidType(f"{name} is inside a torch.func transform (grad, vmap, jvp), where it has no memory of "
                              "its own; call peakgemm.matmul or gemm without out there, or call this outside")
        if is_recorded():
            raise InvalidType(f"{name} came while torch.jit.trace or make_fx records, to which this call's result "
                              "would be a constant; call peakgemm.matmul or gemm there, which they record, or call "
                              "this outside")
        if x.is_nested:
            raise InvalidType(f"{name} is a nested tensor; peakgemm multiplies dense ones: "
                              + remedy(name, f"pass {name}.to_padded_tensor(0)"))
        if x.layout is not torch.strided:
            layout = str(x.layout).removeprefix("torch.")
            raise InvalidType(f"{name} is a {layout} tensor; peakgemm multiplies dense ones: "
                              + remedy(name, f"pass {name}.to_dense()"))
        check_dtype(str(x.dtype).removeprefix("torch."), name, dtype)
        if x.is_meta:
            raise InvalidValue(f"{name} is a meta tensor, which has a shape and no values; make a real one: "
                               f"torch.empty_like({name}, device='cuda')")
        if not x.is_cuda and x.device.type != "cpu":
            raise InvalidValue(f"{name} is a torch tensor on {x.device}; "
                               + remedy(name, f"move it to the GPU with {name}.cuda()"))
        reach = x.storage_offset() + 1 + sum(step * (size - 1) for step, size in zip(x.stride(), x.shape, strict=True))
        held = x.untyped_storage().nbytes()
        if x.numel() and x.element_size() * reach > held:
            raise InvalidValue(f"{name} has shape {tuple(x.shape)} and a storage of {held} bytes: its memory has been "
                               "freed or shrunk; pass a tensor that holds its values")
        return int(x.get_device()) if x.is_cuda else HOST

    def view(self, x: Any, name: str, stream: int = -1) -> View:
        """See `Library.view`."""
        shape, strides = tuple(x.shape), tuple(x.stride())
        if x.is_neg():
            return View(x.data_ptr(), shape, None, tuple(FLOAT * step for step in strides))
        return View(x.data_ptr(), shape, strides)

    def read_only(self, x: Any) -> bool:
        """Writing to a lazily negated or conjugated view would write the wrong sign."""
        return bool(x.is_neg() or x.is_conj())

    def as_real(self, x: Any) -> tuple[Any, bool]:
        """See `Library.as_real`. A lazy conjugate is what it is the conjugate of."""
        return torch.view_as_real(x.conj() if x.is_conj() else x), bool(x.is_conj())

    def as_complex(self, x: Any) -> Any:
        """See `Library.as_complex`."""
        return torch.view_as_complex(x) if x.numel() else x.new_empty(x.shape[:-1], dtype=torch.complex64)

    @contextmanager
    def scope(self, device: int, stream: int | None) -> Iterator[int]:
        """torch's own device and stream: its allocator follows them."""
        if stream is None:
            with torch.cuda.device(device):
                yield torch.cuda.current_stream(device).cuda_stream
        else:
            with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):
                yield stream

    def empty(self, shape: tuple[int, ...], like: Any, stream: int, dtype: str = "float32") -> Any:
        """See `DeviceLibrary.empty`."""
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)

    def scratch(self, size: int, like: Any, stream: int) -> tuple[Any, int]:
        """See `DeviceLibrary.scratch`."""
        memory = torch.empty(-(-size // FLOAT), dtype=torch.float32, device=like.device)
        return memory, memory.data_ptr()

    def copy(self, x: Any, shape: tuple[int, ...]) -> Any:
        """See `DeviceLibrary.copy`."""
        x = x.detach()
        if x.data_ptr() % FLOAT:
            x = _aligned(x)
        return x.resolve_neg().expand(shape).clone(memory_format=torch.contiguous_format)

    def assign(self, to: Any, source: Any) -> None:
        """See `DeviceLibrary.assign`."""
        with torch.no_grad():
            if to.data_ptr() % FLOAT:
                _bytes(to).copy_(_bytes(source))
            else:
                to.copy_(source)

    def out_of_memory(self, error: Exception) -> bool:
        """See `DeviceLibrary.out_of_memory`."""
        return isinstance(error, torch.cuda.OutOfMemoryError)

    def host(self, x: Any, name: str) -> NDArray[np.float32]:
        """The NumPy view of a CPU tensor's memory."""
        array: NDArray[np.float32] = x.detach().resolve_neg().numpy()
        return array

    def wrap(self, x: NDArray[np.float32], like: Any) -> Any:
        """A CPU tensor over the same memory."""
        return torch.from_numpy(x)


def is_recorded() -> bool:
    """Whether torch.jit.trace or make_fx records: what goes past torch's dispatcher is a constant to them."""
    return bool(torch._C._is_tracing() or torch._C._get_dispatch_mode(_PROXY) is not None
                or torch._ops._get_dispatch_mode_pre_dispatch(_PROXY) is not None)


def is_recorded_before_dispatch() -> bool:
    """Whether that is make_fx(pre_dispatch=True)."""
    return torch._ops._get_dispatch_mode_pre_dispatch(_PROXY) is not None


def is_batched(x: Any) -> bool:
    """Whether ``x`` is a batch that torch.autograd's own vmap, that of ``jacobian`` say, shows as one example."""
    return type(x) is torch.Tensor and x.layout is torch.strided and not torch._C._has_storage(x)


def _bytes(x: Any) -> Any:
    """The same memory as bytes, four in a last dimension: kernels fault on floats at an odd address."""
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(
        x.untyped_storage(), FLOAT * x.storage_offset(), (*x.shape, FLOAT), (*(FLOAT * step for step in x.stride()), 1))


def _aligned(x: Any) -> Any:
    """The values of ``x`` at an address that kernels can read."""
    values = _bytes(x).clone(memory_format=torch.contiguous_format).view(torch.float32)[..., 0]
    return torch._neg_view(values) if x.is_neg() else values
