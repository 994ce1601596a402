"""The short way for torch CUDA tensors: a warm call is one look-up, one allocation and one launch.

The first call for a combination of shapes, strides and addresses' alignment is made canonical and bound as in
`launch`; what it leads to is remembered. Nothing here knows gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from ..arrays.base import FLOAT, HOST, stream_handle
from ..arrays.torch import Torch, is_recorded
from ..errors import InvalidValue
from ..runtime import device
from . import cache
from .launch import bound_for, canonical_request, choice_for, on_device, views_of, without_workspace
from .request import NO_STREAM, Request, locate, scales

if TYPE_CHECKING:
    from ..kernels.bound import Bound

_FLOAT32 = torch.float32
current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # a build without CUDA has none
_increment_version = torch.autograd.graph.increment_version
forward = torch.autograd.forward_ad
transforms_active = torch._C._are_functorch_transforms_active
is_batchedtensor = torch._C._functorch.is_batchedtensor
modes = torch._C._len_torch_dispatch_stack
function_modes = torch._C._len_torch_function_stack
tracing = torch._C._is_tracing
_empty = torch.empty


class Warm:
    """What a remembered call needs: the launch, the result's shape, and where operands reach to in memory."""

    __slots__ = ("bound", "in_place", "index", "launch", "place", "shape", "spans", "swapped", "workspace_floats")

    def __init__(self, bound: Bound | None, shape: tuple[int, ...], swapped: bool, in_place: bool,
                 place: Any, spans: tuple[int, ...]) -> None:
        self.bound, self.shape, self.swapped, self.in_place, self.place, self.spans = (
            bound, shape, swapped, in_place, place, spans)
        self.index = place.index
        self.launch = None if bound is None else bound.launch
        self.workspace_floats = 0 if bound is None else -(-bound.workspace_bytes // FLOAT)

    def run(self, a: int, b: int, c: int, out: Any, stream: int, workspace: int = 0) -> Any:
        """Enqueue: operands by address, ``out`` as a tensor. Returns the workspace that it made, or None.

        Raises:
            OutOfMemory: split operands do not fit.
        """
        kept = None
        if self.launch is None:
            return kept  # nothing to compute
        if self.workspace_floats and not workspace:
            try:
                kept = _empty((self.workspace_floats,), dtype=_FLOAT32, device=self.place)
            except torch.cuda.OutOfMemoryError as error:
                assert self.bound is not None
                # Remembered: torch empties its cache and waits before it refuses.
                self.bound = without_workspace(error, self.bound, device.require(self.index), "torch")
                self.launch, self.workspace_floats = self.bound.launch, 0
            else:
                workspace = kept.data_ptr()
        target = out.data_ptr()
        if self.swapped:
            a, b = b, a
        self.launch(a, b, target, target if self.in_place else c, workspace, stream)
        return kept


_calls: dict[Any, Any] = cache.calls


def product(a: Any, b: Any) -> Any:
    """``a b`` for two CUDA tensors as `run` takes them: the shortest way."""
    try:
        first, second = a.data_ptr(), b.data_ptr()
        key = (a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.device, b.device, first & 15, second & 15,
               a.is_neg(), b.is_neg())
    except (RuntimeError, AttributeError):  # no tensor, or none with memory: `locate` says what is wrong
        return _cold(Request(a, b), None)
    warm = _calls.get(key)
    if warm is None or not (first and second):  # address 0: empty, or its memory is gone
        return _cold(Request(a, b), key)
    out = a.new_empty(warm.shape)
    warm.run(first, second, 0, out, current_stream(warm.index))
    return out


def run(a: Any, b: Any, c: Any = None, *, alpha: Any = 1.0, beta: Any = 0.0, out: Any = None, stream: Any = None,
        trans_a: bool = False, trans_b: bool = False, precision: str = "ieee", ready: Any = None) -> Any:
    """``alpha op(a) op(b) + beta c`` for CUDA tensors, without gradients; see `plan.run`.

    ``ready``: what `prepare` made of ``b``; such calls are not remembered, for that would keep its memory.
    """
    alpha, beta = scales(alpha, beta, c)
    request = Request(a, b, c, out, alpha, beta, trans_a, trans_b, precision, ready)
    if stream is not None:
        return _on_stream(request, stream_handle(stream))
    if ready is not None:
        return _cold(request, None)
    try:
        first, second = a.data_ptr(), b.data_ptr()
        third = target = 0
        key: tuple[Any, ...] = (a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.device, b.device,
                                first & 15, second & 15, a.is_neg(), b.is_neg(), *request[4:])
        if c is not None:
            third = c.data_ptr()
            key += (c.shape, c.stride(), c.dtype, c.device, c.is_neg(), third & 3)
        if out is not None:
            target = out.data_ptr()
            key += ("out", out.shape, out.stride(), out.dtype, out.device, out.is_neg(), target & 15, target == third)
    except (RuntimeError, AttributeError):
        return _cold(request, None)
    warm = _calls.get(key)
    if warm is None or not (first and second and (third or c is None) and (target or out is None)):
        return _cold(request, key)
    if out is None:
        out = a.new_empty(warm.shape)
    else:
        high, for_a, for_b, for_c = warm.spans
        if ((first < target + high and target < first + for_a) or (second < target + high and target < second + for_b)
                or (c is not None and third != target and third < target + high and target < third + for_c)):
            views_of(_TORCH, request, 0)  # they meet: the exact test refuses, or lets pass
        touched(out)
    warm.run(first, second, third, out, current_stream(warm.index))
    return out


@contextmanager
def on_stream(like: Any, stream: Any) -> Iterator[None]:
    """Within it, ``stream`` is torch's current stream of the device of ``like``; None: as it was."""
    if stream is None:
        yield
    else:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream_handle(stream), device=like.device)):
            yield


def is_observed() -> bool:
    """Whether a forward-mode level, a transform of torch.func, a dispatch mode or a tracer has to see the product."""
    return bool(forward._current_level >= 0 or transforms_active() or modes() or tracing()
                or (function_modes() and is_recorded()))


def refuse_gradients(tensors: dict[str, Any], what: str) -> None:
    """Refuse tensors that need a gradient while autograd records, and those that carry a forward-mode tangent.

    Raises:
        InvalidValue: one does; the message says which.
    """
    if forward._current_level >= 0:
        for name, x in tensors.items():
            if isinstance(x, torch.Tensor) and (
                    torch.compiler.is_dynamo_compiling()  # which takes every tangent for None
                    # What vmap wraps is refused where it is read.
                    or (not is_batchedtensor(x) and forward.unpack_dual(x).tangent is not None)):
                raise InvalidValue(f"{name} carries a forward-mode tangent, which {what} would lose; use peakgemm.gemm "
                                   f"without out, or pass torch.autograd.forward_ad.unpack_dual({name}).primal")
    if not torch.is_grad_enabled():
        return
    for name, x in tensors.items():
        if getattr(x, "requires_grad", False):
            raise InvalidValue(f"{name} requires a gradient, which {what} does not record; call it under "
                               f"torch.no_grad(), pass {name}.detach(), or use peakgemm.gemm without out")


def touched(out: Any) -> None:
    """Tell autograd that ``out`` has been written, as torch's own operations do."""
    try:  # noqa: SIM105 (suppress takes 0.3 us)
        _increment_version(out)
    except RuntimeError:  # tensors made under inference_mode keep no version
        pass


_TORCH = Torch()


def warm_entry(request: Request, index: int) -> Warm | None:
    """Canonicalise and bind ``request`` for device ``index``; None where an operand has to be copied each time."""
    views = views_of(_TORCH, request, -1)
    canonical = canonical_request(request, views)
    if canonical.problem is None:
        return None
    bound = None
    if 0 not in canonical.shape:
        gpu = device.require(index)
        bound = bound_for(canonical.problem, gpu, choice_for(canonical.problem, gpu, request.precision))
    reach = {name: view.span[1] for name, view in views.items()}
    spans = tuple(reach.get(name, 0) for name in ("out", "a", "b", "c"))
    return Warm(bound, canonical.shape, canonical.swapped, canonical.in_place, request.a.device, spans)


def _cold(request: Request, key: tuple[Any, ...] | None) -> Any:
    library, index = locate(request)
    if index == HOST:
        from .host import products

        if request.out is not None:
            touched(request.out)
        return products.multiply(library, request)
    if key is not None:
        warm = warm_entry(request, index)
        if warm is not None:
            return _launch(cache.remember(key, warm), request)
    if request.out is not None:
        touched(request.out)
    return on_device(library, index, request)


def _launch(warm: Warm, request: Request) -> Any:
    """Launch the call that ``warm`` was made for. Its operands have been checked."""
    a, b, c, out = request[:4]
    if out is None:
        out = a.new_empty(warm.shape)
    else:
        touched(out)
    warm.run(a.data_ptr(), b.data_ptr(), 0 if c is None else c.data_ptr(), out, current_stream(warm.index))
    return out


def _on_stream(request: Request, stream: int) -> Any:
    """As if called under ``torch.cuda.stream``; memory of other streams is kept until this one has used it."""
    library, index = locate(request)
    if index == HOST:
        raise InvalidValue(NO_STREAM)
    here = torch.cuda.current_stream(index).cuda_stream
    result = on_device(library, index, request, stream)
    if request.out is not None:
        touched(request.out)
    _TORCH.record(tuple(request.arrays().values()), stream, index)
    if request.out is None:
        _TORCH.record((result,), here, index)
    return result


