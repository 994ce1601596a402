"""Instructions of a whole warp: shuffles, votes, matches, reductions, ldmatrix."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks.access import Site
from ..core.lanes import Group, LaneSet, index
from ..core.memory import SHARED
from ..front.ptx import Instruction, Operand, Pair, Vec
from .build import Build, Getter, Step, builder
from .memory import address, chosen_lanes, space_of

Array = NDArray[Any]


def _spread(group: Group, value: Any, dtype: Any) -> Array:
    """A scalar or row as ``(warps, 32)``, 0 for absent lanes."""
    return group.lanes.table(np.ascontiguousarray(np.broadcast_to(np.asarray(value, dtype), (group.lanes.n,))))


def _back(group: Group, table: Array) -> Array:
    """A ``(warps, 32)`` table as a row."""
    flat = np.ascontiguousarray(table).reshape(-1)
    return flat if group.lanes.full else flat[group.lanes.place]


def _present(b: Build, group: Group, guard: Getter | None) -> NDArray[np.bool_]:
    """``(warps, 32)``: lanes of the group whose guard holds."""
    if guard is None:
        return group.lanes.active
    return group.lanes.table(np.ascontiguousarray(guard(group)), False)


@builder("shfl")
def shuffle(b: Build, ins: Instruction) -> Step:
    mode = next(part for part in ins.parts if part in ("up", "down", "bfly", "idx"))
    target = ins.operands[0]
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, None)
    put = b.dst(ins, first, "b32")
    tell = b.dst(ins, second, "pred") if second is not None else None
    value, by, control = (b.src(ins, operand, "u32") for operand in ins.operands[1:4])

    def step(group: Group) -> None:
        source = _spread(group, value(group), np.uint32)
        n = _spread(group, by(group), np.uint32).astype(np.int64) & 31
        c = _spread(group, control(group), np.uint32).astype(np.int64)
        lane = np.arange(32)
        clamp, segment = c & 31, c >> 8 & 31
        low = lane & segment
        high = low | (clamp & ~segment)
        if mode == "up":
            other = lane - n
            inside = other >= high
        elif mode == "down":
            other = lane + n
            inside = other <= high
        elif mode == "bfly":
            other = lane ^ n
            inside = other <= high
        else:
            other = low | (n & ~segment)
            inside = other <= high
        other = np.where(inside, other, lane) & 31
        put(group, _back(group, np.take_along_axis(source, other, axis=1)))
        if tell is not None:
            tell(group, _back(group, inside))

    return step


@builder("vote")
def vote(b: Build, ins: Instruction) -> Step:
    how = next(part for part in ins.parts if part in ("all", "any", "uni", "ballot"))
    put = b.dst(ins, ins.operands[0], "b32" if how == "ballot" else "pred")
    predicate, mask = b.src(ins, ins.operands[1], "pred"), b.src(ins, ins.operands[2], "u32")
    guard = b.guard(ins)

    def step(group: Group) -> None:
        named = _spread(group, mask(group), np.uint32)
        lanes = (named[:, :, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1)).astype(bool)
        there = _present(b, group, guard)
        yes = (_spread(group, predicate(group), np.bool_) & there)[:, None, :] & lanes
        considered = there[:, None, :] & lanes
        if how == "ballot":
            out = (yes * (np.uint32(1) << np.arange(32, dtype=np.uint32))).sum(axis=2, dtype=np.uint32)
        elif how == "any":
            out = yes.any(axis=2)
        elif how == "all":
            out = (yes | ~considered).all(axis=2)
        else:
            out = (yes | ~considered).all(axis=2) | ~yes.any(axis=2)
        put(group, _back(group, out))

    return step


@builder("activemask")
def activemask(b: Build, ins: Instruction) -> Step:
    put = b.dst(ins, ins.operands[0], "b32")

    def step(group: Group) -> None:
        bits = (group.lanes.active * (np.uint32(1) << np.arange(32, dtype=np.uint32))).sum(axis=1, dtype=np.uint32)
        put(group, bits[group.lanes.ordinal])

    return step


@builder("elect")
def elect(b: Build, ins: Instruction) -> Step:
    target = ins.operands[0]
    assert isinstance(target, Pair)
    put, tell = b.dst(ins, target.first, "b32"), b.dst(ins, target.second, "pred")

    def step(group: Group) -> None:
        lanes = group.lanes
        leader = (lanes.lanes[lanes.firsts] & 31)[lanes.ordinal]
        put(group, leader.astype(np.uint32))
        tell(group, leader == (lanes.lanes & 31))

    return step


@builder("match")
def match(b: Build, ins: Instruction) -> Step:
    if ins.parts[1] != "any" and ins.parts[2] != "any":
        raise ins.unknown("match.all")
    kind = ins.types[-1].replace("b", "u")
    put = b.dst(ins, ins.operands[0], "b32")
    value, mask = b.src(ins, ins.operands[1], kind), b.src(ins, ins.operands[2], "u32")

    def step(group: Group) -> None:
        table = _spread(group, value(group), f"{kind[0]}{int(kind[1:]) // 8}")
        named = _spread(group, mask(group), np.uint32)
        same = (table[:, :, None] == table[:, None, :]) & group.lanes.active[:, None, :]
        bits = (same * (np.uint32(1) << np.arange(32, dtype=np.uint32))).sum(axis=2, dtype=np.uint32)
        put(group, _back(group, bits & named))

    return step


@builder("redux")
def redux(b: Build, ins: Instruction) -> Step:
    kind = ins.types[-1]
    how = next(part for part in ins.parts if part in ("add", "min", "max", "and", "or", "xor"))
    if kind == "f32":
        raise ins.unknown()
    put = b.dst(ins, ins.operands[0], kind)
    value = b.src(ins, ins.operands[1], kind)
    function = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
                "xor": np.bitwise_xor}[how]

    def step(group: Group) -> None:
        row = np.ascontiguousarray(np.broadcast_to(np.asarray(value(group)), (group.lanes.n,)))
        total = function.reduceat(row, group.lanes.firsts).astype(row.dtype)
        put(group, total[group.lanes.ordinal])

    return step


class _Matrices:
    """What ldmatrix and stmatrix have in common: 8 x 8 matrices of 16-bit elements, a row's address from a lane."""

    def __init__(self, b: Build, ins: Instruction, memory: Operand, kind: str) -> None:
        self.count = next((int(part[1]) for part in ins.parts if part in ("x1", "x2", "x4")), 0)
        self.space = space_of(ins)
        if not self.count or not ins.has("m8n8") or not ins.has("b16") or self.space not in ("shared", "generic"):
            raise ins.unknown()
        self.b, self.transposed, self.guard = b, ins.has("trans"), b.guard(ins)
        self.get = address(b, ins, memory, self.space)
        self.site = Site(b.machine, ins, 16, kind)

    def rows(self, group: Group, event: str) -> tuple[LaneSet, Array, Array | None] | None:
        """The lanes that give addresses, the rows' places in shared memory over 16, and which of them are allowed."""
        lanes, _ = chosen_lanes(self.b, self.guard, group)
        if not lanes.n:
            return None
        at = self.get(group)
        if self.space == "generic":
            at = (at - np.uint64(SHARED)).astype(np.uint32)
        some, places = self.b.machine.pool.subset(group.lanes, (group.lanes.lanes & 31) < 8 * self.count)
        offsets, valid = self.site.shared(some, at[places], event)
        return some, offsets >> 4, valid


@builder("ldmatrix")
def ldmatrix(b: Build, ins: Instruction) -> Step:
    matrices = _Matrices(b, ins, ins.operands[1], "ldsm")
    into = ins.operands[0]
    puts = [b.dst(ins, item, "b32") for item in (into.items if isinstance(into, Vec) else (into,))]

    def step(group: Group) -> None:
        found = matrices.rows(group, "r")
        if found is None:
            return
        some, places, valid = found
        rows = np.zeros((some.n, 16), np.uint8)
        fetched = b.machine.batch.shared_views[16].take(index(places), mode="clip").view(np.uint8).reshape(-1, 16)
        rows[slice(None) if valid is None else valid] = fetched
        table = np.zeros((group.lanes.warps, 32, 8), np.uint16)
        table[some.ordinal, some.lanes & 31] = rows.view(np.uint16)
        lane = np.arange(32)
        for k, put in enumerate(puts):
            matrix = table[:, 8 * k:8 * k + 8]
            if matrices.transposed:
                matrix = matrix.transpose(0, 2, 1)
            pair = np.ascontiguousarray(matrix).view(np.uint32)  # (warps, 8 rows, 4 pairs)
            put(group, _back(group, pair[:, lane >> 2, lane & 3]))

    return step


@builder("stmatrix")
def stmatrix(b: Build, ins: Instruction) -> Step:
    matrices = _Matrices(b, ins, ins.operands[0], "st")
    source = ins.operands[1]
    gets = [b.src(ins, item, "u32") for item in (source.items if isinstance(source, Vec) else (source,))]

    def step(group: Group) -> None:
        found = matrices.rows(group, "w")
        if found is None:
            return
        b.machine.progress += 1
        some, places, valid = found
        pairs = np.stack([_spread(group, get(group), np.uint32) for get in gets], axis=1)  # (warps, matrices, 32)
        table = pairs.reshape(-1, 8, 4).view(np.uint16)
        if matrices.transposed:
            table = np.ascontiguousarray(table.transpose(0, 2, 1))
        rows = table.reshape(-1, 8 * matrices.count, 8)[some.ordinal, some.lanes & 31]
        rows = rows if valid is None else rows[valid]
        b.machine.batch.shared_views[16][places] = np.ascontiguousarray(rows).view(np.complex128)[:, 0]

    return step
