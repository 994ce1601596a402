"""Sets of lanes, and the register rows of the lanes that run together.

A lane's number in a batch is ``block slot * padded threads + thread``, where the padding
rounds a block up to whole warps; a warp is thus 32 consecutive numbers. Sets are interned,
so that what was counted once for a set is found again.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
POOL = 64 << 20  # bytes of lane sets kept
VIEWS = {"h": ("u16", "s16", "f16"), "r": ("u32", "s32", "f32"), "d": ("u64", "s64", "f64"), "p": ("pred",)}
DTYPES: dict[str, Any] = {
    "pred": np.bool_, "u8": np.uint8, "s8": np.int8, "b8": np.uint8, "u16": np.uint16, "s16": np.int16,
    "f16": np.float16, "u32": np.uint32, "s32": np.int32, "f32": np.float32, "u64": np.uint64, "s64": np.int64,
    "f64": np.float64, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64, "f16x2": np.uint32,
    "bf16x2": np.uint32, "bf16": np.uint16, "tf32": np.uint32, "u16x2": np.uint32, "s16x2": np.uint32,
    "f32x2": np.uint64,
}  # fmt: skip
VIEW_OF = {"b8": "u16", "u8": "u16", "s8": "s16", "b16": "u16", "bf16": "u16", "b32": "u32", "f16x2": "u32",
           "bf16x2": "u32", "tf32": "u32", "b64": "u64", "u16x2": "u32", "s16x2": "u32", "f32x2": "u64"}  # fmt: skip


def elements(word: Any, element: str) -> NDArray[Any]:
    """The parts ``(n, k)`` of type ``element`` of unsigned words ``(n,)`` or a scalar, the lowest first."""
    flat = np.ascontiguousarray(np.atleast_1d(word))
    return np.asarray(flat.view(DTYPES[element]).reshape(len(flat), -1))


def word(parts: Any) -> NDArray[Any]:
    """The unsigned words ``(n,)`` of parts ``(n, k)``."""
    parts = np.ascontiguousarray(parts)
    return np.asarray(parts.view(f"u{parts.itemsize * parts.shape[1]}")[:, 0])


def index(values: NDArray[Any]) -> NDArray[np.intp]:
    """Values in the type that ``take`` and ``bincount`` want for indices: 64 bits, but 32 in a browser (Pyodide)."""
    return values.astype(np.intp, copy=False)


class LaneSet:
    """A sorted set of lanes of a batch."""

    def __init__(self, lanes: Ints, padded: int) -> None:
        self.lanes = lanes
        self.n = len(lanes)
        self.padded = padded

    @cached_property
    def warp_of(self) -> Ints:
        """The warp of each lane, counted over the batch."""
        return self.lanes >> 5

    @cached_property
    def block_of(self) -> Ints:
        """The block slot of each lane."""
        return self.lanes // self.padded

    @cached_property
    def firsts(self) -> Ints:
        """Where in the set each warp begins."""
        if not self.n:
            return np.zeros(0, np.int64)
        return np.flatnonzero(np.concatenate(([True], self.warp_of[1:] != self.warp_of[:-1])))

    @cached_property
    def warps(self) -> int:
        """Warps with at least one lane."""
        return len(self.firsts)

    @cached_property
    def ordinal(self) -> Ints:
        """For each lane the ordinal of its warp within the set."""
        return np.cumsum(np.concatenate(([False], self.warp_of[1:] != self.warp_of[:-1])), dtype=np.int64)

    @cached_property
    def full(self) -> bool:
        """Whether every warp has its 32 lanes."""
        return self.n == 32 * self.warps

    @cached_property
    def warpgroup_of(self) -> Ints:
        """The warpgroup (four warps of a block) of each lane, counted over the batch."""
        return self.block_of * -(-self.padded // 128) + self.lanes % self.padded // 128

    @cached_property
    def whole(self) -> bool:
        """Whether every warpgroup with a lane here has its 128 lanes."""
        return self.n == 128 * len(np.unique(self.warpgroup_of))

    @cached_property
    def place(self) -> Ints:
        """Each lane's place in a table of ``warps`` rows of 32."""
        return self.ordinal * 32 + (self.lanes & 31)

    @cached_property
    def blocks(self) -> Ints:
        """The block slots that have a lane in the set."""
        return np.unique(self.block_of)

    @cached_property
    def active(self) -> NDArray[np.bool_]:
        """``(warps, 32)``: which lanes are in the set."""
        table = np.zeros(self.warps * 32, bool)
        table[self.place] = True
        return table.reshape(-1, 32)

    def table(self, values: NDArray[Any], fill: Any = 0) -> NDArray[Any]:
        """``values`` of the lanes as ``(warps, 32)``, ``fill`` where there is no lane."""
        if self.full:
            return values.reshape(-1, 32)
        out = np.full(self.warps * 32, fill, values.dtype)
        out[self.place] = values
        return out.reshape(-1, 32)


class LanePool:
    """Interns lane sets and their subsets, for batches of one shape."""

    def __init__(self, padded: int) -> None:
        self.padded = padded
        self.known: dict[bytes, LaneSet] = {}
        self.subsets: dict[tuple[int, bytes], tuple[LaneSet, Ints]] = {}
        self.bytes = 0

    def get(self, lanes: Ints) -> LaneSet:
        """The one set of these lanes (sorted)."""
        key = lanes.tobytes()
        found = self.known.get(key)
        if found is None:
            if self.bytes > POOL:  # masks that depend on data never repeat
                self.known.clear()
                self.subsets.clear()
                self.bytes = 0
            self.bytes += 40 * len(lanes)
            found = self.known[key] = LaneSet(lanes, self.padded)
        return found

    def subset(self, of: LaneSet, mask: NDArray[np.bool_]) -> tuple[LaneSet, Ints]:
        """The lanes of ``of`` where ``mask`` holds, and their places in ``of``."""
        key = (id(of), mask.tobytes())
        found = self.subsets.get(key)
        if found is None or found[0].n != len(found[1]):
            chosen = np.flatnonzero(mask)
            some = self.get(of.lanes[chosen])
            self.bytes += of.n + 8 * len(chosen)
            found = self.subsets[key] = (some, chosen)
            self.known.setdefault(of.lanes.tobytes(), of)
        return found


class Rows(dict[int, NDArray[Any]]):
    """The rows of an array by their numbers, each a view that is made when it is first asked for.

    Most groups of a kernel with warps of several roles live for a few blocks and touch few of its hundreds of
    registers: views of all of them took a tenth of the time of such a run, their ends included.
    """

    __slots__ = ("of",)

    def __init__(self, of: NDArray[Any]) -> None:
        super().__init__()
        self.of = of

    def __missing__(self, slot: int) -> NDArray[Any]:
        row: NDArray[Any] = self.of[slot]
        self[slot] = row
        return row


class Group:
    """Lanes at one program counter and their register rows.

    ``rows[view][slot]`` is the row of one register as ``u32``, ``s32``, ``f32`` and so on;
    the views of one slot share memory.
    """

    __slots__ = ("base", "block", "lanes", "polled", "rows", "turns")

    def __init__(self, lanes: LaneSet, slots: dict[str, int]) -> None:
        self.lanes = lanes
        self.base: dict[str, NDArray[Any]] = {}
        self.rows: dict[str, dict[int, NDArray[Any]]] = {}
        for kind, views in VIEWS.items():
            base = np.empty((slots[kind], lanes.n), DTYPES[views[0]])
            self.base[kind] = base
            for view in views:
                self.rows[view] = Rows(base.view(DTYPES[view]))
        self.block = 0
        self.polled = False
        self.turns = 0

    def zero(self) -> None:
        """Set every register to 0, so that a read of an undefined one is at least repeatable."""
        for base in self.base.values():
            base.fill(0)

    def take(self, chosen: Ints, lanes: LaneSet, slots: dict[str, int], live: dict[str, Ints]) -> Group:
        """A group of the lanes at the places ``chosen``, sorted, with the ``live`` slots copied."""
        out = Group(lanes, slots)
        span = slice(chosen[0], chosen[-1] + 1)
        together = span.stop - span.start == len(chosen)  # a warp, a warpgroup: copied in one piece
        for kind, indices in live.items():
            mine = self.base[kind]
            out.base[kind][indices] = (mine[indices, span] if together else
                                       mine[indices].take(chosen, axis=1, mode="clip"))
        return out

    def part(self, chosen: Ints, lanes: LaneSet, needed: dict[str, list[int]]) -> Group:
        """Like `take`, with room for the ``needed`` slots only."""
        out = Group.__new__(Group)
        out.lanes, out.base, out.rows, out.block, out.polled, out.turns = lanes, {}, {}, self.block, False, 0
        for kind, indices in needed.items():
            if not indices:
                continue
            values = self.base[kind][np.array(indices)[:, None], chosen]
            out.base[kind] = values
            for view in VIEWS[kind]:
                out.rows[view] = dict(zip(indices, values.view(DTYPES[view]), strict=False))
        return out

    def put_back(self, part: Group, chosen: Ints, needed: dict[str, list[int]], written: dict[str, list[int]]) -> None:
        """Copy the ``written`` slots of a `part` back into this group."""
        for kind, indices in written.items():
            if indices:
                where = [needed[kind].index(index) for index in indices]
                self.base[kind][np.array(indices)[:, None], chosen] = part.base[kind][where]


def merge(groups: list[Group], pool: LanePool, slots: dict[str, int], live: dict[str, Ints]) -> Group:
    """One group of all lanes of several groups at the same block."""
    groups = sorted(groups, key=lambda group: int(group.lanes.lanes[0]))
    lanes = np.concatenate([group.lanes.lanes for group in groups])
    order = None if (lanes[1:] > lanes[:-1]).all() else np.argsort(lanes, kind="stable")  # mostly one behind the other
    out = Group(pool.get(lanes if order is None else lanes[order]), slots)
    for kind, indices in live.items():
        values = np.concatenate([group.base[kind][indices] for group in groups], axis=1)
        out.base[kind][indices] = values if order is None else values.take(order, axis=1, mode="clip")
    out.block = groups[0].block
    return out
