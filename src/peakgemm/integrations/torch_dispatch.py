"""A call for torch's dispatcher or autograd: one registered op, or one autograd function, sees matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import flop_registry

from ..arrays import locate
from ..arrays.base import check_dtype, stream_handle
from ..arrays.torch import PLAIN, is_recorded_before_dispatch
from ..calls import eager
from ..calls.canonical import result_shape
from ..calls.request import Request, scales
from ..errors import InvalidType, InvalidValue, PeakgemmError
from .torch_ops import OPS, gemm_with_grad, traced_gemm

_NO_RULE = (AttributeError, AssertionError, NotImplementedError, RuntimeError, TypeError)


def dispatched(a: Any, b: Any, c: Any, alpha: Any, beta: Any, trans_a: bool, trans_b: bool, out: Any,
               precision: str) -> Any:
    """`peakgemm.gemm` by torch's dispatcher: under ``torch.compile``, in a dispatch mode, of tensor subclasses.

    Arguments are those of `peakgemm.gemm`. The dispatcher sees one op, ``peakgemm::gemm``, or ``peakgemm::gemm_out``
    with ``out``.

    Raises:
        InvalidType, InvalidValue: as `peakgemm.gemm`, or the dispatcher has no rule for a subclass.
    """
    compiling = torch.compiler.is_dynamo_compiling()
    if alpha is None or not compiling:
        alpha, beta = scales(alpha, beta, c)
    if compiling:
        return _by_op(a, b, c, alpha, beta, trans_a, trans_b, out, precision)
    _refuse_what_tracers_lose(out)
    _count_in_modes()
    if any(type(x).__module__.startswith("torch.distributed.tensor") for x in (a, b, c, out)):
        from . import torch_sharding

        torch_sharding.register()
    try:
        return _by_op(a, b, c, alpha, beta, trans_a, trans_b, out, precision)
    except PeakgemmError:
        raise
    except _NO_RULE as error:  # of their subclasses, of out-of-memory say, each says what it has to say
        arrays = {"a": a, "b": b, "c": c, "out": out}
        kinds = ", ".join(f"{name} is a {type(x).__name__}" for name, x in arrays.items() if _is_subclass(x))
        if not kinds or type(error) not in _NO_RULE:
            raise
        raise InvalidType(f"{kinds}: torch's dispatcher cannot run peakgemm's product of it "
                          f"({str(error).strip().partition(chr(10))[0]}); pass plain tensors") from error


def _by_op(a: Any, b: Any, c: Any, alpha: Any, beta: Any, trans_a: bool, trans_b: bool, out: Any,
           precision: str) -> Any:
    if beta is None:
        beta = 0.0 if c is None else 1.0
    if out is not None:
        eager.refuse_gradients({"a": a, "b": b, "c": c, "out": out}, "a call with out")
        _, shape = result_shape((a.mT if trans_a else a).shape, (b.mT if trans_b else b).shape)
        check_dtype(str(out.dtype).removeprefix("torch."), "out")
        if tuple(out.shape) != tuple(shape):
            raise InvalidValue(f"out has shape {tuple(out.shape)}, the result has {tuple(shape)}; pass an out of that "
                               "shape")
    left, right, dropped = _matrices(a, b, trans_a, trans_b)
    if out is None or any(_is_subclass(x) for x in (a, b, c, out)):
        result = _without(traced_gemm(left, right, c, alpha, beta, precision), dropped)
        return result if out is None else out.copy_(result)  # a rule for copy_ is what every subclass has
    target = out
    for dim in reversed(dropped):
        target = target.unsqueeze(dim)
    torch.ops.peakgemm.gemm_out.default(left, right, c, target, float(alpha), float(beta), precision)
    return out


def differentiable(a: Any, b: Any, c: Any, alpha: Any, beta: Any, trans_a: bool, trans_b: bool, out: Any,
                   precision: str, stream: Any = None) -> Any:
    """`peakgemm.gemm` of tensors that require a gradient. Arguments are those of `peakgemm.gemm`.

    Raises:
        InvalidType, InvalidValue: as `peakgemm.gemm`; also ``out`` where a derivative would be lost in it.
    """
    if stream is not None:
        with torch.cuda.stream(torch.cuda.ExternalStream(stream_handle(stream), device=a.device)):
            return differentiable(a, b, c, alpha, beta, trans_a, trans_b, out, precision)
    if out is not None:
        eager.refuse_gradients({"a": a, "b": b, "c": c, "out": out}, "a call with out")
        return eager.run(a, b, c, alpha=alpha, beta=beta, out=out, trans_a=trans_a, trans_b=trans_b,
                         precision=precision)
    alpha, beta = scales(alpha, beta, c)
    if not (isinstance(b, Tensor) and (c is None or isinstance(c, Tensor))):
        locate(Request(a, b, c).arrays())  # refuses what is no tensor
    left, right, dropped = _matrices(a, b, trans_a, trans_b)
    return _without(gemm_with_grad(left, right, c, alpha, beta, precision), dropped)


def _matrices(a: Any, b: Any, trans_a: bool, trans_b: bool) -> tuple[Any, Any, tuple[int, ...]]:
    """The operands with transposes as views and 1-D ones as matrices, and the dimensions that their result drops."""
    row, column = a.ndim == 1, b.ndim == 1
    left = a[None, :] if row else a.mT if trans_a else a
    right = b[:, None] if column else b.mT if trans_b else b
    return left, right, (-2,) * row + (-1,) * column


def _without(result: Any, dropped: tuple[int, ...]) -> Any:
    for dim in dropped:
        result = result.squeeze(dim)
    return result


def _is_subclass(x: Any) -> bool:
    """Whether ``x`` is a tensor that only the dispatcher can read."""
    return isinstance(x, Tensor) and type(x) not in PLAIN


def _refuse_what_tracers_lose(out: Any) -> None:
    """Refuse what no tracer records, of torch's own products no more than of this one: forward mode under
    torch.jit.trace, it and torch.func in a trace before dispatch, and ``out`` inside of a transform.

    Raises:
        InvalidType: that is in force.
    """
    dual, transformed = eager.forward._current_level >= 0, eager.transforms_active()
    if out is not None and transformed:
        raise InvalidType("out was given inside of a torch.func transform, which has no memory of its own to write; "
                          "leave it out")
    if torch.compiler.is_compiling():
        return
    if (dual and eager.tracing()) or ((dual or transformed) and is_recorded_before_dispatch()):
        raise InvalidType("torch.jit.trace and make_fx(pre_dispatch=True) lose the derivatives of forward mode and "
                          "torch.func; use torch.compile, or make_fx without pre_dispatch")


def _count_in_modes() -> None:
    """Make the modes in force that count FLOPs know the ops, also those made before the ops were registered."""
    for mode in _get_current_dispatch_mode_stack():
        known = getattr(getattr(mode, "counter", mode), "flop_registry", None)
        if known is not None:
            for op in OPS:
                known.setdefault(op, flop_registry[op])
