"""Instructions of a whole warp: shuffles, votes, matches, reductions, ldmatrix."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks.access import Site
from ..core.floats import canonical, maximum32, minimum32
from ..core.lanes import DTYPES, Group, LaneSet, index
from ..core.memory import SHARED
from ..front.ptx import Instruction, Operand, Pair, Reg, Vec
from .build import Build, Step, builder
from .memory import address, chosen_lanes, space_of

Array = NDArray[Any]
LANE = np.arange(32)


def _spread(group: Group, value: Any, dtype: Any) -> Array:
    """A scalar or row as ``(warps, 32)``, 0 for absent lanes."""
    return group.lanes.table(np.ascontiguousarray(np.broadcast_to(np.asarray(value, dtype), (group.lanes.n,))))


def _back(group: Group, table: Array) -> Array:
    """A ``(warps, 32)`` table as a row."""
    flat = np.ascontiguousarray(table).reshape(-1)
    return flat if group.lanes.full else flat[group.lanes.place]


class Members:
    """Which lanes take part in an instruction with a member mask: those that the mask names and that execute it so."""

    def __init__(self, b: Build, ins: Instruction) -> None:
        if not ins.has("sync"):
            raise ins.unknown(f"without .sync it is of no architecture that is simulated; write {ins.base}.sync")
        self.b, self.ins, self.guard = b, ins, b.guard(ins)
        self.named = b.src(ins, ins.operands[-1], "u32")

    def __call__(self, group: Group) -> tuple[Array, Array]:
        """The lanes that execute it ``(warps, 32)``, and for each those that take part with it ``(warps, 32, 32)``.

        What the PTX ISA leaves undefined is reported: a mask without the lane itself, or with a lane that passes by.
        """
        lanes, mask, all_here = group.lanes, self.named(group), np.ones((1, 1, 1), bool)
        if self.guard is None and lanes.full and np.all(mask == np.uint32(0xFFFFFFFF)):
            return lanes.active, np.broadcast_to(all_here, (lanes.warps, 32, 32))
        there = lanes.active if self.guard is None else lanes.table(np.ascontiguousarray(self.guard(group)), False)
        masks = _spread(group, mask, np.uint32)
        names = (masks[:, :, None] >> LANE.astype(np.uint32) & np.uint32(1)).astype(bool) & there[:, :, None]
        part = names & there[:, None, :] & (masks[:, :, None] == masks[:, None, :])
        outside = there & ~names[:, LANE, LANE]
        apart = (names & lanes.active[:, None, :] & ~part).any(axis=2)
        self.report(group, "warp_mask", outside, "is executed by a lane that its own mask does not name; let each lane "
                    "name itself")
        self.report(group, "divergent_warp", apart, "names lanes that pass it by, or execute it with another mask; all "
                    "lanes of a mask must execute it together, with the same mask")
        return there, part

    def report(self, group: Group, kind: str, wrong: Array, why: str) -> None:
        """Report lanes ``(warps, 32)``."""
        if self.b.machine.checks and wrong.any():
            self.b.machine.fault(kind, self.ins, f"{self.ins.opcode} {why}", group.lanes.lanes[_back(group, wrong)])


@builder("shfl")
def shuffle(b: Build, ins: Instruction) -> Step:
    mode = next(part for part in ins.parts if part in ("up", "down", "bfly", "idx"))
    members, put = Members(b, ins), _pair(b, ins)
    value, by, control = (b.src(ins, operand, "u32") for operand in ins.operands[1:4])

    def step(group: Group) -> None:
        there, part = members(group)
        source = _spread(group, value(group), np.uint32)
        n = _spread(group, by(group), np.uint32).astype(np.int64) & 31
        c = _spread(group, control(group), np.uint32).astype(np.int64)
        clamp, segment = c & 31, c >> 8 & 31
        low = LANE & segment
        high = low | (clamp & ~segment)
        other = {"up": LANE - n, "down": LANE + n, "bfly": LANE ^ n, "idx": low | (n & ~segment)}[mode]
        inside = other >= high if mode == "up" else other <= high
        other = np.where(inside, other, LANE) & 31
        known = np.take_along_axis(part, other[:, :, None], axis=2)[:, :, 0] if any(part.strides) else np.True_
        members.report(group, "shuffle_source", there & inside & ~known,
                       "reads a lane that takes no part in it, whose value is undefined; name it in the mask and let "
                       "it execute this too, or give the shuffle a width, so that no lane reads beyond the mask")
        put(group, _back(group, np.take_along_axis(source, other, axis=1) * known), _back(group, inside))

    return step


def _pair(b: Build, ins: Instruction) -> Any:
    """A setter of ``d`` or ``d|p``."""
    target = ins.operands[0]
    first, second = (target.first, target.second) if isinstance(target, Pair) else (target, Reg("_"))
    return b.results(ins, (first, "b32"), (second, "pred"))


def _bits(lanes: Array) -> Array:
    """``(..., 32)`` lanes as masks."""
    return np.asarray((lanes * (np.uint32(1) << LANE.astype(np.uint32))).sum(axis=-1, dtype=np.uint32))


@builder("vote")
def vote(b: Build, ins: Instruction) -> Step:
    how = next(part for part in ins.parts if part in ("all", "any", "uni", "ballot"))
    members, put = Members(b, ins), b.dst(ins, ins.operands[0], "b32" if how == "ballot" else "pred")
    predicate = b.src(ins, ins.operands[1], "pred")

    def step(group: Group) -> None:
        _, part = members(group)
        yes = _spread(group, predicate(group), np.bool_)[:, None, :]
        some, every = (part & yes).any(axis=2), (yes | ~part).all(axis=2)
        said: Array = np.asarray(_bits(part & yes) if how == "ballot" else some if how == "any" else
                                 every if how == "all" else every | ~some)
        put(group, _back(group, said))

    return step


@builder("activemask")
def activemask(b: Build, ins: Instruction) -> Step:
    put, guard = b.dst(ins, ins.operands[0], "b32"), b.guard(ins)

    def step(group: Group) -> None:
        put(group, _bits(_spread(group, True if guard is None else guard(group), np.bool_))[group.lanes.ordinal])

    return step


@builder("elect")
def elect(b: Build, ins: Instruction) -> Step:
    members, put = Members(b, ins), _pair(b, ins)

    def step(group: Group) -> None:
        _, part = members(group)
        leader = part.argmax(axis=2)
        put(group, _back(group, leader.astype(np.uint32)), _back(group, leader == LANE))

    return step


@builder("match")
def match(b: Build, ins: Instruction) -> Step:
    kind, every = ins.types[-1].replace("b", "u"), next(part for part in ins.parts if part in ("any", "all")) == "all"
    members, put, value = Members(b, ins), _pair(b, ins), b.src(ins, ins.operands[1], kind)

    def step(group: Group) -> None:
        _, part = members(group)
        table = _spread(group, value(group), DTYPES[kind])
        same = (table[:, :, None] == table[:, None, :]) & part
        agree = (same == part).all(axis=2)
        put(group, _back(group, _bits(same) * (agree | (not every))), _back(group, agree))

    return step


_REDUCE: dict[str, Any] = {"add": np.add, "min": minimum32, "max": maximum32, "and": np.bitwise_and,
                            "or": np.bitwise_or, "xor": np.bitwise_xor}


@builder("redux")
def redux(b: Build, ins: Instruction) -> Step:
    kind, how = ins.types[-1], next(part for part in ins.parts if part in _REDUCE)
    floating = kind == "f32"
    if floating and how not in ("min", "max"):
        raise ins.unknown()
    members, put, value = Members(b, ins), b.dst(ins, ins.operands[0], kind), b.src(ins, ins.operands[1], kind)
    whole: dict[str, Any] = {"min": np.minimum, "max": np.maximum}
    function = _REDUCE[how] if floating or how not in whole else whole[how]

    def step(group: Group) -> None:
        _, part = members(group)
        table = _spread(group, np.abs(value(group)) if ins.has("abs") else value(group), DTYPES[kind])
        first = part.argmax(axis=2)
        total = np.take_along_axis(table, first, axis=1)
        for lane in range(32):
            one = table[:, lane, None]
            more = function(total, one, ins.has("NaN")) if floating else function(total, one)
            total = np.where(part[:, :, lane] & (first < lane), more, total)
        put(group, _back(group, canonical(total) if floating else total))

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
        for k, put in enumerate(puts):
            matrix = table[:, 8 * k:8 * k + 8]
            if matrices.transposed:
                matrix = matrix.transpose(0, 2, 1)
            pair = np.ascontiguousarray(matrix).view(np.uint32)  # (warps, 8 rows, 4 pairs)
            put(group, _back(group, pair[:, LANE >> 2, LANE & 3]))

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
