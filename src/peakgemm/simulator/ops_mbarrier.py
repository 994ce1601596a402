"""mbarrier objects: counted arrivals with phases, kept per block and address."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .build import Build, Step, builder
from .lanes import Group, LaneSet
from .ops_memory import address, chosen_lanes
from .ptx import Instruction, Mem, Reg

Array = NDArray[Any]


class Phase:
    """The state of one mbarrier: arrivals expected and still missing, and the number of the phase."""

    __slots__ = ("expected", "missing", "phase")

    def __init__(self, expected: int) -> None:
        self.expected = self.missing = expected
        self.phase = 0

    def arrive(self, count: int) -> None:
        """Count arrivals; the last one opens the next phase."""
        self.missing -= count
        while self.missing <= 0 and self.expected > 0:
            self.phase += 1
            self.missing += self.expected


def _objects(b: Build, ins: Instruction, lanes: LaneSet, at: Array) -> tuple[list[Any], Array]:
    """The mbarrier of each lane: the distinct ones, and which lane has which."""
    keys = lanes.block_of << 32 | at.astype(np.int64)
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


def _event(b: Build, kind: str, lanes: LaneSet, at: Array) -> None:
    if b.machine.checks:
        for value in np.unique(at):
            some, _ = b.machine.pool.subset(lanes, at == value)
            b.machine.batch.races.event(kind, ("mbarrier", int(value)), some)


def _arrive(b: Build, ins: Instruction, lanes: LaneSet, at: Array, count: Array) -> Array:
    """Count arrivals of all lanes; the phase that each arrived in."""
    b.machine.progress += 1
    objects, which = _objects(b, ins, lanes, at)
    _event(b, "arrive", lanes, at)
    phases = np.array([item.phase for item in objects], np.uint64)[which]
    for number, item in enumerate(objects):
        item.arrive(int(count[which == number].sum()))
    return phases


@builder("mbarrier")
def mbarrier(b: Build, ins: Instruction) -> Step:
    what = ins.parts[1]
    if any(part.startswith("shared::cluster") for part in ins.parts) or ins.has("expect_tx", "arrive_drop"):
        raise ins.unknown("transactions and clusters are not simulated")
    memory = next(operand for operand in ins.operands if isinstance(operand, Mem))
    place = ins.operands.index(memory)
    get = address(b, ins, memory, "shared")
    guard = b.guard(ins)
    rest = ins.operands[place + 1:]
    if what in ("init", "inval"):
        count = b.src(ins, rest[0], "u32") if rest else None

        def init(group: Group) -> None:
            lanes, places = chosen_lanes(b, guard, group)
            at = get(group) if places is None else get(group)[places]
            number = 0 if count is None else int(np.max(np.asarray(count(group))))
            for block, where in zip(lanes.block_of, at, strict=False):
                b.machine.batch.mailbox[int(block) << 32 | int(where)] = Phase(number)
            if lanes.n and b.machine.checks:
                _event(b, "arrive", lanes, at)

        return init
    if what == "arrive":
        count = b.src(ins, rest[0], "u32") if rest else None
        target = ins.operands[0] if place else Reg("_")
        put = b.dst(ins, target, "b64")

        def arrive(group: Group) -> None:
            lanes, places = chosen_lanes(b, guard, group)
            if not lanes.n:
                return
            at = get(group) if places is None else get(group)[places]
            many = np.broadcast_to(np.asarray(1 if count is None else count(group)), (group.lanes.n,))
            state = np.zeros(group.lanes.n, np.uint64)
            phases = _arrive(b, ins, lanes, at, many if places is None else many[places])
            state[slice(None) if places is None else places] = phases
            put(group, state)

        return arrive
    if what in ("test_wait", "try_wait"):
        put = b.dst(ins, ins.operands[0], "pred")
        parity = ins.has("parity")
        state = b.src(ins, rest[0], "u32" if parity else "u64")

        def wait(group: Group) -> None:
            lanes, places = chosen_lanes(b, guard, group)
            if not lanes.n:
                return
            group.polled = True
            at = get(group) if places is None else get(group)[places]
            objects, which = _objects(b, ins, lanes, at)
            now = np.array([item.phase for item in objects], np.uint64)[which]
            given = np.broadcast_to(np.asarray(state(group)), (group.lanes.n,))
            given = (given if places is None else given[places]).astype(np.uint64)
            done = (now & np.uint64(1)) != (given & np.uint64(1)) if parity else now != given
            if done.any():
                some, chosen = b.machine.pool.subset(lanes, done)
                _event(b, "join", some, at[chosen])
            out = np.zeros(group.lanes.n, bool)
            out[slice(None) if places is None else places] = done
            put(group, out)

        return wait
    raise ins.unknown()


def arrive_after_copies(b: Build, ins: Instruction) -> Step:
    """``cp.async.mbarrier.arrive``: arrive when the thread's copies so far are done, which is at once here."""
    get = address(b, ins, ins.operands[0], "shared")
    guard = b.guard(ins)
    counted = ins.has("noinc")

    def step(group: Group) -> None:
        lanes, places = chosen_lanes(b, guard, group)
        if not lanes.n:
            return
        at = get(group) if places is None else get(group)[places]
        if b.machine.checks:
            b.machine.batch.races.event("wait", lanes, -1)
        if not counted:  # the pending count is raised first, so the phase does not end by this arrival alone
            objects, which = _objects(b, ins, lanes, at)
            for number, item in enumerate(objects):
                item.missing += int((which == number).sum())
        _arrive(b, ins, lanes, at, np.ones(lanes.n, np.int64))

    return step


