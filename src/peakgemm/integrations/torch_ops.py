"""The product as torch sees it: an autograd function for eager calls, a registered op for ``torch.compile``.

Eager calls take the autograd function, not the op: an op that Python implements costs about 6 us a call.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..boundary import result_shape
from ..errors import InvalidValue
from ..plan import run as multiply
from ..request import check_precision, scales
from ..runtime.adapters.base import check_dtype

Gemm = Callable[[Tensor, Tensor, "Tensor | None", float, float, str], Tensor]


def gemm_with_grad(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float,
                   precision: str = "ieee") -> Tensor:
    """See `peakgemm.integrations.torch.gemm_with_grad`."""
    result: Tensor = _Gemm.apply(a, b, c, float(alpha), float(beta), precision)
    return result


def traced_gemm(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float, precision: str = "ieee") -> Tensor:
    """See `peakgemm.integrations.torch.traced_gemm`."""
    result: Tensor = torch.ops.peakgemm.gemm.default(a, b, c, float(alpha), float(beta), precision)
    return result


def _run(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float, precision: str) -> Tensor:
    _check_ranks(a, b)
    check_precision(precision)
    result: Tensor = multiply(a, b, c, alpha=alpha, beta=beta, precision=precision)
    return result


def _shape_only(a: Tensor, b: Tensor, c: Tensor | None, alpha: float, beta: float, precision: str) -> Tensor:
    """What the tracer runs: the checks of `plan.run`, for sizes that may be symbols."""
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


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None, float, float, str], output: Any = None) -> None:
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


def _traced_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return _gradients(traced_gemm, ctx, grad)


# The library object keeps the registrations alive. flexible_layout: the op takes any strides, so the
# compiler need not copy operands into the strides that it traced. No defaults: torch drops arguments that equal
# theirs before the gradient is asked for, whose inputs would then be fewer.
_LIBRARY = torch.library.Library("peakgemm", "FRAGMENT")
_LIBRARY.define("gemm(Tensor a, Tensor b, Tensor? c, float alpha, float beta, str precision) -> Tensor",
                tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout))
for _key in ("CUDA", "CPU"):
    _LIBRARY.impl("gemm", _run, _key)
torch.library.register_fake("peakgemm::gemm", _shape_only, lib=_LIBRARY)
torch.library.register_autograd("peakgemm::gemm", _traced_backward, setup_context=_keep, lib=_LIBRARY)
