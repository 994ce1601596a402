"""Races between plain writes to global memory: one word, two threads, nothing between them.

Each unit of device memory remembers the thread that wrote it last and how many barriers
its block had passed. Writes of one block are ordered by a barrier; of different blocks by nothing, unless
the kernel has fences or acquire and release operations, in which case blocks are
assumed to have agreed on an order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .access import Site
from .lanes import LaneSet

if TYPE_CHECKING:
    from .machine import Machine

EPOCHS = 20


class WriteLog:
    """Who wrote each ``unit`` bytes of the arena last."""

    def __init__(self, machine: Machine, unit: int) -> None:
        self.machine, self.unit = machine, unit
        self.shift = unit.bit_length() - 1
        self.owner = np.zeros(machine.arena.size // unit + 64, np.int64)  # touched, so resident, only where written
        self.cache: tuple[Any, Any, NDArray[np.int64]] | None = None

    def threads(self, lanes: LaneSet) -> NDArray[np.int64]:
        """One number per thread of the grid, from 1."""
        batch = self.machine.batch
        if self.cache is None or self.cache[0] is not lanes or self.cache[1] is not batch:
            tags = batch.numbers[lanes.block_of] * batch.padded + lanes.lanes % batch.padded + 1
            self.cache = (lanes, batch, tags)
        return self.cache[2]

    def record(self, site: Site, lanes: LaneSet, offsets: NDArray[np.int64], again: Any) -> None:
        """Log a store; ``again()`` tells per lane whether memory now holds the value that it stored."""
        machine, batch = self.machine, self.machine.batch
        me = self.threads(lanes)
        epoch = batch.epoch[lanes.block_of] & ((1 << EPOCHS) - 1)
        tag = me << EPOCHS | epoch
        start = offsets >> self.shift
        for step in range(max(1, site.size // self.unit)):
            unit = start + step
            before = self.owner[unit]
            other = before >> EPOCHS
            clash = (before != 0) & (other != me)
            if clash.any():
                same = (other - 1) // batch.padded == batch.numbers[lanes.block_of]
                clash &= np.where(same, (before & ((1 << EPOCHS) - 1)) == epoch, not machine.fences)
                if clash.any():
                    self._report(site, lanes, offsets, clash, other)
            self.owner[unit] = tag
            twice = self.owner[unit] != tag
            if twice.any():
                winner = self.owner[unit] >> EPOCHS
                apart = (winner - 1) // batch.padded != batch.numbers[lanes.block_of]
                twice &= apart & (not machine.fences) | ~again()
                if twice.any():
                    self._report(site, lanes, offsets, twice, winner)

    def _report(self, site: Site, lanes: LaneSet, offsets: NDArray[np.int64], wrong: NDArray[np.bool_],
                other: NDArray[np.int64]) -> None:
        machine, padded = self.machine, self.machine.padded
        first = int(np.flatnonzero(wrong)[0])
        rival = int(other[first]) - 1
        threads = [machine.thread(int(lanes.lanes[first])),
                   (machine.block_index(rival // padded), machine.thread_index(rival % padded))]
        from .memory import GLOBAL

        at = int(offsets[first]) + GLOBAL
        kind = "overlapping_blocks" if threads[0][0] != threads[1][0] else "global_race"
        remedy = ("give each element of the output to one block" if kind == "overlapping_blocks"
                  else "give each element to one thread, or put a barrier between the writes")
        machine.fault(kind, site.ins, f"{machine.arena.describe(at, site.size)} is written by thread {{0}} and by "
                      f"thread {{1}}; {remedy}", lanes.lanes[wrong], at, pair=True, threads=threads)
