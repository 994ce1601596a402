"""mbarrier objects: arrivals, and bytes of bulk copies and st.async, counted in phases; kept per block and address."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks.access import in_cluster, refuse_ended
from ..core.lanes import Group, LaneSet
from ..front.ptx import Instruction, Mem, Reg
from .build import Build, Getter, Step, builder
from .memory import address, chosen_lanes, on_lanes

Array = NDArray[Any]
MOST = (1 << 20) - 1  # bytes that may be missing, or landed before they were announced


class Phase:
    """The state of one mbarrier: arrivals expected and still missing, bytes missing, and the number of the phase.

    What is copied or stored lands at once here, so ``bytes`` is negative while it has not been announced; ``copies``
    says whether any has ever landed.
    """

    __slots__ = ("bytes", "copies", "expected", "missing", "phase")

    def __init__(self, expected: int, phase: int = 0) -> None:
        self.expected = self.missing = expected
        self.phase, self.bytes, self.copies = phase, 0, False

    def arrive(self, count: int) -> int:
        """Count arrivals; how many bytes had landed unannounced when the last one came.

        On a GPU their copies may still be under way at that moment, and the phase ends without them: so it does here.
        """
        self.missing -= count
        early = -self.bytes if self.missing <= 0 and self.bytes < 0 else 0
        self.bytes += early
        self._next()
        return early

    def transfer(self, amount: int) -> None:
        """More bytes to wait for, or, with a negative ``amount``, bytes that have landed."""
        self.bytes += amount
        self.copies |= amount < 0
        self._next()

    def _next(self) -> None:
        while self.missing <= 0 and self.expected > 0 and not self.bytes:
            self.phase += 1
            self.missing += self.expected


def objects(b: Build, ins: Instruction, lanes: LaneSet, at: Array,
            block: Array | None = None) -> tuple[list[Any], Array]:
    """The mbarrier of each lane, in the memory of ``block`` (None: its own): the distinct ones, and which lane has
    which."""
    keys = (lanes.block_of if block is None else block) << 32 | at.astype(np.int64)
    distinct, which = np.unique(keys, return_inverse=True)
    mailbox = b.machine.batch.mailbox
    found = []
    for key in distinct:
        if int(key) not in mailbox:
            b.machine.fault("mbarrier", ins, f"shared address {int(key) & 0xFFFFFFFF} holds no initialised mbarrier",
                            lanes.lanes, int(key) & 0xFFFFFFFF)
            mailbox[int(key)] = Phase(1)
        found.append(mailbox[int(key)])
    return found, which


def per_lane(get: Getter, group: Group, places: Array | None) -> Array:
    """The values of the lanes at ``places`` (None: all); numbers of bytes are int64, so that they can be negated."""
    values = np.broadcast_to(np.asarray(get(group)), (group.lanes.n,)).astype(np.int64)
    return values if places is None else values[places]


def _event(b: Build, kind: str, lanes: LaneSet, at: Array) -> None:
    if b.machine.checks:
        for value in np.unique(at):
            some, _ = b.machine.pool.subset(lanes, at == value)
            b.machine.batch.races.event(kind, ("mbarrier", int(value)), some)


def _landed(b: Build, lanes: LaneSet, at: Array, phase: Array) -> None:
    """What was copied in ``phase`` and before is there, and these lanes know it."""
    for where, number in sorted(set(zip(at.tolist(), phase.tolist(), strict=True))):
        some, _ = b.machine.pool.subset(lanes, (at == where) & (phase == number))
        b.machine.batch.races.event("landed", where, some, number)


def _arrive(b: Build, ins: Instruction, lanes: LaneSet, at: Array, count: Array,
            block: Array | None = None) -> Array:
    """Count arrivals of all lanes; the phase that each arrived in."""
    b.machine.progress += 1
    found, which = objects(b, ins, lanes, at, block)
    if block is None:
        _event(b, "arrive", lanes, at)
    elif b.machine.checks:
        beside = block - lanes.block_of
        for where, blocks in sorted(set(zip(at.tolist(), beside.tolist(), strict=True))):
            some, _ = b.machine.pool.subset(lanes, (at == where) & (beside == blocks))
            b.machine.batch.races.event("arrive", ("mbarrier", where), some, blocks)
    phases = np.array([item.phase for item in found], np.uint64)[which]
    for number, item in enumerate(found):
        early = item.arrive(int(count[which == number].sum()))
        if early:
            mine = lanes.lanes[which == number]
            b.machine.fault("mbarrier", ins, f"the last arrival comes while {early} bytes under way are not "
                            "announced, so the phase may end before they land; expect_tx before the last arrival",
                            mine, int(at[which == number][0]))
    return phases


def transfer(b: Build, ins: Instruction, lanes: LaneSet, at: Array, amount: Array,
             block: Array | None = None) -> None:
    """Add ``amount`` bytes per lane, negative where they have landed, to those that each lane's mbarrier waits for."""
    b.machine.progress += 1
    found, which = objects(b, ins, lanes, at, block)
    for number, item in enumerate(found):
        mine = which == number
        item.transfer(int(amount[mine].sum()))
        if abs(item.bytes) > MOST:
            b.machine.fault("mbarrier", ins, f"{abs(item.bytes)} bytes are under way on one mbarrier, it counts "
                            f"{MOST}; use more mbarriers, or wait in between", lanes.lanes[mine], int(at[mine][0]))


@builder("mbarrier")
def mbarrier(b: Build, ins: Instruction) -> Step:
    what = ins.parts[1]
    there = ins.has("shared::cluster")
    if there and (what != "arrive" or ins.has("expect_tx")):
        raise ins.unknown("of other blocks' mbarriers only arrivals are simulated")
    memory = next(operand for operand in ins.operands if isinstance(operand, Mem))
    place = ins.operands.index(memory)
    get = address(b, ins, memory, "cluster" if there else "shared")
    guard = b.guard(ins)
    rest = list(ins.operands[place + 1:])
    if what in ("init", "inval"):
        count = b.src(ins, rest[0], "u32") if rest else None

        def init(group: Group) -> None:
            lanes, places = chosen_lanes(b, guard, group)
            at = get(group) if places is None else get(group)[places]
            number = 0 if count is None else int(np.max(np.asarray(count(group))))
            for block, where in zip(lanes.block_of, at, strict=False):
                key = int(block) << 32 | int(where)
                before = b.machine.batch.mailbox.get(key)
                # Made anew, it counts on from an even phase: no wait is for a phase of the one before.
                b.machine.batch.mailbox[key] = Phase(number, before.phase + 2 & ~1 if before else 0)
            if lanes.n and b.machine.checks:
                _event(b, "arrive", lanes, at)

        return init
    if what == "expect_tx":
        amount = b.src(ins, rest[0], "u32")

        def expect(group: Group, lanes: LaneSet, places: Array | None) -> None:
            at = get(group) if places is None else get(group)[places]
            transfer(b, ins, lanes, at, per_lane(amount, group, places))

        return on_lanes(b, guard, expect)
    if what == "arrive":
        announced = b.src(ins, rest.pop(0), "u32") if ins.has("expect_tx") else None
        count = b.src(ins, rest[0], "u32") if rest else None
        target = ins.operands[0] if place else Reg("_")
        put = b.dst(ins, target, "b64")

        def arrive(group: Group, lanes: LaneSet, places: Array | None) -> None:
            at = get(group) if places is None else get(group)[places]
            if announced is not None:
                transfer(b, ins, lanes, at, per_lane(announced, group, places))
            many = np.ones(lanes.n, np.int64) if count is None else per_lane(count, group, places)
            state = np.zeros(group.lanes.n, np.uint64)
            block = None
            if there:  # see mapa
                block, at = in_cluster(b.machine, lanes, at)
                refuse_ended(b.machine, ins, lanes, block, "arrival at an mbarrier")
            phases = _arrive(b, ins, lanes, at, many, block)
            state[slice(None) if places is None else places] = phases
            put(group, state)

        return on_lanes(b, guard, arrive)
    if what in ("test_wait", "try_wait"):
        put = b.dst(ins, ins.operands[0], "pred")
        parity = ins.has("parity")
        state = b.src(ins, rest[0], "u32" if parity else "u64")

        def wait(group: Group, lanes: LaneSet, places: Array | None) -> None:
            group.polled = True
            at = get(group) if places is None else get(group)[places]
            found, which = objects(b, ins, lanes, at)
            now = np.array([item.phase for item in found], np.uint64)[which]
            given = per_lane(state, group, places).astype(np.uint64)
            done = (now & np.uint64(1)) != (given & np.uint64(1)) if parity else now != given
            if done.any():
                some, chosen = b.machine.pool.subset(lanes, done)
                _event(b, "join", some, at[chosen])
                if b.machine.checks and any(item.copies for item in found):
                    ended = now.astype(np.int64) - 1 if parity else given.astype(np.int64)
                    _landed(b, some, at[chosen], ended[chosen])
            out = np.zeros(group.lanes.n, bool)
            out[slice(None) if places is None else places] = done
            put(group, out)

        return on_lanes(b, guard, wait)
    raise ins.unknown()


def arrive_after_copies(b: Build, ins: Instruction) -> Step:
    """``cp.async.mbarrier.arrive``: arrive when the thread's copies so far are done, which is at once here."""
    get = address(b, ins, ins.operands[0], "shared")
    guard = b.guard(ins)
    counted = ins.has("noinc")

    def step(group: Group, lanes: LaneSet, places: Array | None) -> None:
        at = get(group) if places is None else get(group)[places]
        if b.machine.checks:
            b.machine.batch.races.event("wait", lanes, -1)
        if not counted:  # the pending count is raised first, so the phase does not end by this arrival alone
            found, which = objects(b, ins, lanes, at)
            for number, item in enumerate(found):
                item.missing += int((which == number).sum())
        _arrive(b, ins, lanes, at, np.ones(lanes.n, np.int64))

    return on_lanes(b, guard, step)
