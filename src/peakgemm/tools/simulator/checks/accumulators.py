"""Registers of wgmma: not to be touched between its issue and ``wgmma.wait_group``, nor without a fence before it.

Followed per warp while the kernel runs, for the registers of wgmma and those that are copies of them: a ``mov`` of a
register under way is no access, since the compiler renames registers with it and ptxas leaves nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..core.lanes import Group, LaneSet
from ..front.ptx import Imm, Instruction, Kernel, Reg, Vec

if TYPE_CHECKING:
    from ..machine import Machine
    from ..ops.build import Build, Step

Array = NDArray[Any]


@dataclass(slots=True)
class Touch:
    """What an instruction does to rows of registers: reads, writes, or copies (``moves``: to, from; -1: a constant)."""

    ins: Instruction
    reads: Array
    writes: Array
    moves: tuple[int, int] | None


def tracked(kernel: Kernel) -> dict[str, int]:
    """The registers of wgmma and what is moved to and from them, each with a row."""
    rows: dict[str, int] = {}
    for ins in kernel.instructions:
        if ins.base == "wgmma" and ins.has("mma_async"):
            for operand in ins.operands[:2]:
                if isinstance(operand, Vec):
                    for item in operand.items:
                        if isinstance(item, Reg):
                            rows.setdefault(item.name, len(rows))
    pairs = [pair for ins in kernel.instructions if (pair := _copy(ins)) is not None] if rows else []
    grown = True
    while grown:
        grown = False
        for to, source in pairs:
            if source is not None and (to in rows) != (source in rows):
                rows.setdefault(to, len(rows))
                rows.setdefault(source, len(rows))
                grown = True
    return rows


def _copy(ins: Instruction) -> tuple[str, str | None] | None:
    """Target and source of a plain ``mov``; a source of None is a constant."""
    if ins.base != "mov" or ins.guard is not None or len(ins.operands) != 2:
        return None
    to, source = ins.operands
    if isinstance(to, Reg) and isinstance(source, (Reg, Imm)):
        return to.name, source.name if isinstance(source, Reg) else None
    return None


def watch(b: Build, code: list[Instruction]) -> list[Step]:
    """Steps, to be run before ``code``, that look at what it does to the registers, but for what it does under a guard;
    ``code`` has no wgmma, and no branch but at its end."""
    free = [touch for ins in code if ins.guard is None and (touch := _touch(b, ins)) is not None]
    if not free:
        return []
    machine = b.machine
    plain = all(touch.moves is None for touch in free)
    accessed = np.unique(np.concatenate([rows for touch in free for rows in (touch.reads, touch.writes)]))
    return [lambda group: machine.batch.accumulators.touch(group.lanes, free, accessed, plain)]


def watch_guarded(b: Build, ins: Instruction) -> list[Step]:
    """The same for one instruction that has a guard, to be run right before it."""
    touch, guard, machine = _touch(b, ins), b.guard(ins), b.machine
    if touch is None or guard is None:
        return []
    accessed = np.union1d(touch.reads, touch.writes)

    def step(group: Group) -> None:
        mask = np.asarray(guard(group))
        if mask.any():
            lanes, _ = machine.pool.subset(group.lanes, mask)
            machine.batch.accumulators.touch(lanes, [touch], accessed, True)

    return [step]


def _touch(b: Build, ins: Instruction) -> Touch | None:
    rows = b.machine.tracked
    if not rows or not b.machine.checks:
        return None
    uses, defines = b.program.flow[ins.index]
    reads, writes = (np.array([rows[name] for name in names if name in rows], int) for names in (uses, defines))
    pair = _copy(ins)
    moves = None
    if pair is not None and pair[0] in rows and (pair[1] is None or pair[1] in rows):
        moves = rows[pair[0]], -1 if pair[1] is None else rows[pair[1]]
    return Touch(ins, reads, writes, moves) if len(reads) or len(writes) else None


class Accumulators:
    """The state of a batch: per register (row) and warp the group of wgmma that writes it, and that reads it as A."""

    def __init__(self, machine: Machine, warps: int) -> None:
        self.machine = machine
        shape = (len(machine.tracked), warps)
        self.written, self.read = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        self.by = np.zeros(shape, np.int32)  # the instruction
        self.accessed = np.zeros(shape, bool)  # since the last fence
        self.fenced = np.zeros(warps, bool)
        self.commits, self.done = np.zeros(warps, np.int32), np.zeros(warps, np.int32)

    @staticmethod
    def _warps(lanes: LaneSet) -> Array:
        return lanes.warp_of[lanes.firsts]

    def fence(self, lanes: LaneSet) -> None:
        """``wgmma.fence``."""
        warps = self._warps(lanes)
        self.fenced[warps] = True
        self.accessed[:, warps] = False

    def commit(self, lanes: LaneSet) -> None:
        """``wgmma.commit_group``."""
        self.commits[self._warps(lanes)] += 1

    def wait(self, lanes: LaneSet, keep: int) -> None:
        """``wgmma.wait_group keep``."""
        warps = self._warps(lanes)
        self.done[warps] = np.maximum(self.done[warps], self.commits[warps] - keep)

    def issue(self, ins: Instruction, lanes: LaneSet, d: Array, a: Array) -> None:
        """``wgmma.mma_async`` on the rows ``d`` and ``a`` of registers."""
        warps = self._warps(lanes)
        both = np.concatenate([d, a])[:, None]
        if not self.fenced[warps].all() or self.accessed[both, warps].any():
            why = ("no wgmma.fence comes before it" if not self.fenced[warps].all() else
                   "its registers were accessed since the last wgmma.fence")
            self.machine.fault("wgmma_fence", ins, f"{why}; put wgmma.fence.sync.aligned between the access and it, "
                               'and before the fence an asm volatile("" : "+f"(register)) for each, lest the compiler '
                               "moves the access past it", lanes.lanes)
        if len(a):
            self._report("read as A", ins, lanes, a, self.written)
        number = self.commits[warps] + 1
        self.written[d[:, None], warps] = number
        self.read[a[:, None], warps] = number
        self.by[both, warps] = ins.index

    def touch(self, lanes: LaneSet, touches: list[Touch], accessed: Array, plain: bool) -> None:
        """A straight line of instructions."""
        warps = self._warps(lanes)
        busy = bool((self.commits[warps] > self.done[warps]).any()) or self._uncommitted(warps)
        if plain and not busy:
            self.accessed[accessed[:, None], warps] = True
            return
        for touch in touches:
            if touch.moves is not None:
                self._move(*touch.moves, warps)
                continue
            if busy:
                self._report("read", touch.ins, lanes, touch.reads, self.written)
                self._report("written", touch.ins, lanes, touch.writes, self.written)
                self._report("written", touch.ins, lanes, touch.writes, self.read)
            self.accessed[touch.reads[:, None], warps] = True
            self.accessed[touch.writes[:, None], warps] = True

    def _uncommitted(self, warps: Array) -> bool:
        return bool((self.written[:, warps] > self.commits[warps]).any())

    def _move(self, to: int, source: int, warps: Array) -> None:
        for table in (self.written, self.read, self.by, self.accessed):
            table[to, warps] = 0 if source < 0 else table[source, warps]

    def _report(self, how: str, ins: Instruction, lanes: LaneSet, rows: Array, table: Array) -> None:
        if not len(rows):
            return
        warps = self._warps(lanes)
        late = table[rows[:, None], warps] > self.done[warps]
        if not late.any():
            return
        row, warp = (int(x[0]) for x in np.nonzero(late))
        name = next(name for name, number in self.machine.tracked.items() if number == rows[row])
        by = self.machine.program.kernel.instructions[int(self.by[rows[row], warps[warp]])]
        self.machine.fault("wgmma_registers", ins, f"register {name} is {how} while the wgmma at {by.where} may be "
                           "under way; put wgmma.commit_group and wgmma.wait_group between them",
                           lanes.lanes[lanes.ordinal == warp])
