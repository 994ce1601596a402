"""Vector clocks: which accesses to shared memory are ordered, found by replaying a log.

One entry per pair of warps of a block or cluster (Flanagan and Freund, "FastTrack", 2009, at the grain of a warp); as
many again for what of the other's writes has passed a ``fence.proxy.async``; and one per warp and mbarrier of bulk
copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core.lanes import LaneSet, index
from ..front.ptx import Instruction
from .access import Pattern, Site
from .async_reads import AsyncReads
from .strength import WORDS
from .strong_words import StrongWords

if TYPE_CHECKING:
    from ..machine import Batch, Machine

Token = tuple[Any, ...]
DID = {"r": "read", "w": "write", "u": "write", "a": "atomic", "c": "cp.async write", "t": "bulk copy",
       "g": "read by wgmma", "s": "read by a bulk store"}  # fmt: skip
EARLIER = {"w": "write", "r": "read", "q": "read", "c": "cp.async write, not waited for,",
           "t": "bulk copy, not waited for,", "g": "read by wgmma, not waited for,",
           "s": "read by a bulk store, not waited for,"}  # fmt: skip
_BETWEEN = "a barrier between them"
REMEDY = {"t": "a wait for the phase of its mbarrier between them",
          "c": "cp.async.wait_group and a barrier between them",
          "g": "wgmma.wait_group, and an mbarrier or barrier, between them",
          "s": "cp.async.bulk.wait_group.read, and a barrier, between them"}  # fmt: skip


def _told(what: str, ins: Instruction) -> str:
    """``what`` an access of ``ins`` is called in messages: st.async is logged as bulk copies are."""
    if what == "write" and ins.base in ("atom", "red"):
        return "atomic"
    if what in ("read", "write") and ins.has(*WORDS):
        return f"{'volatile' if ins.has('volatile') else 'strong'} {what}"
    return what.replace("bulk copy", "st.async") if ins.base == "st" else what


class Clocks:
    """Vector clocks of the warps of a batch, and the last accesses to each unit of shared memory."""

    def __init__(self, machine: Machine, batch: Batch) -> None:
        self.machine, self.batch = machine, batch
        units = batch.blocks * batch.shared_stride // batch.unit
        self.block = batch.padded // 32  # warps
        self.across = self.block * machine.cluster  # of blocks that share memory
        self.clock = np.zeros((batch.blocks * self.block, 2 * self.across), np.int64)
        self.own = np.arange(len(self.clock)) % self.across
        self.clock[np.arange(len(self.clock)), self.own] = 1
        # who wrote last, read last (and another reader), and has a cp.async write in flight
        self.lane = {name: np.full(units, -1, np.int32) for name in ("w", "r", "q", "c")}
        self.time = {name: np.zeros(units, np.int64) for name in ("w", "r", "q", "c")}
        self.code = {name: np.zeros(units, np.int32) for name in ("w", "r", "q", "c")}
        self.copies = False  # whether there was a cp.async write
        self.group = np.zeros(units, np.int32)
        self.commits = np.zeros(batch.blocks * batch.padded, np.int32)
        self.strong = StrongWords(self)
        self.released: dict[Any, NDArray[np.int64]] = {}
        # An mbarrier of bulk copies has a column of the clocks: how many of its phases each warp knows to have ended.
        # So has who reads asynchronously: how many of its groups of reads. Blocks of one rank in their clusters share
        # them.
        self.columns: dict[Any, int] = {}
        self.column = self.group  # of each unit's bulk copy
        self.reads = AsyncReads(self)

    def start(self, prefix: tuple[Token, ...]) -> None:
        """Issue the writes that are in flight, and order them before everything else."""
        for token in prefix:
            if token[0] == "c":
                self._access(token[0], token[1], token[2], token[3], check=False)
            else:
                self.commits[token[1].lanes] += 1
        self.full_barrier()

    def in_flight(self) -> bool:
        """Whether a cp.async write, or after a full barrier a bulk copy, has not been waited for."""
        return bool((self.lane["c"] >= 0).any()) or bool("t" in self.lane and self.under_way(
            np.arange(len(self.group)), np.arange(len(self.group)) * self.batch.unit // self.batch.shared_stride
            * self.block).any())

    def full_barrier(self) -> None:
        """Order everything so far before everything to come."""
        self._join(np.arange(len(self.clock)), self.across)

    def _join(self, warps: NDArray[Any], together: int) -> None:
        """Each of these warps knows what the others of its block know, or with ``together`` warps its cluster."""
        group = warps // together
        for one in np.unique(group):
            mine = warps[group == one]
            self.clock[mine] = self.clock[mine].max(axis=0)
            self.strong.join(mine)
        self.clock[warps, self.own[warps]] += 1

    def replay(self, log: list[Token]) -> None:
        """Apply a log, reporting what it finds."""
        for token in log:
            kind = token[0]
            if kind in "rwauc":
                self._access(*token)
            elif kind == "t":
                self._bulk(*token[1:])
            elif kind in "gs":
                self.reads.record(kind, *token[1:3])
            elif kind == "commit_reads":
                self.reads.commit(*token[1:])
            elif kind == "wait_reads":
                self.reads.wait(*token[1:])
            elif kind == "flag":
                self.strong.flag(token[1], -1 - np.frombuffer(token[3], np.int64), token[2].warp_of)
            elif kind == "fence":
                self.strong.fence(np.unique(token[1].warp_of))
            elif kind == "proxy":
                self._fence(np.unique(token[1].warp_of))
            elif kind == "landed":
                warps = np.unique(token[2].warp_of)
                ranks = self.rank(warps // self.block)
                for rank in np.unique(ranks).tolist():
                    column, mine = self.columns.get(("m", token[1], rank)), warps[ranks == rank]
                    if column is not None:
                        self.clock[mine, column] = np.maximum(self.clock[mine, column], token[3] + 1)
            elif kind == "bar":
                self._join(np.unique(token[1].warp_of), self.block)
            elif kind == "cluster":
                self._join(np.unique(token[1].warp_of), self.across)
            elif kind == "exit":
                self._exit(token[1])
            elif kind == "warp":
                warps = np.unique(token[1].warp_of)
                self.clock[warps, self.own[warps]] += 1
            elif kind == "commit":
                self.commits[token[1].lanes] += 1
            elif kind == "wait":
                self._wait(token[1], token[2])
            elif kind == "arrive":
                self._release(token[1], np.unique(token[2].warp_of), *token[3:])
            elif kind == "join":
                self._acquire(token[1], np.unique(token[2].warp_of))

    def _exit(self, lanes: LaneSet) -> None:
        """Blocks end, and their shared memory goes: what the rest of the cluster has read or written there must be
        ordered before."""
        each = self.batch.shared_stride // self.batch.unit
        for block in lanes.blocks.tolist():
            known = self.clock[block * self.block:(block + 1) * self.block].max(axis=0)
            unit = np.arange(block * each, (block + 1) * each)
            for name in "rqwt" if "t" in self.lane else "rqw":
                other, when = self.lane[name][unit], self.time[name][unit]
                column = self.column[unit] if name == "t" else np.maximum(other >> 5, 0) % self.across
                late = (other >= 0) & (other // self.batch.padded != block) & (known[column] < when)
                if late.any():
                    first = int(np.flatnonzero(late)[0])
                    remedy = "let it wait for the phase of its mbarrier" if name == "t" else \
                        "put a barrier of the cluster behind it"
                    self.machine.fault(
                        "shared_race", self.machine.program.kernel.instructions[int(self.code[name][unit[first]])],
                        f"thread {{0}} {'writes to' if name in 'wt' else 'reads'} shared memory of the block of thread "
                        f"{{1}}, which may have ended; {remedy}",
                        np.array([int(other[first]), block * self.batch.padded]), pair=True, count=int(late.sum()),
                        batch=self.batch)
                    return

    def new_column(self, key: Any) -> int:
        """A column more, of which no warp knows anything yet."""
        self.columns[key] = self.clock.shape[1]
        self.clock = np.pad(self.clock, ((0, 0), (0, 1)))
        return self.columns[key]

    def _fence(self, warps: NDArray[Any]) -> None:
        """What these warps know of now may be read by the async proxy, wherever this is known."""
        fenced = slice(self.across, 2 * self.across)
        self.clock[warps, fenced] = np.maximum(self.clock[warps, fenced], self.clock[warps, :self.across])
        self.clock[warps, self.own[warps]] += 1

    def rank(self, block: Any) -> Any:
        """Of a block in its cluster."""
        return block % self.machine.cluster

    def _release(self, key: Any, warps: NDArray[Any], beside: int = 0) -> None:
        """``beside``: how many blocks further the flag or mbarrier lies."""
        for warp in warps.tolist():
            clock, place = self.clock[warp], (key, warp // self.block + beside)
            known = self.released.get(place)
            if known is None:
                self.released[place] = clock.copy()
            else:
                if len(known) < len(clock):  # from before a `new_column`
                    known = self.released[place] = np.pad(known, (0, len(clock) - len(known)))
                np.maximum(known, clock, out=known)
        self.clock[warps, self.own[warps]] += 1

    def _acquire(self, key: Any, warps: NDArray[Any]) -> None:
        for warp in warps.tolist():
            known = self.released.get((key, warp // self.block))
            if known is not None:
                clock = self.clock[warp, :len(known)]
                np.maximum(clock, known, out=clock)

    def _wait(self, lanes: LaneSet, keep: int) -> None:
        flying = np.flatnonzero(self.lane["c"] >= 0)
        owner = self.lane["c"][flying]
        mine = np.zeros(len(self.commits), bool)
        mine[lanes.lanes] = True
        done = mine[owner]
        if keep >= 0:
            done &= self.group[flying] < self.commits[owner] - keep
        flying, owner = flying[done], owner[done]
        warp = owner >> 5
        self.lane["w"][flying], self.time["w"][flying] = owner, self.clock[warp, self.own[warp]]
        self.code["w"][flying] = self.code["c"][flying]
        self.strong.forget("w", flying)
        self.lane["c"][flying] = -1

    def _access(self, event: str, site: Site, pattern: Pattern, shift: int, check: bool = True) -> None:
        lanes = pattern.lanes
        offsets = pattern.ref.astype(np.int64) + lanes.block_of * self.batch.shared_stride + shift
        start = offsets >> self.batch.unit_shift
        warp = lanes.warp_of
        now = self.clock[warp, self.own[warp]]
        # A row for each unit of one access. Accesses are aligned, so that no unit is in two rows, and all rows are
        # looked at together.
        unit = index(start + np.arange(max(1, site.size // self.batch.unit))[:, None])
        if check:
            self._check(event, site, lanes, unit)
        if event == "r":
            stale = self._ordered("q", unit, lanes)
            _, which = np.nonzero(stale)
            which = which[::-1]
            self._record("q", unit[stale][::-1], lanes.lanes[which], now[which], site)
            self._record("r", unit, lanes.lanes, now, site)
            self.strong.read(site, unit, lanes)
        elif event == "c":
            self.copies = True
            self._record("c", unit, lanes.lanes, now, site)
            self.group[unit] = self.commits[lanes.lanes]
        else:
            self._record("w", unit, lanes.lanes, now, site)
            self.strong.written(unit)
        if not site.strength.weak:
            self.strong.flag(site.strength, start, warp)

    def _bulk(self, site: Site, pattern: Pattern, shift: int, mbarrier: int, phase: int) -> None:
        if "t" not in self.lane:
            self.lane["t"] = np.full_like(self.group, -1)
            self.time["t"] = np.zeros(len(self.group), np.int64)
            self.code["t"], self.column = np.zeros_like(self.group), np.zeros_like(self.group)
        offsets = pattern.ref.astype(np.int64) + pattern.lanes.block_of * self.batch.shared_stride + shift
        each = site.size // self.batch.unit
        unit = index((offsets >> self.batch.unit_shift)[:, None] + np.arange(each)).ravel()
        lanes = LaneSet(np.repeat(pattern.lanes.lanes, each), pattern.lanes.padded)
        self._check("t", site, lanes, unit[None])
        self._record("t", unit, lanes.lanes, np.full(lanes.n, phase + 1), site)
        ranks = self.rank(unit * self.batch.unit // self.batch.shared_stride)
        for rank in np.unique(ranks).tolist():
            key = ("m", mbarrier, rank)
            self.column[unit[ranks == rank]] = self.columns[key] if key in self.columns else self.new_column(key)
        for name in "wrq":  # ordered before this copy, so before what waits for it
            self.lane[name][unit], self.time[name][unit] = -1, 0
        lost = self.lane["t"][unit] != lanes.lanes
        if lost.any() and site.ins.base != "st":  # which looks itself whether they store one value
            self._report("t", lost, "t", site, lanes, unit)

    def under_way(self, unit: NDArray[Any], warp: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether a bulk copy to the unit is not known to have landed by the warp."""
        known = self.clock.take(index(warp * self.clock.shape[1] + self.column.take(unit)))
        return np.asarray((self.lane["t"].take(unit) >= 0) & (known < self.time["t"].take(unit)))

    def _record(self, name: str, unit: NDArray[Any], lane: NDArray[Any], now: NDArray[Any], site: Site) -> None:
        self.lane[name][unit] = lane
        self.time[name][unit] = now
        self.code[name][unit] = site.ins.index
        self.strong.record(name, unit, site)

    def _ordered(self, name: str, unit: NDArray[Any], lanes: LaneSet) -> NDArray[np.bool_]:
        before = self.lane[name].take(unit)
        warp, other = lanes.warp_of, before >> 5
        seen = self.clock.take(index(warp * self.clock.shape[1] + self.own.take(index(other), mode="wrap")))
        # A warp's own step now is not ordered before itself; a unit that nobody has accessed has the time 0.
        known = self.time[name].take(unit) + (other == warp) <= seen
        return np.asarray(known | (before == lanes.lanes))

    def _check(self, event: str, site: Site, lanes: LaneSet, unit: NDArray[Any]) -> None:
        """Report what an access races with; ``unit`` has a row for each unit of it.

        Most race with nothing, which is seen of all rows at once.
        """
        found = any(wrong.any() for _, wrong in self._wrong(event, site, lanes, unit))
        if not found and (event == "r" or self.reads.late(lanes, unit) is None):
            return
        for row in unit:
            for name, wrong in self._wrong(event, site, lanes, row):
                if name == "w" and event != "r":
                    self.reads.check(event, site, lanes, row)
                if wrong.any():
                    self._report(name, wrong, event, site, lanes, row)
                    if name in "wrq":
                        break

    def _wrong(self, event: str, site: Any, lanes: LaneSet,
               unit: NDArray[Any]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """The kinds of earlier access (see `EARLIER`), and where they are not known to have ended."""
        flying: Any = False
        if self.copies:
            flying = self.lane["c"].take(unit) >= 0
            yield "c", flying
        if "t" in self.lane:
            late = self.under_way(unit, lanes.warp_of)
            yield "t", late
            flying = flying | late
        for name in "w" if event == "r" else "wrq":
            wrong = ~(self._ordered(name, unit, lanes) | flying)
            if event in "rwau" and wrong.any():
                wrong &= ~self.strong.forgives(name, event, site, lanes, unit)
            yield name, wrong

    def _report(self, name: str, wrong: NDArray[np.bool_], event: str, site: Any, lanes: LaneSet,
                unit: NDArray[Any]) -> None:
        first = int(np.flatnonzero(wrong)[0])
        other, code = int(self.lane[name][unit[first]]), int(self.code[name][unit[first]])
        self.report(name, int(np.count_nonzero(wrong)), event, site, (int(lanes.lanes[first]), other), int(unit[first]),
                    code)

    def report(self, name: str, count: int, event: str, site: Any, pair: tuple[int, int], unit: int,
               code: int) -> None:
        """A race of ``event`` at ``site`` with an earlier access ``name`` of the instruction ``code``."""
        at = unit * self.batch.unit % self.batch.shared_stride
        earlier = self.machine.program.kernel.instructions[code]
        kind = "cp_async_race" if name in "ct" else "shared_race"
        remedy = REMEDY.get(name) or (REMEDY["c"] if event == "c" else _BETWEEN)
        if remedy == _BETWEEN and earlier.ptx_line > site.ins.ptx_line:
            remedy = f"a barrier behind {earlier.where}: this access is of a later turn of the loop"
        if event in "rwu" and site.ins.has("volatile") and earlier.has("volatile"):
            remedy += " (volatile orders nothing)"
        message = (f"{_told(DID[event], site.ins)} of shared address {at} by thread {{0}} races with the "
                   f"{_told(EARLIER[name], earlier)} at {earlier.where} by thread {{1}}; put {remedy}")
        self.machine.fault(kind, site.ins, message, np.array(pair), at, pair=True, count=count, batch=self.batch)
