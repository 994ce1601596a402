"""One device at work on tiles of a product of host arrays: panels in, products, results out, all at a time.

The thread that calls `Worker.run` asks for panels some tiles ahead and launches each product when the copies of its
panels are enqueued. A second thread has the results copied out, see `Results`. Other threads do the copying, see
`peakgemm.runtime.transfer`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ...arrays.base import FLOAT, View, driver_out_of_memory
from ...errors import LaunchFailed
from ...runtime import driver
from ...runtime.device import Gpu
from ...runtime.lanes import Lane
from ...runtime.memory import GrowingMemory, event
from ..canonical import Canonical, canonicalise
from ..launch import bound_for, choice_for, enqueue, no_room
from ..request import REPRODUCIBLE
from .grid import Tile
from .panel import layout
from .panel_cache import PanelCache
from .results import Results, Slot
from .tile_queue import Job

if TYPE_CHECKING:
    from ...problem import Problem
    from ...selection.choose import Choice


class _Binding(NamedTuple):
    """What computes a tile: chosen for panels that are split already, where that is worth a try, and for others."""

    canonical: Canonical
    problem: Problem
    if_split: Choice | None
    whole: Choice


class Worker:
    """A device with what it keeps of a product: panels, up to ``budget`` bytes of them, and ``slots`` results."""

    def __init__(self, job: Job, index: int, gpu: Gpu, way: Lane, budget: int, slots: int) -> None:
        self._job, self._index, self._gpu, self._way = job, index, gpu, way
        self._panels = PanelCache(job, gpu, way, budget)
        self._results = Results(way, job, slots)
        self._lanes = [(stream, GrowingMemory()) for stream in (way.compute, way.beside)]  # with workspaces
        self._bindings: dict[Any, _Binding] = {}

    def run(self) -> None:
        """Compute tiles until none is left; an error ends the whole product. The device is current."""
        try:
            with self._results, driver.hold_gil():
                self._work()
        except BaseException as error:
            self._job.queue.fail(error)

    def rest(self) -> None:
        """Until nothing runs on the device's streams: a panel that it has asked another device for and then not needed
        may still be on its way, out of memory that the other one frees in the order of its own streams."""
        with suppress(LaunchFailed):  # which is raised when the lane is given back
            self._way.wait()

    def free(self) -> None:
        """Free what is held, in the order of its stream. The device is current."""
        self._panels.free()
        self._results.free()
        for _, workspace in self._lanes:
            workspace.free()

    def _work(self) -> None:
        while (tile := self._job.queue.take(self._index)) is not None:
            refused = self._panels.bring(tile, self._job.queue.upcoming(self._index))
            if refused is not None:
                self._halve(tile, refused)
                continue
            slot = self._results.take_slot()
            try:
                self._launch(tile, slot)
            except BaseException as error:
                self._results.give_back(slot)
                if not isinstance(error, LaunchFailed) or not driver_out_of_memory(error):
                    raise
                # No room for a result or a workspace: panels go, or the tile gets smaller.
                if self._panels.shrink(tile, FLOAT * 2 * tile.area):
                    self._job.queue.give_back(self._index, [tile])
                else:
                    self._halve(tile, error)
            else:
                self._lanes.reverse()  # the next product runs beside this one

    def _halve(self, tile: Tile, refused: Exception) -> None:
        """A tile for which there is no room goes back in halves.

        Raises:
            OutOfMemory: it is a single element.
        """
        halves = tile.halves()
        if len(halves) == 1:
            size = 2 * FLOAT * self._job.request.a.shape[-1]
            raise no_room(refused, f"a row of A and a column of B, {size:,} bytes,", self._gpu, "",
                          ["split the product along K"]) from refused
        self._job.queue.give_back(self._index, halves)

    def _launch(self, tile: Tile, slot: Slot) -> None:
        r, (stream, workspace) = self._job.request, self._lanes[0]
        views = self._panels.views(tile)
        views["out"] = View.packed(tile.shape)._replace(pointer=slot.out.reserve(FLOAT * tile.area, stream))
        if r.c is not None:
            dense, view = layout(r.c[tile.slices], squeeze=True)
            views["c"] = view._replace(pointer=slot.c.reserve(dense.nbytes, self._way.inward))
            self._way.uploader.upload(dense, slot.c.pointer).order(stream)
        canonical, problem, if_split, whole = self._bind(views)
        bound = self._panels.split_product(if_split, problem, tile, views, stream) if if_split else None
        bound = bound or bound_for(problem, self._gpu, whole)
        memory = workspace.reserve(bound.workspace_bytes, stream) if bound.workspace_bytes else 0
        enqueue(bound, canonical, views, memory, stream)
        self._results.send(event(stream, sleeping=True), tile, slot)

    def _bind(self, views: dict[str, View]) -> _Binding:
        """Chosen once for all tiles that lie alike."""
        key = tuple((name, x.shape, x.strides, x.alignment) for name, x in views.items())
        binding = self._bindings.get(key)
        if binding is None:
            r = self._job.request
            canonical = canonicalise(views["a"], views["b"], views.get("c"), views["out"], alpha=r.alpha, beta=r.beta)
            problem, if_split = canonical.problem, None
            assert problem is not None  # panels are packed
            if r.precision not in ("ieee", REPRODUCIBLE) and not canonical.swapped:
                if_split = choice_for(problem, self._gpu, r.precision, "b")
            binding = _Binding(canonical, problem, if_split, choice_for(problem, self._gpu, r.precision))
            self._bindings[key] = binding
        return binding
