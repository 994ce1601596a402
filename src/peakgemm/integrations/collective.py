"""The products of `peakgemm.distributed`: who computes what when, and their gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..arrays.base import check_dtype
from ..calls import eager, launch
from ..calls.request import check_precision
from ..errors import InvalidType, InvalidValue
from .group import Group, known
from .overlap import NAN, PLAIN, Way, ranges


class Warm(NamedTuple):
    """What a call led to that was made before, with operands alike."""

    group: Group
    precision: str
    way: Way


_calls: dict[Any, Any] = launch.calls


def run(a: Any, b: Any, group: Any, precision: str, chunks: int | None, scatter: bool) -> Tensor:
    """See `peakgemm.distributed.all_gather_matmul`, and with ``scatter`` `matmul_reduce_scatter`.

    A call like one before looks at nothing again. Where NCCL is the way this adds 2 us to its call and the product's
    (CPython 3.11).
    """
    key, warm, recorded = None, None, False
    try:
        key = ("collective", a.shape, b.shape, a.dtype, b.dtype, a.device, type(a), type(b),
               group or dist.group.WORLD, precision, scatter, chunks)
        recorded = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
        warm = None if recorded or a.is_neg() else _calls.get(key)
    except (AttributeError, TypeError):  # no tensors, as `_check` says
        pass
    if warm is None:
        _check(a, b, chunks)
        if recorded:
            result: Tensor = Recorded.apply(a, b, group, precision, chunks, scatter)
            return result
        a, checked, ranks = a.resolve_neg(), check_precision(precision), known(group)
        warm = launch.remember(key, Warm(ranks, checked, _way(chunks, a, b, ranks, checked, scatter)))
    return _by(warm.way, a, b, warm.group, warm.precision, scatter)


def _check(a: Any, b: Any, chunks: int | None) -> None:
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, Tensor):
            raise InvalidType(f"{name} is a {type(x).__name__}; peakgemm.distributed takes torch tensors")
        if x.dim() != 2:
            raise InvalidValue(f"{name} has shape {tuple(x.shape)}; a matrix (2-D) is wanted: use flatten(0, -2)")
    if a.shape[1] != b.shape[0]:
        raise InvalidValue(f"a {tuple(a.shape)} and b {tuple(b.shape)} do not match: the columns of a ({a.shape[1]}) "
                           f"must be the rows of b ({b.shape[0]})")
    for name, x in (("a", a), ("b", b)):  # bytes are what ranks store in each other's memory
        check_dtype(str(x.dtype).removeprefix("torch."), name)
    if chunks is not None and (not isinstance(chunks, int) or chunks < 0):
        raise InvalidValue(f"chunks = {chunks!r} must be 0 or more; leave it out for the cost model's")


class Recorded(torch.autograd.Function):  # type: ignore[misc]
    """A product with its gradients, in which gathering rows and scattering sums of rows change places."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, group: Any, precision: str, chunks: int | None,
                scatter: bool) -> Tensor:
        """The product, and in ``ctx`` what its derivative takes."""
        ctx.group, ctx.precision, ctx.scatter = known(group), check_precision(precision), scatter
        ctx.save_for_backward(a, b)
        return run(a, b, group, precision, chunks, scatter)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Of gathered rows ``dA = reduce_scatter(dY B^T)``, ``dB = all_gather(A)^T dY``; of a scattered sum
        ``dA = all_gather(dY) B^T``, ``dB = A^T all_gather(dY)``."""
        a, b = ctx.saved_tensors
        group, precision, (for_a, for_b) = ctx.group, ctx.precision, ctx.needs_input_grad[:2]
        of_a = of_b = None
        grad = grad.contiguous().resolve_neg()
        if not ctx.scatter or not for_b:
            if for_a:
                of_a = shared_product(grad, b.mT, group, precision, scatter=not ctx.scatter)
            if for_b:
                of_b = eager.run(gathered(a.resolve_neg(), group).mT, grad, precision=precision)
        else:
            whole = gathered(grad, group)
            of_b = eager.run(a.mT, whole, precision=precision)
            if for_a:
                of_a = eager.run(whole, b.mT, precision=precision)
        return of_a, of_b, None, None, None, None


def gathered(a: Tensor, group: Group) -> Tensor:
    """All ranks' rows, by torch's own all-gather."""
    rows, k = a.shape
    out = torch.empty((group.world * rows, k), dtype=a.dtype, device=a.device)
    dist.all_gather_into_tensor(out, a.contiguous(), group=group.group)
    return out


def shared_product(a: Tensor, b: Tensor, group: Group, precision: str, *, scatter: bool,
                   chunks: int | None = None) -> Tensor:
    """``all_gather(a) b``, or with ``scatter`` ``reduce_scatter(a b)`` along the rows; without gradients.

    Raises:
        InvalidValue: the ranks do not divide the rows, or chunks those of a rank.
    """
    a, b = a.detach(), b.detach()
    return _by(_way(chunks, a, b, group, precision, scatter), a, b, group, precision, scatter)


def _way(asked: int | None, a: Tensor, b: Tensor, group: Group, precision: str, scatter: bool) -> Way:
    """How a call runs: the same on all ranks, as shapes, precision and link are."""
    rows, left = divmod(a.shape[0], group.world) if scatter else (a.shape[0], 0)
    if left:
        raise InvalidValue(f"a has {a.shape[0]} rows, which {group.world} ranks do not divide; pad it to "
                           f"{(rows + 1) * group.world}")
    if asked and (rows % asked or not rows):
        raise InvalidValue(f"chunks = {asked} do not divide the {rows} rows of a rank; choose a divisor")
    index = None if group.gpu is None else group.gpu.index
    if group.exchange is None or not rows or (a.device.index if a.is_cuda else None) != index:
        return PLAIN
    return group.best_way(rows, b.shape[0], b.shape[1], precision, scatter) if asked is None else Way(asked, NAN)


def _by(way: Way, a: Tensor, b: Tensor, group: Group, precision: str, scatter: bool) -> Tensor:
    """The product by one of its ways; in a capture, whose replays no other rank would know of, by the plain one."""
    if group.world == 1:
        return _product(a, b, precision)
    plain = not way.chunks or (a.is_cuda and torch.cuda.is_current_stream_capturing())
    if scatter:
        return _scattered_whole(a, b, group, precision) if plain else _scattered(a, b, group, precision, way.chunks)
    if plain:
        return _product(gathered(a, group), b, precision)
    if way.head == 0:
        assert group.exchange is not None
        return _product(group.exchange.gather(a.contiguous()), b, precision)
    return _gathered(a.contiguous(), b, group, precision, way)


def _gathered(a: Tensor, b: Tensor, group: Group, precision: str, way: Way) -> Tensor:
    """First own rows, while the others' come, then each range of those that are left."""
    (rows, k), world, rank, exchange = a.shape, group.world, group.rank, group.exchange
    assert exchange is not None
    part, head = rows // way.chunks, rows if way.head is None else way.head
    out = torch.empty(world * rows, b.shape[1], dtype=a.dtype, device=a.device)
    exchange.begin(world * rows * k)
    for step in range(1, world):
        for i in range(way.chunks):
            exchange.push((rank + step) % world, (rank * rows + i * part) * k, a[i * part:(i + 1) * part])
    first, kept = (rows - head, 0) if rank == world - 1 else (0, head)  # of the head, and of what is left
    own_start = (rank * rows + kept) * k  # in the exchange
    if head < rows:
        exchange.push(rank, own_start, a[kept:kept + rows - head])
    at = rank * rows + first
    _product(a[first:first + head], b, precision, out[at:at + head])
    for start, stop, own, _ in ranges(world, rank, rows, way):
        for row in range(start // part * part, stop, part):
            if row // rows != rank:
                exchange.pull(row // rows, row * k, (part, k))
        if own:
            exchange.pull(rank, own_start, (own, k))
        _product(exchange.at(start * k, (stop - start, k)), b, precision, out[start:stop])
    exchange.end()
    return out


def _scattered_whole(a: Tensor, b: Tensor, group: Group, precision: str) -> Tensor:
    """The product, then one reduce-scatter."""
    whole = _product(a, b, precision)
    out = torch.empty(a.shape[0] // group.world, b.shape[1], dtype=a.dtype, device=a.device)
    dist.reduce_scatter_tensor(out, whole, group=group.group)
    return out


def _scattered(a: Tensor, b: Tensor, group: Group, precision: str, chunks: int) -> Tensor:
    """The other ranks' rows, which are sent while more are computed, then this rank's own, in ``chunks``."""
    world, rank, n, exchange = group.world, group.rank, b.shape[1], group.exchange
    assert exchange is not None
    rows = a.shape[0] // world
    part = rows // chunks
    out = torch.empty(rows, n, dtype=a.dtype, device=a.device)
    sources = [(rank - step) % world for step in range(1, world)]
    lows = [i * part for i in range(chunks)]
    exchange.begin(world * rows * n)
    for step in range(1, world):
        to = (rank + step) % world
        for low in lows:
            theirs = a[to * rows + low:to * rows + low + part]
            exchange.push(to, (rank * rows + low) * n, _product(theirs, b, precision))
    for low in lows:
        total, *others = (exchange.pull(source, (source * rows + low) * n, (part, n)) for source in sources)
        for other in others:
            total.add_(other)
        own = a[rank * rows + low:rank * rows + low + part]
        eager.run(own, b, total, beta=1.0, out=out[low:low + part], precision=precision)
    exchange.end()
    return out


def _product(a: Tensor, b: Tensor, precision: str, out: Tensor | None = None) -> Tensor:
    result: Tensor = (eager.product(a, b) if out is None and precision == "ieee" else
                      eager.run(a, b, out=out, precision=precision))
    return result
