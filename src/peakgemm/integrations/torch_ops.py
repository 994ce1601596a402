"""The product as torch sees it: autograd functions for eager calls, registered ops for whatever traces or dispatches.

Eager calls that need a gradient take an autograd function, not the op: an op that Python implements costs about 6 us a
call. Forward mode, the transforms of torch.func, dispatch modes and tracers take the op, whose derivatives are ops.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch._subclasses.fake_tensor import UnsupportedOperatorException
from torch.autograd.function import _SingleLevelFunction
from torch.utils.flop_counter import register_flop_formula

from ..arrays.base import FLOAT, View, check_dtype, overlaps
from ..arrays.torch import is_batched
from ..calls import eager
from ..calls.canonical import result_shape
from ..calls.request import check_precision, scales
from ..errors import InvalidType, InvalidValue

_is_tracer_key_set = torch._C._dispatch_tls_is_dispatch_key_included

Gemm = Callable[[Tensor, Tensor, "Tensor | None", float, float, str], Tensor]


def gemm_with_grad(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float,
                   precision: str = "ieee") -> Tensor:
    """``alpha a b + beta c`` with a gradient, past torch's dispatcher.

    Args:
        a, b: float32 tensors ``(..., M, K)`` and ``(..., K, N)`` of any strides; the batch dimensions broadcast.
        c: float32, broadcastable to the result, or None. Not read where ``beta = 0``.
        alpha, beta: numbers; no gradient goes to them.
        precision: of this product and those of its backward pass; see `peakgemm.matmul`.

    Returns:
        A new contiguous tensor ``(..., M, N)``. The backward pass multiplies with transposed views
        of ``a`` and ``b`` (no copies) and can itself be differentiated.

    Raises:
        InvalidType: an operand that is not float32.
        InvalidValue: shapes that do not match, or ``beta != 0`` without ``c``.
    """
    if eager.is_observed():
        return traced_gemm(a, b, c, alpha, beta, precision)
    result: Tensor = _Gemm.apply(a, b, c, float(alpha), float(beta), precision)
    return result


def traced_gemm(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float, precision: str = "ieee") -> Tensor:
    """The same product through the registered op ``torch.ops.peakgemm.gemm``, which ``torch.compile`` can trace.

    Arguments, result and errors are those of `gemm_with_grad`.
    """
    # torch.compile cannot trace the question for the key, and its graphs run nothing here.
    if not torch.compiler.is_dynamo_compiling() and _is_tracer_key_set("Tracer") and not eager.tracing():
        # Autograd's thread for a GPU has the tracer's dispatch key without its graph: torch's fallback would call
        # itself until the stack is full.
        raise InvalidType("torch.jit.trace cannot record a backward pass on a GPU, which runs in another thread; trace "
                          "the function without it, or use torch.compile or make_fx")
    result: Tensor = torch.ops.peakgemm.gemm.default(a, b, c, float(alpha), float(beta), precision)
    return result


def _run_out(a: Tensor, b: Tensor, c: Tensor | None, out: Tensor, alpha: float, beta: float, precision: str) -> None:
    eager.run(a, b, c, alpha=alpha, beta=beta, out=out, precision=precision)


def _out_only(a: Tensor, b: Tensor, c: Tensor | None, out: Tensor, alpha: float, beta: float, precision: str) -> None:
    """What the tracer runs for ``gemm_out``. An ``out`` that lies in an operand is not traced, as it would be cloned
    away: the call then runs outside of the graph, where it is refused."""
    _shape_only(a, b, c, alpha, beta, precision)
    target = _traced_view(out)
    for name, x in (("a", a), ("b", b), ("c", c if beta != 0 else None)):
        if x is None or x.untyped_storage()._cdata != out.untyped_storage()._cdata:
            continue
        view = _traced_view(x)
        if overlaps(view, target) and not (name == "c" and view == target):
            raise UnsupportedOperatorException(torch.ops.peakgemm.gemm_out.default)


def _traced_view(x: Tensor) -> View:
    """Where a traced tensor lies in its storage; sizes that were symbols become numbers."""
    shape, strides = (tuple(int(size) for size in sizes) for sizes in (x.shape, x.stride()))
    return View(FLOAT * int(x.storage_offset()), shape, strides)


def _run(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float, precision: str) -> Tensor:
    _check_ranks(a, b)
    check_precision(precision)
    try:
        if c is None and alpha == 1.0 and beta == 0.0 and precision == "ieee":
            result: Tensor = eager.product(a, b)  # the shorter way
        else:
            result = eager.run(a, b, c, alpha=alpha, beta=beta, precision=precision)
    except InvalidType:
        if not any(is_batched(x) for x in (a, b, c)):
            raise
        result = traced_gemm(a, b, c, alpha, beta, precision)  # the dispatcher runs the examples one by one
    return result


def _shape_only(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float, precision: str) -> Tensor:
    """What the tracer runs: the checks of `eager.run`, for sizes that may be symbols."""
    check_precision(precision)
    for name, x in (("a", a), ("b", b), ("c", c)):
        if x is not None:
            check_dtype(str(x.dtype).removeprefix("torch."), name)
    _check_ranks(a, b)
    _, shape = result_shape(a.shape, b.shape)
    scales(alpha, beta, c)
    if c is not None and beta != 0:
        try:
            c.expand(shape)
        except RuntimeError:
            raise InvalidValue(f"c {tuple(c.shape)} does not broadcast to the result {tuple(shape)}; "
                               "reshape c") from None
    return a.new_empty(shape)


def _check_ranks(a: Tensor, b: Tensor) -> None:
    if a.dim() < 2 or b.dim() < 2:
        raise InvalidValue(f"a {tuple(a.shape)} and b {tuple(b.shape)} must have two dimensions or more; "
                           "add one with unsqueeze()")


def _keep(ctx: Any, inputs: Any) -> None:
    """Save for the backward pass only what it will read."""
    a, b, c, ctx.alpha, ctx.beta, ctx.precision = inputs
    ctx.shapes = a.shape, b.shape, None if c is None else c.shape
    ctx.save_for_backward(a if ctx.needs_input_grad[1] else None, b if ctx.needs_input_grad[0] else None)


def _gradients(gemm: Gemm, ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """``dA = alpha G B^T``, ``dB = alpha A^T G``, ``dC = beta G``, each summed over the dimensions that broadcast.

    The transposes are views. ``gemm`` multiplies: itself differentiable, or traceable.
    """
    (a, b), (a_shape, b_shape, c_shape) = ctx.saved_tensors, ctx.shapes
    grad_a = grad_b = grad_c = None
    if ctx.needs_input_grad[0]:
        grad_a = gemm(grad, b.mT, None, ctx.alpha, 0.0, ctx.precision).sum_to_size(a_shape)
    if ctx.needs_input_grad[1]:
        batch = grad.shape[:-2]
        if len(batch) > 0 and all(size == 1 for size in b_shape[:-2]):
            # One B for the whole batch, a layer's weight: the sum over the batch is a longer inner
            # dimension, and the gradients of the single products are never stored.
            rows = prod(batch) * grad.shape[-2]
            tall = a.expand(*batch, *a_shape[-2:]).reshape(rows, a_shape[-1])
            wide = grad.reshape(rows, grad.shape[-1])
            grad_b = gemm(tall.mT, wide, None, ctx.alpha, 0.0, ctx.precision).reshape(b_shape)
        else:
            grad_b = gemm(a.mT, grad, None, ctx.alpha, 0.0, ctx.precision).sum_to_size(b_shape)
    if ctx.needs_input_grad[2]:
        # beta = 0 does not read c: no infinity in the gradient may reach it as 0 x inf.
        grad_c = ctx.beta * grad.sum_to_size(c_shape) if ctx.beta != 0 else grad.new_zeros(c_shape)
    return grad_a, grad_b, grad_c, None, None, None


class _Gemm(torch.autograd.Function):  # type: ignore[misc]
    """The eager product with its gradient; the backward pass goes through `gemm_with_grad` again."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        _keep(ctx, inputs)
        return _run(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(gemm_with_grad, ctx, grad)


class _Op(_SingleLevelFunction):  # type: ignore[misc]
    """The registered op with its derivatives in both modes, of which each is that op again: a tracer, a transform or a
    dispatch mode sees them all. A single level: torch.func's dispatcher calls it once for each of its own.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        a, b, c, ctx.alpha, ctx.beta, ctx.precision, ctx.run = inputs
        if True in ctx.needs_input_grad:
            _keep(ctx, inputs[:6])
        ctx.save_for_forward(a, b)
        ctx.set_materialize_grads(False)  # a tangent of zeros would cost a product, and be NaN beside an infinity
        result: Tensor = ctx.run(a, b, c, ctx.alpha, ctx.beta, ctx.precision)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None,) * 7 if grad is None else (*_gradients(traced_gemm, ctx, grad), None)

    @staticmethod
    def jvp(ctx: Any, of_a: Tensor | None, of_b: Tensor | None, of_c: Tensor | None, *rest: Any) -> Tensor:
        """``alpha (dA B + A dB) + beta dC``; what is added is the next product's ``c``."""
        a, b = ctx.saved_tensors
        sum_, beta = of_c if ctx.beta != 0 else None, ctx.beta
        run = ctx.run if eager.transforms_active() else traced_gemm
        for x, y in ((of_a, b), (a, of_b)):
            if x is not None and y is not None:
                sum_ = run(x, y, sum_, ctx.alpha, beta if sum_ is not None else 0.0, ctx.precision)
                beta = 1.0
        if sum_ is not None and sum_ is not of_c:
            return sum_
        _, shape = result_shape(a.shape, b.shape)
        if sum_ is None:
            return a.new_zeros(shape)
        with eager.forward._set_fwd_grad_enabled(True):  # for the levels below; this one has no tangent of it
            return (beta * sum_).expand(shape).clone()


def _differentiate(keys: Any, *inputs: Any) -> Any:
    """What the dispatcher runs first. It does not look for tangents, which would take as long as the function does."""
    if not eager.transforms_active():
        return _Op.apply(*inputs, partial(_below_autograd, _GEMM, keys))
    _refuse_jit_trace()
    graded, tangents = torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()

    def run_next_level(*args: Any) -> Any:
        with torch.set_grad_enabled(graded), eager.forward._set_fwd_grad_enabled(tangents):
            return _below_autograd(_GEMM, keys, *args)  # the function turns both off, but levels below record their own

    with enable_single_level_autograd_function():
        return _Op.apply(*inputs, run_next_level)


def _refuse_jit_trace() -> None:
    if eager.tracing():
        raise InvalidType("torch.jit.trace cannot record peakgemm's product inside of torch.func's grad, jvp or vmap; "
                          "use torch.compile or make_fx, or trace without the transform")


def _below_autograd(op: Any, keys: Any, *args: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return op.redispatch(keys & torch._C._after_autograd_keyset, *args)


def _refuse_derivatives(keys: Any, a: Any, b: Any, c: Any, out: Any, *rest: Any) -> None:
    eager.refuse_gradients({"a": a, "b": b, "c": c, "out": out}, "a call with out")
    _below_autograd(_GEMM_OUT, keys, a, b, c, out, *rest)


def _batched(info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor, c: Tensor | None, alpha: float,
             beta: float, precision: str) -> tuple[Tensor, int]:
    """One batched product for all that vmap would run; its dimension comes first, before the operands' own batches."""
    _refuse_jit_trace()
    rank = max(x.dim() - (dim is not None) for x, dim in zip((a, b), in_dims, strict=False))
    if in_dims[0] is None and in_dims[1] is None:  # c alone differs
        a, in_dims = a.expand(info.batch_size, *a.shape), (0, *in_dims[1:])
    first, second, third = (x if x is None or dim is None else _batch_first(x, dim, rank)
                            for x, dim in zip((a, b, c), in_dims, strict=False))
    assert first is not None and second is not None
    return traced_gemm(first, second, third, alpha, beta, precision), 0


def _batch_first(x: Tensor, dim: int, rank: int) -> Tensor:
    x = x.movedim(dim, 0)
    return x.reshape(x.shape[0], *(1,) * (rank + 1 - x.dim()), *x.shape[1:])


def _flops(a: Any, b: Any, *rest: Any, **options: Any) -> int:
    """A multiply and an add for each m, n and k, from shapes."""
    _, shape = result_shape(tuple(a), tuple(b))
    return 2 * prod(shape) * int(a[-1])


# The library object keeps the registrations alive. flexible_layout: the op takes any strides, so the
# compiler need not copy operands into the strides that it traced. No defaults: torch drops arguments that equal
# theirs before the gradient is asked for, whose inputs would then be fewer.
_LIBRARY = torch.library.Library("peakgemm", "FRAGMENT")
_LIBRARY.define("gemm(Tensor a, Tensor b, Tensor? c, float alpha, float beta, str precision) -> Tensor",
                tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout))
_LIBRARY.define("gemm_out(Tensor a, Tensor b, Tensor? c, Tensor(a!) out, float alpha, float beta, str precision) -> ()",
                tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout))
for _key in ("CUDA", "CPU"):
    _LIBRARY.impl("gemm", _run, _key)
    _LIBRARY.impl("gemm_out", _run_out, _key)
for _function in (_run, _run_out):
    eager.hide_from_dynamo(_function)
torch.library.register_fake("peakgemm::gemm", _shape_only, lib=_LIBRARY)
torch.library.register_fake("peakgemm::gemm_out", _out_only, lib=_LIBRARY)
torch.library.register_vmap("peakgemm::gemm", _batched, lib=_LIBRARY)
_GEMM, _GEMM_OUT = torch.ops.peakgemm.gemm.default, torch.ops.peakgemm.gemm_out.default
_LIBRARY.impl("gemm", _differentiate, "Autograd", with_keyset=True)
_LIBRARY.impl("gemm_out", _refuse_derivatives, "Autograd", with_keyset=True)
OPS = (torch.ops.peakgemm.gemm, torch.ops.peakgemm.gemm_out)
register_flop_formula(OPS)(_flops)
