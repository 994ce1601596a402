"""cp.async.bulk: the copy engine moves multiples of 16 bytes from global to shared memory and tells an mbarrier.

The bytes arrive at once; that a thread must not look at them before their phase has ended is the
business of `races`. The profiler shows neither LSU requests nor wavefronts, so none are counted.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import InvalidValue
from ..checks.access import Site, refuse_ended
from ..core.lanes import Group, LaneSet
from ..core.memory import GLOBAL
from ..front.ptx import Instruction
from .build import Build, Step
from .mbarrier import objects, per_lane, transfer
from .memory import address, on_lanes

Array = NDArray[Any]
UNIT = 16  # bytes: the grain of sizes and addresses


def bulk_copy(b: Build, ins: Instruction) -> Step:
    """``[to], [from], size, [mbarrier]``, each lane a copy of its own."""
    to, *rest = ins.parts[3:]
    if to not in ("shared::cluster", "shared::cta") or rest[:2] != ["global", "mbarrier::complete_tx::bytes"] or \
            rest[2:] not in ([], ["L2::cache_hint"], ["multicast::cluster"]):
        raise ins.unknown("of the bulk copies only those from global to shared memory are simulated")
    target, source = address(b, ins, ins.operands[0], "shared"), address(b, ins, ins.operands[1], "global")
    amount, barrier = b.src(ins, ins.operands[2], "u32"), address(b, ins, ins.operands[3], "shared")
    mask = b.src(ins, ins.operands[4], "u16") if rest[2:] == ["multicast::cluster"] else None
    guard = b.guard(ins)
    sites: dict[int, Site] = {}
    piece = Site(b.machine, ins, UNIT, "bulk")
    counts = b.machine.counts[ins.index]
    cluster = b.machine.cluster

    def copy(lanes: LaneSet, block: Array, at: Array, origin: Array, bar: Array, size: Array) -> None:
        """To ``at`` in the memory of each lane's ``block``, whose barrier counts."""
        found, which = objects(b, ins, lanes, bar, block)
        phase = np.array([item.phase for item in found])[which]
        for each, where, number in sorted(set(zip(size.tolist(), bar.tolist(), phase.tolist(), strict=True))):
            some, chosen = b.machine.pool.subset(lanes, (size == each) & (bar == where) & (phase == number))
            site = sites.setdefault(each, Site(b.machine, ins, each, "bulk"))
            _copy(b, site, piece, some, block[chosen], at[chosen], origin[chosen], (where, number))
        transfer(b, ins, lanes, bar, -size, block)

    def step(group: Group, lanes: LaneSet, places: Array | None) -> None:
        at, origin, bar = (values if places is None else values[places]
                           for values in (target(group), source(group), barrier(group)))
        size = per_lane(amount, group, places)
        counts.copies += lanes.n
        counts.bytes += int(size.sum())
        if mask is None:
            copy(lanes, lanes.block_of, at, origin, bar, size)
            return
        wanted = per_lane(mask, group, places)
        if (wanted >> cluster).any():
            raise InvalidValue(f"{ins.where}: a copy to block {int(wanted.max()).bit_length() - 1} of a cluster of "
                               f"{cluster}; the mask's bits count from 0 to {cluster - 1}")
        for rank in range(cluster):
            some, chosen = b.machine.pool.subset(lanes, (wanted >> rank & 1) != 0)
            if some.n:
                block = some.block_of // cluster * cluster + rank
                refuse_ended(b.machine, ins, some, block, "bulk copy to the shared memory")
                copy(some, block, at[chosen], origin[chosen], bar[chosen], size[chosen])

    return on_lanes(b, guard, step)


def _copy(b: Build, site: Site, piece: Site, lanes: LaneSet, block: Array, at: Array, origin: Array,
          mbarrier: tuple[int, int]) -> None:
    machine, batch = b.machine, b.machine.batch
    valid = allowed(b, site, lanes, at, origin)
    if not valid.all():
        lanes, chosen = machine.pool.subset(lanes, valid)
        block, at, origin = block[chosen], at[chosen], origin[chosen]
    if not lanes.n or not site.size:
        return
    steps = np.arange(0, site.size, UNIT)
    if machine.global_log is not None:
        for lane, begin in zip(lanes.lanes.tolist(), (origin - np.uint64(GLOBAL)).tolist(), strict=True):
            machine.global_log.copied(piece, lane, begin + GLOBAL, partial(np.add, begin, steps))
    start = at + block * batch.shared_stride
    into = (start[:, None] + steps).ravel()
    out_of = ((origin - np.uint64(GLOBAL)).astype(np.int64)[:, None] + steps).ravel()
    batch.shared_views[UNIT][into // UNIT] = machine.arena.views[UNIT][out_of // UNIT]
    if machine.checks:
        if not batch.all_written:
            batch.mark_written(into, UNIT)
        site.log("t", lanes, start, *mbarrier)


def allowed(b: Build, site: Site, lanes: LaneSet, at: Array, origin: Array, write: bool = False) -> Array:
    """Which lanes' copies between shared ``at`` and global ``origin`` are in bounds and aligned; the others are
    reported."""
    machine, size, limit = b.machine, site.size, b.machine.batch.shared_size
    inside = machine.arena.inside(origin, size)
    to, from_ = ("from", "to") if write else ("to", "from")
    frozen = np.zeros(lanes.n, bool)
    for segment in machine.arena.segments if write else ():
        if not segment.writable:
            frozen |= (origin >= np.uint64(segment.base)) & (origin < np.uint64(segment.end))
    broken = (
        ("misaligned", np.full(lanes.n, size % UNIT != 0), f"is not of a multiple of {UNIT} bytes"),
        ("misaligned", at % UNIT != 0, f"{to} shared address {{0}}, which is not a multiple of {UNIT}"),
        ("misaligned", origin % np.uint64(UNIT) != 0, f"{from_} an address that is not a multiple of {UNIT}: {{1}}"),
        ("shared_out_of_bounds", at.astype(np.int64) + size > limit,
         f"{to} shared address {{0}}, past the block's {limit} bytes of shared memory"),
        ("out_of_bounds", ~inside, "that reaches outside every array: {1}"),
        ("read_only", frozen & inside, "to a read-only array: {1}"),
    )
    valid = np.ones(lanes.n, bool)
    for kind, mask, why in broken:
        if mask.any():
            first = int(np.flatnonzero(mask)[0])
            told = why.format(int(at[first]), machine.arena.describe(int(origin[first]), size))
            machine.fault(kind, site.ins, f"bulk copy of {size} bytes {told}", lanes.lanes[mask],
                          int(at[first] if "shared" in why else origin[first]))
            valid &= ~mask
    return valid
