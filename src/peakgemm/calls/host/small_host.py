"""Small products of host arrays in one launch: one stream, and the driver's own copies.

Of two packed matrices a product takes one look-up; what has other strides, a batch or a ``c`` is packed by NumPy first.
The driver moves pageable memory through buffers of its own, and faster than NumPy copies it into pinned ones, but one
array at a time. So where the operands are large another thread stages the second one meanwhile. Up to `MOST_BYTES` all
that beats the many threads of tiles (docs/notebook/23-host-arrays.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ...arrays.base import FLOAT, HostLibrary, View, driver_out_of_memory, refuse_overlap
from ...arrays.numpy import host_view
from ...errors import LaunchFailed
from ...runtime import pools
from ...runtime.device import Gpu
from ...runtime.lanes import Reserve
from ...runtime.memory import GrowingMemory, copy_in, copy_out, new_stream, order, synchronize
from ...runtime.transfer import LEAST_BYTES, Upload, Uploader, address_of
from ..launch import BoundCall, bound_call, calls
from ..request import Request
from .panel import layout, layouts

# Of both operands and the result. Of a square product that is a result of 32 MB: larger ones malloc takes from the
# system at each call, and threads share the work of touching new pages.
MOST_BYTES = 96 << 20
SHARED_BYTES = 4 << 20       # of both operands: at 768^3 another thread gains 3 %, at 512^3 it loses as much
WORKSPACE_BYTES = 128 << 20  # it is kept as well; the largest square's by tf32x3, the most of all schemes, has 123 MB
_ALIGNED = 256               # bytes


class _Scratch:
    """Memory on a device and streams, for one call at a time. With memory allocated for each call 256^3 took 1.17 of
    torch's time, with this 0.72 (docs/notebook/23-host-arrays.md)."""

    def __init__(self, index: int) -> None:
        self._index, self.stream, self._beside = index, new_stream(), new_stream()
        self.memory = GrowingMemory()
        self._uploader: Uploader | None = None

    def upload(self, arrays: Sequence[tuple[Any, int]]) -> None:
        """Copy packed arrays to their addresses; what is enqueued on ``stream`` from now on finds them there."""
        beside: Upload | None = None
        if len(arrays) > 1 and arrays[0][0].nbytes + arrays[1][0].nbytes >= SHARED_BYTES:
            if self._uploader is None:
                self._uploader = Uploader(self._index, self._beside, 1, LEAST_BYTES)
            order(self.stream, self._beside)  # on which the memory may just have been allocated
            beside = self._uploader.upload(*arrays[1])
            arrays = [arrays[0], *arrays[2:]]
        try:
            for x, pointer in arrays:
                copy_in(pointer, address_of(x), x.nbytes, self.stream, pageable=True)
        finally:
            if beside is not None:
                beside.order(self.stream)

    def download(self, source: int, result: Any) -> None:
        """Copy what ``stream`` has computed at ``source`` into a packed array; it lies there."""
        copy_out(address_of(result), source, result.nbytes, self.stream, pageable=True)
        synchronize(self.stream)  # of memory that is pinned the driver only enqueues the copies

    def close(self) -> None:
        """End the thread that copies, if there is one."""
        if self._uploader is not None:
            self._uploader.close()

    def rest(self) -> None:
        """Until neither stream does anything: after an error there may be copies that no product waits for."""
        for stream in (self._beside, self.stream):
            with suppress(LaunchFailed):  # the error itself is raised
                synchronize(stream)


_SCRATCH = Reserve(_Scratch)
_calls: dict[Any, Any] = calls


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
    if a.ndim != 2 or b.ndim != 2:
        return None
    column_major_a, column_major_b = not a.flags.c_contiguous, not b.flags.c_contiguous
    if (column_major_a and not a.flags.f_contiguous) or (column_major_b and not b.flags.f_contiguous):
        return None
    shape = a.shape[int(r.trans_a)], b.shape[1 - r.trans_b]
    offsets = _offsets({"a": a.size, "b": b.size, "out": shape[0] * shape[1]})
    if 0 in shape or offsets["workspace"] > MOST_BYTES:
        return None
    key = ("host", a.shape, b.shape, column_major_a, column_major_b, *r[4:9], gpu)
    call: BoundCall | None = _calls.get(key)  # looked up once: another thread may forget all
    if call is None:
        call = bound_call(r, {"a": layout(a, squeeze=False)[1], "b": layout(b, squeeze=False)[1]}, gpu.index, key)
    if call.workspace_bytes > WORKSPACE_BYTES:
        return None
    if r.out is None:
        result = np.empty(shape, np.float32)
    else:
        result = library.host(r.out, "out")
        if result.shape != shape or not result.flags.c_contiguous:
            return None
        arrays = {"a": a, "b": b, "out": result}
        refuse_overlap({name: host_view(x) for name, x in arrays.items()}, 0.0, arrays)
    if not _launch(call, offsets, {"a": a.T if column_major_a else a, "b": b.T if column_major_b else b}, result, gpu):
        return None
    return library.wrap(result, r.a) if r.out is None else r.out


def run(r: Request, gpu: Gpu, resident: View | None = None) -> bool:
    """``alpha a b + beta c`` into ``out``, all NumPy arrays of at least two dimensions, ``c`` of out's shape; whether
    the device had room for all. Tiles may do with less.

    ``resident``: ``b`` as it lies on the device, the current one, already.

    Raises:
        LaunchFailed: the driver refused something else.
    """
    dense, views = layouts(r, resident)
    arrays = {name: np.ascontiguousarray(x) for name, x in dense.items()}
    result = r.out if r.out.flags.c_contiguous else np.empty(r.out.shape, np.float32)
    offsets = _offsets({name: x.size for name, x in arrays.items()} | {"out": result.size})
    views = {name: view._replace(pointer=offsets.get(name, view.pointer)) for name, view in views.items()}
    if not _launch(bound_call(r, views, gpu.index), offsets, arrays, result, gpu, resident):
        return False
    if result is not r.out:
        np.copyto(r.out, result)
    return True


def _launch(call: BoundCall, offsets: dict[str, int], arrays: dict[str, Any], result: Any, gpu: Gpu,
            resident: View | None = None) -> bool:
    """The product of arrays that are packed by rows and go to ``offsets``, if there is room; after an error nothing is
    under way any more."""
    with pools.under_way(gpu.index), _SCRATCH.take(gpu.index) as scratch:
        try:
            start = scratch.memory.reserve(offsets["workspace"] + call.workspace_bytes, scratch.stream)
            at = {name: start + offset for name, offset in offsets.items()}
            scratch.upload([(x, at[name]) for name, x in arrays.items()])
            if resident is not None:
                at["b"] = resident.pointer
            first, second = ("b", "a") if call.swapped else ("a", "b")
            call.launch(at[first], at[second], at["out"], at["out" if call.in_place else "c"],
                        at["workspace"] if call.workspace_bytes else 0, scratch.stream)
            scratch.download(at["out"], result)
        except BaseException as error:
            scratch.rest()
            if isinstance(error, LaunchFailed) and driver_out_of_memory(error):
                return False
            raise
        return True


def _offsets(sizes: dict[str, int]) -> dict[str, int]:
    """Where arrays of so many elements lie one after the other, and behind them a workspace (bytes)."""
    offsets, size = {}, 0
    for name, count in sizes.items():
        offsets[name] = size
        size += -(-FLOAT * count // _ALIGNED) * _ALIGNED
    return offsets | {"workspace": size}
