"""The products of `peakgemm.distributed`: who computes what when, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..calls.plan import run as multiply
from ..calls.request import check_precision
from ..errors import InvalidValue
from ..selection.overlap_model import Way, best, gather_ways, scatter_ways
from .group import Group, known

FLOAT = 4


def all_gather_matmul(a: Tensor, b: Tensor, group: Any, precision: str, chunks: int | None) -> Tensor:
    """See `peakgemm.distributed.all_gather_matmul`."""
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        result: Tensor = GatherMatmul.apply(a, b, group, precision, chunks)
        return result
    precision = check_precision(precision)
    return gathered_product(a, b, known(group), precision, chunks)


def matmul_reduce_scatter(a: Tensor, b: Tensor, group: Any, precision: str, chunks: int | None) -> Tensor:
    """See `peakgemm.distributed.matmul_reduce_scatter`."""
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        result: Tensor = MatmulScatter.apply(a, b, group, precision, chunks)
        return result
    precision = check_precision(precision)
    return scattered_product(a, b, known(group), precision, chunks)


class GatherMatmul(torch.autograd.Function):  # type: ignore[misc]
    """See `peakgemm.distributed.all_gather_matmul`."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, group: Any, precision: str, chunks: int | None) -> Tensor:
        """The product."""
        precision = check_precision(precision)
        ctx.group, ctx.precision = known(group), precision
        ctx.save_for_backward(a, b)
        return gathered_product(a, b, ctx.group, precision, chunks)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """``dA = reduce_scatter(dY B^T)``, ``dB = all_gather(A)^T dY``."""
        a, b = ctx.saved_tensors
        of_a = of_b = None
        grad = grad.contiguous()
        if ctx.needs_input_grad[0]:
            of_a = scattered_product(grad, b.mT, ctx.group, ctx.precision, None)
        if ctx.needs_input_grad[1]:
            of_b = multiply(gathered(a, ctx.group).mT, grad, precision=ctx.precision)
        return of_a, of_b, None, None, None


class MatmulScatter(torch.autograd.Function):  # type: ignore[misc]
    """See `peakgemm.distributed.matmul_reduce_scatter`."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, group: Any, precision: str, chunks: int | None) -> Tensor:
        """The product."""
        precision = check_precision(precision)
        ctx.group, ctx.precision = known(group), precision
        ctx.save_for_backward(a, b)
        return scattered_product(a, b, ctx.group, precision, chunks)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """``dA = all_gather(dY) B^T``, ``dB = A^T all_gather(dY)``."""
        a, b = ctx.saved_tensors
        of_a = of_b = None
        grad = grad.contiguous()
        if ctx.needs_input_grad[1]:
            whole = gathered(grad, ctx.group)
            of_b = multiply(a.mT, whole, precision=ctx.precision)
            if ctx.needs_input_grad[0]:
                of_a = multiply(whole, b.mT, precision=ctx.precision)
        elif ctx.needs_input_grad[0]:
            of_a = gathered_product(grad, b.mT, ctx.group, ctx.precision, None)
        return of_a, of_b, None, None, None


def gathered(a: Tensor, group: Group) -> Tensor:
    """All ranks' rows, by torch's own all-gather."""
    out = torch.empty(group.world * a.shape[0], a.shape[1], dtype=a.dtype, device=a.device)
    dist.all_gather_into_tensor(out, a.detach().contiguous(), group=group.group)
    return out


def gathered_product(a: Tensor, b: Tensor, group: Group, precision: str, chunks: int | None) -> Tensor:
    """``all_gather(a) b``."""
    a, b = a.detach(), b.detach()
    rows, k = a.shape
    if group.world == 1:
        return _product(a, b, precision)
    chunks = _chunks(chunks, rows, group, a, b, precision, False)
    if not chunks:
        return _product(gathered(a, group), b, precision)
    exchange = group.exchange
    assert exchange is not None
    a, part = a.contiguous(), rows // chunks
    out = torch.empty(group.world * rows, b.shape[1], dtype=a.dtype, device=a.device)
    # Those before a rank send to it first: each link has one copy at a time.
    sources = [(group.rank - step) % group.world for step in range(1, group.world)]
    places = [(source, i, source * rows * k + i * part * k) for source in sources for i in range(chunks)]
    exchange.begin([(source, offset, (part, k)) for source, _, offset in places], group.world * rows * k)
    for step in range(1, group.world):
        for i in range(chunks):
            exchange.push((group.rank + step) % group.world, group.rank * rows * k + i * part * k,
                          a[i * part:(i + 1) * part])
    _product(a, b, precision, out[group.rank * rows:(group.rank + 1) * rows])
    for source, i, offset in places:
        low = source * rows + i * part
        _product(exchange.pull(source, offset, (part, k)), b, precision, out[low:low + part])
    exchange.end()
    return out


def scattered_product(a: Tensor, b: Tensor, group: Group, precision: str, chunks: int | None) -> Tensor:
    """``reduce_scatter(a b)`` along the rows.

    Raises:
        InvalidValue: the ranks do not divide the rows.
    """
    a, b = a.detach(), b.detach()
    world, n = group.world, b.shape[1]
    rows, left = divmod(a.shape[0], world)
    if left:
        raise InvalidValue(f"a has {a.shape[0]} rows, which {world} ranks do not divide; pad it to "
                           f"{(rows + 1) * world}")
    if world == 1:
        return _product(a, b, precision)
    chunks = _chunks(chunks, rows, group, a, b, precision, True)
    if not chunks:
        whole = _product(a, b, precision)
        out = torch.empty(rows, n, dtype=a.dtype, device=a.device)
        dist.reduce_scatter_tensor(out, whole, group=group.group)
        return out
    exchange, part = group.exchange, rows // chunks
    assert exchange is not None
    out = torch.empty(rows, n, dtype=a.dtype, device=a.device)
    sources = [(group.rank - step) % world for step in range(1, world)]
    offsets = {(source, i): source * rows * n + i * part * n for source in sources for i in range(chunks)}
    exchange.begin([(source, offsets[source, i], (part, n)) for source in sources for i in range(chunks)],
                   world * rows * n)
    for step in range(1, world):
        to = (group.rank + step) % world
        for i in range(chunks):
            low = to * rows + i * part
            exchange.push(to, group.rank * rows * n + i * part * n, _product(a[low:low + part], b, precision))
    for i in range(chunks):
        first, *others = (exchange.pull(source, offsets[source, i], (part, n)) for source in sources)
        for other in others:
            first.add_(other)
        low = group.rank * rows + i * part
        target = out[i * part:(i + 1) * part]
        multiply(a[low:low + part], b, first, beta=1.0, out=target, precision=precision)
    exchange.end()
    return out


def ways(m: int, n: int, k: int, group: Any, precision: str, scatter: bool) -> list[Way]:
    """See `peakgemm.distributed.explain`."""
    found = known(group)
    if found.link is None or found.world == 1:
        return [Way(0, float("nan"))]
    return list(_ways(found, m // found.world, k, n, precision, scatter))


def _ways(group: Group, rows: int, k: int, n: int, precision: str, scatter: bool) -> Iterator[Way]:
    """Of ``rows`` for each rank."""
    assert group.link is not None
    product = group.product(k, n, precision)
    if scatter:
        return scatter_ways(group.world, rows, FLOAT * n, product, group.link, _added_us)
    return gather_ways(group.world, rows, FLOAT * k, product, group.link)


def _product(a: Tensor, b: Tensor, precision: str, out: Tensor | None = None) -> Tensor:
    result: Tensor = multiply(a, b, out=out, precision=precision)
    return result


def _added_us(rows: int) -> float:
    return 5.0  # a launch: the bytes are the product's own, and in L2


def _chunks(asked: int | None, rows: int, group: Group, a: Tensor, b: Tensor, precision: str, scatter: bool) -> int:
    """How many; the same on all ranks, as shapes, precision and link are. What the model says is remembered, for to ask
    it takes as long as a small product.

    Raises:
        InvalidValue: they do not divide the rows.
    """
    if asked is not None:
        if asked and (rows % asked or not rows):
            raise InvalidValue(f"chunks = {asked} do not divide the {rows} rows of a rank; choose a divisor")
        return asked if group.exchange is not None and a.is_cuda == (group.gpu is not None) else 0
    if group.link is None or group.exchange is None or not a.is_cuda or torch.cuda.is_current_stream_capturing():
        return 0
    key = rows, b.shape, precision, scatter
    found = group.chosen.get(key)
    if found is None:
        found = group.chosen[key] = best(_ways(group, rows, b.shape[0], b.shape[1], precision, scatter)).chunks
    return found
