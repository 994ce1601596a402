"""One device at work on tiles of a product of host arrays: panels in, products, results out, all at a time.

The thread that calls `Worker.run` asks for panels some tiles ahead and launches each product when the copies of its
panels are enqueued. A second thread has the results copied out, see `Results`. Other threads do the copying, see
`peakgemm.runtime.transfer`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays.base import FLOAT, View, driver_out_of_memory
from ...errors import LaunchFailed
from ...runtime import driver, peers
from ...runtime.device import Gpu, activated
from ...runtime.lanes import Lane
from ...runtime.memory import DeviceMemory, behind, event, order
from ...runtime.timeline import span, stream_span
from ...runtime.transfer import IN_THREADS, OUT_THREADS, threads, when_done
from ..canonical import Canonical, canonicalise
from ..launch import bound_for, choice_for, enqueue, no_room
from ..request import REPRODUCIBLE, Request
from .grid import Tile
from .panel import Panel, SplitPanels, layout, part, spread
from .tile_queue import PanelKey, PeerPanel, Results, Slot, TileQueue, panel_keys

Array = NDArray[np.float32]
AHEAD = 3  # tiles whose panels are asked for before the first of them is computed


class Job(NamedTuple):
    """A product of matrices in the host's memory, or of a batch of them, cut in tiles.

    Operands have all dimensions of ``out``; along those that they are broadcast they do not step.
    ``resident``: where B lies on the only device already. ``shared``: all panels fit on every device, which take them
    from each other. ``done`` is called with the number of each tile of the grid that lies in ``out``, in any thread.
    """

    request: Request
    queue: TileQueue
    workers: int = 1
    resident: View | None = None
    shared: bool = False
    done: Callable[[int], None] | None = None


class Worker:
    """A device with what it keeps of a product: panels, up to ``budget`` bytes of them, and ``slots`` results."""

    def __init__(self, job: Job, index: int, gpu: Gpu, way: Lane, budget: int, slots: int) -> None:
        self._job, self._index, self._gpu, self._way = job, index, gpu, way
        self._request, self._budget, self._used = job.request, budget, 0
        self._once = tuple(tuple(step == 0 for step in x.strides[:-2]) for x in (job.request.a, job.request.b))
        self._streams = (way.compute, way.beside)
        self._copiers = way.copiers(threads(IN_THREADS, job.workers), threads(OUT_THREADS, job.workers))
        self._panels: dict[PanelKey, Panel] = {}  # the one used last comes last
        self._workspaces: list[DeviceMemory | None] = [None, None]
        self._splits = SplitPanels(gpu)
        self._results = Results(gpu.index, self._copiers, job.request.out, job.queue, job.done, slots, job.workers == 1)

    def run(self) -> None:
        """Compute tiles until none is left. The device is current.

        Raises:
            OutOfMemory: one element's panels, or split operands, do not fit; the message says how many bytes.
            LaunchFailed: the driver refused something else.
        """
        self._results.begin()
        failed: BaseException | None = None
        try:
            with driver.hold_gil():
                self._feed()
        except BaseException as error:
            failed = error
        self._results.end()
        # What a product's own thread says names its tile; a copy that meets the same fault does not.
        if failed is None or (self._results.error is not None and isinstance(failed, LaunchFailed)):
            failed = self._results.error
        self._results.error = None  # whose traceback holds this worker
        try:
            if failed is not None:
                raise failed
        finally:
            del failed

    def rest(self) -> None:
        """Until nothing runs on the device's streams: a panel that it has asked another device for and then not needed
        may still be on its way, out of memory that the other one frees in the order of its own streams."""
        with suppress(LaunchFailed):  # which is raised when the lane is given back
            self._way.wait()

    def drop(self) -> None:
        """Free what is held, in the order of its stream, once nobody copies from it."""
        for panel in self._panels.values():
            panel.end()
        with suppress(LaunchFailed):
            self._meet()
        self._panels.clear()
        self._splits.clear()
        self._results.drop()
        self._workspaces.clear()

    def _feed(self) -> None:
        launched = 0
        while self._results.error is None and (tile := self._job.queue.take(self._index)) is not None:
            refused = self._ask(tile)
            if refused is not None:
                self._smaller(tile, refused)
                continue
            self._ask_further()
            with span(self._gpu.index, "wait for a result's place"):
                slot = self._results.take_slot()
            if self._results.error is not None:
                return
            try:
                self._launch(tile, slot, launched % 2)
            except LaunchFailed as refusal:  # no room for a result or a workspace: panels go, or the tile gets smaller
                self._results.give_back(slot)
                if not driver_out_of_memory(refusal):
                    raise
                own = sum(self._panels[key].size for key in self._keys(tile))
                self._budget = max(own, self._used - FLOAT * 2 * tile.area)  # else panels ahead would take it again
                if self._used > own and self._make_room(0, list(self._keys(tile))):
                    self._job.queue.give_back(self._index, [tile])
                else:
                    self._smaller(tile, refusal)
                continue
            launched += 1

    def _smaller(self, tile: Tile, refused: Exception) -> None:
        """A tile for which there is no room goes back in halves.

        Raises:
            OutOfMemory: it is a single element.
        """
        halves = tile.halves()
        if len(halves) == 1:
            raise no_room(refused, f"a row of A and a column of B, {2 * FLOAT * self._request.a.shape[-1]:,} bytes,",
                          self._gpu, "", ["split the product along K"]) from refused
        self._job.queue.give_back(self._index, halves)

    def _ask(self, tile: Tile) -> Exception | None:
        """Have its panels copied, and as far as there is room those of the tiles behind it; why there is none for it.
        """
        ahead = self._job.queue.upcoming(self._index)[:AHEAD - 1]
        wanted = [key for each in (tile, *ahead) for key in self._keys(each)]
        for position, key in enumerate(wanted):
            refused = self._have(key, wanted)
            if refused is not None:
                return refused if position < 2 else None
        return None

    def _ask_further(self) -> None:
        """Have one panel more copied that tiles of the queue need, where there is room: a panel serves several tiles,
        and takes longer to come than some of them to compute."""
        for panel in self._panels.values():
            self._copy_from_peer(panel, wait=False)
        upcoming = (key for tile in self._job.queue.upcoming(self._index) for key in self._keys(tile))
        key = next((key for key in upcoming if key not in self._panels and not self._is_resident(key)), None)
        if key is not None and self._used + self._operand(key).nbytes <= self._budget:
            with suppress(LaunchFailed):  # which is raised when a tile asks for it
                self._bring(key)

    def _have(self, key: PanelKey, wanted: list[PanelKey]) -> Exception | None:
        """Have a panel on the device, or on its way there; why it cannot be."""
        if key in self._panels:
            self._panels[key] = self._panels.pop(key)
            return None
        if self._is_resident(key):
            self._bring(key)
            return None
        size = self._operand(key).nbytes
        refused: Exception = LaunchFailed(f"{size:,} bytes of device memory: CUDA_ERROR_OUT_OF_MEMORY")
        while self._make_room(size, wanted):
            try:
                self._bring(key)
                return None
            except LaunchFailed as refusal:
                if not driver_out_of_memory(refusal):
                    raise
                refused, self._budget = refusal, self._used  # others have the rest
        return refused

    def _make_room(self, size: int, wanted: list[PanelKey]) -> bool:
        """Whether ``size`` bytes more fit; panels that no tile ahead reads are freed for that, oldest first."""
        if self._used + size <= self._budget:
            return True
        self._meet()
        self._splits.clear()
        for key in [key for key in self._panels if key not in wanted]:
            panel = self._panels.pop(key)
            panel.end()
            self._used -= panel.size
            del panel
            if self._used + size <= self._budget:
                return True
        return False

    def _meet(self) -> None:
        """Memory is freed in the order of the stream that it came from: each first waits for all products."""
        first, second = self._streams
        for stream, other in ((first, second), (second, first), (first, self._way.inward), (second, self._way.inward)):
            order(stream, other)

    def _operand(self, key: PanelKey) -> Array:
        x: Array = (self._request.a if key.side == "a" else self._request.b)[key.slices]
        return x

    def _keys(self, tile: Tile) -> tuple[PanelKey, PanelKey]:
        return panel_keys(tile, *self._once)

    def _is_resident(self, key: PanelKey) -> bool:
        return key.side == "b" and self._job.resident is not None

    def _bring(self, key: PanelKey) -> None:
        """Have a panel: from another device where one has it or brings it, else from the host."""
        if self._job.resident is not None and key.side == "b":
            self._panels[key] = Panel(None, part(self._job.resident, key), 0)
            return
        dense, view = layout(self._operand(key), squeeze=False)
        memory = DeviceMemory(dense.nbytes, self._way.inward)
        panel = Panel(memory, view._replace(pointer=memory.pointer), dense.nbytes)
        if not self._job.shared:
            panel.futures = self._copiers.upload(dense, memory.pointer)
        else:
            transfer, first = self._job.queue.transfer(key, self._gpu.index)
            if not first and transfer.device != self._gpu.index and peers.reachable(self._gpu.index, transfer.device):
                panel.transfer, panel.again = transfer, dense
                self._copy_from_peer(panel, wait=False)
            else:  # also what it brought before, and has let go
                try:
                    panel.futures = self._copiers.upload(dense, memory.pointer)
                except BaseException:
                    if first:
                        transfer.set_result(None)
                    raise
                if first:
                    brought = PeerPanel(memory.pointer, panel.size, memory, self._copied)
                    when_done(panel.futures, lambda error: transfer.set_result(None if error else brought))
        self._panels[key] = panel
        self._used += panel.size

    def _copied(self) -> Any:
        """An event behind all copies to this device that are enqueued by now, made in whatever thread asks."""
        with activated(self._gpu.index):
            return event(self._way.inward)

    def _copy_from_peer(self, panel: Panel, wait: bool) -> None:
        """Have a panel copied from the other device that brings it, if it is there; with ``wait`` it will be."""
        transfer = panel.transfer
        if transfer is None or not (wait or transfer.done()):
            return
        source = transfer.result()
        if source is None:  # the other one has failed
            panel.futures = self._copiers.upload(panel.again, panel.memory.pointer)
        else:
            behind(source.copied(), self._way.inward)
            with stream_span(self._gpu.index, "copy from a peer", self._way.inward, panel.size):
                peers.copy(panel.memory.pointer, self._gpu.index, source.pointer, transfer.device, panel.size,
                           self._way.inward)
            panel.mark = event(self._way.inward)
        panel.transfer = panel.again = None  # last: what is refused on the way is asked again

    def _launch(self, tile: Tile, slot: Slot, lane: int) -> None:
        stream, needed = self._streams[lane], self._keys(tile)
        for key in needed:
            panel = self._panels[key]
            with span(self._gpu.index, "wait for a panel"):
                self._copy_from_peer(panel, wait=True)
                panel.settle(self._streams, self._way.inward)
        views = {key.side: spread(self._panels[key].view, tile.shape[:-2]) for key in needed}
        slot.out = _room(slot.out, FLOAT * tile.area, stream)
        views["out"] = View.packed(tile.shape)._replace(pointer=slot.out.pointer)
        if self._request.c is not None:
            dense, view = layout(self._request.c[tile.slices], squeeze=True)
            slot.c = _room(slot.c, FLOAT * dense.size, self._way.inward)
            for future in self._copiers.upload(dense, slot.c.pointer):
                future.result()
            order(self._way.inward, stream)
            views["c"] = view._replace(pointer=slot.c.pointer)
        r = self._request
        canonical = canonicalise(views["a"], views["b"], views.get("c"), views["out"], alpha=r.alpha, beta=r.beta)
        assert canonical.problem is not None  # panels are packed
        bound = self._bound(canonical, views, needed, stream)
        with stream_span(self._gpu.index, "product", stream):
            enqueue(bound, canonical, views, self._workspace(bound, lane), stream)
        self._results.send(event(stream, sleeping=True), tile, slot)

    def _bound(self, canonical: Canonical, views: dict[str, View], needed: tuple[PanelKey, PanelKey],
               stream: int) -> Any:
        problem = canonical.problem
        assert problem is not None
        if self._request.precision not in ("ieee", REPRODUCIBLE) and not canonical.swapped:
            ready = choice_for(problem, self._gpu, self._request.precision, "b")
            split = self._splits.bound(ready, problem, views, needed, stream, self._streams,
                                       self._budget - self._used)
            if split is not None:
                return split
        return bound_for(problem, self._gpu, choice_for(problem, self._gpu, self._request.precision))

    def _workspace(self, bound: Any, lane: int) -> int:
        if not bound.workspace_bytes:
            return 0
        held = self._workspaces[lane]
        if held is None or held.size < bound.workspace_bytes:
            self._workspaces[lane] = None
            held = self._workspaces[lane] = DeviceMemory(bound.workspace_bytes, self._streams[lane])
        return held.pointer


def _room(held: DeviceMemory | None, size: int, stream: int) -> DeviceMemory:
    return held if held is not None and held.size >= size else DeviceMemory(size, stream)
