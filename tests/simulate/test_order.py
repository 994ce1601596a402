"""What threads know of each other, against tables of every pair of threads that are updated one event at a time."""

from types import SimpleNamespace

import numpy as np
import pytest

from peakgemm.tools.simulator.checks.order import Order
from peakgemm.tools.simulator.checks.strength import CLUSTER, CTA, WIDE, Strength
from peakgemm.tools.simulator.core.lanes import LaneSet
from seldom import exhaustive

PADDED, BLOCKS, ALL = 64, 4, 256  # two warps a block, two blocks a cluster
SCOPES = (CTA, CLUSTER, WIDE)


class Reference:
    """Of each thread and other thread: known, seen behind no fence and fenced until when (by scope)."""

    def __init__(self):
        self.known = np.full((ALL, ALL), -1)
        self.seen, self.fenced = np.full((3, ALL, ALL), -1), np.full((3, ALL, ALL), -1)
        self.arrivals, self.words = {}, {}

    def planes(self):
        return [self.known, *self.seen, *self.fenced]

    def together(self, threads, time):
        for plane in self.planes():
            plane[threads] = plane[threads].max(axis=0)
        self.known[np.ix_(threads, threads)] = time

    def arrive(self, threads, key, time):
        for thread in threads:
            self.known[thread, thread] = time
            arrival = self.arrivals.setdefault((key, thread // PADDED), [np.full(ALL, -1) for _ in range(7)])
            for into, plane in zip(arrival, self.planes(), strict=True):
                np.maximum(into, plane[thread], out=into)

    def join(self, threads, key):
        for thread in threads:
            for plane, table in zip(self.planes(), self.arrivals.get((key, thread // PADDED), ()), strict=False):
                np.maximum(plane[thread], table, out=plane[thread])

    def fence(self, threads, scope, time):
        for thread in threads:
            for wider in range(scope + 1):
                np.maximum(self.known[thread], self.seen[wider, thread], out=self.known[thread])
            row = self.known[thread].copy()
            row[thread] = time
            np.maximum(self.fenced[scope, thread], row, out=self.fenced[scope, thread])

    def flag(self, how, threads, words, time):
        for thread, word in zip(threads, words, strict=True):
            domains = ("block", thread // PADDED), ("cluster", thread // PADDED // 2), "all"
            flag = self.words.get(word, {})
            for scope in range(how.scope + 1) if how.reads else ():
                plane = self.known if how.acquires else self.seen[scope]
                np.maximum(plane[thread], flag.get(domains[scope], -1), out=plane[thread])
            if not how.writes:
                continue
            flag = self.words[word] = flag if how.reads else {}
            tells = [row[thread].copy() for row in self.fenced]
            if how.releases:
                self.known[thread, thread] = time
                np.maximum(tells[how.scope], self.known[thread], out=tells[how.scope])
            for scope, row in enumerate(tells):
                for wider in range(min(scope, how.scope) + 1):
                    flag[domains[wider]] = np.maximum(flag.get(domains[wider], -1), row)


def some_threads(rng):
    """All of a block, a warp, some of both, or one."""
    block, size = rng.integers(BLOCKS) * PADDED, rng.integers(4)
    if size == 0:
        return block + np.arange(PADDED)
    if size == 1:
        return block + 32 * rng.integers(2) + np.arange(32)
    return block + np.sort(rng.choice(PADDED, rng.integers(1, 50) if size == 2 else 1, replace=False))


@pytest.mark.parametrize("seed", [*range(6), *map(exhaustive, range(6, 12))])
def test_random_synchronisations(seed):
    rng = np.random.default_rng(seed)
    machine = SimpleNamespace(padded=PADDED, cluster=2, time=0, told_across=True)
    batch = SimpleNamespace(numbers=np.arange(BLOCKS), blocks=BLOCKS, live=np.ones(ALL, bool),
                            met=np.zeros(BLOCKS, int), warp_met=np.zeros(ALL // 32, int))
    order, reference = Order(machine), Reference()
    for step in range(150):
        threads = some_threads(rng)
        lanes, kind, scope = LaneSet(threads, PADDED), rng.integers(8), int(rng.choice(SCOPES))
        block = threads[0] // PADDED * PADDED + np.arange(PADDED)
        if kind == 0 and rng.random() < 0.3:
            order.note(batch, "bar", LaneSet(block, PADDED), False)
            reference.together(block, machine.time)
        elif kind == 1 and rng.random() < 0.2:
            both = threads[0] // (2 * PADDED) * 2 * PADDED + np.arange(2 * PADDED)
            order.note(batch, "cluster", LaneSet(both, PADDED))
            reference.together(both, machine.time)
        elif kind == 2:
            warp = threads[0] // 32 * 32 + np.arange(32)
            mask = None if rng.random() < 0.5 else np.where(warp % 32 < 8, 0xFF, 0xFFFFFF00)
            order.note(batch, "warp", LaneSet(warp, PADDED), mask)
            for some in (warp,) if mask is None else (warp[:8], warp[8:]):
                reference.together(some, machine.time)
        elif kind == 3:
            order.note(batch, "arrive", "key", lanes)
            reference.arrive(threads, "key", machine.time)
        elif kind == 4:
            order.note(batch, "join", "key", lanes)
            reference.join(threads, "key")
        elif kind == 5:
            order.note(batch, "fence", lanes, scope)
            reference.fence(threads, scope, machine.time)
        else:
            reads, writes = ((True, True), (True, False), (False, True))[rng.integers(3)]
            how = Strength(1, scope, bool(rng.random() < 0.3) and reads, bool(rng.random() < 0.3) and writes, reads,
                           writes)
            words = rng.integers(0, 3, len(threads))
            order.flag(batch, how, lanes, words)
            reference.flag(how, threads.tolist(), words.tolist(), machine.time)
        if step % 10 == 9:
            compare(order, reference, batch, rng)


def compare(order, reference, batch, rng):
    thread, other = rng.integers(0, ALL, (2, 4000))
    thread, other = thread[thread != other], other[thread != other]
    time, seen = rng.integers(0, order.machine.time + 1, len(thread)), rng.random(len(thread)) < 0.5
    met = ((thread // PADDED == other // PADDED) & (time < batch.met[thread // PADDED])) | \
        ((thread // 32 == other // 32) & (time < batch.warp_met[thread // 32]))
    found = order.knows(thread, other, time, seen) | met
    until = reference.known[thread, other]
    until = np.where(seen, np.maximum(until, reference.seen[:, thread, other].max(axis=0)), until)
    np.testing.assert_array_equal(found, until > time)
