"""The products of `peakgemm.distributed`: who computes what when, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..arrays.base import check_dtype
from ..calls import cache, eager
from ..calls.request import check_precision
from ..errors import InvalidValue
from ..selection.overlap_model import Way, best, gather_ways, ranges, scatter_ways
from .group import Group, known

FLOAT = 4
NAN = float("nan")
PLAIN = Way(0, NAN)


class Warm(NamedTuple):
    """What a call led to that was made before, with operands alike."""

    group: Group
    precision: str
    way: Way


_calls: dict[Any, Any] = cache.calls


def quickly(a: Any, b: Any, group: Any, precision: str, scatter: bool) -> Tensor | None:
    """A call like one before, without looking at anything again; None: it is none, or has a gradient.

    Where NCCL is the way this adds 2 us to its call and the product's (CPython 3.11).
    """
    try:
        key = ("collective", a.shape, b.shape, a.dtype, b.dtype, a.device, type(a), type(b),
               group or dist.group.WORLD, precision, scatter)
        warm: Warm | None = _calls.get(key)
        if warm is None or a.is_neg() or (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)):
            return None
    except (AttributeError, TypeError):  # no tensors
        return None
    known_group, precision, way = warm
    if way.chunks and torch.cuda.is_current_stream_capturing():
        way = PLAIN
    return (_scatter if scatter else _gather)(a, b, known_group, precision, way)


def all_gather_matmul(a: Tensor, b: Tensor, group: Any, precision: str, chunks: int | None) -> Tensor:
    """See `peakgemm.distributed.all_gather_matmul`."""
    return _called(a, b, group, precision, chunks, False)


def matmul_reduce_scatter(a: Tensor, b: Tensor, group: Any, precision: str, chunks: int | None) -> Tensor:
    """See `peakgemm.distributed.matmul_reduce_scatter`."""
    return _called(a, b, group, precision, chunks, True)


def _called(a: Tensor, b: Tensor, group: Any, precision: str, chunks: int | None, scatter: bool) -> Tensor:
    if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
        result: Tensor = (MatmulScatter if scatter else GatherMatmul).apply(a, b, group, precision, chunks)
        return result
    for name, x in (("a", a), ("b", b)):  # bytes are what ranks store in each other's memory
        check_dtype(str(x.dtype).removeprefix("torch."), name)
    a = a.resolve_neg()
    checked, found = check_precision(precision), known(group)
    way = _way(chunks, a, b, found, checked, scatter)
    result = (_scatter if scatter else _gather)(a, b, found, checked, way)
    if chunks is None and not (way is PLAIN and found.link is not None):  # it is not for a capture alone
        key = ("collective", a.shape, b.shape, a.dtype, b.dtype, a.device, type(a), type(b), found.group, precision,
               scatter)
        cache.remember(key, Warm(found, checked, way))
    return result


def _recorded(ctx: Any, a: Tensor, b: Tensor, group: Any, precision: str, chunks: int | None, scatter: bool) -> Tensor:
    """The product, and in ``ctx`` what its derivative takes."""
    ctx.group, ctx.precision = known(group), check_precision(precision)
    ctx.save_for_backward(a, b)
    return _called(a, b, group, precision, chunks, scatter)


class GatherMatmul(torch.autograd.Function):  # type: ignore[misc]
    """See `peakgemm.distributed.all_gather_matmul`."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, group: Any, precision: str, chunks: int | None) -> Tensor:
        """The product."""
        return _recorded(ctx, a, b, group, precision, chunks, False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """``dA = reduce_scatter(dY B^T)``, ``dB = all_gather(A)^T dY``."""
        a, b = ctx.saved_tensors
        of_a = of_b = None
        grad = grad.contiguous().resolve_neg()
        if ctx.needs_input_grad[0]:
            of_a = scattered_product(grad, b.mT, ctx.group, ctx.precision)
        if ctx.needs_input_grad[1]:
            of_b = eager.run(gathered(a.resolve_neg(), ctx.group).mT, grad, precision=ctx.precision)
        return of_a, of_b, None, None, None


class MatmulScatter(torch.autograd.Function):  # type: ignore[misc]
    """See `peakgemm.distributed.matmul_reduce_scatter`."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, group: Any, precision: str, chunks: int | None) -> Tensor:
        """The product."""
        return _recorded(ctx, a, b, group, precision, chunks, True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """``dA = all_gather(dY) B^T``, ``dB = A^T all_gather(dY)``."""
        a, b = ctx.saved_tensors
        of_a = of_b = None
        grad = grad.contiguous().resolve_neg()
        if ctx.needs_input_grad[1]:
            whole = gathered(grad, ctx.group)
            of_b = eager.run(a.mT, whole, precision=ctx.precision)
            if ctx.needs_input_grad[0]:
                of_a = eager.run(whole, b.mT, precision=ctx.precision)
        elif ctx.needs_input_grad[0]:
            of_a = gathered_product(grad, b.mT, ctx.group, ctx.precision)
        return of_a, of_b, None, None, None


def gathered(a: Tensor, group: Group) -> Tensor:
    """All ranks' rows, by torch's own all-gather."""
    rows, k = a.shape
    out = torch.empty((group.world * rows, k), dtype=a.dtype, device=a.device)
    dist.all_gather_into_tensor(out, a.contiguous(), group=group.group)
    return out


def gathered_product(a: Tensor, b: Tensor, group: Group, precision: str, chunks: int | None = None) -> Tensor:
    """``all_gather(a) b``."""
    a, b = a.detach(), b.detach()
    return _gather(a, b, group, precision, _way(chunks, a, b, group, precision, False))


def _gather(a: Tensor, b: Tensor, group: Group, precision: str, way: Way) -> Tensor:
    if group.world == 1:
        return _product(a, b, precision)
    if way.head is not None:
        return _headed(a.contiguous(), b, group, precision, way.head)
    if way.chunks:
        return _chunked(a.contiguous(), b, group, precision, way.chunks)
    return _product(gathered(a, group), b, precision)


def _headed(a: Tensor, b: Tensor, group: Group, precision: str, head: int) -> Tensor:
    """``head`` own rows while the others' come, then all that is left as one product, or two."""
    (rows, k), world, rank = a.shape, group.world, group.rank
    exchange = group.exchange
    assert exchange is not None
    if head == 0:
        return _product(exchange.gather(a), b, precision)
    sources = [(rank - step) % world for step in range(1, world)]
    exchange.begin([(source, source * rows * k, (rows, k)) for source in sources], world * rows * k)
    for step in range(1, world):
        exchange.push((rank + step) % world, rank * rows * k, a)
    first = rows - head if rank == world - 1 else 0  # of the head
    low = 0 if rank == world - 1 else head           # of what is left
    place = (rank * rows + low) * k
    exchange.push(rank, place, a[low:low + rows - head])
    out = torch.empty(world * rows, b.shape[1], dtype=a.dtype, device=a.device)
    at = rank * rows + first
    _product(a[first:first + head], b, precision, out[at:at + head])
    for start, stop, own, _ in ranges(world, rank, rows, head):
        for source in sources:
            if start <= source * rows < stop and source != rank:
                exchange.pull(source, source * rows * k, (rows, k))
        if own:
            exchange.pull(rank, place, (own, k))
        _product(exchange.at(start * k, (stop - start, k)), b, precision, out[start:stop])
    exchange.end()
    return out


def _chunked(a: Tensor, b: Tensor, group: Group, precision: str, chunks: int) -> Tensor:
    """Its own rows, then those of each other rank as they come, in ``chunks``."""
    (rows, k), exchange = a.shape, group.exchange
    assert exchange is not None
    part = rows // chunks
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


def scattered_product(a: Tensor, b: Tensor, group: Group, precision: str, chunks: int | None = None) -> Tensor:
    """``reduce_scatter(a b)`` along the rows.

    Raises:
        InvalidValue: the ranks do not divide the rows.
    """
    a, b = a.detach(), b.detach()
    return _scatter(a, b, group, precision, _way(chunks, a, b, group, precision, True))


def _scatter(a: Tensor, b: Tensor, group: Group, precision: str, way: Way) -> Tensor:
    world, n, chunks = group.world, b.shape[1], way.chunks
    rows = a.shape[0] // world
    if world == 1:
        return _product(a, b, precision)
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
        eager.run(a[low:low + part], b, first, beta=1.0, out=target, precision=precision)
    exchange.end()
    return out


def ways(m: int, n: int, k: int, group: Any, precision: str, scatter: bool) -> list[Way]:
    """See `peakgemm.distributed.explain`."""
    found = known(group)
    if found.link is None or found.world == 1:
        return [PLAIN]
    return list(_ways(found, m // found.world, k, n, precision, scatter))


def _ways(group: Group, rows: int, k: int, n: int, precision: str, scatter: bool) -> Iterator[Way]:
    """Of ``rows`` for each rank."""
    assert group.link is not None
    product = group.product(k, n, precision)
    if scatter:
        return scatter_ways(group.world, rows, FLOAT * n, product, group.link, _added_us)
    return gather_ways(group.world, rows, FLOAT * k, product, group.link)


def _product(a: Tensor, b: Tensor, precision: str, out: Tensor | None = None) -> Tensor:
    result: Tensor = (eager.product(a, b) if out is None and precision == "ieee" else
                      eager.run(a, b, out=out, precision=precision))
    return result


def _added_us(rows: int) -> float:
    return 5.0  # a launch: the bytes are the product's own, and in L2


def _way(asked: int | None, a: Tensor, b: Tensor, group: Group, precision: str, scatter: bool) -> Way:
    """How a call runs: the same on all ranks, as shapes, precision and link are. What the model says is remembered, for
    to ask it takes longer than a small product.

    Raises:
        InvalidValue: the ranks do not divide the rows, or chunks those of a rank.
    """
    rows, left = divmod(a.shape[0], group.world) if scatter else (a.shape[0], 0)
    if left:
        raise InvalidValue(f"a has {a.shape[0]} rows, which {group.world} ranks do not divide; pad it to "
                           f"{(rows + 1) * group.world}")
    if asked is not None:
        if asked and (rows % asked or not rows):
            raise InvalidValue(f"chunks = {asked} do not divide the {rows} rows of a rank; choose a divisor")
        return Way(asked, NAN) if group.exchange is not None and a.is_cuda == (group.gpu is not None) else PLAIN
    if (group.link is None or group.exchange is None or group.gpu is None or not a.is_cuda or not rows
            or a.device.index != group.gpu.index):
        return PLAIN
    key = rows, b.shape, precision, scatter
    found = group.chosen.get(key)
    if found is None:
        found = group.chosen[key] = best(_ways(group, rows, b.shape[0], b.shape[1], precision, scatter))
    return found if not found.chunks or not torch.cuda.is_current_stream_capturing() else PLAIN
