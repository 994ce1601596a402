"""cp.async: copies of 4 to 16 bytes from global to shared memory, their groups and waits.

The bytes arrive at once; that a thread must not look at them before it has waited is the
business of `races`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks.access import UNITS, Site
from ..core.counters import copy_wavefronts, wavefronts
from ..core.lanes import Group, LaneSet, index
from ..core.memory import GLOBAL
from ..front.ptx import Imm, Instruction, Reg
from .build import Build, Getter, Step, builder
from .bulk import bulk_copy
from .bulk_group import bulk_group, bulk_store
from .memory import address, on_lanes
from .tensor_copy import tensor_copy

Array = NDArray[Any]


@builder("cp")
def cp_async(b: Build, ins: Instruction) -> Step:
    if ins.has("bulk"):
        if ins.has("commit_group", "wait_group"):
            return bulk_group(b, ins)
        if ins.has("prefetch"):
            return lambda group: None
        if ins.has("tensor"):
            return tensor_copy(b, ins)
        return bulk_store(b, ins) if ins.has("bulk_group") else bulk_copy(b, ins)
    if ins.opcode.startswith("cp.async.commit_group"):
        return _group_event(b, ins, "commit")
    if ins.opcode.startswith("cp.async.wait_all"):
        return _group_event(b, ins, "wait", -1)
    if ins.opcode.startswith("cp.async.wait_group"):
        keep = ins.operands[0]
        assert isinstance(keep, Imm)
        return _group_event(b, ins, "wait", keep.value)
    if ins.opcode.startswith("cp.async.mbarrier.arrive"):
        from .mbarrier import arrive_after_copies

        return arrive_after_copies(b, ins)
    if not (ins.has("ca", "cg") and ins.has("global")):
        raise ins.unknown()
    size_operand = ins.operands[2]
    assert isinstance(size_operand, Imm)
    size = size_operand.value
    if size not in ((4, 8, 16) if ins.has("ca") else (16,)):
        raise ins.unknown(f"it copies {size} bytes; .ca copies 4, 8 or 16, .cg 16")
    to, source = address(b, ins, ins.operands[0], "shared"), address(b, ins, ins.operands[1], "global")
    amount = _source_size(b, ins, size)
    guard = b.guard(ins)
    inside, outside = Site(b.machine, ins, size, "ldgsts"), Site(b.machine, ins, size, "ldgsts")
    excess = _SourceConflicts(inside) if ins.has("ca") else None

    def step(group: Group, lanes: LaneSet, places: Array | None) -> None:
        b.machine.progress += 1
        at, origin = (given if places is None else given[places] for given in (to(group), source(group)))
        data = np.zeros((lanes.n, 1), UNITS[size])
        reads = np.ones(lanes.n, bool)
        if amount is None:
            _fetch(b, outside, lanes, origin, data, None)
        else:
            given = np.broadcast_to(np.asarray(amount(group)), (group.lanes.n,))
            given = given if places is None else given[places]
            if (given > size).any():
                raise ins.unknown(f"it reads {int(given.max())} bytes for a copy of {size}")
            reads = given > 0
            for bytes_read in np.unique(given):
                if bytes_read:
                    some, where = b.machine.pool.subset(lanes, given == bytes_read)
                    if bytes_read == size:
                        _fetch(b, outside, some, origin[where], data, where)
                    else:
                        _fetch_bytes(b, outside, some, origin[where], data, where, int(bytes_read))
        offsets, valid = inside.shared(lanes, at, "c")
        if excess is not None:
            excess.count(lanes, at, origin, reads)
        b.machine.batch.shared_views[size][offsets >> (size.bit_length() - 1)] = data[:, 0] if valid is None \
            else data[valid, 0]

    return on_lanes(b, guard, step)


class _SourceConflicts:
    """Adds the wavefronts that the banks of a copy's source cost beyond those of its target.

    The pattern of a copy in a loop moves as a whole, so each is counted once per bank that it starts in.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        # With the lanes, so that no other set comes to bear their id.
        self.known: dict[tuple[int, bytes, bytes, bytes], tuple[LaneSet, int]] = {}

    def count(self, lanes: LaneSet, to: Array, source: Array, reads: Array) -> None:
        to, source = to.astype(np.int64), source.astype(np.int64)
        # A bank repeats every 128 bytes; which lanes share a word of the target must be kept.
        moved_to, moved_source = to - (int(to[0]) & ~127), source & 127
        key = (id(lanes), moved_to.tobytes(), moved_source.tobytes(), reads.tobytes())
        found = self.known.get(key)
        if found is None:
            size = self.site.size
            extra = copy_wavefronts(to, source, reads, lanes, size) - wavefronts(to, lanes, size, load=False)[0]
            if len(self.known) > 64:
                self.known.clear()
            found = self.known[key] = (lanes, extra)
        self.site.counts.wavefronts += found[1]


def _source_size(b: Build, ins: Instruction, size: int) -> Getter | None:
    if len(ins.operands) < 4 or (ins.has("L2::cache_hint") and len(ins.operands) == 4):
        return None
    operand = ins.operands[3]
    if isinstance(operand, Reg) and b.program.kernel.registers.get(operand.name) == "pred":
        ignore = b.src(ins, operand, "pred")
        return lambda group: np.where(ignore(group), 0, size)
    return b.src(ins, operand, "u32")


def _fetch(b: Build, site: Site, lanes: LaneSet, origin: Array, data: Array, where: Array | None) -> None:
    offsets, valid = site.global_(lanes, origin, False)
    if valid is not None:
        where = np.flatnonzero(valid) if where is None else where[valid]
    loaded = b.machine.arena.views[site.size].take(index(offsets >> (site.size.bit_length() - 1)), mode="clip")
    data[slice(None) if where is None else where, 0] = loaded


def _fetch_bytes(b: Build, site: Site, lanes: LaneSet, origin: Array, data: Array, where: Array, count: int) -> None:
    """Lanes that copy only ``count`` bytes, the rest being zero: their reads end there."""
    whole = site.size
    try:
        site.size = count & -count
        tail = origin + np.uint64(count - site.size)
        _, valid = site.global_(lanes, tail, False)
    finally:
        site.size = whole
    table = data.view(np.uint8)
    for k in range(count):
        good = where if valid is None else where[valid]
        start = origin if valid is None else origin[valid]
        offsets = np.clip((start - np.uint64(GLOBAL)).astype(np.int64) + k, 0, b.machine.arena.size)
        table[good, k] = b.machine.arena.views[1][offsets]


def _group_event(b: Build, ins: Instruction, kind: str, *keep: int) -> Step:
    if ins.guard is not None:
        raise ins.unknown("a predicated commit or wait")

    def step(group: Group) -> None:
        if b.machine.checks:
            b.machine.batch.races.event(kind, group.lanes, *keep)

    return step
