"""Reads of shared memory that go on after their instruction: by wgmma, and by bulk stores.

They last until one who waited for their group (``wgmma.wait_group``, ``cp.async.bulk.wait_group``) is known of: a
write before that is a race. They belong to the async proxy: what threads wrote, by ``st`` as well as ``cp.async``, must
have passed a ``fence.proxy.async`` between the write and the read, by either side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core.lanes import LaneSet
from ..front.ptx import Instruction

if TYPE_CHECKING:
    from ..machine import Machine
    from .clocks import Clocks

Array = NDArray[Any]
ROW = 16  # bytes
WARPGROUP = 4  # warps


class Footprint:
    """What one execution reads: ``offsets (readers, ...)`` of rows of 16 bytes in the batch's shared memory.

    A reader is a warpgroup of ``lanes``, or a lane of them.
    """

    __slots__ = ("lanes", "logged", "offsets", "raw", "written")

    def __init__(self, lanes: LaneSet, offsets: Array) -> None:
        self.lanes, self.offsets = lanes, offsets
        self.raw = offsets
        self.logged = False
        self.written = -1  # the batch in which all of it is known to have been written

    def units(self, unit: int) -> Array:
        """``(readers, n)`` units of shared memory."""
        start = self.offsets.reshape(len(self.offsets), -1) // unit
        return (start[:, :, None] + np.arange(ROW // unit)).reshape(len(start), -1)

    def check_written(self, machine: Machine, ins: Instruction) -> None:
        """Report what no thread has written."""
        batch = machine.batch
        if batch.all_written or self.written == batch.number:
            return
        units = self.units(batch.unit)
        known = batch.written[units]
        if not known.all():
            reader, place = (int(x[0]) for x in np.nonzero(~known))
            at = int(units[reader, place] * batch.unit % batch.shared_stride)
            machine.fault("shared_unwritten", ins, f"read of shared memory that no thread has written, address {at}",
                          self.lanes.lanes[:1], at, count=int((~known).sum()))
        else:
            self.written = batch.number


class AsyncReads:
    """The reads under way, in groups: each reader numbers its own, from 1."""

    def __init__(self, clocks: Clocks) -> None:
        self.clocks = clocks
        # Per reader within a block, and the block's rank in its cluster: of each unit the last group that reads it.
        self.group: dict[Any, Array] = {}
        self.code: dict[Any, Array] = {}
        # by wgmma's warps and by threads
        self.commits = {"g": np.zeros(len(clocks.clock), np.int64), "s": np.zeros(len(clocks.commits), np.int64)}

    def _reader(self, kind: str, lane: Array) -> Array:
        """The number of a reader within its block: of a lane's warpgroup, or thread."""
        thread = lane % self.clocks.batch.padded
        return thread // (32 * WARPGROUP) if kind == "g" else thread

    def record(self, kind: str, site: Any, footprint: Footprint) -> None:
        """Reads begin; what they race with is reported."""
        clocks = self.clocks
        lanes = footprint.lanes.lanes
        leaders = lanes[::32 * WARPGROUP] if kind == "g" else lanes
        units = footprint.units(clocks.batch.unit)
        across = 32 * np.arange(WARPGROUP) if kind == "g" else np.zeros(1, np.int64)
        for leader, read, number in zip(leaders, units, self._reader(kind, leaders), strict=True):
            self._check_before(kind, site, leader + across, read)
            key = (kind, int(number), int(clocks.rank(leader // clocks.batch.padded)))
            if key not in self.group:
                clocks.new_column(key)
                self.group[key] = np.zeros(len(clocks.group), np.int32)
                self.code[key] = np.zeros(len(clocks.group), np.int32)
            slot = leader >> 5 if kind == "g" else leader
            self.group[key][read] = self.commits[kind][slot] + 1
            self.code[key][read] = site.ins.index

    def _check_before(self, kind: str, site: Any, lanes: Array, unit: Array) -> None:
        """Are the last writes to ``unit`` known to all of ``lanes``, and fenced?"""
        clocks = self.clocks
        owner = clocks.lane["w"][unit]
        when = clocks.time["w"][unit]
        column = np.maximum(owner >> 5, 0) % clocks.across
        copied = clocks.lane["c"][unit] >= 0
        # Mostly nothing is amiss, which is seen of all their warps at once, by what each of them knows.
        least = clocks.clock[lanes >> 5].min(axis=0)
        suspect = copied | ((owner >= 0) & (when > np.minimum(least[column], least[clocks.across + column])))
        if "t" in clocks.lane:
            suspect |= (clocks.lane["t"][unit] >= 0) & (least[clocks.column[unit]] < clocks.time["t"][unit])
        if not suspect.any():
            return
        for lane in lanes.tolist():
            row = clocks.clock[lane >> 5]
            flying = copied
            found = [("c", copied)]
            if "t" in clocks.lane:
                late = clocks.under_way(unit, np.full(len(unit), lane >> 5))
                found.append(("t", late))
                flying = flying | late
            unknown = (owner >= 0) & (when > row[column]) & ~flying
            found.append(("w", unknown))
            for name, wrong in found:
                if wrong.any():
                    first = int(np.flatnonzero(wrong)[0])
                    clocks.report(name, int(wrong.sum()), kind, site, (lane, int(clocks.lane[name][unit[first]])),
                                  int(unit[first]), int(clocks.code[name][unit[first]]))
                    return
            bare = (owner >= 0) & (when > row[clocks.across + column])
            if bare.any():
                self._unfenced(site, lane, unit, bare)
                return

    def _unfenced(self, site: Any, lane: int, unit: Array, bare: Array) -> None:
        clocks, batch = self.clocks, self.clocks.batch
        first = int(np.flatnonzero(bare)[0])
        at = int(unit[first] * batch.unit % batch.shared_stride)
        writer = clocks.machine.program.kernel.instructions[int(clocks.code["w"][unit[first]])]
        clocks.machine.fault(
            "async_proxy", site.ins, f"shared address {at}, which thread {{1}} wrote at {writer.where}, is read "
            "through the async proxy for thread {0}; put fence.proxy.async between them, before the barrier",
            np.array([lane, int(clocks.lane["w"][unit[first]])]), at, pair=True, count=int(bare.sum()), batch=batch)

    def check(self, event: str, site: Any, lanes: LaneSet, unit: Array) -> None:
        """A write to ``unit`` by ``lanes``: report the reads that may not have ended."""
        clocks = self.clocks
        found = self.late(lanes, unit)
        if found is None:
            return
        key, late = found
        first = int(np.flatnonzero(late)[0])
        block = int(lanes.lanes[first]) // clocks.batch.padded
        block += key[2] - int(clocks.rank(block))
        other = block * clocks.batch.padded + key[1] * (32 * WARPGROUP if key[0] == "g" else 1)
        clocks.report(key[0], int(late.sum()), event, site, (int(lanes.lanes[first]), other), int(unit[first]),
                      int(self.code[key][unit[first]]))

    def late(self, lanes: LaneSet, unit: Array) -> tuple[Any, Array] | None:
        """The first reader whose reads of ``unit`` may not have ended for all ``lanes``, and where; None if none."""
        clocks = self.clocks
        for key, group in self.group.items():
            late = group.take(unit) > clocks.clock[lanes.warp_of, clocks.columns[key]]
            if late.any():
                return key, late
        return None

    def commit(self, kind: str, lanes: LaneSet) -> None:
        """The reads so far form a group."""
        self.commits[kind][np.unique(lanes.warp_of) if kind == "g" else lanes.lanes] += 1

    def wait(self, kind: str, lanes: LaneSet, keep: int) -> None:
        """All groups but the last ``keep`` have ended, and these lanes know it."""
        clocks = self.clocks
        waiters = np.unique(lanes.warp_of) if kind == "g" else lanes.lanes
        first = waiters * 32 if kind == "g" else waiters
        for waiter, lane, number in zip(waiters, first, self._reader(kind, first), strict=True):
            column = clocks.columns.get((kind, int(number), int(clocks.rank(lane // clocks.batch.padded))))
            if column is not None:
                row = clocks.clock[lane >> 5]
                row[column] = max(row[column], self.commits[kind][waiter] - keep)
