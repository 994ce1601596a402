"""Bulk stores: the copy engine reads shared memory and writes global memory, in groups that a thread waits for.

The bytes arrive at once; that shared memory must not be overwritten before the wait is the business of `races`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks.access import Site
from ..checks.async_reads import Footprint
from ..core.lanes import Group, LaneSet
from ..core.memory import GLOBAL
from ..front.ptx import Imm, Instruction
from .build import Build, Step
from .bulk import UNIT, allowed
from .mbarrier import per_lane
from .memory import address, chosen_lanes, on_lanes

Array = NDArray[Any]


def bulk_group(b: Build, ins: Instruction) -> Step:
    """``cp.async.bulk.commit_group`` and ``wait_group``; for shared memory ``.read`` makes no difference."""
    guard = b.guard(ins)
    waits = ins.has("wait_group")
    keep = ins.operands[0].value if waits and isinstance(ins.operands[0], Imm) else 0

    def step(group: Group) -> None:
        lanes, _ = chosen_lanes(b, guard, group)
        if lanes.n and b.machine.checks:
            b.machine.batch.races.event(*(("wait_reads", "s", lanes, keep) if waits else ("commit_reads", "s", lanes)))

    return step


def read_rows(b: Build, site: Site, lanes: LaneSet, offsets: Array) -> Array:
    """``(lanes, rows)`` offsets of 16-byte rows in the batch's shared memory to ``(lanes, bytes)``."""
    machine = b.machine
    if machine.checks:
        footprint = Footprint(lanes, offsets)
        footprint.check_written(machine, site.ins)
        machine.batch.races.access("s", site, footprint)
    raw = machine.batch.shared_views[UNIT][offsets // UNIT]
    return np.ascontiguousarray(raw).view(np.uint8).reshape(len(offsets), -1)


def log_write(b: Build, site: Site, lane: int, offsets: Array) -> None:
    """Tell the log of global writes about elements of ``site.size`` bytes at ``offsets`` in the arena."""
    machine = b.machine
    if machine.checks and len(offsets):
        assert machine.global_log is not None
        machine.global_log.write_rows(site, lane, offsets)


def bulk_store(b: Build, ins: Instruction) -> Step:
    """``[to], [from], size``: each lane a copy of its own, from shared to global memory."""
    if ins.parts[3:5] != ("global", "shared::cta") or ins.has("cp_mask") or ins.parts[0] == "cp.reduce":
        raise ins.unknown("of the bulk stores only those from shared to global memory are simulated")
    target, source = address(b, ins, ins.operands[0], "global"), address(b, ins, ins.operands[1], "shared")
    amount, guard = b.src(ins, ins.operands[2], "u32"), b.guard(ins)
    counts = b.machine.counts[ins.index]
    sites: dict[int, Site] = {}
    word = Site(b.machine, ins, 4, "st")

    def step(group: Group, lanes: LaneSet, places: Array | None) -> None:
        machine, batch = b.machine, b.machine.batch
        machine.progress += 1
        to, at = (values if places is None else values[places] for values in (target(group), source(group)))
        size = per_lane(amount, group, places)
        counts.copies += lanes.n
        counts.bytes += int(size.sum())
        for each in np.unique(size).tolist():
            some, chosen = machine.pool.subset(lanes, size == each)
            site = sites.setdefault(each, Site(machine, ins, each, "st"))
            good = allowed(b, site, some, at[chosen], to[chosen], write=True)
            some, chosen = machine.pool.get(some.lanes[good]), chosen[good]
            if not some.n or not each:
                continue
            steps = np.arange(0, each, UNIT)
            rows = (at[chosen] + some.block_of * batch.shared_stride)[:, None] + steps
            data = read_rows(b, site, some, rows)
            for lane, start, row in zip(some.lanes.tolist(), to[chosen].tolist(), data, strict=True):
                machine.arena.bytes[start - GLOBAL:start - GLOBAL + each] = row
                log_write(b, word, lane, start - GLOBAL + np.arange(0, each, 4))

    return on_lanes(b, guard, step)
