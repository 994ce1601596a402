"""Small products of host arrays in one launch: one stream, and the driver's own copies.

Of two packed matrices a product takes one look-up; what has other strides, a batch or a ``c`` is packed by NumPy first.
The driver moves pageable memory through buffers of its own, and faster than NumPy copies it into pinned ones, but one
array at a time. So where the operands are large another thread stages the second one meanwhile. Up to `MOST_BYTES` all
that beats the many threads of tiles (docs/notebook/23-host-arrays.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..arrays.base import FLOAT, HostLibrary, View, driver_out_of_memory
from ..arrays.numpy import host_view
from ..errors import LaunchFailed
from ..runtime import pools
from ..runtime.device import Gpu
from ..runtime.memory import DeviceMemory, behind, order
from ..runtime.staging import copy_pageable, new_stream, synchronize
from ..runtime.transfer import LEAST_BYTES, Copiers
from .arriving import layouts
from .canonical import canonicalise
from .launch import bound_for, choice_for, enqueue
from .request import Request, refuse_overlap

if TYPE_CHECKING:
    from ..kernels.bound import Bound
    from ..kernels.emulated.bound import Emulated

# Of both operands and the result. Of a square product that is a result of 32 MB: larger ones malloc takes from the
# system at each call, and threads share the work of touching new pages.
MOST_BYTES = 96 << 20
SHARED_BYTES = 4 << 20       # of both operands: at 768^3 another thread gains 3 %, at 512^3 it loses as much
WORKSPACE_BYTES = 128 << 20  # it is kept as well; the largest square's by tf32x3, the most of all schemes, has 123 MB
LIMIT = 4096                 # remembered products; then all are forgotten
_ALIGNED = 256               # bytes


class _Place:
    """Memory on a device, which grows with what is asked for, and streams, for one call at a time. With memory
    allocated for each call 256^3 took 1.17 of torch's time, with this 0.72 (docs/notebook/23-host-arrays.md)."""

    def __init__(self) -> None:
        self.stream, self.beside = new_stream(), new_stream()
        self._memory: DeviceMemory | None = None
        self._copiers: Copiers | None = None

    def room(self, size: int) -> int:
        """The address of ``size`` bytes."""
        if self._memory is None or self._memory.size < size:
            self._memory = None
            self._memory = DeviceMemory(size, self.stream)
            order(self.stream, self.beside)  # which may use it once it is allocated
        return self._memory.pointer

    def bring(self, a: Any, b: Any, to_a: int, to_b: int, gpu: Gpu) -> None:
        """Copy packed arrays to the device; what is enqueued on ``stream`` from now on finds them there."""
        if a.nbytes + b.nbytes < SHARED_BYTES:
            copy_pageable("cuMemcpyHtoDAsync_v2", to_a, _address(a), a.nbytes, self.stream)
            copy_pageable("cuMemcpyHtoDAsync_v2", to_b, _address(b), b.nbytes, self.stream)
            return
        if self._copiers is None:
            self._copiers = Copiers(gpu.index, self.beside, self.beside, 1, 1, LEAST_BYTES)
        futures = self._copiers.upload(b, to_b)
        try:
            copy_pageable("cuMemcpyHtoDAsync_v2", to_a, _address(a), a.nbytes, self.stream)
        finally:
            wait(futures)
        for future in futures:
            if (mark := future.result()) is not None:
                behind(mark, self.stream)
        order(self.beside, self.stream)

    def fetch(self, source: int, result: Any) -> None:
        """Copy what ``stream`` has computed at ``source`` into a packed array; it lies there."""
        copy_pageable("cuMemcpyDtoHAsync_v2", _address(result), source, result.nbytes, self.stream)
        synchronize(self.stream)  # of memory that is pinned the driver only enqueues the copies

    def rest(self) -> None:
        """Until neither stream does anything: after an error there may be copies that no product waits for."""
        for stream in (self.beside, self.stream):
            with suppress(LaunchFailed):  # the error itself is told
                synchronize(stream)


class _Warm(NamedTuple):
    bound: Bound | Emulated
    shape: tuple[int, int]
    swapped: bool
    of_b: int    # elements from the start
    of_out: int
    of_work: int


_free: dict[int, list[_Place]] = {}  # by device
_lock = Lock()
_warm: dict[Any, _Warm | None] = {}
_UNKNOWN: Any = object()


def forget() -> None:
    """Choose and bind every product again."""
    _warm.clear()


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
    turned_a, turned_b = not a.flags.c_contiguous, not b.flags.c_contiguous
    if (turned_a and not a.flags.f_contiguous) or (turned_b and not b.flags.f_contiguous):
        return None
    key = (a.shape, b.shape, turned_a, turned_b, r.alpha, r.trans_a, r.trans_b, r.precision, gpu)
    warm = _warm.get(key, _UNKNOWN)  # looked up once: another thread may forget all
    if warm is _UNKNOWN:
        if len(_warm) >= LIMIT:
            forget()
        warm = _warm[key] = _bind(a.shape, b.shape, turned_a, turned_b, r, gpu)
    if warm is None:
        return None
    if r.out is None:
        result = np.empty(warm.shape, np.float32)
    else:
        result = library.host(r.out, "out")
        if result.shape != warm.shape or not result.flags.c_contiguous:
            return None
        arrays = {"a": a, "b": b, "out": result}
        refuse_overlap({name: host_view(x) for name, x in arrays.items()}, 0.0, arrays)
    try:
        _run(warm, a.T if turned_a else a, b.T if turned_b else b, result, gpu)
    except LaunchFailed as error:
        if not driver_out_of_memory(error):
            raise
        return None
    return library.wrap(result, r.a) if r.out is None else r.out


def _run(warm: _Warm, a: Any, b: Any, result: Any, gpu: Gpu) -> None:
    """The product of arrays that are packed by rows."""
    bound, _, swapped, of_b, of_out, of_work = warm
    with _place(gpu) as place:
        there = place.room(FLOAT * of_work + bound.workspace_bytes)
        first, second, to = there, there + FLOAT * of_b, there + FLOAT * of_out
        place.bring(a, b, first, second, gpu)
        if swapped:
            first, second = second, first
        space = there + FLOAT * of_work if bound.workspace_bytes else 0
        bound.launch(first, second, to, to, space, place.stream)
        place.fetch(to, result)


def run(r: Request, gpu: Gpu, resident: View | None = None) -> None:
    """``alpha a b + beta c`` into ``out``, all NumPy arrays of at least two dimensions, ``c`` of out's shape.

    ``resident``: ``b`` as it lies on the device, the current one, already.

    Raises:
        LaunchFailed: the driver refused; where it had no room for all, tiles may do with less.
    """
    dense, views = layouts(r, resident)
    arrays, size = {name: np.ascontiguousarray(x) for name, x in dense.items()}, 0
    for name, x in (*arrays.items(), ("out", r.out)):
        views[name] = views[name]._replace(pointer=FLOAT * size)
        size += _up(x.size)
    canonical = canonicalise(views["a"], views["b"], views.get("c"), views["out"], alpha=r.alpha, beta=r.beta)
    assert canonical.problem is not None  # see `mergeable`
    bound = bound_for(canonical.problem, gpu, choice_for(canonical.problem, gpu, r.precision))
    with _place(gpu) as place:
        there = place.room(FLOAT * size + bound.workspace_bytes)
        for name, x in arrays.items():
            views[name] = views[name]._replace(pointer=there + views[name].pointer)
            copy_pageable("cuMemcpyHtoDAsync_v2", views[name].pointer, _address(x), x.nbytes, place.stream)
        views["out"] = views["out"]._replace(pointer=there + views["out"].pointer)
        enqueue(bound, canonical, views, there + FLOAT * size if bound.workspace_bytes else 0, place.stream)
        result = r.out if r.out.flags.c_contiguous else np.empty(r.out.shape, np.float32)
        place.fetch(views["out"].pointer, result)
    if result is not r.out:
        np.copyto(r.out, result)


@contextmanager
def _place(gpu: Gpu) -> Iterator[_Place]:
    """Memory and streams for one call; after an error nothing uses them any more."""
    with pools.under_way(gpu.index):
        with _lock:
            kept = _free.setdefault(gpu.index, [])
            place = kept.pop() if kept else None
        place = place or _Place()
        try:
            yield place
        except BaseException:
            place.rest()
            raise
        finally:
            with _lock:
                kept.append(place)


def _address(x: Any) -> int:
    return int(x.__array_interface__["data"][0])


def _bind(a: tuple[int, ...], b: tuple[int, ...], turned_a: bool, turned_b: bool, r: Request, gpu: Gpu) -> _Warm | None:
    first = View.packed(a[::-1]).mT if turned_a else View.packed((a[0], a[1]))
    second = View.packed(b[::-1]).mT if turned_b else View.packed((b[0], b[1]))
    canonical = canonicalise(first, second, alpha=r.alpha, trans_a=r.trans_a, trans_b=r.trans_b)
    m, n = canonical.shape
    of_b, of_out = _up(a[0] * a[1]), _up(a[0] * a[1]) + _up(b[0] * b[1])
    of_work = of_out + _up(m * n)
    if canonical.problem is None or not m * n or FLOAT * of_work > MOST_BYTES:
        return None
    from ..selection import tuned

    tuned.remembering.add(forget)
    bound = bound_for(canonical.problem, gpu, choice_for(canonical.problem, gpu, r.precision))
    if bound.workspace_bytes > WORKSPACE_BYTES:
        return None
    return _Warm(bound, (m, n), canonical.swapped, of_b, of_out, of_work)


def _up(size: int) -> int:
    step = _ALIGNED // FLOAT
    return -(-size // step) * step
