"""A model of products of host arrays: the tiles of the call, dealt as it deals them, at the rates of the machine.

Whoever calls gives the time of the product of arrays that lie on the GPU, and the rates, see `Bus`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ..calls.deal import Deal, Key, dealt
from ..calls.grid import Tile, grid
from ..calls.host import TILED_BYTES
from ..calls.tiles import AHEAD, SLOTS

FLOAT = 4


class Bus(NamedTuple):
    """How fast host arrays come to one GPU and go from it, GB/s.

    Attributes:
        in_gbs, out_gbs: staged copies each way while the other way is used as well; ``out_gbs`` into pages that are
            written for the first time, as a result's are.
        all_gbs: of all GPUs together, each way.
        call_us: of a call of no size.
        tiled_us: of a call in tiles, of which there is one without work.
        peer_gbs: from one GPU to another.
    """

    in_gbs: float
    out_gbs: float
    all_gbs: float
    call_us: float = 60.0
    tiled_us: float = 1000.0
    peer_gbs: float = 300.0


class _Device:
    """When each of its queues is done with what it has, us."""

    def __init__(self) -> None:
        self.copied = self.computed = self.out = 0.0
        self.panels: dict[Key, float] = {}
        self.waiting: deque[Tile] = deque()
        self.launched: list[float] = []  # when each product could begin
        self.gone: list[float] = []      # when each result lay in the host's memory


def host_us(size: int, world: int, one_us: float, bus: Bus) -> float:
    """A square product of host arrays on ``world`` GPUs; ``one_us``: on one, of arrays that lie there.

    A tile's panels are asked for `AHEAD` tiles before it, come one after the other, and from another GPU where one has
    them; its product begins when they are there, the one before has ended, and one of `SLOTS` results is free; its
    result goes when those before have gone.
    """
    square = FLOAT * size * size
    into, out = (1e3 * min(rate, bus.all_gbs / world) for rate in (bus.in_gbs, bus.out_gbs))  # bytes a us
    if 3 * square < TILED_BYTES:
        return bus.call_us + 2 * square / into + one_us + square / out
    tiles = grid(size, size, size)
    deal = Deal(dealt(tiles, [1.0] * world, [None] * world))
    devices = [_Device() for _ in range(world)]
    working = list(range(world))
    while working:
        index = min(working, key=lambda i: devices[i].computed)
        mine = devices[index]
        while len(mine.waiting) < AHEAD and (tile := deal.take(index)) is not None:
            mine.waiting.append(tile)
            _ask(tile, mine, [other for other in devices if other is not mine], size, into, 1e3 * bus.peer_gbs)
        if not mine.waiting:
            working.remove(index)
            continue
        tile = mine.waiting.popleft()
        free = mine.gone[-SLOTS] if len(mine.gone) >= SLOTS else 0.0
        start = max(mine.computed, free, *(mine.panels[key] for key in _keys(tile)))
        mine.launched.append(start)
        mine.computed = start + one_us * tile.area / (size * size)
        mine.out = max(mine.out, mine.computed) + FLOAT * tile.area / out
        mine.gone.append(mine.out)
    return bus.tiled_us + max(device.out for device in devices)


def _ask(tile: Tile, mine: _Device, others: Sequence[_Device], k: int, into: float, peer: float) -> None:
    """The panels of ``tile`` are on their way when the product that many tiles before it could begin."""
    now = mine.launched[-AHEAD] if len(mine.launched) >= AHEAD else 0.0
    for key in _keys(tile):
        if key not in mine.panels:
            size = FLOAT * k * (key[2] - key[1])
            there = any(key in other.panels and other.panels[key] <= max(now, mine.copied) for other in others)
            mine.copied = max(mine.copied, now) + size / (peer if there else into)
            mine.panels[key] = mine.copied


def _keys(tile: Tile) -> tuple[Key, Key]:
    return ("a", tile.rows.start, tile.rows.stop), ("b", tile.columns.start, tile.columns.stop)
