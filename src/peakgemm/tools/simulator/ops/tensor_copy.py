"""cp.async.bulk.tensor: the copy engine moves a box of a tensor between global and shared memory.

What lies outside the tensor is read as zero, and counts in full; it is not written. See `bulk` for the rest.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks.access import Site
from ..core.lanes import Group, LaneSet
from ..core.memory import GLOBAL
from ..core.tensor_map import BYTES, TensorMap, decode
from ..front.ptx import Instruction, Mem, Operand
from .build import Build, Getter, Step
from .bulk_group import log_write, read_rows
from .mbarrier import objects, transfer
from .memory import address, chosen_lanes

Array = NDArray[Any]
ALIGN = 128  # bytes, of the box in shared memory
ROW = 16  # bytes, of which the first coordinate of a box is a multiple: else an H100 has "an illegal instruction"
LOAD = (["shared::cluster", "global"], ["shared::cta", "global"])
Found = tuple[TensorMap, int]


def tensor_copy(b: Build, ins: Instruction) -> Step:
    """A load ``[to], [map, {coordinates}], [mbarrier]`` or a store ``[map, {coordinates}], [from]``."""
    ways = list(ins.parts[5:7])
    rest = [part for part in ins.parts[7:] if part not in ("tile", "L2::cache_hint")]
    if ways in LOAD and rest == ["mbarrier::complete_tx::bytes"]:
        return _Load(b, ins).step
    if ways == ["global", "shared::cta"] and rest == ["bulk_group"] and ins.parts[1] == "async":
        return _Store(b, ins).step
    raise ins.unknown("of the tensor copies only tiled loads and stores, without multicast or reduction, are simulated")


class _Copy:
    """What loads and stores have in common."""

    def __init__(self, b: Build, ins: Instruction, tensor: Operand, shared: Operand) -> None:
        self.b, self.ins = b, ins
        rank = int(ins.parts[4][0])
        if not isinstance(tensor, Mem) or len(tensor.index) != rank:
            raise ins.unknown(f"it needs a tensor map and {rank} coordinates")
        self.map = address(b, ins, tensor, "any")
        self.corner = [b.src(ins, item, "s32") for item in tensor.index]
        self.shared = address(b, ins, shared, "shared")
        self.guard = b.guard(ins)
        self.counts = b.machine.counts[ins.index]
        self.sites: dict[int, Site] = {}

    def site(self, size: int) -> Site:
        """The accesses of this instruction by ``size`` bytes."""
        if size not in self.sites:
            self.sites[size] = Site(self.b.machine, self.ins, size, "bulk")
        return self.sites[size]

    def chosen(self, group: Group, *more: Getter) -> tuple[LaneSet, list[Array]]:
        """The lanes that copy, and of each the map's address, the shared address, ``more``, and the coordinates."""
        lanes, places = chosen_lanes(self.b, self.guard, group)
        getters = (self.map, self.shared, *more, *self.corner)
        rows = [np.broadcast_to(np.asarray(get(group)), (group.lanes.n,)) for get in getters]
        return lanes, rows if places is None else [row[places] for row in rows]

    def found(self, lanes: LaneSet, pointers: Array) -> dict[int, Found]:
        """The map and its array's address by the address of the map."""
        machine = self.b.machine
        out: dict[int, Found] = {}
        for pointer in np.unique(pointers).tolist():
            segment = machine.arena.find(pointer, pointer + BYTES)
            number = None if segment is None else decode(
                machine.arena.bytes[pointer - GLOBAL:pointer - GLOBAL + BYTES].tobytes())
            who = lanes.lanes[pointers == pointer]
            if number is None:
                machine.fault("tensor_map", self.ins, f"at address 0x{pointer:x} is no tensor map; pass a "
                              "simulator.TensorMap for a const __grid_constant__ CUtensorMap parameter", who, pointer)
            elif pointer % 64:
                machine.fault("misaligned", self.ins, f"tensor map at address 0x{pointer:x}, not a multiple of 64", who,
                              pointer)
            elif len(machine.maps[number][0].dims) != len(self.corner):
                machine.fault("tensor_map", self.ins, f"{len(self.corner)} coordinates for a tensor of "
                              f"{len(machine.maps[number][0].dims)} dimensions", who, pointer)
            else:
                out[pointer] = machine.maps[number]
        return out

    def allowed(self, lanes: LaneSet, at: Array, tensor: TensorMap, first: Array) -> Array:
        """Which of the boxes at ``at`` are in bounds and aligned, there and in the tensor, where they begin at the
        innermost coordinate ``first``; the others are reported."""
        limit, size = self.b.machine.batch.shared_size, tensor.bytes
        outside, crooked = at.astype(np.int64) + size > limit, at % ALIGN != 0
        odd = first.astype(np.int64) * tensor.size % ROW != 0
        if odd.any():
            begin = int(first[odd][0])
            self.b.machine.fault("misaligned", self.ins, f"box at the innermost coordinate {begin}, which is "
                                 f"{begin * tensor.size} bytes, no multiple of {ROW}; copy from a multiple on",
                                 lanes.lanes[odd])
        for kind, mask, why in (("misaligned", crooked, f"not a multiple of {ALIGN}"),
                                ("shared_out_of_bounds", outside, f"past the block's {limit} bytes of shared memory")):
            if mask.any():
                place = int(at[mask][0])
                self.b.machine.fault(kind, self.ins, f"box of {size} bytes at shared address {place}, {why}",
                                     lanes.lanes[mask], place)
        return np.asarray(~(outside | crooked | odd))


def _inside(tensor: TensorMap, base: int, corner: list[int]) -> Array:
    """Where in the arena the elements of a box lie."""
    offset, inside = tensor.elements(corner)
    return np.asarray(base - GLOBAL + offset[inside])


class _Load(_Copy):
    def __init__(self, b: Build, ins: Instruction) -> None:
        super().__init__(b, ins, ins.operands[1], ins.operands[0])
        self.barrier = address(b, ins, ins.operands[2], "shared")

    def step(self, group: Group) -> None:
        """Copy the boxes of a group of lanes."""
        lanes, (pointers, at, bar, *corner) = self.chosen(group, self.barrier)
        if not lanes.n:
            return
        machine = self.b.machine
        maps = self.found(lanes, pointers)
        objs, which = objects(self.b, self.ins, lanes, bar)
        phase = np.array([item.phase for item in objs])[which]
        amount = np.array([maps[p][0].bytes if p in maps else 0 for p in pointers.tolist()], np.int64)
        for pointer, where, number in sorted(set(zip(pointers.tolist(), bar.tolist(), phase.tolist(), strict=True))):
            if pointer not in maps:
                continue
            mask = (pointers == pointer) & (bar == where) & (phase == number)
            mask[mask] = self.allowed(machine.pool.get(lanes.lanes[mask]), at[mask], maps[pointer][0], corner[0][mask])
            if mask.any():
                some, chosen = machine.pool.subset(lanes, mask)
                self._copy(some, at[chosen], maps[pointer], [c[chosen] for c in corner], (where, number))
        self.counts.copies += lanes.n
        self.counts.bytes += int(amount.sum())
        transfer(self.b, self.ins, lanes, bar, -amount)

    def _copy(self, lanes: LaneSet, at: Array, found: Found, corner: list[Array], mbarrier: tuple[int, int]) -> None:
        machine, batch = self.b.machine, self.b.machine.batch
        tensor, base = found
        memory = machine.arena.views[tensor.size]
        start = (base - GLOBAL) // tensor.size
        for lane, (block, to) in enumerate(zip(lanes.block_of.tolist(), at.tolist(), strict=True)):
            place = [int(c[lane]) for c in corner]
            offset, inside = tensor.elements(place)
            if machine.global_log is not None:
                machine.global_log.copied(self.site(tensor.size), int(lanes.lanes[lane]), base,
                                          partial(_inside, tensor, base, place))
            data = np.where(inside, memory[start + offset // tensor.size], memory.dtype.type(0))
            rows = tensor.places(to) + block * batch.shared_stride
            batch.shared_views[16][rows >> 4] = data.view(np.complex128)
            if machine.checks and not batch.all_written:
                batch.mark_written(rows, 16)
        if machine.checks:
            site = self.site(tensor.bytes)
            pattern, shift = site.match("shared", lanes, at)
            batch.races.access("t", site, pattern, shift, *mbarrier)


class _Store(_Copy):
    def __init__(self, b: Build, ins: Instruction) -> None:
        super().__init__(b, ins, ins.operands[0], ins.operands[1])

    def step(self, group: Group) -> None:
        """Copy the boxes of a group of lanes."""
        lanes, (pointers, at, *corner) = self.chosen(group)
        if not lanes.n:
            return
        self.b.machine.progress += 1
        self.counts.copies += lanes.n
        for pointer, (tensor, base) in self.found(lanes, pointers).items():
            mask = pointers == pointer
            self.counts.bytes += tensor.bytes * int(mask.sum())
            mask[mask] = self.allowed(self.b.machine.pool.get(lanes.lanes[mask]), at[mask], tensor, corner[0][mask])
            if mask.any() and self._writable(lanes.lanes[mask], base):
                some, chosen = self.b.machine.pool.subset(lanes, mask)
                self._copy(some, at[chosen], tensor, base, [c[chosen] for c in corner])

    def _writable(self, lanes: Array, base: int) -> bool:
        machine = self.b.machine
        segment = machine.arena.find(base, base)
        if segment is not None and segment.writable:
            return True
        machine.fault("read_only", self.ins, f"store to a read-only array: {machine.arena.describe(base, 1)}", lanes,
                      base)
        return False

    def _copy(self, lanes: LaneSet, at: Array, tensor: TensorMap, base: int, corner: list[Array]) -> None:
        machine, batch = self.b.machine, self.b.machine.batch
        rows = np.stack([tensor.places(to) + block * batch.shared_stride
                         for to, block in zip(at.tolist(), lanes.block_of.tolist(), strict=True)])
        data = read_rows(self.b, self.site(tensor.size), lanes, rows)
        memory = machine.arena.views[tensor.size]
        for lane, row in enumerate(data):
            offset, inside = tensor.elements([int(c[lane]) for c in corner])
            offset = base - GLOBAL + offset[inside]
            memory[offset // tensor.size] = row.view(memory.dtype)[inside]
            log_write(self.b, self.site(tensor.size), int(lanes.lanes[lane]), offset)
