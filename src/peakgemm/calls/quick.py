"""Small products of two packed host matrices: one stream, one look-up, and the driver's own copies.

At 256^3 `panels`, which takes any product, costs 300 us of the host against a driver that does nothing. The driver moves
pageable memory through buffers of its own, by the calling thread, and faster than NumPy copies it into pinned ones. Up to
the largest of `ROOMS` that also beats the threads of `peakgemm.runtime.transfer` (docs/notebook/23-host-arrays.md).
"""

from __future__ import annotations

from ctypes import c_size_t, c_void_p
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..arrays.base import FLOAT, HostLibrary, View, driver_out_of_memory
from ..arrays.numpy import host_view
from ..errors import LaunchFailed
from ..runtime import driver
from ..runtime.device import Gpu
from ..runtime.memory import DeviceMemory
from ..runtime.staging import new_stream, synchronize
from .canonical import canonicalise
from .launch import bound_for, choice_for
from .request import Request, refuse_overlap

if TYPE_CHECKING:
    from ..kernels.bound import Bound
    from ..kernels.emulated.bound import Emulated

ROOMS = (8 << 20, 64 << 20)  # bytes of both operands, the result and a workspace, kept on a device: one of these
LIMIT = 4096           # remembered products; then all are forgotten
_ALIGNED = 256         # bytes


class _Place:
    """Memory on a device and a stream, for one call at a time: to allocate costs as much as the call."""

    def __init__(self, room: int) -> None:
        self.stream = new_stream()
        self.memory = DeviceMemory(room, self.stream)


class _Warm(NamedTuple):
    bound: Bound | Emulated
    shape: tuple[int, int]
    swapped: bool
    of_b: int    # elements from the start
    of_out: int
    of_work: int
    room: int    # of `ROOMS`


_free: dict[tuple[int, int], list[_Place]] = {}  # by device and room
_lock = Lock()
_warm: dict[Any, _Warm | None] = {}


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
    if a.ndim != 2 or b.ndim != 2 or a.nbytes + b.nbytes > ROOMS[-1]:
        return None
    turned_a, turned_b = not a.flags.c_contiguous, not b.flags.c_contiguous
    if (turned_a and not a.flags.f_contiguous) or (turned_b and not b.flags.f_contiguous):
        return None
    key = (a.shape, b.shape, turned_a, turned_b, r.alpha, r.trans_a, r.trans_b, r.precision, gpu)
    if key in _warm:
        warm = _warm[key]
    else:
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
    if not _run(warm, a, b, result, gpu):
        return None
    return library.wrap(result, r.a) if r.out is None else r.out


def _run(warm: _Warm, a: Any, b: Any, result: Any, gpu: Gpu) -> bool:
    """The product into ``result``; False: there is no room, and others do with less."""
    bound, _, swapped, of_b, of_out, of_work, room = warm
    with _lock:
        kept = _free.setdefault((gpu.index, room), [])
        place = kept.pop() if kept else None
    if place is None:
        try:
            place = _Place(room)
        except LaunchFailed as error:
            if not driver_out_of_memory(error):
                raise
            return False
    there, stream = place.memory.pointer, place.stream
    first, second, to = there, there + FLOAT * of_b, there + FLOAT * of_out
    try:
        for x, at in ((a, first), (b, second)):
            _copy("cuMemcpyHtoDAsync_v2", at, x.__array_interface__["data"][0], x.nbytes, stream)
        if swapped:
            first, second = second, first
        bound.launch(first, second, to, to, there + FLOAT * of_work if bound.workspace_bytes else 0, stream)
        _copy("cuMemcpyDtoHAsync_v2", result.__array_interface__["data"][0], to, result.nbytes, stream)
    finally:
        try:
            synchronize(stream)  # of memory that is pinned the driver only enqueues the copies
        finally:
            with _lock:
                kept.append(place)
    return True


def _copy(call: str, to: int, source: int, size: int, stream: int) -> None:
    """Of memory that need not be pinned: other threads have the interpreter meanwhile."""
    driver.demand(f"copy of {size:,} bytes between host and device", call, c_void_p(to), c_void_p(source),
                  c_size_t(size), c_void_p(stream))


def _bind(a: tuple[int, ...], b: tuple[int, ...], turned_a: bool, turned_b: bool, r: Request, gpu: Gpu) -> _Warm | None:
    first = View.packed(a[::-1]).mT if turned_a else View.packed((a[0], a[1]))
    second = View.packed(b[::-1]).mT if turned_b else View.packed((b[0], b[1]))
    canonical = canonicalise(first, second, alpha=r.alpha, trans_a=r.trans_a, trans_b=r.trans_b)
    m, n = canonical.shape
    of_b, of_out = _up(a[0] * a[1]), _up(a[0] * a[1]) + _up(b[0] * b[1])
    of_work = of_out + _up(m * n)
    if canonical.problem is None or not m * n or FLOAT * of_work > ROOMS[-1]:
        return None
    from ..selection import tuned

    tuned.remembering.add(forget)
    bound = bound_for(canonical.problem, gpu, choice_for(canonical.problem, gpu, r.precision))
    room = next((room for room in ROOMS if FLOAT * of_work + bound.workspace_bytes <= room), None)
    return None if room is None else _Warm(bound, (m, n), canonical.swapped, of_b, of_out, of_work, room)


def _up(size: int) -> int:
    step = _ALIGNED // FLOAT
    return -(-size // step) * step
