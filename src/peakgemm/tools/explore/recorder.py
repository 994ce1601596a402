"""Watches one block of a run: which instruction each warp executes when, what it accesses, what it writes.

The simulator runs the lanes of many warps together; an event here is one instruction for the warps of the traced
block that execute it together. Addresses and register values are kept for a few of these warps, up to limits.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..simulator.core.lanes import Group, LaneSet
from ..simulator.front.program import Block
from ..simulator.front.ptx import Instruction, Mem
from ..simulator.machine import Machine
from ..simulator.ops.build import BAD_OPERANDS, Build, Getter, Step
from ..simulator.ops.memory import address
from ..simulator.ops.memory import space_of as space

WARP = 32


@dataclass(frozen=True)
class Limits:
    """How much is kept: ``events`` of the block, ``accesses`` and ``writes`` of registers by each detailed warp (those
    by FMAs, of which a main loop has thousands, are held to ``fma_writes``; one value in all lanes is an eighth)."""

    events: int = 120_000
    accesses: int = 500
    writes: int = 400
    fma_writes: int = 96


@dataclass(frozen=True)
class Access:
    """What one warp accesses at its ``step``; ``addresses``: one a lane, None where it takes no part."""

    step: int
    space: str
    size: int
    load: bool
    addresses: tuple[int | None, ...]


@dataclass(frozen=True)
class Write:
    """What one warp writes into a register at its ``step``; None: a lane that took no part."""

    step: int
    register: str
    values: tuple[Any, ...]


@dataclass(eq=False)
class _Who:
    """Of a set of lanes: the ``number`` of its set of warps of the traced block (-1: it has none of them), and of each
    detailed warp its places and lanes there."""

    lanes: LaneSet
    number: int
    detail: dict[int, tuple[NDArray[Any], NDArray[Any]]]


@dataclass
class Recorder:
    """An `Observer`: hand it to `simulator.run`, then read its fields.

    ``block``: the number of the traced block; ``warps``: those whose addresses and values are kept. ``events`` holds
    the instruction of each event and, in ``members``, which of ``sets`` executed it; ``keys`` the mbarrier of those
    that name one, ``touched`` those that accessed memory (a guard may have kept all lanes from it).
    """

    block: int = 0
    warps: tuple[int, ...] = (0, 1)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self.events, self.members = array("i"), array("i")
        self.sets: list[tuple[int, ...]] = []
        self.keys: dict[int, int] = {}
        self.touched: set[int] = set()
        self.accesses: dict[int, list[Access]] = {warp: [] for warp in self.warps}
        self.writes: dict[int, list[Write]] = {warp: [] for warp in self.warps}
        self.dropped: set[str] = set()
        self.machine: Machine | None = None
        self._steps = dict.fromkeys(self.warps, -1)
        self._kept = dict.fromkeys(self.warps, 0.0)
        self._fma = dict.fromkeys(self.warps, 0)
        self._known: dict[int, _Who] = {}
        self._batch: Any = None
        self._slot = -1

    # ---- what the simulator calls --------------------------------------------------------------

    def build(self, machine: Machine) -> Build:
        """The builder of a run that tells this recorder what it does."""
        self.machine = machine
        return _Watched(machine, self)

    def access(self, ins: Instruction, space: str, size: int, load: bool, lanes: LaneSet,
               address: NDArray[Any]) -> None:
        """See `Observer.access`."""
        who = self._who(lanes)
        if who is None:
            return
        if not self._full:
            self.touched.add(len(self.events) - 1)
        for warp, (places, lane) in who.detail.items():
            kept = self.accesses[warp]
            if len(kept) >= self.limits.accesses or self._full:
                self.dropped.add("accesses")
                continue
            addresses: list[int | None] = [None] * WARP
            for place, one in zip(places, lane, strict=True):
                addresses[int(one)] = int(address[place])
            kept.append(Access(self._steps[warp], space, size, load, tuple(addresses)))

    # ---- what the steps call -------------------------------------------------------------------

    @property
    def _full(self) -> bool:
        return len(self.events) >= self.limits.events

    def begin(self, index: int, lanes: LaneSet) -> None:
        """Lanes come to an instruction."""
        who = self._who(lanes)
        if who is None:
            return
        if self._full:
            self.dropped.add("events")
            return
        self.events.append(index)
        self.members.append(who.number)
        for warp in who.detail:
            self._steps[warp] += 1

    def meets(self, lanes: LaneSet, key: int) -> None:
        """The instruction that has begun names this mbarrier."""
        if self._who(lanes) is not None and self.events and not self._full:
            self.keys[len(self.events) - 1] = key

    def wrote(self, ins: Instruction, group: Group, results: list[tuple[str, str, int]]) -> None:
        """An instruction has written ``results``: names, views and slots."""
        who = self._who(group.lanes)
        if who is None or self._full:
            return
        for warp, (places, lane) in who.detail.items():
            if ins.base in ("fma", "mma", "wgmma"):
                self._fma[warp] += 1
                if self._fma[warp] > self.limits.fma_writes:
                    self.dropped.add("fma_writes")
                    continue
            elif self._kept[warp] >= self.limits.writes:
                self.dropped.add("writes")
                continue
            for name, view, slot in results:
                row = group.rows[view][slot]
                found: list[Any] = [None] * WARP
                for place, one in zip(places, lane, strict=True):
                    found[int(one)] = row[place].item()
                self._kept[warp] += 1 / 8 if len(set(found)) == 1 else 1
                self.writes[warp].append(Write(self._steps[warp], name, tuple(found)))

    def _who(self, lanes: LaneSet) -> _Who | None:
        """Who of the traced block is among the lanes; None: nobody."""
        assert self.machine is not None
        batch = self.machine.batch
        if batch is not self._batch:  # whose lanes are numbered by its own blocks
            where = np.flatnonzero(batch.numbers == self.block)
            self._batch, self._slot, self._known = batch, int(where[0]) if len(where) else -1, {}
        if self._slot < 0:
            return None
        known = self._known.get(id(lanes))
        if known is None or known.lanes is not lanes:  # ids come again
            known = self._known[id(lanes)] = self._look(lanes)
        return known if known.number >= 0 else None

    def _look(self, lanes: LaneSet) -> _Who:
        start = self._slot * lanes.padded
        places = np.flatnonzero((lanes.lanes >= start) & (lanes.lanes < start + lanes.padded))
        own = lanes.lanes[places] - start
        warps = tuple(int(warp) for warp in np.unique(own // WARP))
        if not warps:
            return _Who(lanes, -1, {})
        if warps not in self.sets:
            self.sets.append(warps)
        detail = {warp: (places[own // WARP == warp], own[own // WARP == warp] % WARP)
                  for warp in self.warps if warp in warps}
        return _Who(lanes, self.sets.index(warps), detail)


class _Watched(Build):
    """Builds each instruction by itself, between a step that says that it begins and one that looks at its results."""

    def __init__(self, machine: Machine, recorder: Recorder) -> None:
        super().__init__(machine)
        self.recorder = recorder

    def block(self, block: Block) -> list[Step]:
        """As `Build.block`, an instruction at a time: NaNs become canonical after each, which no result shows."""
        steps: list[Step] = []
        for index in range(block.start, block.end):
            ins = self.program.kernel.instructions[index]
            steps.append(self._begin(ins))
            alone = Block(block.number, index, index + 1, live_out=set(self.program.flow[index][1]))
            steps += super().block(alone)
            results = self._results(ins)
            if results:
                steps.append(self._wrote(ins, results))
        return steps

    def _begin(self, ins: Instruction) -> Step:
        begin, index, meets = self.recorder.begin, ins.index, self.recorder.meets
        get = self._mbarrier(ins)
        if get is None:
            return lambda group: begin(index, group.lanes)

        def step(group: Group) -> None:
            begin(index, group.lanes)
            meets(group.lanes, int(np.asarray(get(group)).reshape(-1)[0]))

        return step

    def _mbarrier(self, ins: Instruction) -> Getter | None:
        """Where the mbarrier lies that an instruction arrives at or waits for; None: it names none."""
        if "mbarrier" not in ins.opcode or ins.has("init", "inval"):
            return None
        operand = next((one for one in reversed(ins.operands) if isinstance(one, Mem)), None)
        try:
            return None if operand is None else address(self, ins, operand, space(ins))
        except (*BAD_OPERANDS, ValueError):
            return None

    def _results(self, ins: Instruction) -> list[tuple[str, str, int]]:
        """Names, views and slots of the registers that an instruction writes."""
        results = []
        for name in dict.fromkeys(self.program.flow[ins.index][1]):
            if name in self.program.slot:
                kind, slot = self.program.slot[name]
                results.append((name, _view(ins, kind), slot))
        return results

    def _wrote(self, ins: Instruction, results: list[tuple[str, str, int]]) -> Callable[[Group], None]:
        wrote = self.recorder.wrote
        return lambda group: wrote(ins, group, results)


def _view(ins: Instruction, kind: str) -> str:
    """How to read a result: as the type of the instruction says, in the width of the register."""
    if kind == "p":
        return "pred"
    of = ins.types[0] if ins.base in ("cvt", "set") and ins.types else ins.types[-1] if ins.types else "u32"
    width = {"h": "16", "r": "32", "d": "64"}[kind]
    if of == f"f{width}":
        return of
    return ("s" if of.startswith("s") else "u") + width
