"""The short way for torch CUDA tensors: a warm call is one look-up, one allocation and one launch.

A call is recognised by its tensors' shapes, strides, dtypes, devices and alignments. The first one like it goes the way
of all libraries, which binds and remembers it. Nothing here knows gradients.
"""

from __future__ import annotations

from typing import Any

import torch

from ..arrays.base import stream_handle
from ..arrays.torch import PLAIN, Torch, is_recorded
from ..errors import InvalidValue
from .launch import BoundCall, calls, views_of
from .plan import Plan, multiply
from .prepared import Prepared
from .request import Request, scales

current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # a build without CUDA has none
_increment_version = torch.autograd.graph.increment_version
forward = torch.autograd.forward_ad
transforms_active = torch._C._are_functorch_transforms_active
is_batchedtensor = torch._C._functorch.is_batchedtensor
modes = torch._C._len_torch_dispatch_stack
function_modes = torch._C._len_torch_function_stack
tracing = torch._C._is_tracing

_TORCH = Torch()
_calls = calls


def product(a: Any, b: Any) -> Any:
    """``a b`` for two CUDA tensors as `run` takes them: the shortest way."""
    try:
        first, second = a.data_ptr(), b.data_ptr()
        key = (a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.device, b.device, first & 15, second & 15,
               a.is_neg(), b.is_neg())
    except (RuntimeError, AttributeError):  # no tensor, or none with memory: the door says what is wrong
        return multiply(Request(a, b))
    call = _calls.get(key)
    if call is None or not (first and second):  # address 0: empty, or its memory is gone
        return multiply(Request(a, b), key=key)
    out = a.new_empty(call.shape)
    target, stream = out.data_ptr(), current_stream(call.index)
    _held, workspace = call.workspace(_TORCH, a, stream) if call.workspace_bytes else (None, 0)
    if call.swapped:
        first, second = second, first
    call.launch(first, second, target, target, workspace, stream)
    return out


def run(a: Any, b: Any, c: Any = None, *, alpha: Any = 1.0, beta: Any = 0.0, out: Any = None, stream: Any = None,
        trans_a: bool = False, trans_b: bool = False, precision: str = "ieee", ready: Any = None) -> Any:
    """``alpha op(a) op(b) + beta c`` on torch tensors, without gradients.

    Args:
        a, b, c, alpha, beta, out, stream, trans_a, trans_b, precision: as for `peakgemm.gemm`; 1-D operands too, and
            flags that are bools.
        ready: what `prepare` made of ``b``.

    Raises:
        As `peakgemm.gemm`.
    """
    alpha, beta = scales(alpha, beta, c)
    request = Request(a, b, c, out, alpha, beta, trans_a, trans_b, precision, ready)
    if stream is not None:
        return _on_stream(request, stream_handle(stream))
    try:
        first, second = a.data_ptr(), b.data_ptr()
        third = target = 0
        key: tuple[Any, ...] = (a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.device, b.device,
                                first & 15, second & 15, a.is_neg(), b.is_neg(), *request[4:9])
        if c is not None:
            third = c.data_ptr()
            key += (c.shape, c.stride(), c.dtype, c.device, c.is_neg(), third & 3)
        if out is not None:
            target = out.data_ptr()
            key += ("out", out.shape, out.stride(), out.dtype, out.device, out.is_neg(), target & 15, target == third)
        if ready is not None:
            key += ready.key
    except (RuntimeError, AttributeError):
        return _cold(request, None)
    call = _calls.get(key)
    if call is None or not (first and second and (third or c is None) and (target or out is None)):
        return _cold(request, key)
    return _launch(call, a, b, c, out, first, second, third, target)[0]


def _launch(call: BoundCall, a: Any, b: Any, c: Any, out: Any, first: int, second: int, third: int,
            target: int) -> tuple[Any, Any, int]:
    """Launch a call with tensors and their addresses: the result, its workspace's memory, and the stream."""
    if out is None:
        out = a.new_empty(call.shape)
        target = out.data_ptr()
    else:
        high, for_a, for_b, for_c = call.spans
        if ((first < target + high and target < first + for_a) or (second < target + high and target < second + for_b)
                or (c is not None and third != target and third < target + high and target < third + for_c)):
            # They meet: the exact test refuses, or lets pass.
            views_of(_TORCH, Request(a, b, c, out, beta=call.bound.problem.beta), 0)
        touched(out)
    stream = current_stream(call.index)
    memory, workspace = call.workspace(_TORCH, a, stream) if call.workspace_bytes else (None, 0)
    if call.swapped:
        first, second = second, first
    call.launch(first, second, target, target if call.in_place else third, workspace, stream)
    return out, memory, stream


def _cold(request: Request, key: tuple[Any, ...] | None = None, stream: Any = None, devices: Any = None) -> Any:
    """A call that is not known yet, or that has to be looked at each time."""
    result = multiply(request, stream, devices, key)
    if request.out is not None:
        touched(request.out)
    return result


def _on_stream(request: Request, stream: int) -> Any:
    """As if called under ``torch.cuda.stream``."""
    result = _cold(request, stream=stream)
    keep_for_stream(request.arrays(), result, stream)
    return result


def keep_for_stream(arrays: dict[str, Any], result: Any, stream: int) -> None:
    """Memory of other streams is kept until ``stream`` has used it, and that of a new ``result`` until the current one
    has."""
    device = result.get_device()
    used = torch.cuda.ExternalStream(stream, device=device)
    for x in arrays.values():
        x.record_stream(used)
    if "out" not in arrays:
        result.record_stream(torch.cuda.current_stream(device))


def on_devices(request: Request, stream: Any, devices: Any) -> Any:
    """The product of CPU tensors on ``devices``, past torch's dispatcher.

    Raises:
        InvalidValue: what the dispatcher would have to see, or a gradient that would be lost.
    """
    if torch.compiler.is_compiling() or is_observed():
        raise InvalidValue("devices is lost where torch's dispatcher runs the call (under torch.compile, in a dispatch "
                           "mode, a transform or a tracer); leave it out")
    refuse_gradients(request.arrays(), "a call with devices")
    return _cold(request, None, stream, devices)


class TorchPlan(Plan):
    """A plan whose `execute` costs less host time than ``torch.mm``, on operands as planned."""

    def execute(self, a: Any, b: Any, c: Any = None, out: Any = None, workspace: Any = None, stream: Any = None) -> Any:
        """See `Plan.execute`. A plan knows no gradients: operands that need one are refused while they are recorded."""
        key: tuple[Any, ...] | None = None
        call: BoundCall | None = None
        if c is None and workspace is None and stream is None:
            try:
                first, second = a.data_ptr(), b.data_ptr()
                target = 0
                key = (a.shape, b.shape, a.stride(), b.stride(), a.dtype, b.dtype, a.device, b.device, first & 15,
                       second & 15, a.is_neg(), b.is_neg())
                plain = (type(a) in PLAIN and type(b) in PLAIN and first and second and not a.requires_grad
                         and not b.requires_grad)
                if out is not None:
                    target = out.data_ptr()
                    key += (out.shape, out.stride(), out.dtype, out.device, out.is_neg(), target & 15)
                    plain = plain and type(out) in PLAIN and target and not out.requires_grad
                if plain and not (forward._current_level >= 0 or modes() or tracing() or function_modes()):
                    call = self._decided.calls.get(key)
            except (RuntimeError, AttributeError):  # no tensors, or tensors without memory
                key = None
        if call is None:
            request = self._request._replace(a=a, b=b, c=c, out=out)
            refuse_gradients(request.arrays(), "Plan.execute")
            result = self._execute(request, workspace, stream, key)
            if out is not None:
                touched(out)
            return result
        result, memory, stream = _launch(call, a, b, None, out, first, second, 0, target)
        if memory is not None and self._is_emulated:
            self._last = memory, stream, call.bound
        return result


def hide_from_dynamo(function: Any) -> None:
    """Let ``function`` and what it calls run as they are: torch.compile breaks its graph there, and behind the break
    would trace the frames of the implementation, NumPy's on the CPU among them. `torch.compiler.disable` imports all of
    torch._dynamo."""
    vars(function)["_torchdynamo_disable"] = True
    frames = torch._C._dynamo.eval_frame
    # Names of torch's own, of which some release may lack one: then calls behind a graph break are traced, as before.
    if all(hasattr(frames, name) for name in ("set_code_exec_strategy", "_FrameAction", "_FrameExecStrategy")):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))


hide_from_dynamo(TorchPlan.execute)


def is_observed() -> bool:
    """Whether a forward-mode level, a transform of torch.func, a dispatch mode or a tracer has to see the product."""
    return bool(forward._current_level >= 0 or transforms_active() or modes() or tracing()
                or (function_modes() and is_recorded()))


def refuse_gradients(tensors: dict[str, Any], what: str, instead: str = "peakgemm.gemm without out") -> None:
    """Refuse tensors that need a gradient while autograd records, and those that carry a forward-mode tangent; beneath
    autograd, where torch's operators are rerouted, it has seen both.

    Raises:
        InvalidValue: one does; the message says which.
    """
    tensors = {name: x.array if isinstance(x, Prepared) else x for name, x in tensors.items()}
    if forward._current_level >= 0 and not torch._C._dispatch_tls_is_dispatch_key_excluded(
            torch._C.DispatchKey.AutogradFunctionality):
        for name, x in tensors.items():
            if isinstance(x, torch.Tensor) and (
                    torch.compiler.is_dynamo_compiling()  # which takes every tangent for None
                    # What vmap wraps is refused where it is read.
                    or (not is_batchedtensor(x) and forward.unpack_dual(x).tangent is not None)):
                raise InvalidValue(f"{name} carries a forward-mode tangent, which {what} would lose; use {instead}, or "
                                   f"pass torch.autograd.forward_ad.unpack_dual({name}).primal")
    if not torch.is_grad_enabled():
        return
    for name, x in tensors.items():
        if getattr(x, "requires_grad", False):
            raise InvalidValue(f"{name} requires a gradient, which {what} does not record; call it under "
                               f"torch.no_grad(), pass {name}.detach(), or use {instead}")


def touched(out: Any) -> None:
    """Tell autograd that ``out`` has been written, as torch's own operations do."""
    try:  # noqa: SIM105 (suppress takes 0.3 us)
        _increment_version(out)
    except RuntimeError:  # tensors made under inference_mode keep no version
        pass
