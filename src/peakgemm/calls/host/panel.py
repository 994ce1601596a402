"""Operands in the host's memory on a device: how they are copied there and read, and panels of them on their way."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from ...arrays.base import FLOAT, View
from ...runtime import peers
from ...runtime.device import Gpu, activated
from ...runtime.lanes import Lane, lane
from ...runtime.memory import DeviceMemory, behind, event
from ...runtime.transfer import Upload
from ..request import Request
from .grid import PanelKey

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


class Panel:
    """Memory for a panel on the device of ``way``, for ``dense``, which reads there as ``view``.

    Attributes:
        upload: its copy from the host or from another device, once somebody has begun it.
        source: the panel on another device that it is to be copied from.
    """

    def __init__(self, way: Lane, dense: Array, view: View) -> None:
        self.way, self._dense, self.size = way, dense, dense.nbytes
        self.memory = DeviceMemory(dense.nbytes, way.inward)
        self.view = view._replace(pointer=self.memory.pointer)
        self.upload: Upload | None = None
        self.source: Panel | None = None

    def copy_from_host(self) -> None:
        """Have it copied from the host."""
        self.upload = self.way.uploader.upload(self._dense, self.view.pointer)

    def copy_from_source(self, waiting: bool = True) -> None:
        """Enqueue the copy from another device, once the one that brings the panel there is: now, or if ``waiting``.

        Raises:
            LaunchFailed: the driver refused that or this; asked again, it is tried again.
        """
        source, inward = self.source, self.way.inward
        if source is None or source.upload is None or not (waiting or source.upload.is_enqueued):
            return
        for future in source.upload.futures:
            future.result()
        with activated(source.way.index):
            mark = event(source.way.inward)
        behind(mark, inward)
        peers.copy(self.view.pointer, self.way.index, source.view.pointer, source.way.index, self.size, inward)
        self.upload, self.source = Upload(inward, mark=event(inward)), None

    def wait(self, *streams: int) -> None:
        """All that ``streams`` do from now on waits for its copy, which is enqueued when this returns."""
        self.copy_from_source()
        assert self.upload is not None
        self.upload.order(*streams)

    def end(self) -> None:
        """No thread copies to it any more, and it is not waited for."""
        if self.upload is not None:
            with suppress(Exception):
                self.upload.order()


def resident(x: Array, gpu: Gpu) -> Panel:
    """A whole host array on a device, what `prepare` leaves there; a vector as a column."""
    with lane(gpu.index) as way:
        panel = Panel(way, *layout(x[:, None] if x.ndim == 1 else x, squeeze=False))
        panel.copy_from_host()
        panel.wait()
    return panel
