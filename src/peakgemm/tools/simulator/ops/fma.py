"""Runs of ``fma.rn.f32``: the instruction that a matrix product spends its time in.

Products and sums are formed in float64 and rounded once more to float32. That second
rounding goes wrong only where the float64 sum lies exactly half-way between two float32
numbers (its low 29 bits are 1000...0), or where the result is subnormal and the half-way
point lies elsewhere. The first is looked for in the bits of a stack of sums, the second
reported by the processor's underflow flag during the narrowing copy; the few lanes
concerned are computed again exactly. Consecutive independent instructions share
the look for half-way patterns and the widening of their multiplicands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.floats import TINY32, odd_sum
from ..core.lanes import Group

STACK = 8
WIDE = 48
_LOW = np.uint64(0x1FFFFFFF)
_HALF = np.uint64(0x10000000)
Source = int | np.float32  # a slot, or a constant


class Rows:
    """Float64 rows for one number of lanes."""

    def __init__(self, n: int) -> None:
        self.sums = np.empty((STACK, n))
        self.addends = np.empty((STACK, n))
        self.wide = list(np.empty((WIDE, n)))
        self.bits = self.sums.view(np.uint64)
        self.low = np.empty((STACK, n), np.uint64)
        self.hit = np.empty((STACK, n), bool)
        self.sum_rows = list(self.sums)
        self.addend_rows = list(self.addends)


class Scratch:
    """The float64 rows of one machine, and whether an operation underflowed (NumPy calls the object then)."""

    def __init__(self) -> None:
        self.underflow = False
        self.widths: dict[int, Rows] = {}

    def __call__(self, error: str, flag: int) -> None:
        self.underflow = True

    def quiet(self) -> Any:
        """The floating-point error state in which kernels run."""
        return np.errstate(divide="ignore", over="ignore", invalid="ignore", under="call", call=self)

    def rows(self, n: int) -> Rows:
        """The rows for ``n`` lanes; a few widths are kept."""
        found = self.widths.get(n)
        if found is None:
            if len(self.widths) >= 8:
                self.widths.clear()
            found = self.widths[n] = Rows(n)
        return found


def _flag_works() -> bool:
    scratch = Scratch()
    with scratch.quiet():
        out = np.empty(64, np.float32)
        np.copyto(out, np.full(64, 1.1e-40))
    return scratch.underflow


_FLAG_WORKS = _flag_works()


@dataclass(slots=True)
class _Chunk:
    widen: list[tuple[int, int]] = field(default_factory=list)
    products: list[tuple[int, int, int, Any]] = field(default_factory=list)
    results: list[tuple[int, int]] = field(default_factory=list)


def plan(fmas: Sequence[tuple[int, Source, Source, Source]]) -> tuple[list[_Chunk], list[Any]]:
    """Cut ``(d, a, b, c)`` into chunks whose members do not read each other's results.

    Returns the chunks and the list of constants, which stand behind the widened rows.
    """
    chunks: list[_Chunk] = []
    constants: list[Any] = []
    place: dict[int, int] = {}
    free = list(range(WIDE - 1, -1, -1))
    chunk = _Chunk()
    written: set[int] = set()

    def wide(source: Source, pinned: set[int]) -> int:
        if not isinstance(source, int):
            constants.append(np.float64(source))
            return WIDE + len(constants) - 1
        if source not in place:
            if not free:
                victim = next(slot for slot in place if slot not in pinned)
                free.append(place.pop(victim))
            place[source] = free.pop()
            chunk.widen.append((place[source], source))
        return place[source]

    pinned: set[int] = set()
    for d, a, b, c in fmas:
        reads = {x for x in (a, b, c) if isinstance(x, int)}
        pinned |= {x for x in (a, b) if isinstance(x, int)}
        if len(chunk.products) == STACK or reads & written or d in written or len(pinned) > WIDE:
            chunks.append(chunk)
            for slot in written & place.keys():  # their widened copies are out of date
                free.append(place.pop(slot))
            chunk, written, pinned = _Chunk(), set(), {x for x in (a, b) if isinstance(x, int)}
        index = len(chunk.products)
        addend = c if isinstance(c, int) else np.float64(c)
        chunk.products.append((index, wide(a, pinned), wide(b, pinned), addend))
        chunk.results.append((index, d))
        written.add(d)
    chunks.append(chunk)
    return chunks, constants


def compile_run(fmas: Sequence[tuple[int, Source, Source, Source]], scratch: Scratch) -> Callable[[Group], None]:
    """A step that executes the fused multiply-adds in order on every lane of a group."""
    chunks, constants = plan(fmas)
    multiply, add, copy = np.multiply, np.add, np.copyto
    bit_and, equal, count = np.bitwise_and, np.equal, np.count_nonzero

    def step(group: Group) -> None:
        rows = group.rows["f32"]
        s = scratch.rows(group.lanes.n)
        wide = s.wide + constants if constants else s.wide
        sums, addends = s.sum_rows, s.addend_rows
        for chunk in chunks:
            for w, slot in chunk.widen:
                copy(wide[w], rows[slot])
            for i, a, b, c in chunk.products:
                total, addend = sums[i], addends[i]
                multiply(wide[a], wide[b], total)
                copy(addend, rows[c] if c.__class__ is int else c)
                add(total, addend, total)
            n = len(chunk.products)
            low, hit = s.low[:n], s.hit[:n]
            bit_and(s.bits[:n], _LOW, low)
            equal(low, _HALF, hit)
            scratch.underflow = False
            for i, d in chunk.results:
                copy(rows[d], sums[i])
            if scratch.underflow or not _FLAG_WORKS:
                hit |= np.abs(s.sums[:n]) < TINY32
            if count(hit):
                _again(chunk, rows, wide, addends, hit)

    return step


def _again(chunk: _Chunk, rows: dict[int, NDArray[Any]], wide: list[Any], addends: list[NDArray[Any]],
           hit: NDArray[np.bool_]) -> None:
    for (i, a, b, _), (_, d) in zip(chunk.products, chunk.results, strict=False):
        lanes = np.flatnonzero(hit[i])
        if len(lanes):
            x, y = (np.broadcast_to(wide[k], hit[i].shape)[lanes] for k in (a, b))
            rows[d][lanes] = odd_sum(x * y, addends[i][lanes]).astype(np.float32)
