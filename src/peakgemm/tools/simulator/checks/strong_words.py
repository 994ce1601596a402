"""Strong accesses to shared memory: which pairs of them are no race, and what flags tell; see `strength`.

As the other clocks at the grain of a warp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core.lanes import LaneSet, index
from .strength import FEW, STRONG, Strength, forgiven

if TYPE_CHECKING:
    from .clocks import Clocks

Array = NDArray[Any]
Row = NDArray[np.int64]


def later(one: Row | None, other: Row) -> Row:
    """The later of both times for each column; one row may be from before there were more."""
    if one is None:
        return np.array(other)
    if len(one) < len(other):
        one = np.pad(one, (0, len(other) - len(one)))
    np.maximum(one[:len(other)], other, out=one[:len(other)])
    return one


class StrongWords:
    """Beside the clocks of a batch: the strength of the last accesses, and what warps have fenced and seen."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        self.any = False  # until there is a strong access nothing need be remembered
        self.bits: dict[str, Array] = {}
        # Who read a unit since it was written by a strong load: the last one, and of few at once each.
        self.looker: Array = np.empty(0, np.int32)
        self.lookers: dict[int, set[int]] = {}
        self.fenced: dict[int, Row] = {}  # by warp: what its strong stores tell
        self.seen: dict[int, Row] = {}  # by warp: what flags told it, and no fence has followed
        self.flags: dict[tuple[int, int], Row] = {}  # by unit, or word of global memory and cluster: what it tells

    def _begin(self) -> None:
        if not self.any:
            self.any = True
            units = len(self.clocks.group)
            self.bits = {name: np.zeros(units, np.uint8) for name in "wrq"}
            self.looker = np.full(units, -1, np.int32)

    def record(self, name: str, unit: Array, site: Any) -> None:
        """An access is the last of its kind (`Clocks.lane`)."""
        if site.strength.bits:
            self._begin()
        if self.any and name in self.bits:
            self.bits[name][unit] = site.strength.bits

    def forget(self, name: str, unit: Array) -> None:
        """The last accesses there are weak."""
        if self.any:
            self.bits[name][unit] = 0

    def read(self, site: Any, unit: Array, lanes: LaneSet) -> None:
        """A load, which may be strong."""
        if site.strength.bits:
            self.looker[unit] = lanes.lanes
            if lanes.n <= FEW:
                for one, lane in zip(unit[0].tolist(), lanes.lanes.tolist(), strict=True):
                    self.lookers.setdefault(one, set()).add(lane)

    def written(self, unit: Array) -> None:
        """Something else is there now."""
        if self.any:
            self.looker[unit] = -1
            if self.lookers:
                for one in np.intersect1d(unit, list(self.lookers)).tolist():
                    del self.lookers[one]

    def forgives(self, name: str, event: str, site: Any, lanes: LaneSet, unit: Array) -> Array:
        """Where an access that is not known to come after the last one of kind ``name`` is no race with it."""
        if not self.any:
            return np.zeros(unit.shape, bool)
        clocks = self.clocks
        theirs, before = self.bits[name].take(unit).astype(np.int64), clocks.lane[name].take(unit)
        apart = (before // clocks.batch.padded != lanes.block_of).astype(np.int64)
        free, seen = forgiven(site.strength.bits, theirs, apart)
        if event == "u" and name == "w":
            free = free | seen
        if name == "w":
            looked = self.looker.take(unit) == lanes.lanes
            for one, lookers in self.lookers.items():
                looked = looked | (unit == one) & np.isin(lanes.lanes, list(lookers))
            free = free | (theirs & STRONG != 0) & looked
        for warp in np.unique(lanes.warp_of).tolist() if (seen & ~free).any() else ():
            row = self.seen.get(warp)
            if row is not None:
                known = clocks.time[name].take(unit) <= row[clocks.own.take(index(before >> 5), mode="wrap")]
                free = free | seen & known & (lanes.warp_of == warp)
        return np.asarray(free)

    # ---- flags -----------------------------------------------------------------------------------

    def fence(self, warps: Array) -> None:
        """What these warps have done may be told by flags, and they know what flags told them."""
        clocks = self.clocks
        for warp in warps.tolist():
            row = clocks.clock[warp]
            told = self.seen.get(warp)
            if told is not None:
                np.maximum(row[:len(told)], told, out=row[:len(told)])
            self.fenced[warp] = row.copy()
        clocks.clock[warps, clocks.own[warps]] += 1

    def join(self, warps: Array) -> None:
        """These warps have met: what one has fenced the others may tell, and what one has seen they fence."""
        for table in (self.fenced, self.seen):
            rows = [table[warp] for warp in warps.tolist() if warp in table] if table else []
            if rows:
                union = rows[0].copy()
                for row in rows[1:]:
                    union = later(union, row)
                table.update((warp, union.copy()) for warp in warps.tolist())

    def flag(self, how: Strength, start: Array, warp: Array) -> None:
        """A strong access to units of shared memory, or, below 0, words of global memory: what it learns and tells."""
        clocks = self.clocks
        if not clocks.machine.fences or not (self.fenced or self.flags or how.releases):
            return
        count = len(clocks.clock)
        for unit, one in zip(*(x.tolist() for x in np.divmod(np.unique(start * count + warp), count)), strict=True):
            place = (unit, one // clocks.across if unit < 0 else 0)
            row, told = clocks.clock[one], self.flags.get(place)
            if how.reads and told is not None:
                if how.acquires:
                    np.maximum(row[:len(told)], told, out=row[:len(told)])
                else:
                    self.seen[one] = later(self.seen.get(one), told)
            if not how.writes:
                continue
            if not how.reads:  # a store ends what the word told before
                self.flags.pop(place, None)
                told = None
            tells = row if how.releases else self.fenced.get(one)
            if tells is not None:
                self.flags[place] = later(told, tells)
        if how.releases:
            mine = np.unique(warp)
            clocks.clock[mine, clocks.own[mine]] += 1
