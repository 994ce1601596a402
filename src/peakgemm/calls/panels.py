"""NumPy operands on the GPU: through pinned memory, in panels, so that copies run while the GPU computes.

A product is cut along one dimension of its result. What has that dimension is copied panel by panel; the
rest, usually B, goes to the device once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import prod
from threading import Lock, Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.base import FLOAT, View, driver_out_of_memory, packed
from ..errors import InvalidValue
from ..problem import Problem
from ..runtime.device import Gpu, activated
from ..runtime.memory import DeviceMemory, event, order, wait
from ..runtime.staging import Lane, Pinned, copy, lane
from ..runtime.transfer import IN_THREADS, OUT_THREADS, Copiers, threads
from .canonical import Canonical, canonicalise
from .launch import bound_for, choice_for, enqueue, without_workspace
from .request import Request

Array = NDArray[np.float32]
PANEL_BYTES = 64 << 20
LARGE_BYTES = 64 << 20  # less is one panel
THREADED_BYTES = 2 << 20  # of one copy: less is quicker by the thread that is there
RING = 3  # panels under way: one coming in, one being computed, one going out
_NAMES = ("a", "b", "c")


class Resident:
    """A host array's copy on a device: what `prepare` leaves there."""

    def __init__(self, x: Array, gpu: Gpu) -> None:
        self.gpu = gpu
        with lane(gpu.index) as way:
            self._memory, self.view = _upload(x, way, squeeze=False)


def run(r: Request, gpu: Gpu, resident: View | None = None, cut_at: tuple[int, list[slice]] | None = None) -> None:
    """``alpha a b + beta c`` into ``out``, all NumPy arrays of at least two dimensions, ``c`` of out's shape.

    ``resident``: ``b`` as it lies on the device already. ``cut_at``: along which dimension to cut, and where in the
    whole result whose part ``out`` is. Returns when ``out`` holds the result.

    Raises:
        OutOfMemory: a panel's split operands do not fit on the device.
        LaunchFailed: the driver refused something else, memory for the operands among it.
    """
    r = _mergeable(r, resident)
    if cut_at is None:
        axis = _axis(r)
        cuts = _cuts(r, axis)
    else:
        axis, places = cut_at
        cuts = [slice(cut.start - places[0].start, cut.stop - places[0].start) for cut in places]
    with lane(gpu.index) as way:
        memory: list[DeviceMemory] = []
        fixed: dict[str, View] = {} if resident is None else {"b": resident}
        for name in _NAMES:
            x = getattr(r, name)
            if x is not None and name not in fixed and _sliced(r, name, axis) is None:
                held, fixed[name] = _upload(x, way, squeeze=name == "c")
                memory.append(held)
        order(way.inward, way.compute)
        slots = [_Slot(way) for _ in range(min(RING, len(cuts)))]
        for i, cut in enumerate(cuts):
            slots[i % len(slots)].finish()
            slots[i % len(slots)].start(r, axis, cut, fixed, gpu)
        for i in range(len(slots)):
            slots[(len(cuts) + i) % len(slots)].finish()
        slots.clear()  # freed while the device is current
        memory.clear()


def spread(r: Request, gpus: Sequence[Gpu], resident: View | None = None) -> None:
    """`run`, its panels dealt out to several devices as they come to them. The cuts are those of one device.

    Raises:
        As `run`; the first error of a device stops all.
    """
    r = _mergeable(r, resident)
    axis = _axis(r)
    cuts, errors, lock = deque(_cuts(r, axis)), list[BaseException](), Lock()

    def work(gpu: Gpu) -> None:
        try:
            with activated(gpu.index):
                while not errors:
                    with lock:
                        taken = [cuts.popleft() for _ in range(min(RING, len(cuts)))]
                    if not taken:
                        return
                    run(_part(r, axis, slice(taken[0].start, taken[-1].stop)), gpu, resident, (axis, taken))
        except BaseException as error:
            errors.append(error)

    threads = [Thread(target=work, args=(gpu,), daemon=True) for gpu in gpus[1:]]
    for thread in threads:
        thread.start()
    work(gpus[0])
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _part(r: Request, axis: int, cut: slice) -> Request:
    """The product of one part of the result's dimension ``axis``."""
    parts: dict[str, Any] = {"out": r.out[(slice(None),) * axis + (cut,)]}
    for name in _NAMES:
        place = _sliced(r, name, axis)
        if place is not None:
            parts[name] = getattr(r, name)[(slice(None),) * place + (cut,)]
    return r._replace(**parts)


def problem(r: Request) -> Problem:
    """What `run` multiplies where the product is one panel."""
    r = _mergeable(r, None)
    canonical = _canonicalise(r, _planned(r))
    assert canonical.problem is not None
    return canonical.problem


class _Slot:
    """One panel under way at a time, with its buffers on both sides."""

    def __init__(self, way: Lane) -> None:
        self._way = way
        self._memory: dict[str, tuple[int, DeviceMemory, Pinned | None]] = {}
        self._workspace: DeviceMemory | None = None
        self._result: tuple[Array, int, Pinned | None] | None = None
        self._done: Any = None

    def start(self, r: Request, axis: int, cut: slice, fixed: dict[str, View], gpu: Gpu) -> None:
        """Enqueue copies in, computation and copy out of one panel."""
        views = dict(fixed)
        for name in _NAMES:
            place = _sliced(r, name, axis)
            if getattr(r, name) is not None and name not in fixed and place is not None:
                views[name] = self._copy_in(name, getattr(r, name)[(slice(None),) * place + (cut,)])
        target = r.out[(slice(None),) * axis + (cut,)]
        _, memory, pinned = self._room("out", FLOAT * target.size)
        views["out"] = View(memory.pointer, target.shape, packed(target.shape))
        order(self._way.inward, self._way.compute)
        canonical = _canonicalise(r, views)
        assert canonical.problem is not None  # `_mergeable` saw to it
        bound = bound_for(canonical.problem, gpu, choice_for(canonical.problem, gpu, r.precision))
        if bound.workspace_bytes and (self._workspace is None or self._workspace.size < bound.workspace_bytes):
            try:
                self._workspace = DeviceMemory(bound.workspace_bytes, self._way.compute)
            except Exception as error:
                if not driver_out_of_memory(error):
                    raise
                bound = without_workspace(error, bound, gpu)
        workspace = self._workspace.pointer if self._workspace and bound.workspace_bytes else 0
        enqueue(bound, canonical, views, workspace, self._way.compute)
        order(self._way.compute, self._way.outward)
        if pinned is not None:
            copy("cuMemcpyDtoHAsync_v2", pinned.address, memory.pointer, FLOAT * target.size, self._way.outward)
        self._result = target, memory.pointer, pinned
        self._done = event(self._way.outward)

    def finish(self) -> None:
        """Wait for the panel and put it into the result."""
        if self._result is not None:
            wait(self._done)
            target, pointer, pinned = self._result
            if pinned is not None:
                np.copyto(target, pinned.array(target.shape))
            else:
                for future in _copiers(self._way).download(pointer, target):
                    future.result()
            self._result = None

    def _copy_in(self, name: str, x: Array) -> View:
        dense, view = layout(x, squeeze=name == "c")
        size = FLOAT * dense.size
        _, memory, pinned = self._room(name, size)
        if pinned is not None:
            np.copyto(pinned.array(dense.shape), dense)
            copy("cuMemcpyHtoDAsync_v2", memory.pointer, pinned.address, size, self._way.inward)
        else:
            for future in _copiers(self._way).upload(dense, memory.pointer):
                future.result()
        return view._replace(pointer=memory.pointer)

    def _room(self, name: str, size: int) -> tuple[int, DeviceMemory, Pinned | None]:
        """The slot's memory for an operand, with a pinned buffer where one thread copies."""
        found = self._memory.get(name)
        if found is None or found[0] < size:
            pinned = self._way.pinned(size) if size < THREADED_BYTES else None
            found = self._memory[name] = size, DeviceMemory(size, self._way.inward), pinned
        return found


def _copiers(way: Lane) -> Copiers:
    return way.copiers(threads(IN_THREADS), threads(OUT_THREADS))


def layout(x: Array, squeeze: bool) -> tuple[Array, View]:
    """What to copy to the device for ``x``, and how ``x`` reads there (address 0).

    The last two dimensions are copied in the order in which they lie, and broadcast batch dimensions
    once; with ``squeeze`` broadcast rows and columns too.
    """
    collapsible = x.ndim if squeeze else x.ndim - 2
    once = tuple(i < collapsible and step == 0 and size > 1
                 for i, (step, size) in enumerate(zip(x.strides, x.shape, strict=True)))
    dense = x[tuple(slice(0, 1) if yes else slice(None) for yes in once)]
    flip = min(dense.shape[-2:]) > 1 and abs(dense.strides[-2]) < abs(dense.strides[-1])
    if flip:
        dense = np.swapaxes(dense, -1, -2)
    view = View.packed(dense.shape)
    if flip:
        view = view.mT
    assert view.strides is not None
    strides = tuple(0 if yes else step for yes, step in zip(once, view.strides, strict=True))
    return dense, View(0, x.shape, strides)


def _upload(x: Array, way: Lane, squeeze: bool) -> tuple[DeviceMemory, View]:
    """A whole array: by several threads, or a small one through two pinned buffers in turn."""
    if x.ndim == 1:
        x = x[None, :]
        memory, view = _upload(x, way, squeeze)
        return memory, View(view.pointer, x.shape[1:], (1,))
    dense, view = layout(x, squeeze)
    memory = DeviceMemory(FLOAT * dense.size, way.inward)
    if dense.nbytes >= THREADED_BYTES:
        for future in _copiers(way).upload(dense, memory.pointer):
            future.result()
        return memory, view._replace(pointer=memory.pointer)
    row = FLOAT * prod(dense.shape[1:])
    step = max(1, PANEL_BYTES // 2 // max(row, 1))
    buffers: list[tuple[Pinned, Any]] = []
    lows = range(0, dense.shape[0] if dense.size else 0, step)
    for i, low in enumerate(lows):
        part = dense[low:low + step]
        if i < 2:
            pinned = way.pinned(FLOAT * part.size)
        else:
            pinned, done = buffers[i - 2]
            wait(done)
        np.copyto(pinned.array(part.shape), part)
        copy("cuMemcpyHtoDAsync_v2", memory.pointer + low * row, pinned.address, FLOAT * part.size, way.inward)
        buffers.append((pinned, event(way.inward) if i + 2 < len(lows) else None))  # an event that is waited for
    return memory, view._replace(pointer=memory.pointer)


def _axis(r: Request) -> int:
    """Which dimension of the result to cut: the outermost of the batch where it is long, else the rows."""
    return 0 if r.out.ndim > 2 and r.out.shape[0] >= 2 * RING else int(r.out.ndim - 2)


def _sliced(r: Request, name: str, axis: int) -> int | None:
    """The dimension of an operand that is cut along; None: it is needed whole."""
    x = getattr(r, name)
    if x is None or (name == "b" and axis == r.out.ndim - 2):
        return None
    place = int(x.ndim - r.out.ndim + axis)
    return place if place >= 0 and x.shape[place] == r.out.shape[axis] else None


def _cuts(r: Request, axis: int) -> list[slice]:
    """Where to cut: panels of about `PANEL_BYTES`, of full tiles where rows are cut."""
    extent = r.out.shape[axis]
    moved = r.out.nbytes + sum(getattr(r, x).nbytes for x in _NAMES if _sliced(r, x, axis) is not None)
    if moved < LARGE_BYTES:
        return [slice(0, extent)]
    step = max(1, PANEL_BYTES * extent // moved)
    if axis == r.out.ndim - 2 and step > 256:
        step -= step % 256
    return [slice(low, min(low + step, extent)) for low in range(0, extent, step)]


def _canonicalise(r: Request, views: dict[str, View]) -> Canonical:
    return canonicalise(views["a"], views["b"], views.get("c"), views["out"], alpha=r.alpha, beta=r.beta)


def _planned(r: Request) -> dict[str, View]:
    """The arrays as they would read on the device."""
    views = {name: layout(getattr(r, name), name == "c")[1] for name in _NAMES if getattr(r, name) is not None}
    return views | {"out": View.packed(r.out.shape)}


def _mergeable(r: Request, resident: View | None) -> Request:
    """``r`` with those operands copied whose batch would not merge on the device."""
    for _ in range(2):
        views = _planned(r)
        if resident is not None:
            views["b"] = resident._replace(pointer=0)
        canonical = _canonicalise(r, views)
        if canonical.problem is not None:
            return r
        if resident is not None and "b" in canonical.copies:
            raise InvalidValue(f"b {r.b.shape} is prepared in a layout that this batch cannot use; pass b itself")
        copies: dict[str, Any] = {name: np.array(np.broadcast_to(getattr(r, name), shape), order="C")
                                  for name, shape in canonical.copies.items() if name != "out"}
        r = r._replace(**copies)
    raise AssertionError("packed operands always merge")
