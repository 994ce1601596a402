"""Which threads of a grid know of which accesses: happens-before, at the grain of a lane.

Time is the number of synchronisations so far in the whole run. Whatever a lane has done before one of them is told to
others by it: by barriers of blocks, warps and clusters, mbarriers, and flags, that is strong accesses to one word with
a fence before the store and behind the load. Synchronisations are only noted; they are replayed when two accesses meet
that a block's or warp's barrier does not order, which most kernels never see.

Knowledge is kept for blocks, warps and lanes ("entities": numbers of a thread times 3, a warp's plus 1, a block's plus
2), each a table of ``{whom: up to which time}``. There are several planes of it: what an entity knows; what it has read
from flags without a fence behind it, by scope; and what has passed a fence of it, by scope, and a flag may tell.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core.lanes import LaneSet, index
from .strength import WIDE, Strength

if TYPE_CHECKING:
    from ..machine import Batch, Machine

Array = NDArray[Any]
Table = dict[int, int]
KNOWN, SEEN, FENCED = 0, 1, 4  # planes; the latter two and those of wider scopes behind them
PLANES = range(FENCED + WIDE + 1)
OWN = -1  # in a warp's table of what has passed a fence: each lane's own accesses
MANY = 1 << 16  # synchronisations, and 64ths of their lanes, that are kept before they are replayed unasked


def merge(into: Table, more: Table) -> None:
    """The later of both times for each."""
    for whom, time in more.items():
        if into.get(whom, -1) < time:
            into[whom] = time


class Order:
    """What was synchronised; of one batch, or of all where blocks may synchronise with each other."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.padded = machine, machine.padded
        self.events: list[tuple[Any, ...]] = []
        self.tables: dict[tuple[int, int], Table] = {}
        self.inside: dict[int, set[int]] = {}  # of a block or warp: the entities in it that have tables
        self.met: Table = {}  # of blocks and warps: the last time that all of it met
        self.told: dict[Any, dict[int, Table]] = {}  # by barriers that were arrived at
        self.words: dict[int, dict[Any, Table]] = {}  # by flags: what those in a scope are told
        self.stored: set[int] = set()  # words with strong stores
        self.weight = 0  # of the events
        self.ended: set[int] = set()  # blocks
        self.silent: Table = {}  # by block: its last event that tells something; only where blocks have ended
        self.place = 0  # of the event that is replayed

    # ---- noting ----------------------------------------------------------------------------------

    def note(self, batch: Batch, kind: str, *token: Any) -> None:
        """A token of `races.RaceLog.event`."""
        if kind not in NOTED:
            return
        machine = self.machine
        machine.time += 1
        time = machine.time
        if kind == "warp":
            lanes, mask = token
            if mask is None:
                batch.warp_met[lanes.warp_of[lanes.firsts]] = time
            self._add(kind, time, lanes.n, batch.numbers, lanes, mask)
        elif kind in ("bar", "cluster"):
            lanes, more = token[0], len(token) > 1 and token[1]  # whether others had arrived without waiting
            live = np.count_nonzero(batch.live.reshape(batch.blocks, -1), axis=1)[lanes.blocks]
            whole = (np.bincount(index(lanes.block_of), minlength=batch.blocks)[lanes.blocks] >= live) & (not more)
            batch.met[lanes.blocks[whole]] = time
            if kind == "cluster" or whole.all():
                self._add(kind if kind == "cluster" else "blocks", time, 0, batch.numbers[lanes.blocks])
            else:
                self._add("bar", time, lanes.n, batch.numbers, lanes)
        elif kind in ("arrive", "join"):
            key, lanes = token[:2]
            self._add(kind, time, lanes.n, batch.numbers, lanes, key, token[2] if len(token) > 2 else 0)
        else:
            self._add(kind, time, token[0].n, batch.numbers, *token)

    def all_met(self, batch: Batch) -> None:
        """All blocks of a batch have passed a barrier of all their threads, or of all those of their clusters."""
        self.machine.time += 1
        batch.met[:] = self.machine.time
        if not self.machine.told_across:
            self.events.clear()
            self.tables.clear()
            self.inside.clear()
            self.words.clear()
        kind = "cluster" if self.machine.cluster > 1 else "blocks"
        self._add(kind, self.machine.time, 0, batch.numbers)

    def flag(self, batch: Batch, how: Strength, lanes: LaneSet, words: Array) -> bool:
        """Strong accesses to words; ``words`` names them, below 0 in shared memory. Whether they may tell something."""
        if how.writes:
            self.stored.update(words.tolist())
        else:
            there = [place for place, word in enumerate(words.tolist()) if word in self.stored]
            if not there:
                return False
            lanes, words = LaneSet(lanes.lanes[there], lanes.padded), words[there]
        self.machine.time += 1
        self._add("flag", self.machine.time, lanes.n, batch.numbers, lanes, how, words)
        return True

    def _add(self, kind: str, time: int, size: int, *rest: Any) -> None:
        self.events.append((kind, time, *rest))
        self.weight += 1 + (size >> 6)
        if self.weight > MANY:
            self._replay()

    def forget(self, batch: Batch) -> None:
        """A batch has ended: nobody will ask what its threads know."""
        self.ended.update(batch.numbers.tolist())

    # ---- asking ----------------------------------------------------------------------------------

    def knows(self, thread: Array, other: Array, time: Array, seen: Array) -> NDArray[np.bool_]:
        """Whether each thread knows of what the other did at a time; with ``seen`` also without a fence of its own."""
        self._replay()
        known = np.zeros(len(thread), bool)
        for size, kind in ((self.padded, 2), (32, 1), (1, 0)):  # blocks, warps, lanes: mostly the first have it all
            rest = np.flatnonzero(~known)
            if not len(rest):
                break
            one, two = thread[rest] // size, other[rest] // size
            keys, which = np.unique(np.stack([one, two, seen[rest]]), axis=1, return_inverse=True)
            until = np.array([self._until(int(a) * size, int(b) * size, kind, bool(c)) for a, b, c in keys.T])
            known[rest] = until[which.reshape(-1)] > time[rest]
        return known

    def _until(self, thread: int, other: int, kind: int, seen: bool) -> int:
        latest = -1
        for plane in range(SEEN + WIDE + 1) if seen else (KNOWN,):
            for who in self._entities(thread)[:3 - kind]:
                table = self.tables.get((plane, who))
                if table:
                    latest = max(latest, *(table.get(whom, -1) for whom in self._entities(other)[:3 - kind]))
        return latest

    def _entities(self, thread: int) -> tuple[int, int, int]:
        """The block, the warp and the lane of a thread."""
        return thread // self.padded * 3 + 2, thread // 32 * 3 + 1, thread * 3

    # ---- replaying -------------------------------------------------------------------------------

    def _replay(self) -> None:
        events, self.events, self.weight = self.events, [], 0
        # A block that has ended need not learn what it tells nobody: without this each block of a reduction would
        # learn of all before it.
        self.silent = {}
        if self.ended:
            for number, (kind, _, *rest) in enumerate(events):
                if kind in ("flag", "arrive"):
                    self.silent.update(dict.fromkeys(rest[0][rest[1].blocks].tolist(), number))
        for self.place, (kind, time, *rest) in enumerate(events):
            if len(rest) > 1 and isinstance(rest[1], LaneSet):
                numbers, lanes = rest[:2]
                rest[:2] = [np.asarray(numbers[lanes.block_of] * self.padded + lanes.lanes % self.padded)]
            getattr(self, f"_{kind}")(time, *rest)
        for number in self.ended:
            block = number * 3 + 2
            for who in (block, *self.inside.pop(block, ())):
                self.inside.pop(who, None)
                for plane in PLANES:
                    self.tables.pop((plane, who), None)
        if self.ended:
            self.told = {place: table for place, table in self.told.items() if place[1] not in self.ended}
        self.ended.clear()

    def _learn(self, plane: int, who: int, table: Table) -> None:
        if not table:
            return
        mine = self.tables.get((plane, who))
        if mine is None:
            mine = self.tables[plane, who] = {}
            kind = who % 3
            thread = who // 3 * (1, 32, self.padded)[kind]
            for outer in self._entities(thread)[:2 - kind]:
                self.inside.setdefault(outer, set()).add(who)
        merge(mine, table)

    def _facts(self, plane: int, thread: int, kind: int = 0) -> Table:
        """What the thread, or its whole warp (``kind`` 1), knows on a plane."""
        out: Table = {}
        block, warp, lane = self._entities(thread)
        within = self.inside.get(warp, ()) if kind else (lane,)
        for who in (block, warp, *within):
            merge(out, self.tables.get((plane, who), {}))
        if OWN in out:
            time = out.pop(OWN)
            merge(out, {warp if kind else lane: time})
        return out

    def _done(self, time: int, thread: int, kind: int) -> Table:
        """What the thread, or its whole warp, has done, and knows."""
        block, warp, lane = self._entities(thread)
        out = self._facts(KNOWN, thread, kind)
        merge(out, {(warp if kind else lane): time, block: self.met.get(block, -1)})
        if not kind:
            merge(out, {warp: self.met.get(warp, -1)})
        return out

    def _parts(self, threads: Array) -> Iterable[tuple[int, int]]:
        """A thread of each whole warp and 1, and each other thread and 0."""
        warp, first, count = np.unique(threads // 32, return_index=True, return_counts=True)
        for number, start, size in zip(warp.tolist(), first.tolist(), count.tolist(), strict=True):
            if size == 32:
                yield number * 32, 1
            else:
                yield from ((thread, 0) for thread in threads[start:start + size].tolist())

    def _meet(self, time: int, who: int) -> None:
        """All of a block or warp has met."""
        self.met[who] = time
        for inner in self.inside.pop(who, ()):
            for plane in PLANES:
                table = self.tables.pop((plane, inner), None)
                if table:
                    if OWN in table:
                        merge(table, {inner: table.pop(OWN)})
                    self._learn(plane, who, table)
            self.inside.pop(inner, None)
        for plane in PLANES:
            table = self.tables.get((plane, who))
            if table and OWN in table:
                merge(table, {who: table.pop(OWN)})

    def _together(self, parts: list[tuple[int, int]], more: Table) -> None:
        """Threads, whole warps or blocks learn what the others know, and ``more``."""
        for plane in PLANES:
            union: Table = dict(more) if plane == KNOWN else {}
            for thread, size in parts:
                merge(union, self._facts(plane, thread, min(size, 1)))
            for thread, size in parts:
                self._learn(plane, self._entities(thread)[2 - size], union)

    def _blocks(self, time: int, numbers: Array) -> None:
        for number in numbers.tolist():
            self._meet(time, number * 3 + 2)

    def _cluster(self, time: int, numbers: Array) -> None:
        self._blocks(time, numbers)
        clusters: dict[int, list[int]] = {}
        for number in numbers.tolist():
            clusters.setdefault(number // self.machine.cluster, []).append(number)
        for blocks in clusters.values():
            self._together([(number * self.padded, 2) for number in blocks],
                           {number * 3 + 2: time for number in blocks})

    def _warp(self, time: int, threads: Array, mask: Array | None) -> None:
        if mask is None:
            for warp in np.unique(threads // 32).tolist():
                self._meet(time, warp * 3 + 1)
            return
        named = threads // 32 << 32 | mask
        for one in np.unique(named).tolist():
            some = threads[named == one].tolist()
            self._together([(thread, 0) for thread in some], {thread * 3: time for thread in some})

    def _bar(self, time: int, threads: Array) -> None:
        """Some warps of each block have met."""
        block = threads // self.padded
        for number in np.unique(block).tolist():
            some = threads[block == number]
            parts = [(warp * 32, 1) for warp in np.unique(some // 32).tolist()]
            for thread, _ in parts:
                self._meet(time, self._entities(thread)[1])
            self._together(parts, {self._entities(thread)[1]: time for thread, _ in parts})

    def _arrive(self, time: int, threads: Array, key: Any, beside: int) -> None:
        for thread, kind in self._parts(threads):
            place = self.told.setdefault((key, thread // self.padded + beside), {})
            for plane in PLANES:
                facts = self._done(time, thread, kind) if plane == KNOWN else self._facts(plane, thread, kind)
                merge(place.setdefault(plane, {}), facts)

    def _join(self, time: int, threads: Array, key: Any, beside: int) -> None:
        for thread, kind in self._parts(threads):
            for plane, table in self.told.get((key, thread // self.padded), {}).items():
                self._learn(plane, self._entities(thread)[2 - kind], table)

    def _fence(self, time: int, threads: Array, scope: int) -> None:
        for thread, kind in self._parts(threads):
            warp = self._entities(thread)[1]
            for who in ((warp, *self.inside.get(warp, ())) if kind else (thread * 3,)):
                first = who // 3 * (32 if who % 3 else 1)
                for wider in range(scope + 1):
                    self._learn(KNOWN, who, self._plain(SEEN + wider, first, who))
                passed = self._plain(KNOWN, first, who)
                block = self._entities(first)[0]
                merge(passed, {block: self.met.get(block, -1), warp: self.met.get(warp, -1),
                               (OWN if who % 3 else who): time})
                self._learn(FENCED + scope, who, passed)

    def _plain(self, plane: int, thread: int, who: int) -> Table:
        """As `_facts`; of a warp without what single lanes know."""
        out: Table = {}
        for entity in self._entities(thread)[:2 if who % 3 else 3]:
            merge(out, self.tables.get((plane, entity), {}))
        out.pop(OWN, None)
        return out

    def _flag(self, time: int, threads: Array, how: Strength, words: Array) -> None:
        for thread, word in zip(threads.tolist(), words.tolist(), strict=True):
            block = thread // self.padded
            domains = (("block", block), ("cluster", block // self.machine.cluster), "all")
            place = self.words.get(word)
            over = block in self.ended and self.silent.get(block, -1) <= self.place
            if how.reads and place and not over:
                for scope in range(how.scope + 1):
                    table = place.get(domains[scope])
                    if table:
                        self._learn(KNOWN if how.acquires else SEEN + scope, thread * 3, table)
            if not how.writes:
                continue
            if place is None or not how.reads:  # a store ends what the word told before
                place = self.words[word] = {}
            tells = {scope: self._facts(FENCED + scope, thread) for scope in range(WIDE + 1)}
            if how.releases:
                merge(tells[how.scope], self._done(time, thread, 0))
            for scope, table in tells.items():
                if table:
                    for wider in range(min(scope, how.scope) + 1):
                        merge(place.setdefault(domains[wider], {}), table)


NOTED = ("bar", "cluster", "warp", "arrive", "join", "fence")
