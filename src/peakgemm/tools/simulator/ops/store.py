"""Stores: ordinary ones, and ``st.async``, which tells an mbarrier of the block that it stores to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks.access import Site, in_cluster
from ..checks.strength import VOLATILE
from ..core.lanes import Group, LaneSet
from ..core.memory import GLOBAL
from ..front.ptx import BYTES, Imm, Instruction, Vec
from .build import Build, Step, builder
from .mbarrier import objects, transfer
from .memory import address, by_space, flag, gather, on_lanes, resolve, scatter, space_of, vector

Array = NDArray[Any]
Values = Callable[[Group, int, Array | None], Array]
ASYNC = ["async", "shared::cluster", "mbarrier::complete_tx::bytes"]


@builder("st")
def store(b: Build, ins: Instruction) -> Step:
    if ins.has("async"):
        return _store_async(b, ins)
    kind, count, space = ins.types[-1], vector(ins), space_of(ins)
    each = BYTES[kind]
    if each * count > 16 or space == "param":
        raise ins.unknown()
    get, values, guard = address(b, ins, ins.operands[0], space), _values(b, ins), b.guard(ins)
    site = Site(b.machine, ins, each * count, "st")
    machine = b.machine
    strong = not site.strength.weak
    volatile = ins.has("volatile") and machine.checks

    def step(group: Group, lanes: LaneSet, places: Array | None) -> None:
        machine.progress += 1
        at = get(group) if places is None else get(group)[places]
        data = values(group, lanes.n, places)
        for where, some, there, sub in by_space(b, space, lanes, at):
            part = data if sub is None else data[sub]
            unchanged = _unchanged(b, site, where, some, there, part) if volatile and where != "local" else None
            event = "u" if unchanged is not None and unchanged.all() else "w"
            offsets, valid, views = resolve(b, site, where, some, there, event, True)
            if valid is not None:
                part = part[valid]
                unchanged = None if unchanged is None else unchanged[valid]
                some = machine.pool.get(some.lanes[valid])
                if not some.n:
                    continue
            scatter(views, offsets, part)
            if machine.checks and where != "local":
                _same_instruction(b, site, where, some, offsets, part, views, unchanged)
                if strong and machine.fences:
                    flag(b, site, where, some, offsets, None)

    return on_lanes(b, guard, step)


def _values(b: Build, ins: Instruction) -> Values:
    """A getter of what the ``n`` lanes at ``places`` (None: all) store: ``(n, vector)`` unsigned words."""
    kind, value = ins.types[-1], ins.operands[1]
    each = BYTES[kind]
    if (given := len(value.items) if isinstance(value, Vec) else 1) != vector(ins):
        raise ins.unknown(f"it stores {given} values as {vector(ins)}")
    items = value.items if isinstance(value, Vec) else (value,)
    sources = [b.src(ins, item, kind if isinstance(item, Imm) else f"u{8 * each}") for item in items]

    def values(group: Group, n: int, places: Array | None) -> Array:
        data = np.empty((n, len(sources)), f"u{each}")
        for k, source in enumerate(sources):
            given = np.asarray(source(group))
            data[:, k] = given.view(f"u{each}") if given.ndim == 0 or places is None else given[places]
        return data

    return values


def _unchanged(b: Build, site: Site, where: str, lanes: LaneSet, at: Array, data: Array) -> Array:
    """Per lane whether memory holds what it is about to store."""
    machine = b.machine
    if where == "global":
        views, offsets = machine.arena.views, (at - np.uint64(GLOBAL)).astype(np.int64)
    else:
        block, within = in_cluster(machine, lanes, at) if where == "cluster" else (lanes.block_of, at)
        views, offsets = machine.batch.shared_views, within.astype(np.int64) + block * machine.batch.shared_stride
    return np.asarray((gather(views, offsets, data.itemsize, data.shape[1]) == data).all(axis=1))


def _same_instruction(b: Build, site: Site, where: str, lanes: LaneSet, offsets: Array, data: Array,
                      views: dict[int, Array], unchanged: Array | None = None) -> None:
    each, count = data.itemsize, data.shape[1]
    timed = site.strength.weak or bool(site.strength.bits & VOLATILE)  # who is last makes a difference

    def again() -> Array:
        return np.asarray((gather(views, offsets, each, count) == data).all(axis=1))

    if where == "global":
        assert b.machine.global_log is not None
        b.machine.global_log.write(site, lanes, offsets, again if timed else None, unchanged)
        return
    if not timed:
        return
    pattern = site.patterns["shared"][0]
    if pattern.lanes is lanes and pattern.twice is None:
        pattern.twice = len(np.unique(offsets)) < len(offsets)
    if pattern.lanes is lanes and not pattern.twice:
        return
    lost = ~again()
    if lost.any():
        first = int(np.flatnonzero(lost)[0])
        winner = int(np.flatnonzero(offsets == offsets[first])[-1])
        at = int(offsets[first] % b.machine.batch.shared_stride)
        b.machine.fault("shared_race", site.ins, f"shared address {at} is written by thread {{0}} and by thread {{1}} "
                        "with different values in one instruction; give each element to one thread",
                        lanes.lanes[[first, winner]], at, pair=True, count=int(lost.sum()))


def _store_async(b: Build, ins: Instruction) -> Step:
    """``[to], value, [mbarrier]``, both in the shared memory of one block of the cluster (see ``mapa``).

    As with bulk copies the value arrives at once; that a thread must not look at it before its phase has ended is the
    business of `races`.
    """
    kind, count = ins.types[-1], vector(ins)
    size = BYTES[kind] * count
    if [part for part in ins.parts[1:-1] if part not in ("weak", "v2", "v4")] != ASYNC or \
            BYTES[kind] not in (4, 8) or size > 16:
        raise ins.unknown("of asynchronous stores only those of 4 to 16 bytes to shared::cluster, which an mbarrier "
                          "counts, are simulated")
    to, barrier = (address(b, ins, ins.operands[place], "cluster") for place in (0, 2))
    values, guard = _values(b, ins), b.guard(ins)
    machine, site = b.machine, Site(b.machine, ins, size, "st")

    def step(group: Group, lanes: LaneSet, places: Array | None) -> None:
        if machine.cluster == 1:  # measured on an H100 and an H200: an illegal instruction
            machine.fault("mbarrier", ins, "an asynchronous store in a cluster of one block faults on a GPU; launch "
                          "clusters of two, or store as usual", lanes.lanes)
        at, bar = (get(group) if places is None else get(group)[places] for get in (to, barrier))
        data = values(group, lanes.n, places)
        block, bar = in_cluster(machine, lanes, bar)
        found, which = objects(b, ins, lanes, bar, block)
        # Of the mbarrier and its phase: the lanes that share both are logged together.
        key = bar.astype(np.int64) << 32 | np.array([item.phase for item in found])[which]
        some, offsets, valid = site.reach(lanes, at)
        if valid is not None:
            data, key = data[valid], key[valid]
        beside = offsets // machine.batch.shared_stride != (block if valid is None else block[valid])
        if beside.any():
            machine.fault("mbarrier", ins, "the value is stored in one block of the cluster and counted by an mbarrier "
                          "of another; map both addresses to one block", some.lanes[beside])
        for one in np.unique(key[~beside]).tolist():
            mine, chosen = machine.pool.subset(some, (key == one) & ~beside)
            _send(b, site, mine, offsets[chosen], data[chosen], (one >> 32, one & 0xFFFFFFFF))
        transfer(b, ins, lanes, bar, np.full(lanes.n, -size), block)  # of those refused too, so that the run goes on

    return on_lanes(b, guard, step)


def _send(b: Build, site: Site, lanes: LaneSet, offsets: Array, data: Array, mbarrier: tuple[int, int]) -> None:
    views = b.machine.batch.shared_views
    scatter(views, offsets, data)
    if b.machine.checks:
        site.log("t", lanes, offsets, *mbarrier)
        _same_instruction(b, site, "cluster", lanes, offsets, data, views)
