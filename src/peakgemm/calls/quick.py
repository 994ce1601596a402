"""Small products of two packed host matrices: memory kept from call to call, one stream, one look-up.

At 256^3 `panels`, which takes any product, costs 300 us of the host against a driver that does nothing; this costs 50,
half of it NumPy's copies (CPython 3.11). Larger arrays are copied in pieces, each of which the copy engine moves while
this thread copies the next one: to hand pieces to other threads costs more than it gains up to 2048^3 (by several
threads 5 and 9 ms at 1024^3 and there, by torch's one 2 and 7: docs/notebook/23-host-arrays.md).
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..arrays.base import FLOAT, HostLibrary, View
from ..runtime.device import Gpu
from ..runtime.memory import DeviceMemory, await_event, new_event, record
from ..runtime.staging import Pinned, copy, new_stream, synchronize
from .canonical import canonicalise
from .launch import bound_for, choice_for
from .request import Request

if TYPE_CHECKING:
    from ..kernels.bound import Bound
    from ..kernels.emulated.bound import Emulated

ROOMS = (8 << 20, 64 << 20)  # bytes of both operands and the result, kept on a device and pinned: one of these
PIECE = (1 << 20) // FLOAT  # elements: half of a core's second-level cache, from which the engine reads
WORKSPACE_BYTES = 16 << 20  # kept too; a product that wants more goes the long way
LIMIT = 4096                # remembered products; then all are forgotten
_ALIGNED = 256              # bytes


class _Place:
    """Memory on both sides and a stream, for one call at a time."""

    def __init__(self, room: int) -> None:
        self.stream = new_stream()
        self.device, self.pinned = DeviceMemory(room, self.stream), Pinned(room)
        self.workspace: DeviceMemory | None = None
        self.flat = self.pinned.array((room // FLOAT,))
        self.arrived: list[Any] = []  # an event for each piece of a result

    def bring(self, x: Any, place: int) -> None:
        """Copy the packed ``x`` to the ``place``-th element and on."""
        for low in range(0, x.size, PIECE):
            part, first = x[low:low + PIECE], place + low
            self.flat[first:first + part.size] = part
            copy("cuMemcpyHtoDAsync_v2", self.device.pointer + FLOAT * first, self.pinned.address + FLOAT * first,
                 part.nbytes, self.stream)

    def fetch(self, place: int, size: int, shape: tuple[int, ...]) -> Any:
        """``size`` elements from the ``place``-th on as a new array, once what is on the stream has run."""
        count = -(-size // PIECE)
        while len(self.arrived) < count:
            self.arrived.append(new_event())
        for i in range(count):
            first = place + i * PIECE
            copy("cuMemcpyDtoHAsync_v2", self.pinned.address + FLOAT * first, self.device.pointer + FLOAT * first,
                 FLOAT * min(PIECE, size - i * PIECE), self.stream)
            record(self.arrived[i], self.stream)
        result = np.empty(shape, np.float32)
        flat = result.reshape(-1)
        for i in range(count):
            await_event(self.arrived[i])
            part = flat[i * PIECE:(i + 1) * PIECE]
            part[:] = self.flat[place + i * PIECE:place + i * PIECE + part.size]
        return result

    def workspace_for(self, size: int) -> int:
        if not size:
            return 0
        if self.workspace is None or self.workspace.size < size:
            self.workspace = DeviceMemory(size, self.stream)
        return self.workspace.pointer


class _Warm(NamedTuple):
    bound: Bound | Emulated
    shape: tuple[int, int]
    swapped: bool
    of_b: int    # elements from the start
    of_out: int
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
        LaunchFailed: the driver refused.
    """
    r = request
    if r.c is not None or r.out is not None or r.beta != 0:
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
    bound, shape, swapped, of_b, of_out, room = warm
    with _lock:
        kept = _free.setdefault((gpu.index, room), [])
        place = kept.pop() if kept else None
    if place is None:
        place = _Place(room)
    try:
        there = place.device.pointer
        place.bring((a.T if turned_a else a).reshape(-1), 0)
        place.bring((b.T if turned_b else b).reshape(-1), of_b)
        first, second, to = there, there + FLOAT * of_b, there + FLOAT * of_out
        if swapped:
            first, second = second, first
        bound.launch(first, second, to, to, place.workspace_for(bound.workspace_bytes), place.stream)
        result = place.fetch(of_out, shape[0] * shape[1], shape)
    except BaseException:
        synchronize(place.stream)
        raise
    finally:
        with _lock:
            kept.append(place)
    return library.wrap(result, r.a)


def _bind(a: tuple[int, ...], b: tuple[int, ...], turned_a: bool, turned_b: bool, r: Request, gpu: Gpu) -> _Warm | None:
    first = View.packed(a[::-1]).mT if turned_a else View.packed((a[0], a[1]))
    second = View.packed(b[::-1]).mT if turned_b else View.packed((b[0], b[1]))
    canonical = canonicalise(first, second, alpha=r.alpha, trans_a=r.trans_a, trans_b=r.trans_b)
    m, n = canonical.shape
    of_b, of_out = _up(a[0] * a[1]), _up(a[0] * a[1]) + _up(b[0] * b[1])
    room = next((room for room in ROOMS if FLOAT * (of_out + m * n) <= room), None)
    if canonical.problem is None or not m * n or room is None:
        return None
    from ..selection import tuned

    tuned.remembering.add(forget)
    bound = bound_for(canonical.problem, gpu, choice_for(canonical.problem, gpu, r.precision))
    if bound.workspace_bytes > WORKSPACE_BYTES:
        return None
    return _Warm(bound, (m, n), canonical.swapped, of_b, of_out, room)


def _up(size: int) -> int:
    step = _ALIGNED // FLOAT
    return -(-size // step) * step
