"""Small products of host arrays in one launch: one stream, and the driver's own copies.

Of two packed matrices a product takes one look-up; what has other strides, a batch or a ``c`` is packed by NumPy first.
The driver moves pageable memory through buffers of its own, and faster than NumPy copies it into pinned ones, but one
array at a time. So where the operands are large another thread stages the second one meanwhile. Up to `MOST_BYTES` all
that beats the many threads of tiles (docs/notebook/23-host-arrays.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...arrays.aliasing import refuse_overlap
from ...arrays.base import FLOAT, HostLibrary, View, driver_out_of_memory
from ...arrays.numpy import host_view
from ...errors import LaunchFailed
from ...runtime import pools
from ...runtime.device import Gpu
from ...runtime.memory import DeviceMemory, behind, order
from ...runtime.staging import copy_pageable, new_stream, synchronize
from ...runtime.transfer import LEAST_BYTES, Copiers
from .. import cache
from ..canonical import Canonical, canonicalise
from ..launch import bound_for, choice_for
from ..request import Request
from .panel import layout, layouts

if TYPE_CHECKING:
    from ...kernels.bound import Bound

# Of both operands and the result. Of a square product that is a result of 32 MB: larger ones malloc takes from the
# system at each call, and threads share the work of touching new pages.
MOST_BYTES = 96 << 20
SHARED_BYTES = 4 << 20       # of both operands: at 768^3 another thread gains 3 %, at 512^3 it loses as much
WORKSPACE_BYTES = 128 << 20  # it is kept as well; the largest square's by tf32x3, the most of all schemes, has 123 MB
_ALIGNED = 256               # bytes


class _Scratch:
    """Memory on a device, which grows with what is asked for, and streams, for one call at a time. With memory
    allocated for each call 256^3 took 1.17 of torch's time, with this 0.72 (docs/notebook/23-host-arrays.md)."""

    def __init__(self) -> None:
        self.stream, self._beside = new_stream(), new_stream()
        self._memory: DeviceMemory | None = None
        self._copiers: Copiers | None = None

    def room(self, size: int) -> int:
        """The address of ``size`` bytes."""
        if self._memory is None or self._memory.size < size:
            self._memory = None
            self._memory = DeviceMemory(size, self.stream)
            order(self.stream, self._beside)  # which may use it once it is allocated
        return self._memory.pointer

    def upload(self, arrays: Sequence[tuple[Any, int]], gpu: Gpu) -> None:
        """Copy packed arrays to their addresses; what is enqueued on ``stream`` from now on finds them there."""
        futures: list[Future[Any]] = []
        if len(arrays) > 1 and arrays[0][0].nbytes + arrays[1][0].nbytes >= SHARED_BYTES:
            if self._copiers is None:
                self._copiers = Copiers(gpu.index, self._beside, self._beside, 1, 1, LEAST_BYTES)
            futures = self._copiers.upload(*arrays[1])
            arrays = [arrays[0], *arrays[2:]]
        try:
            for x, pointer in arrays:
                copy_pageable("cuMemcpyHtoDAsync_v2", pointer, _address(x), x.nbytes, self.stream)
        finally:
            if futures:
                wait(futures)
        for future in futures:
            if (mark := future.result()) is not None:
                behind(mark, self.stream)
        if futures:
            order(self._beside, self.stream)

    def download(self, source: int, result: Any) -> None:
        """Copy what ``stream`` has computed at ``source`` into a packed array; it lies there."""
        copy_pageable("cuMemcpyDtoHAsync_v2", _address(result), source, result.nbytes, self.stream)
        synchronize(self.stream)  # of memory that is pinned the driver only enqueues the copies

    def rest(self) -> None:
        """Until neither stream does anything: after an error there may be copies that no product waits for."""
        for stream in (self._beside, self.stream):
            with suppress(LaunchFailed):  # the error itself is raised
                synchronize(stream)


class _Warm(NamedTuple):
    """A product that is bound; ``offsets`` of its arrays and of its workspace from the start of the memory (bytes)."""

    bound: Bound
    canonical: Canonical
    offsets: dict[str, int]


_free: dict[int, list[_Scratch]] = {}  # by device
_lock = Lock()
_calls: dict[Any, Any] = cache.calls
_UNKNOWN: Any = object()


def multiply(library: HostLibrary, request: Request, gpu: Gpu) -> Any:
    """``request``'s result; None: it is none of those that this is for. The device is current.

    Raises:
        InvalidValue: ``out`` overlaps an operand.
        LaunchFailed: the driver refused.
    """
    r = request
    if r.c is not None or r.beta != 0:
        return None
    a, b = library.host(r.a, "a"), library.host(r.b, "b")
    if a.ndim != 2 or b.ndim != 2 or a.nbytes + b.nbytes > MOST_BYTES:
        return None
    column_major_a, column_major_b = not a.flags.c_contiguous, not b.flags.c_contiguous
    if (column_major_a and not a.flags.f_contiguous) or (column_major_b and not b.flags.f_contiguous):
        return None
    key = ("host", a.shape, b.shape, column_major_a, column_major_b, r.alpha, r.trans_a, r.trans_b, r.precision, gpu)
    warm: _Warm | None = _calls.get(key, _UNKNOWN)  # looked up once: another thread may forget all
    if warm is _UNKNOWN:
        warm = cache.remember(key, _bind(r, a, b, gpu))
    if warm is None:
        return None
    if r.out is None:
        result = np.empty(warm.canonical.shape, np.float32)
    else:
        result = library.host(r.out, "out")
        if result.shape != warm.canonical.shape or not result.flags.c_contiguous:
            return None
        arrays = {"a": a, "b": b, "out": result}
        refuse_overlap({name: host_view(x) for name, x in arrays.items()}, 0.0, arrays)
    try:
        _launch(warm, {"a": a.T if column_major_a else a, "b": b.T if column_major_b else b}, result, gpu)
    except LaunchFailed as error:
        if not driver_out_of_memory(error):
            raise
        return None
    return library.wrap(result, r.a) if r.out is None else r.out


def run(r: Request, gpu: Gpu, resident: View | None = None) -> None:
    """``alpha a b + beta c`` into ``out``, all NumPy arrays of at least two dimensions, ``c`` of out's shape.

    ``resident``: ``b`` as it lies on the device, the current one, already.

    Raises:
        LaunchFailed: the driver refused; where it had no room for all, tiles may do with less.
    """
    dense, views = layouts(r, resident)
    arrays = {name: np.ascontiguousarray(x) for name, x in dense.items()}
    result = r.out if r.out.flags.c_contiguous else np.empty(r.out.shape, np.float32)
    offsets = _offsets({name: x.size for name, x in arrays.items()} | {"out": result.size})
    views |= {name: views[name]._replace(pointer=offsets[name]) for name in (*arrays, "out")}
    canonical = canonicalise(views["a"], views["b"], views.get("c"), views["out"], alpha=r.alpha, beta=r.beta)
    assert canonical.problem is not None  # its batch merges
    bound = bound_for(canonical.problem, gpu, choice_for(canonical.problem, gpu, r.precision))
    _launch(_Warm(bound, canonical, offsets), arrays, result, gpu, resident)
    if result is not r.out:
        np.copyto(r.out, result)


def _launch(warm: _Warm, arrays: dict[str, Any], result: Any, gpu: Gpu, resident: View | None = None) -> None:
    """The product of arrays that are packed by rows; after an error nothing is under way any more."""
    bound, canonical, offsets = warm
    with pools.under_way(gpu.index):
        with _lock:
            kept = _free.setdefault(gpu.index, [])
            scratch = kept.pop() if kept else None
        scratch = scratch or _Scratch()
        try:
            start = scratch.room(offsets["workspace"] + bound.workspace_bytes)
            at = {name: start + offset for name, offset in offsets.items()}
            scratch.upload([(x, at[name]) for name, x in arrays.items()], gpu)
            if resident is not None:
                at["b"] = resident.pointer
            first, second = ("b", "a") if canonical.swapped else ("a", "b")
            bound.launch(at[first], at[second], at["out"], at["out" if canonical.in_place else "c"],
                         at["workspace"] if bound.workspace_bytes else 0, scratch.stream)
            scratch.download(at["out"], result)
        except BaseException:
            scratch.rest()
            raise
        finally:
            with _lock:
                kept.append(scratch)


def _address(x: Any) -> int:
    return int(x.__array_interface__["data"][0])


def _bind(r: Request, a: Any, b: Any, gpu: Gpu) -> _Warm | None:
    views = (layout(x, squeeze=False)[1] for x in (a, b))
    canonical = canonicalise(*views, alpha=r.alpha, trans_a=r.trans_a, trans_b=r.trans_b)
    m, n = canonical.shape
    offsets = _offsets({"a": a.size, "b": b.size, "out": m * n})
    if canonical.problem is None or not m * n or offsets["workspace"] > MOST_BYTES:
        return None
    bound = bound_for(canonical.problem, gpu, choice_for(canonical.problem, gpu, r.precision))
    return None if bound.workspace_bytes > WORKSPACE_BYTES else _Warm(bound, canonical, offsets)


def _offsets(sizes: dict[str, int]) -> dict[str, int]:
    """Where arrays of so many elements lie one after the other, and behind them a workspace (bytes)."""
    offsets, size = {}, 0
    for name, count in sizes.items():
        offsets[name] = size
        size += -(-FLOAT * count // _ALIGNED) * _ALIGNED
    return offsets | {"workspace": size}
