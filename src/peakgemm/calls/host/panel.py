"""What a product reads of its operands on a device: panels there, or on their way, which several threads see to."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...arrays.base import FLOAT, View, driver_out_of_memory
from ...errors import LaunchFailed
from ...runtime.device import Gpu
from ...runtime.lanes import lane
from ...runtime.memory import DeviceMemory, behind, event
from ...runtime.timeline import stream_span
from ...runtime.transfer import IN_THREADS, OUT_THREADS, threads
from ..request import Request
from .tile_queue import PanelKey, Transfer

if TYPE_CHECKING:
    from ...problem import Problem
    from ...selection.choose import Choice

Array = NDArray[np.float32]


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


def layouts(r: Request, resident: View | None = None) -> tuple[dict[str, Array], dict[str, View]]:
    """`layout` of all operands, ``resident`` in the place of ``b`` where it lies on the device; ``out`` is packed."""
    arrays, views = dict[str, Array](), {"out": View.packed(r.out.shape)}
    for name, x in r.arrays().items():
        if name == "b" and resident is not None:
            views[name] = resident
        elif name != "out":
            arrays[name], views[name] = layout(x, squeeze=name == "c")
    return arrays, views


class Resident:
    """A host array's copy on a device, what `prepare` leaves there; ``view``: how it reads, a vector as a column."""

    def __init__(self, x: Array, gpu: Gpu) -> None:
        self.gpu = gpu
        dense, view = layout(x[:, None] if x.ndim == 1 else x, squeeze=False)
        with lane(gpu.index) as way:
            self._memory = DeviceMemory(dense.nbytes, way.inward)
            self.view = view._replace(pointer=self._memory.pointer)
            for future in way.copiers(threads(IN_THREADS), threads(OUT_THREADS)).upload(dense, self.view.pointer):
                if (mark := future.result()) is not None:
                    behind(mark)


class Panel:
    """Rows of A or columns of B on the device, or on their way there from the host, or from another device."""

    def __init__(self, memory: Any, view: View, size: int) -> None:
        self.memory, self.view, self.size = memory, view, size
        self.futures: list[Future[Any]] = []
        self.transfer: Transfer | None = None
        self.again: Any = None  # what to copy where the transfer comes to nothing
        self.mark: Any = None
        self._settled = False

    def settle(self, streams: tuple[int, ...], inward: int) -> None:
        """All that ``streams`` do from now on waits for its copy, which is enqueued when this returns."""
        if self._settled:
            return
        marks = [mark for mark in (*[future.result() for future in self.futures], self.mark) if mark is not None]
        if not marks and self.futures:
            marks = [event(inward)]
        for mark in marks:
            behind(mark, *streams)
        self.futures, self.mark, self._settled = [], None, True

    def end(self) -> None:
        """No thread copies to it any more, and it is not waited for."""
        for future in self.futures:
            with suppress(Exception):
                if (mark := future.result()) is not None:
                    behind(mark)
        if self.mark is not None:
            behind(self.mark)
        self.futures, self.mark = [], None


def part(whole: View, key: PanelKey) -> View:
    """The panel that ``key`` names of an operand that lies on the device as ``whole``."""
    assert whole.strides is not None
    index = key.slices[-len(whole.shape):]
    shape = tuple(len(range(size)[at]) for size, at in zip(whole.shape, index, strict=True))
    first = sum(step * (at.start or 0) for step, at in zip(whole.strides, index, strict=True))
    return View(whole.pointer + FLOAT * first, shape, whole.strides)


def spread(view: View, batch: tuple[int, ...]) -> View:
    """A panel as the matrices of a tile read it, some of them the same."""
    assert view.strides is not None
    own = tuple(0 if size == 1 else step for size, step in zip(view.shape[:-2], view.strides[:-2], strict=True))
    return View(view.pointer, (*batch, *view.shape[-2:]), (*(0,) * (len(batch) - len(own)), *own, *view.strides[-2:]))


class SplitPanels:
    """Panels split for tensor cores once, for all tiles that read them: the pass would else take 10 to 20 % of a tile.
    As long as there is room on the device."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._held: dict[PanelKey, tuple[DeviceMemory, int]] = {}
        self._used = 0

    def clear(self) -> None:
        """Let go of all."""
        self._held.clear()
        self._used = 0

    def bound(self, choice: Choice, problem: Problem, views: dict[str, View], keys: tuple[PanelKey, PanelKey],
              stream: int, streams: tuple[int, ...], room: int) -> Any:
        """The product of a tile that reads its panels split; None where ``choice`` is no kernel that does for both
        operands, or where more than ``room`` bytes would be held."""
        from ...kernels.bound import Bound

        scheme = choice.kernel.family.scheme
        if scheme is None or choice.kernel.split_before(choice.config) != "ab" or problem.batch.sizes:
            return None
        ready: list[int] = []
        for side, key in zip("ab", keys, strict=True):
            if key not in self._held and not self._split(side, key, problem, scheme, views, stream, streams, room):
                return None
            ready.append(self._held[key][1])
        return Bound(choice.kernel, choice.config, problem, self._gpu, *ready)

    def _split(self, side: str, key: PanelKey, problem: Problem, scheme: Any, views: dict[str, View], stream: int,
               streams: tuple[int, ...], room: int) -> bool:
        from ...kernels.emulated.product import SplitOperand

        split = SplitOperand(scheme, problem, self._gpu, side)
        if self._used + split.bytes > room:
            return False
        try:
            memory = DeviceMemory(split.bytes, stream)
        except LaunchFailed as error:
            if not driver_out_of_memory(error):
                raise
            return False
        with stream_span(self._gpu.index, "split", stream, split.bytes):
            split.launch(views[side].pointer, memory.pointer, stream)
        for other in streams:
            if other != stream:
                behind(event(stream), other)
        self._held[key] = memory, memory.pointer + SplitOperand.PANELS
        self._used += split.bytes
        return True
