"""Races in global memory: two accesses to one word by different threads, one a write, unordered.

Each unit of device memory remembers the thread that wrote it last, the one that read it last and another reader, and of
each access its time, instruction and strength. What orders them is in `order`. Reads of an array that the
kernel has not written so far are only noted: most arrays are never written, and their reads cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core.lanes import LaneSet
from ..core.memory import GLOBAL, Segment
from ..front.ptx import Instruction
from .strength import CLUSTER, CTA, FEW, LOOK, SCOPE, STRONG, VOLATILE, WIDE, forgiven

if TYPE_CHECKING:
    from ..machine import Machine
    from .access import Pattern, Site

Array = NDArray[Any]
# An access, the blocks of its batch, its bytes a lane, its addresses and how far these have moved; or instead of them
# what gives those of a copy, and its lane.
Note = tuple[int, Array, int, "Pattern | Callable[[], Array]", int]
THREAD = (1 << 32) - 1  # of what is remembered: the thread, from 1; above it the number of the access
NOTED = 1 << 17  # reads of one array that are noted before they are looked at
BYTES = 32 << 20  # of addresses that they have, likewise


class GlobalLog:
    """Who accessed each ``unit`` bytes of the arena."""

    def __init__(self, machine: Machine, unit: int) -> None:
        self.machine, self.unit = machine, unit
        self.shift = unit.bit_length() - 1
        self.size = machine.arena.size // unit + 64
        self.writer = np.zeros(self.size, np.int64)  # touched, so resident, only where written
        self.readers: tuple[Array, Array] | None = None  # the last, and an earlier one
        self.count = 0
        self.now: dict[Site, tuple[int, int]] = {}  # the time and the number of each instruction's last access
        self.last: Site | None = None  # of strong accesses
        self.table = np.zeros((3, 1024), np.int64)  # per access: time, bits of the strength, instruction
        # By where an array begins: the reads of it so far; None: it has been written.
        self.noted: dict[int, list[Note] | None] = {}
        self.bytes = 0
        self.looked: dict[tuple[int, int], int] = {}  # by word and thread its last strong load, of few lanes at once
        self.cache: tuple[Any, Any, Array] | None = None

    def threads(self, lanes: LaneSet) -> Array:
        """One number per thread of the grid, from 1."""
        batch = self.machine.batch
        if self.cache is None or self.cache[0] is not lanes or self.cache[1] is not batch:
            self.cache = (lanes, batch, self._tags(lanes, batch.numbers))
        return self.cache[2]

    def _tags(self, lanes: LaneSet, numbers: Array) -> Array:
        return np.asarray(numbers[lanes.block_of] * lanes.padded + lanes.lanes % lanes.padded + 1)

    def _access(self, site: Site) -> int:
        """The number of an access of now, above the place of the thread's; those of strong ones follow each other."""
        time = self.machine.time
        known, access = self.now.get(site, (-1, 0))
        if known != time or (site.strength.bits and self.last is not site):
            self.count += 1
            if self.count >= self.table.shape[1]:
                self.table = np.concatenate([self.table, np.zeros_like(self.table)], axis=1)
            self.table[:, self.count] = time, site.strength.bits, site.ins.index
            access = self.count << 32
            self.now[site] = (time, access)
        if site.strength.bits:
            self.last = site
        return access

    def _units(self, site: Site, offsets: Array) -> list[Array]:
        start = offsets >> self.shift
        return [start + step if step else start for step in range(max(1, site.size // self.unit))]

    # ---- reads -----------------------------------------------------------------------------------

    def read(self, site: Site, lanes: LaneSet, offsets: Array, segment: Segment | None = None,
             pattern: Pattern | None = None, shift: int = 0) -> None:
        """Log a load; ``pattern``, moved by ``shift``, has its addresses where all lie in one ``segment``."""
        if segment is not None and pattern is not None:
            if not segment.writable:
                return
            noted = self.noted.setdefault(segment.base, [])
            if noted is not None:
                noted.append((self._access(site), self.machine.batch.numbers, site.size, pattern, shift))
                if not pattern.logged:
                    pattern.logged = True
                    self.bytes += len(pattern.raw)
                if len(noted) > NOTED or self.bytes > BYTES:
                    self._look_at(noted)
                return
        self._written(offsets, False)
        if site.strength.bits and lanes.n <= FEW:
            for unit, thread in zip((offsets >> self.shift).tolist(), self.threads(lanes).tolist(), strict=True):
                self.looked[unit, thread] = self._access(site) >> 32
        me, access = self.threads(lanes), self._access(site)
        for unit in self._units(site, offsets):
            self._compare(self.writer, unit, me, site, lanes, False)
            self._remember(unit, access | me, self._stale(unit, lanes))

    def copied(self, site: Site, lane: int, start: int, offsets: Callable[[], Array]) -> None:
        """Log a copy from the array at ``start``, of which ``offsets`` gives the pieces of ``site.size`` bytes."""
        segment = self.machine.arena.find(start, start)
        if segment is None or not segment.writable:
            return
        noted = self.noted.setdefault(segment.base, [])
        if noted is None:
            places = offsets()
            self.read(site, self._one(lane, len(places)), places)
            return
        noted.append((self._access(site), self.machine.batch.numbers, site.size, offsets, lane))
        if len(noted) > NOTED:
            self._look_at(noted)

    def _one(self, lane: int, count: int) -> LaneSet:
        return LaneSet(np.full(count, lane, np.int64), self.machine.padded)

    def _remember(self, unit: Array, tag: Array, stale: Array) -> None:
        """The last reader; and the first of those that were there at once, where the earlier one is ``stale``."""
        last, other = self.readers or self._make_readers()
        other[unit[stale][::-1]] = tag[stale][::-1]
        last[unit] = tag

    def _make_readers(self) -> tuple[Array, Array]:
        self.readers = np.zeros(self.size, np.int64), np.zeros(self.size, np.int64)
        return self.readers

    def _stale(self, unit: Array, lanes: LaneSet) -> Array:
        """Where the earlier reader is known to have ended."""
        _, other = self.readers or self._make_readers()
        batch, before = self.machine.batch, other[unit]
        same = ((before & THREAD) - 1) // lanes.padded == batch.numbers[lanes.block_of]
        return np.asarray((before == 0) | (same & (self.table[0][before >> 32] < batch.met[lanes.block_of])))

    def _written(self, offsets: Array, write: bool) -> None:
        """Look at the noted reads of the arrays there, and note no more of them if this is a ``write``."""
        if not len(offsets) or not (self.noted or write):
            return
        arena = self.machine.arena
        low, high = int(offsets.min()) + GLOBAL, int(offsets.max()) + GLOBAL
        first = max(int(np.searchsorted(arena.bases, np.uint64(low), "right")) - 1, 0)
        for segment in arena.segments[first:]:
            if segment.base > high:
                break
            noted = self.noted.get(segment.base, [])
            if noted:
                self._look_at(noted)
            if write:
                self.noted[segment.base] = None

    def _look_at(self, noted: list[Note]) -> None:
        for access, numbers, size, which, shift in noted:
            if callable(which):
                offsets = which()
                lanes = self._one(shift, len(offsets))
            else:
                offsets, lanes = (which.ref - np.uint64(GLOBAL)).astype(np.int64) + shift, which.lanes
            tag = access | self._tags(lanes, numbers)
            for step in range(max(1, size // self.unit)):
                unit = (offsets >> self.shift) + step
                _, other = self.readers or self._make_readers()
                self._remember(unit, tag, other[unit] == 0)
        noted.clear()
        self.bytes = 0

    # ---- writes ----------------------------------------------------------------------------------

    def write(self, site: Site, lanes: LaneSet, offsets: Array, again: Callable[[], Array] | None = None,
              unchanged: Array | None = None) -> None:
        """Log a store or an atomic. ``again()`` tells per lane whether memory now holds the value that it stored;
        ``unchanged``, where a volatile store has stored what was there."""
        self._written(offsets, True)
        me, access = self.threads(lanes), self._access(site)
        for unit in self._units(site, offsets):
            self._compare(self.writer, unit, me, site, lanes, True, unchanged)
            if self.readers is not None:
                for reader in self.readers:
                    self._compare(reader, unit, me, site, lanes, True, unchanged)
            self.writer[unit] = access | me
            winner = self.writer[unit] & THREAD
            twice = winner != me
            if twice.any():  # lanes of this instruction
                apart = self._apart(me - 1, winner - 1)
                twice &= apart > site.strength.scope
                if again is not None:
                    twice |= (winner != me) & ~again()
                if twice.any():
                    self._report(site, lanes, np.flatnonzero(twice), unit, self.writer[unit[twice]], True)

    def write_rows(self, site: Site, lane: int, offsets: Array) -> None:
        """Log a copy by one lane of pieces of ``site.size`` bytes."""
        if len(offsets):
            self.write(site, self._one(lane, len(offsets)), offsets)

    def _apart(self, one: Array, other: Array) -> Array:
        """The scope that has both threads: 0 a block, 1 a cluster, 2 all."""
        one, other = one // self.machine.padded, other // self.machine.padded
        cluster = self.machine.cluster
        return np.where(one == other, CTA, np.where(one // cluster == other // cluster, CLUSTER, WIDE))

    # ---- comparing -------------------------------------------------------------------------------

    def _compare(self, shadow: Array, unit: Array, me: Array, site: Site, lanes: LaneSet, write: bool,
                 unchanged: Array | None = None) -> None:
        """Report where an access is not known to come after that of ``shadow``."""
        before = shadow[unit]
        other = before & THREAD
        clash = (before != 0) & (other != me)
        if not clash.any():
            return
        batch, padded = self.machine.batch, lanes.padded
        which = np.flatnonzero(clash)
        lane, access, other = lanes.lanes[which], before[which] >> 32, other[which] - 1
        time = self.table[0][access]
        same = other // padded == (me[which] - 1) // padded
        late = ~(same & (time < batch.met[lane // padded]))
        late &= ~((other // 32 == (me[which] - 1) // 32) & (time < batch.warp_met[lane // 32]))
        if not late.any():
            return
        which, access, other, time = (x[late] for x in (which, access, other, time))
        apart = self._apart(me[which] - 1, other)
        mine, theirs = site.strength.bits, self.table[1][access]
        free, seen = forgiven(mine, theirs, apart)
        if unchanged is not None and shadow is self.writer:
            free |= seen & unchanged[which]
        free |= self._observed(unit[which], me[which], access, theirs, apart)
        rest = np.flatnonzero(~free)
        if len(rest):
            known = self.order.knows(me[which[rest]] - 1, other[rest], time[rest], seen[rest])
            wrong = which[rest[~known]]
            if len(wrong):
                self._report(site, lanes, wrong, unit, before[wrong], write, shadow is self.writer)

    @property
    def order(self) -> Any:
        """The synchronisations that the batch knows."""
        return self.machine.batch.order

    def _observed(self, unit: Array, me: Array, access: Array, theirs: Array, apart: Array) -> Array:
        """Where the lane has seen the other's strong write by a strong read of this very word."""
        if self.readers is None:
            return np.zeros(len(unit), bool)
        read = self.readers[0][unit]
        bits = self.table[1][read >> 32]
        strong = (bits & theirs & STRONG != 0) & (np.minimum(bits >> SCOPE, theirs >> SCOPE) >= apart)
        seen = strong & (read & THREAD == me) & (read >> 32 > access)
        if self.looked and not seen.all():
            reach = (theirs & STRONG != 0) & (theirs >> SCOPE >= apart)
            for place in np.flatnonzero(reach & ~seen)[:FEW].tolist():
                seen[place] = self.looked.get((int(unit[place]), int(me[place])), -1) > access[place]
        return np.asarray(seen)

    def _report(self, site: Site, lanes: LaneSet, wrong: Array, unit: Array, before: Array, write: bool,
                written: bool = True) -> None:
        machine, padded = self.machine, self.machine.padded
        first, access = int(wrong[0]), int(before[0]) >> 32
        rival = (int(before[0]) & THREAD) - 1
        threads = [machine.thread(int(lanes.lanes[first])),
                   (machine.block_index(rival // padded), machine.thread_index(rival % padded))]
        at = int(unit[first]) * self.unit + GLOBAL
        apart = threads[0][0] != threads[1][0]
        earlier = machine.program.kernel.instructions[int(self.table[2][access])]
        mine, theirs = site.strength.bits, int(self.table[1][access])
        where = machine.arena.describe(at, min(site.size, self.unit))
        kind = "overlapping_blocks" if apart and write and written and not mine | theirs else "global_race"
        remedy = remedy_of(mine, theirs, apart, write and written)
        if write and written and not mine and not theirs:
            message = f"{where} is written by thread {{0}} and, at {earlier.where}, by thread {{1}}; {remedy}"
        else:
            message = (f"{named(site.ins, mine, write)} of {where} by thread {{0}} races with the "
                       f"{named(earlier, theirs, written)} at {earlier.where} by thread {{1}}; {remedy}")
        machine.fault(kind, site.ins, message, lanes.lanes[wrong], at, pair=True, threads=threads)


def named(ins: Instruction, bits: int, write: bool) -> str:
    """An access in words."""
    verb = "write" if write else "read"
    if ins.base in ("atom", "red"):
        return "atomic"
    if ins.base == "cp":
        return f"{verb} by a copy"
    if not bits:
        return verb
    return f"volatile {verb}" if bits & VOLATILE else f"strong {verb}"


def remedy_of(mine: int, theirs: int, apart: bool, written: bool) -> str:
    """What would order two accesses to global memory."""
    if bool(mine & STRONG) and bool(theirs & STRONG) and not mine & theirs & VOLATILE:
        return "its scope does not reach the other's block; use .gpu scope"
    if mine & theirs & VOLATILE and not (mine | theirs) & LOOK:
        how = "volatile orders nothing: put "
    elif (mine | theirs) & STRONG:
        how = "one of them is no atomic; make both, or put "
    elif apart and written:
        return "give each element of the output to one block, or let a fence and a flag order them"
    else:
        how = "give each element to one thread, or put " if written else "put "
    if apart:
        return how + "a fence and a flag (__threadfence() before it is set and after it is seen) between them"
    return how + "a barrier between them"
