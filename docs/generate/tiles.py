"""The picture of a rung's tiles: the block's share of a product, the warps and threads in it, as a run stored them.

Nothing is drawn from memory of how a kernel works: who stores which element of C is watched in the simulator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peakgemm.kernels.registry import Kernel
from peakgemm.tools.simulator import run_rung
from peakgemm.tools.simulator.core.lanes import LaneSet
from peakgemm.tools.simulator.front.ptx import Instruction
from peakgemm.tools.simulator.machine import Machine
from peakgemm.tools.simulator.ops.build import Build

ARCH = "sm_90"
WARP = 32
SIDE = 190.0  # pixels of a panel
Owners = NDArray[np.int64]


class _Stores:
    """An observer that keeps who stores which address of global memory."""

    def __init__(self) -> None:
        self.found: list[tuple[NDArray[Any], NDArray[Any], int]] = []

    def build(self, machine: Machine) -> Build:
        return Build(machine)

    def access(self, ins: Instruction, space: str, size: int, load: bool, lanes: LaneSet,
               address: NDArray[Any]) -> None:
        if space == "global" and ins.base == "st":
            self.found.append((lanes.lanes.copy(), address.astype(np.int64), size))


def owners(kernel: Kernel) -> Owners:
    """The thread that stores each element of a block's tile."""
    config = kernel.config_for(ARCH)
    shape = config.bm, config.bn
    k = config.bk * max(config.stages, 1)
    stores = _Stores()
    run_rung(kernel, np.ones((config.bm, k), np.float32), np.ones((k, config.bn), np.float32),
             np.zeros(shape, np.float32), arch=ARCH, checks=False, observer=stores)
    first = min(int(address.min()) for _, address, _ in stores.found)
    tile = np.full(config.bm * config.bn, -1, np.int64)
    for lanes, address, size in stores.found:
        for word in range(size // 4):
            tile[(address - first) // 4 + word] = lanes
    return tile.reshape(shape)


def rectangles(mask: NDArray[np.bool_]) -> Iterator[tuple[int, int, int, int]]:
    """Row, column, height and width of rectangles that cover what is set: runs of a row, equal ones below it joined."""
    left = mask.copy()
    while left.any():
        row, column = (int(x) for x in np.unravel_index(int(left.argmax()), left.shape))
        width = int(np.append(left[row, column:], False).argmin())
        full = left[row:, column:column + width].all(axis=1)
        height = int(np.append(full, False).argmin())
        left[row:row + height, column:column + width] = False
        yield row, column, height, width


def picture(kernel: Kernel) -> str:
    """Three panels as SVG: the product, the block's tile by warps, the elements of one warp by lanes."""
    config, tile = kernel.config_for(ARCH), owners(kernel)
    warp = tile // WARP == tile.min() // WARP
    rows, columns = np.flatnonzero(warp.any(axis=1)), np.flatnonzero(warp.any(axis=0))
    lane = np.where(warp, tile % WARP, -1)[np.ix_(rows, columns)]  # rows and columns of other warps left out
    across, down = config.bn / max(config.bm, config.bn), config.bm / max(config.bm, config.bn)
    wide, high = len(columns) / max(lane.shape), len(rows) / max(lane.shape)
    count = int((tile == tile.min()).sum())
    parts = [_product(across, down),
             _panel(SIDE + 60, f"block: {config.bm} x {config.bn} of C, {config.block_threads} threads",
                    _cells(tile // WARP, SIDE * across, SIDE * down, int(tile.min()) // WARP, "warp")),
             _panel(2 * SIDE + 100, f"warp {int(tile.min()) // WARP}: {lane.size} elements, {count} a lane",
                    _cells(lane, SIDE * wide, max(SIDE * high, 12), int(tile.min()) % WARP, "lane"))]
    return (f'<svg class="tiles" viewBox="0 0 {3 * SIDE + 104:.0f} {SIDE + 30:.0f}" role="img" '
            f'aria-label="Tiles of block, warp and lane">{"".join(parts)}</svg>')


def _panel(x: float, title: str, drawn: str) -> str:
    return f'<g transform="translate({x:.0f} 24)"><text y="-8">{title}</text>{drawn}</g>'


def _product(across: float, down: float) -> str:
    """A, B and C with a block's rows, columns and tile; the steps of K move, where the reader's system lets them."""
    third, side = SIDE / 2.2, SIDE - SIDE / 2.2
    w, h = side * across / 3, side * down / 3
    shapes = [("matrix", 0, third, third - 6, side), ("matrix", third, 0, side, third - 6),
              ("matrix", third, third, side, side), ("strip", 0, third + h, third - 6, h),
              ("strip", third + w, 0, w, third - 6), ("mine", third + w, third + h, w, h),
              ("slab along", 0, third + h, 14, h), ("slab down", third + w, 0, w, 14)]
    drawn = "".join(f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{a:.1f}" height="{b:.1f}"/>'
                    for kind, x, y, a, b in shapes)
    names = "".join(f'<text class="name" x="{x:.0f}" y="{y:.0f}">{name}</text>' for name, x, y in (
        ("A", 4, SIDE - 5), ("B", SIDE - 12, 13), ("C", SIDE - 12, SIDE - 5)))
    return _panel(0, "", drawn + names)


def _cells(values: Owners, width: float, height: float, mine: int, what: str) -> str:
    """A path for each value's elements, those of ``mine`` marked, and its number where there is room."""
    x, y = width / values.shape[1], height / values.shape[0]
    parts = []
    for value in np.unique(values):
        kind = "mine" if value == mine else f"part{(int(value) + int(value) // 4) % 2}"
        covers = list(rectangles(values == value))
        path = "".join(f"M{c * x:.5g} {r * y:.5g}h{wide * x:.5g}v{tall * y:.5g}h{-wide * x:.5g}z"
                       for r, c, tall, wide in covers)
        parts.append(f'<path class="{kind}" d="{path}"><title>{what} {value}</title></path>')
        r, c, tall, wide = covers[0]
        if wide * x >= 13 and tall * y >= 9:
            parts.append(f'<text class="number {kind}" x="{(c + wide / 2) * x:.5g}" y="{(r + tall / 2) * y + 3:.5g}">'
                         f"{value}</text>")
    return "".join(parts)
