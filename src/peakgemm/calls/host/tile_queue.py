"""What the devices share of a product of host arrays: the tiles to compute, panels to take from each other, errors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from threading import Lock
from typing import NamedTuple

from ...arrays.base import View
from ..request import Request
from .grid import PanelKey, Tile
from .panel import Panel

# Tiles among whose panels one is asked for ahead: a panel of 4096 rows comes in less time than two such tiles take.
LOOKAHEAD = 16


class TileQueue:
    """A queue of tiles for each worker. One whose queue is empty takes the last tile of the fullest one.

    So the first share follows what the devices should do, and the end what they do. ``done`` is called with the number
    of each tile of the grid that lies in the result, in any thread, once at a time.

    Attributes:
        panels: those that some device brings from the host, for others to copy from there. They stay until `forget`.
        lock: who looks for a panel there and adds it holds this.
    """

    def __init__(self, queues: Sequence[Iterable[Tile]], done: Callable[[int], None] | None = None) -> None:
        self._queues, self._done = [deque(queue) for queue in queues], done
        self._left = {tile.number: tile.area for queue in self._queues for tile in queue}
        self._finishing, self._errors = Lock(), list[tuple[bool, int, BaseException]]()
        self.panels, self.lock = dict[PanelKey, Panel](), Lock()

    def take(self, worker: int) -> Tile | None:
        """The next tile for ``worker``; None: there is none left, or something has failed."""
        with self.lock:
            if self._errors:
                return None
            if self._queues[worker]:
                return self._queues[worker].popleft()
            fullest = max(self._queues, key=lambda queue: sum(tile.area for tile in queue))
            return fullest.pop() if fullest else None

    def give_back(self, worker: int, tiles: Sequence[Tile]) -> None:
        """Tiles that ``worker`` took and has no room for, in parts: they are its next ones, or another's."""
        with self.lock:
            self._queues[worker].extendleft(reversed(tiles))

    def upcoming(self, worker: int) -> list[Tile]:
        """What ``worker`` takes next, unless others do: `LOOKAHEAD` tiles."""
        with self.lock:
            return list(islice(self._queues[worker], LOOKAHEAD))

    def finish(self, tile: Tile) -> None:
        """``tile`` lies in the result."""
        with self._finishing:
            self._left[tile.number] -= tile.area
            if self._left[tile.number] == 0 and self._done is not None:
                self._done(tile.number)

    def fail(self, error: BaseException, of_result: bool = False) -> None:
        """No worker gets another tile. ``of_result``: a tile's product or copy failed, which the error names; after a
        fault of the device other calls fail as well, and do not say what it was."""
        with self.lock:
            self._errors.append((not of_result, len(self._errors), error))

    @property
    def error(self) -> BaseException | None:
        """The first of a result, or else the first."""
        return min(self._errors)[2] if self._errors else None

    def forget(self) -> None:
        """Let go of the panels and errors: of the memory that they and their tracebacks hold."""
        self.panels.clear()
        self._errors.clear()


class Job(NamedTuple):
    """A product of matrices in the host's memory, or of a batch of them, cut in tiles.

    Operands have all dimensions of ``out``; along those that they are broadcast they do not step.
    ``resident``: where B lies on the only device already. ``shared``: all panels fit on every device, which take them
    from each other.
    """

    request: Request
    queue: TileQueue
    workers: int = 1
    resident: View | None = None
    shared: bool = False
