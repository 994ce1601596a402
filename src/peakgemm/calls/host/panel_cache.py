"""The panels that a device holds: brought ahead of the tiles that read them, split once, freed where room is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...arrays.base import View, driver_out_of_memory
from ...errors import LaunchFailed
from ...runtime import peers
from ...runtime.device import Gpu
from ...runtime.lanes import Lane
from ...runtime.memory import DeviceMemory, order
from .grid import PanelKey, Tile, panel_keys
from .panel import Array, Panel, layout, part, spread
from .tile_queue import Job

if TYPE_CHECKING:
    from ...problem import Problem
    from ...selection.choose import Choice

AHEAD = 3  # tiles whose panels are asked for before the first of them is computed


class PanelCache:
    """The panels on a device, up to ``budget`` bytes of them, brought there ahead of the tiles that read them."""

    def __init__(self, job: Job, gpu: Gpu, way: Lane, budget: int) -> None:
        self._job, self._gpu, self._way = job, gpu, way
        self._streams = way.compute, way.beside
        self._broadcast = [[step == 0 for step in x.strides[:-2]] for x in (job.request.a, job.request.b)]
        self._keys_of: dict[int, tuple[Tile, tuple[PanelKey, PanelKey]]] = {}  # by id, which the tile here keeps
        self._panels: dict[PanelKey, Panel] = {}  # the one used last comes last
        self._splits: dict[PanelKey, DeviceMemory] = {}  # as long as no panel wants the room
        self._budget, self._used, self._split_bytes = budget, 0, 0

    def bring(self, tile: Tile, upcoming: Sequence[Tile]) -> Exception | None:
        """Have the panels of ``tile`` copied, and those of the tiles behind it as far as there is room; why there is
        none for those of ``tile``."""
        own = self._copied(tile)
        wanted = [key for each in (tile, *upcoming[:AHEAD - 1]) for key in self._copied(each)]
        for position, key in enumerate(wanted):
            if (refused := self._have(key, wanted)) is not None:
                if position < len(own):
                    return refused
                break
        self._bring_further(key for each in upcoming for key in self._copied(each))
        return None

    def views(self, tile: Tile) -> dict[str, View]:
        """How the operands of a tile read. What the streams do from now on finds them there."""
        views = {}
        for key in self._keys(tile):
            if key in self._panels:
                self._panels[key].wait(*self._streams)
                view = self._panels[key].view
            else:
                assert self._job.resident is not None
                view = part(self._job.resident, key)
            views[key.side] = spread(view, tile.shape[:-2])
        return views

    def split_product(self, choice: Choice, problem: Problem, tile: Tile, views: dict[str, View], stream: int) -> Any:
        """The product of a tile that reads its panels split for tensor cores, once for all tiles that read them: the
        pass would else take 10 to 20 % of a tile. None where no kernel does so for both operands, or there is no room.
        """
        from ...kernels.bound import Bound
        from ...kernels.emulated.product import SplitOperand

        scheme = choice.kernel.family.scheme
        if scheme is None or choice.kernel.split_before(choice.config) != "ab" or problem.batch.sizes:
            return None
        ready: list[int] = []
        for key in self._keys(tile):
            if key not in self._splits:
                split = SplitOperand(scheme, problem, self._gpu, key.side)
                if self._used + self._split_bytes + split.bytes > self._budget:
                    return None
                try:
                    memory = DeviceMemory(split.bytes, stream)
                except LaunchFailed as error:
                    if not driver_out_of_memory(error):
                        raise
                    return None
                split.launch(views[key.side].pointer, memory.pointer, stream)
                for other in self._streams:
                    if other != stream:
                        order(stream, other)
                self._splits[key] = memory
                self._split_bytes += split.bytes
            ready.append(self._splits[key].pointer + SplitOperand.PANELS)
        return Bound(choice.kernel, choice.config, problem, self._gpu, *ready)

    def shrink(self, tile: Tile, size: int) -> bool:
        """Free ``size`` bytes of other panels than those of ``tile``; whether there were any.

        The budget shrinks as well: else panels ahead would take the room again.
        """
        keys = self._copied(tile)
        own = sum(self._panels[key].size for key in keys)
        self._budget = max(own, self._used - size)
        return self._used > own and self._make_room(0, keys)

    def free(self) -> None:
        """Free the memory in the order of the streams, once nobody copies to it."""
        for panel in self._panels.values():
            panel.end()
        with suppress(LaunchFailed):
            self._join_streams()
        self._panels.clear()
        self._splits.clear()

    def _keys(self, tile: Tile) -> tuple[PanelKey, PanelKey]:
        """Made once for a tile: for each tile that is launched those of many ahead are asked for."""
        known = self._keys_of.get(id(tile))
        if known is None:
            known = self._keys_of[id(tile)] = tile, panel_keys(tile, *self._broadcast)
        return known[1]

    def _copied(self, tile: Tile) -> tuple[PanelKey, ...]:
        """The panels of a tile, A's alone where B lies there anyway."""
        return self._keys(tile)[:1 if self._job.resident is not None else 2]

    def _operand(self, key: PanelKey) -> Array:
        x: Array = (self._job.request.a if key.side == "a" else self._job.request.b)[key.slices]
        return x

    def _have(self, key: PanelKey, wanted: list[PanelKey]) -> Exception | None:
        """Have a panel on the device, or on its way there; why it cannot be."""
        if key in self._panels:
            self._panels[key] = self._panels.pop(key)
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

    def _bring_further(self, upcoming: Iterable[PanelKey]) -> None:
        """Have one panel more copied, where there is room: a panel serves several tiles, and takes longer to come than
        some of them to compute. Also what other devices have brought by now."""
        key = next((key for key in upcoming if key not in self._panels), None)
        if key is not None and self._used + self._operand(key).nbytes <= self._budget:
            with suppress(LaunchFailed):  # which is raised when a tile asks for it
                self._bring(key)
        for panel in self._panels.values():
            panel.copy_from_source(waiting=False)

    def _bring(self, key: PanelKey) -> None:
        """Have a panel copied: from another device where one brings it, else from the host."""
        panel, queue = Panel(self._way, *layout(self._operand(key), squeeze=False)), self._job.queue
        if self._job.shared:
            with queue.lock:
                first = queue.panels.get(key)
                if first is None:
                    panel.copy_from_host()
                    queue.panels[key] = panel
            if first is not None and peers.reachable(self._way.index, first.way.index):
                panel.source = first
        if panel.upload is None and panel.source is None:  # nobody else has it, or this device had it and let it go
            panel.copy_from_host()
        self._panels[key] = panel
        self._used += panel.size

    def _make_room(self, size: int, wanted: Sequence[PanelKey]) -> bool:
        """Whether ``size`` bytes more fit; panels that no tile ahead reads are freed for that, oldest first."""
        if self._used + size <= self._budget:
            return True
        self._join_streams()
        self._splits.clear()
        self._split_bytes = 0
        for key in [key for key in self._panels if key not in wanted]:
            panel = self._panels.pop(key)
            panel.end()
            self._used -= panel.size
            del panel
            if self._used + size <= self._budget:
                return True
        return False

    def _join_streams(self) -> None:
        """Memory is freed in the order of the stream that it came from: each first waits for all products."""
        first, second = self._streams
        for stream, other in ((first, second), (second, first), (first, self._way.inward), (second, self._way.inward)):
            order(stream, other)
