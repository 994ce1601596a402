"""Shared-memory races: two accesses to one place by different threads, one a write, unordered.

What orders accesses is a barrier that both threads take part in, a synchronisation of their
warp, or a flag passed by atomic or volatile accesses; a ``cp.async`` write lasts from its issue
until its thread waits for it, a bulk copy until its mbarrier's phase has been waited for. Accesses
are logged, not examined: between two barriers of all threads a kernel in a loop leaves the same log
again, and a log seen before is known to be clean. A new one is replayed on vector clocks, one entry
per pair of warps of a block (Flanagan and Freund, "FastTrack", 2009, at the grain of a warp), and
one per warp and mbarrier for bulk copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .access import Pattern, Site
from .lanes import LaneSet

if TYPE_CHECKING:
    from .machine import Batch, Machine

Token = tuple[Any, ...]
LONG = 4096  # tokens after which a log is examined even without a barrier
HEAVY = 32 << 20  # bytes of new addresses, likewise


class RaceLog:
    """The log of one batch. Memo of clean logs: ``machine.clean_logs``, shared by all batches."""

    def __init__(self, machine: Machine, batch: Batch) -> None:
        self.machine, self.batch = machine, batch
        self.log: list[Token] = []
        self.fresh = 0
        self.prefix: tuple[Token, ...] = ()  # cp.async writes in flight when the log began
        self.clocks: _Clocks | None = None  # set while a log is carried over without a full barrier

    def access(self, event: str, site: Site, pattern: Pattern, shift: int, *mbarrier: int) -> None:
        """An access: ``r``, ``w``, ``a`` (atomic or volatile), ``c`` (cp.async write) or ``t`` (bulk copy).

        ``mbarrier``, of a bulk copy: the mbarrier's address and phase.
        """
        self.log.append((event, site, pattern, shift, *mbarrier))
        if not pattern.logged:  # addresses that depend on data never repeat, and would fill the memory
            pattern.logged = True
            self.fresh += len(pattern.raw)
        if len(self.log) > LONG or self.fresh > HEAVY:
            self._carry()

    def event(self, *token: Any) -> None:
        """``bar`` lanes, ``arrive``/``join`` key lanes, ``warp`` lanes, ``commit`` lanes, ``wait`` lanes n,
        ``landed`` mbarrier lanes phase."""
        self.log.append(token)

    def full_barrier(self) -> None:
        """All live threads of the batch have passed a barrier: what came before is ordered."""
        log, self.log = self.log, []
        if not log and not self.prefix and self.clocks is None:
            return
        if self.clocks is None:
            key = (self.prefix, tuple(log))
            known = self.machine.clean_logs.get(key)
            if known is None:
                following = _in_flight((*self.prefix, *log))
                clocks = _Clocks(self.machine, self.batch)
                clocks.start(self.prefix)
                clocks.replay(log)
                if following is None:
                    self.clocks = clocks
                    clocks.full_barrier()
                    return
                self.machine.logged_bytes += self.fresh
                self.fresh = 0
                if len(self.machine.clean_logs) > 4096 or self.machine.logged_bytes > 4 * HEAVY:
                    self.machine.clean_logs.clear()
                    self.machine.logged_bytes = 0
                known = self.machine.clean_logs[key] = following
            self.prefix = known
            return
        self.clocks.replay(log)
        self.clocks.full_barrier()
        if not self.clocks.in_flight():
            self.clocks, self.prefix = None, ()

    def finish(self) -> None:
        """The batch has ended."""
        if self.log:
            key = ("end", self.prefix, tuple(self.log))
            if self.clocks is None and key in self.machine.clean_logs:
                return
            self._carry()
            self.machine.clean_logs[key] = ()

    def _carry(self) -> None:
        log, self.log, self.fresh = self.log, [], 0
        if self.clocks is None:
            self.clocks = _Clocks(self.machine, self.batch)
            self.clocks.start(self.prefix)
        self.clocks.replay(log)


def _in_flight(tokens: tuple[Token, ...]) -> tuple[Token, ...] | None:
    """The cp.async tokens that are still in flight after ``tokens``; None where threads disagree about groups, or
    there are bulk copies."""
    groups: list[list[Token]] = [[]]
    who: LaneSet | None = None
    for token in tokens:
        if token[0] == "t":
            return None
        if token[0] == "c":
            groups[-1].append(token)
        elif token[0] in ("commit", "wait"):
            if who is not None and token[1] is not who:
                return None
            who = token[1]
            if token[0] == "commit":
                groups.append([])
            else:
                keep = token[2]
                if keep < 0:  # wait_all: also what was not committed
                    groups = [[]]
                elif len(groups) - 1 > keep:
                    groups = groups[len(groups) - 1 - keep:]
    out: list[Token] = []
    for group in groups[:-1]:
        out += [*group, ("commit", who)]
    out += groups[-1]
    while out and out[0][0] == "commit":
        out.pop(0)
    return tuple(out)


class _Clocks:
    """Vector clocks of the warps of a batch, and the last accesses to each unit of shared memory."""

    def __init__(self, machine: Machine, batch: Batch) -> None:
        self.machine, self.batch = machine, batch
        units = batch.blocks * batch.shared_stride // batch.unit
        self.across = batch.padded // 32
        self.clock = np.zeros((batch.blocks * self.across, self.across), np.int64)
        self.own = np.arange(len(self.clock)) % self.across
        self.clock[np.arange(len(self.clock)), self.own] = 1
        # who wrote last, read last (and another reader), and has a cp.async write in flight
        self.lane = {name: np.full(units, -1, np.int32) for name in ("w", "r", "q", "c")}
        self.time = {name: np.zeros(units, np.int64) for name in ("w", "r", "q", "c")}
        self.code = {name: np.zeros(units, np.int32) for name in ("w", "r", "q", "c")}
        self.atomic = np.zeros(units, bool)
        self.group = np.zeros(units, np.int32)
        self.commits = np.zeros(batch.blocks * batch.padded, np.int32)
        self.released: dict[Any, NDArray[np.int64]] = {}
        # An mbarrier of bulk copies has a column of the clocks: how many of its phases each warp knows to have ended.
        self.columns: dict[int, int] = {}
        self.column = self.group  # of each unit's bulk copy

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
        return bool((self.lane["c"] >= 0).any()) or bool(self.columns and self._under_way(
            np.arange(len(self.group)), np.arange(len(self.group)) * self.batch.unit // self.batch.shared_stride
            * self.across).any())

    def full_barrier(self) -> None:
        """Order everything so far before everything to come."""
        self._join(np.arange(len(self.clock)))

    def _join(self, warps: NDArray[Any]) -> None:
        blocks = warps // self.across
        for block in np.unique(blocks):
            mine = warps[blocks == block]
            self.clock[mine] = self.clock[mine].max(axis=0)
        self.clock[warps, self.own[warps]] += 1

    def replay(self, log: list[Token]) -> None:
        """Apply a log, reporting what it finds."""
        for token in log:
            kind = token[0]
            if kind in "rwac":
                self._access(*token)
            elif kind == "t":
                self._bulk(*token[1:])
            elif kind == "landed":
                if token[1] in self.columns:
                    known = self.clock[:, self.columns[token[1]]]
                    known[token[2].warp_of] = np.maximum(known[token[2].warp_of], token[3] + 1)
            elif kind == "bar":
                self._join(np.unique(token[1].warp_of))
            elif kind == "warp":
                warps = np.unique(token[1].warp_of)
                self.clock[warps, self.own[warps]] += 1
            elif kind == "commit":
                self.commits[token[1].lanes] += 1
            elif kind == "wait":
                self._wait(token[1], token[2])
            elif kind == "arrive":
                self._release(token[1], np.unique(token[2].warp_of))
            elif kind == "join":
                self._acquire(token[1], np.unique(token[2].warp_of))

    def _release(self, key: Any, warps: NDArray[Any]) -> None:
        for warp in warps:
            known = self.released.setdefault((key, int(warp) // self.across), np.zeros(self.clock.shape[1], np.int64))
            np.maximum(known, self.clock[warp], out=known)
        self.clock[warps, self.own[warps]] += 1

    def _acquire(self, key: Any, warps: NDArray[Any]) -> None:
        for warp in warps:
            known = self.released.get((key, int(warp) // self.across))
            if known is not None:
                np.maximum(self.clock[warp], known, out=self.clock[warp])

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
        self.atomic[flying] = False
        self.lane["c"][flying] = -1

    def _access(self, event: str, site: Site, pattern: Pattern, shift: int, check: bool = True) -> None:
        lanes = pattern.lanes
        offsets = pattern.ref.astype(np.int64) + lanes.block_of * self.batch.shared_stride + shift
        start = offsets >> self.batch.unit_shift
        warp = lanes.warp_of
        now = self.clock[warp, self.own[warp]]
        if event == "a":
            self._flags(start, warp)
        for step in range(max(1, site.size // self.batch.unit)):
            unit = start + step
            if check:
                self._check(event, site, lanes, unit, now)
            if event == "r":
                stale = self._ordered("q", unit, lanes, now)
                self._record("q", unit[stale][::-1], lanes.lanes[stale][::-1], now[stale][::-1], site)
                self._record("r", unit, lanes.lanes, now, site)
            elif event == "c":
                self._record("c", unit, lanes.lanes, now, site)
                self.group[unit] = self.commits[lanes.lanes]
            else:
                self._record("w", unit, lanes.lanes, now, site)
                self.atomic[unit] = event == "a"

    def _bulk(self, site: Site, pattern: Pattern, shift: int, mbarrier: int, phase: int) -> None:
        if not self.columns:
            self.lane["t"] = np.full_like(self.group, -1)
            self.time["t"] = np.zeros(len(self.group), np.int64)
            self.code["t"], self.column = np.zeros_like(self.group), np.zeros_like(self.group)
        if mbarrier not in self.columns:
            self.columns[mbarrier] = self.clock.shape[1]
            self.clock = np.pad(self.clock, ((0, 0), (0, 1)))
            self.released = {key: np.pad(known, (0, 1)) for key, known in self.released.items()}
        offsets = pattern.ref.astype(np.int64) + pattern.lanes.block_of * self.batch.shared_stride + shift
        each = site.size // self.batch.unit
        unit = ((offsets >> self.batch.unit_shift)[:, None] + np.arange(each)).ravel()
        lanes = LaneSet(np.repeat(pattern.lanes.lanes, each), pattern.lanes.padded)
        self._check("t", site, lanes, unit, self.clock[lanes.warp_of, self.own[lanes.warp_of]])
        self._record("t", unit, lanes.lanes, np.full(lanes.n, phase + 1), site)
        self.column[unit] = self.columns[mbarrier]
        for name in "wrq":  # ordered before this copy, so before what waits for it
            self.lane[name][unit] = -1
        lost = self.lane["t"][unit] != lanes.lanes
        if lost.any():
            self._report("t", lost, "t", site, lanes, unit)

    def _under_way(self, unit: NDArray[Any], warp: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether a bulk copy to the unit is not known to have landed by the warp."""
        return np.asarray((self.lane["t"][unit] >= 0) & (self.clock[warp, self.column[unit]] < self.time["t"][unit]))

    def _record(self, name: str, unit: NDArray[Any], lane: NDArray[Any], now: NDArray[Any], site: Site) -> None:
        self.lane[name][unit] = lane
        self.time[name][unit] = now
        self.code[name][unit] = site.ins.index

    def _ordered(self, name: str, unit: NDArray[Any], lanes: LaneSet, now: NDArray[Any]) -> NDArray[np.bool_]:
        before = self.lane[name][unit]
        when = self.time[name][unit]
        warp, other = lanes.warp_of, before >> 5
        same = other == warp
        seen = self.clock[warp, np.maximum(other, 0) % self.across]
        return np.asarray((before < 0) | (before == lanes.lanes) | np.where(same, when < now, when <= seen))

    def _check(self, event: str, site: Site, lanes: LaneSet, unit: NDArray[Any], now: NDArray[Any]) -> None:
        flying = self.lane["c"][unit] >= 0
        if flying.any():
            self._report("c", flying, event, site, lanes, unit)
        if self.columns:
            late = self._under_way(unit, lanes.warp_of)
            if late.any():
                self._report("t", late, event, site, lanes, unit)
            flying |= late
        for name in ("w",) if event == "r" else ("w", "r", "q"):
            wrong = ~self._ordered(name, unit, lanes, now) & ~flying
            if event == "a" and name == "w":
                wrong &= ~self.atomic[unit]
            if wrong.any():
                self._report(name, wrong, event, site, lanes, unit)
                return

    def _flags(self, start: NDArray[Any], warp: NDArray[Any]) -> None:
        pairs = np.unique(np.stack([start, warp], axis=1), axis=0)
        if len(pairs) > 64:  # a histogram, not a flag
            return
        for unit, one in pairs:
            self._acquire(("flag", int(unit)), np.array([one]))
            self._release(("flag", int(unit)), np.array([one]))

    def _report(self, name: str, wrong: NDArray[np.bool_], event: str, site: Site, lanes: LaneSet,
                unit: NDArray[Any]) -> None:
        machine = self.machine
        first = int(np.flatnonzero(wrong)[0])
        at = int(unit[first] * self.batch.unit % self.batch.shared_stride)
        other = int(self.lane[name][unit[first]])
        code = machine.program.kernel.instructions[int(self.code[name][unit[first]])]
        did = {"r": "read", "w": "write", "a": "atomic or volatile access", "c": "cp.async write", "t": "bulk copy"}
        earlier = {"w": "write", "r": "read", "q": "read", "c": "cp.async write, not waited for,",
                   "t": "bulk copy, not waited for,"}[name]
        kind = "cp_async_race" if name in "ct" else "shared_race"
        remedy = ("a wait for the phase of its mbarrier between them" if name == "t"
                  else "cp.async.wait_group and a barrier between them" if name == "c" or event == "c"
                  else "a barrier between them")
        message = (f"{did[event]} of shared address {at} by thread {{0}} races with the {earlier} at {code.where} "
                   f"by thread {{1}}; put {remedy}")
        machine.fault(kind, site.ins, message, np.array([lanes.lanes[first], other]), at, pair=True,
                      count=int(np.count_nonzero(wrong)), batch=self.batch)
