"""Barriers of a batch: who waits where, when they are let go, and what was wrong about it.

As on hardware a barrier counts warps: one has arrived when all its live lanes have. Exited threads
are not waited for. ``bar.arrive`` counts without waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..front.ptx import Instruction
from .lanes import Group

if TYPE_CHECKING:
    from ..machine import Batch


CLUSTER = -1  # the barrier of all threads of a cluster, among those of a block


@dataclass(slots=True, eq=False)
class Waiting:
    """A group at a barrier; ``count`` threads are expected (None: all of the block)."""

    group: Group
    ins: Instruction
    barrier: int
    count: int | None
    following: int
    vote: NDArray[Any] | None = None
    answer: Any = None


class Barriers:
    """The barriers of all blocks of one batch."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.waiting: list[Waiting] = []
        self.arrived: dict[int, NDArray[np.int64]] = {}

    def arrive(self, group: Group, ins: Instruction, barrier: int, count: int, following: int) -> int:
        """``bar.arrive``: count the group's warps and go on."""
        batch = self.batch
        counts = self.arrived.setdefault(barrier, np.zeros(batch.blocks, np.int64))
        np.add.at(counts, group.lanes.block_of[group.lanes.firsts], 32)
        if batch.machine.checks:
            batch.races.event("arrive", ("bar", barrier), group.lanes)
        self._known_count(barrier, count, ins)
        self.release(barrier)
        if barrier in self.arrived:  # arrivals alone complete a barrier too
            self.arrived[barrier][self.arrived[barrier] >= count] -= count
            if not self.arrived[barrier].any():
                del self.arrived[barrier]
        return following

    def _known_count(self, barrier: int, count: int, ins: Instruction) -> None:
        if count % 32:
            raise ins.unknown(f"barrier {barrier} expects {count} threads, which is not a multiple of 32")

    def wait(self, group: Group, ins: Instruction, barrier: int, count: int | None, following: int,
             vote: NDArray[Any] | None = None, answer: Any = None) -> int:
        """``bar.sync`` or ``bar.red``: the next block where all have arrived already, else -1 and the group waits."""
        batch = self.batch
        if count is not None:
            self._known_count(barrier, count, ins)
        whole = group.lanes.n == batch.live_total and not self.waiting and barrier not in self.arrived
        if whole and (count is None or count == batch.padded) and vote is None:
            self._passed(None, barrier)
            return following
        self.waiting.append(Waiting(group, ins, barrier, count, following, vote, answer))
        self.release(barrier)
        return -1

    def _passed(self, lanes: Any, barrier: int, key: Any = None) -> None:
        """``lanes`` (None: all that live) have passed a barrier; ``key`` of what has arrived without waiting."""
        batch = self.batch
        if lanes is None and (batch.machine.cluster == 1 or barrier == CLUSTER):
            if batch.machine.checks:
                batch.races.full_barrier()
            return
        if lanes is None:
            lanes = batch.pool.get(np.flatnonzero(batch.live).astype(np.int64))
        if batch.machine.checks:
            if key is not None:
                batch.races.event("join", key, lanes)
            batch.races.event("cluster" if barrier == CLUSTER else "bar", lanes, key is not None)

    def release_all(self) -> None:
        """Look again at every barrier, after threads have ended."""
        for barrier in {waiter.barrier for waiter in self.waiting}:
            self.release(barrier)

    def release(self, barrier: int) -> None:
        """Let go the blocks whose threads have all arrived at ``barrier``."""
        batch = self.batch
        here = [waiter for waiter in self.waiting if waiter.barrier == barrier]
        if not here:
            return
        shape = (batch.blocks, batch.padded // 32, 32)
        there = np.zeros(batch.blocks * batch.padded, bool)
        for waiter in here:
            there[waiter.group.lanes.lanes] = True
        complete = (there | ~batch.live).reshape(shape).all(axis=2) & there.reshape(shape).any(axis=2)
        warps = complete.sum(axis=1) * 32 + self.arrived.get(barrier, np.zeros(batch.blocks, np.int64))
        counts = np.full(batch.blocks, -1, np.int64)
        for waiter in here:
            if waiter.count is not None:
                counts[waiter.group.lanes.blocks] = waiter.count
        together = batch.machine.cluster if barrier == CLUSTER else 1  # blocks that wait for each other
        all_in = np.repeat((there | ~batch.live).reshape(batch.blocks // together, -1).all(axis=1), together)
        done = np.where(counts >= 0, warps >= counts, all_in) & there.reshape(batch.blocks, -1).any(axis=1)
        if not done.any():
            return
        gone = done[np.arange(batch.blocks * batch.padded) // batch.padded] & there
        gone &= np.repeat(complete.reshape(-1), 32) | ~batch.live  # a half-arrived warp goes on waiting
        lanes = np.flatnonzero(gone).astype(np.int64)
        released = batch.pool.get(lanes)
        if barrier != CLUSTER:
            self._check(here, gone, counts)
        elif any(waiter.ins.has("aligned") for waiter in here):  # else its waits may lie anywhere
            self._check(here, gone, np.zeros_like(counts))
        everyone = len(lanes) == batch.live_total
        arrivals = barrier in self.arrived
        self._passed(None if everyone and not arrivals else released, barrier,
                     ("bar", barrier) if arrivals else None)
        if arrivals:
            self.arrived[barrier][done] = 0
            if not self.arrived[barrier].any():
                del self.arrived[barrier]
        votes = self._votes(here, gone)
        for waiter in here:
            self._let_go(waiter, gone, votes)

    def _votes(self, here: list[Waiting], gone: NDArray[np.bool_]) -> NDArray[np.int64] | None:
        if all(waiter.vote is None for waiter in here):
            return None
        batch = self.batch
        table = np.zeros((2, batch.blocks), np.int64)
        for waiter in here:
            if waiter.vote is not None:
                inside = gone[waiter.group.lanes.lanes]
                block = waiter.group.lanes.block_of[inside]
                np.add.at(table[0], block, waiter.vote[inside])
                np.add.at(table[1], block, 1)
        return table

    def _let_go(self, waiter: Waiting, gone: NDArray[np.bool_], votes: NDArray[np.int64] | None) -> None:
        batch, group = self.batch, waiter.group
        mask = gone[group.lanes.lanes]
        if not mask.any():
            return
        if mask.all():
            self.waiting.remove(waiter)
            going = group
        else:
            slots, live = batch.machine.program.slots, batch.machine.code[waiter.following].live
            answered = {kind: np.arange(n) for kind, n in slots.items()} if waiter.vote is not None else live
            lanes, chosen = batch.pool.subset(group.lanes, mask)
            going = group.take(chosen, lanes, slots, answered)
            lanes, rest = batch.pool.subset(group.lanes, ~mask)
            waiter.group = group.take(rest, lanes, slots, answered)
            if waiter.vote is not None:
                waiter.vote = waiter.vote[rest]
        if waiter.answer is not None and votes is not None:
            block = going.lanes.block_of
            waiter.answer(going, votes[0][block], votes[1][block])
        going.block, going.polled = waiter.following, False
        batch.ready.append(going)

    def _check(self, here: list[Waiting], gone: NDArray[np.bool_], counts: NDArray[np.int64]) -> None:
        """Report threads that met the barrier at different instructions where the language forbids it."""
        batch = self.batch
        places: dict[int, Instruction] = {waiter.ins.index: waiter.ins for waiter in here}
        if len(places) < 2:
            return
        at = np.full(batch.blocks * batch.padded, -1, np.int64)
        for waiter in here:
            at[waiter.group.lanes.lanes] = waiter.ins.index
        at[~gone] = -1
        for width, rows in ((32, slice(None)), (batch.padded, counts < 0)):
            table = at.reshape(-1, width)[rows]
            high = table.max(axis=1)
            low = np.where(table < 0, high[:, None], table).min(axis=1)
            mixed = np.flatnonzero(high != low)
            if len(mixed):
                row = mixed[0] if width == 32 else np.flatnonzero(counts < 0)[mixed[0]]
                first, second = int(low[mixed[0]]), int(high[mixed[0]])
                lanes = row * width + np.array([np.flatnonzero(table[mixed[0]] == k)[0] for k in (first, second)])
                batch.machine.fault(
                    "divergent_barrier", places[first],
                    f"thread {{0}} waits at this barrier and thread {{1}} at the one at {places[second].where}; "
                    "all threads of a block must reach the same __syncthreads()", lanes, pair=True, batch=batch)
                return

    def deadlock(self) -> None:
        """Report every barrier at which threads wait for ever."""
        batch = self.batch
        for waiter in self.waiting:
            lanes = waiter.group.lanes
            block = int(lanes.block_of[0])
            live = batch.live.reshape(batch.blocks, -1)[block]
            here = int((lanes.block_of == block).sum())
            expected = int(live.sum()) if waiter.count is None else waiter.count
            elsewhere = [f"{other.ins.where}" for other in self.waiting
                         if other is not waiter and block in other.group.lanes.blocks]
            what = "the barrier of their cluster" if waiter.barrier == CLUSTER else f"barrier {waiter.barrier}"
            if waiter.barrier == CLUSTER:
                first = block // batch.machine.cluster * batch.machine.cluster
                expected = int(batch.live.reshape(batch.blocks, -1)[first:first + batch.machine.cluster].sum())
            others = f"; others of the block wait at {', '.join(sorted(set(elsewhere)))}" if elsewhere else ""
            batch.machine.fault("deadlock", waiter.ins,
                                f"{here} threads of a block wait at {what} for {expected}, and no "
                                f"more will come{others}", lanes.lanes, batch=batch)
