"""A model of products of host arrays: the tiles of the call, dealt as it deals them, at the rates of the machine.

Whoever calls gives the time of the product of arrays that lie on the GPU, and the rates, see `Bus`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from peakgemm.calls.host.grid import PanelKey, Tile, assign_tiles, grid, panel_keys
from peakgemm.calls.host.results import SLOTS
from peakgemm.calls.host.small_host import MOST_BYTES, SHARED_BYTES
from peakgemm.calls.host.tile_queue import TileQueue

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
        small_in_gbs, shared_in_gbs, small_out_gbs: of calls that move little: operands one after the other, by two
            threads, and the result.
    """

    in_gbs: float
    out_gbs: float
    all_gbs: float
    call_us: float = 60.0
    tiled_us: float = 1000.0
    peer_gbs: float = 300.0
    small_in_gbs: float = 9.0
    shared_in_gbs: float = 14.0
    small_out_gbs: float = 10.0


class _Device:
    """When each of its queues is done with what it has, us."""

    def __init__(self, panels: dict[PanelKey, float]) -> None:
        self.panels = panels         # when each is there
        self.computed = self.out = 0.0
        self.gone: list[float] = []  # when each result lay in the host's memory


def host_us(size: int, world: int, one_us: float, bus: Bus) -> float:
    """A square product of host arrays on ``world`` GPUs; ``one_us``: on one, of arrays that lie there.

    Panels come one after the other in the order of the tiles that read them, each once from the host, to other GPUs
    from the one that has it. A tile's product begins when its panels are there, the one before has ended, and one of
    `SLOTS` results is free; its result goes when those before have gone.
    """
    square = FLOAT * size * size
    into, out = (1e3 * min(rate, bus.all_gbs / world) for rate in (bus.in_gbs, bus.out_gbs))  # bytes a us
    if world == 1 and 3 * square <= MOST_BYTES:
        rate = bus.small_in_gbs if 2 * square < SHARED_BYTES else bus.shared_in_gbs
        return bus.call_us + 2 * square / (1e3 * rate) + square / (1e3 * bus.small_out_gbs) + one_us
    queues = assign_tiles(grid(size, size, size), [1.0] * world, [None] * world)
    tiles, peer = TileQueue(queues), 1e3 * bus.peer_gbs
    devices = [_Device(panels) for panels in arrivals(queues, FLOAT * size, into, peer)]
    working = list(range(world))
    while working:
        index = min(working, key=lambda i: devices[i].computed)
        mine = devices[index]
        tile = tiles.take(index)
        if tile is None:
            working.remove(index)
            continue
        there = [mine.panels.setdefault(key, mine.computed + FLOAT * size * (key.stop - key.start) / peer)
                 for key in panel_keys(tile)]  # of another's tile: from its device
        start = max(mine.computed, mine.gone[-SLOTS] if len(mine.gone) >= SLOTS else 0.0, *there)
        mine.computed = start + one_us * tile.area / (size * size)
        mine.out = max(mine.out, mine.computed) + FLOAT * tile.area / out
        mine.gone.append(mine.out)
    return bus.tiled_us + max(device.out for device in devices)


def arrivals(queues: Sequence[Sequence[Tile]], row_bytes: int, into: float, peer: float) -> list[dict[PanelKey, float]]:
    """When each panel of each device's queue is there, us; rates in bytes a us."""
    found: list[dict[PanelKey, float]] = [{} for _ in queues]
    left = [deque(dict.fromkeys(key for tile in queue for key in panel_keys(tile))) for queue in queues]
    now, first = [0.0] * len(queues), dict[PanelKey, float]()
    while any(left):
        index = min((i for i, each in enumerate(left) if each), key=lambda i: now[i])
        key = left[index].popleft()
        size = row_bytes * (key.stop - key.start)
        if key in first:
            found[index][key] = max(first[key], now[index]) + size / peer
        else:
            now[index] += size / into
            found[index][key] = first[key] = now[index]
    return found
