"""setmaxnreg: the registers that the warpgroups of a block take over from one another.

A block has the registers that it was launched with and no more: ``dec`` gives some of a thread's to the
block, ``inc`` waits until the block has enough (PTX ISA, "setmaxnreg"). That a block begins with less than the SM has
is easily overlooked: 384 threads begin with 168 each, 64,512 of 65,536.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ....errors import InvalidValue
from ..front.ptx import Imm, Instruction, Kernel
from .lanes import Group, LaneSet, index, merge

if TYPE_CHECKING:
    from ..machine import Batch, Machine

REGISTERS = 65536  # of an SM; all that have setmaxnreg have as many
UNIT = 8  # registers of a thread come in eights: 256 of a warp
QUARTERS = 4  # of an SM; each has its own registers, and its warps share those
LEAST, MOST = 24, 256


def registers_at_launch(kernel: Kernel) -> int | None:
    """Registers that a thread begins with where the kernel has setmaxnreg; None where the PTX does not settle it.

    ptxas gives what the largest setmaxnreg asks for, up to ``.maxnreg``, or up to what ``.minnctapersm`` blocks of
    ``.maxntid`` threads leave a warp in the fullest quarter of the SM (its register counts for blocks of 32 to 1024
    threads agree). Without ``.maxnreg`` or ``.minnctapersm`` it drops setmaxnreg (C7508).
    """
    asked = [ins.operands[0].value for ins in kernel.instructions
             if ins.base == "setmaxnreg" and isinstance(ins.operands[0], Imm)]
    if kernel.max_registers is not None:
        most = -(-kernel.max_registers // UNIT) * UNIT
    elif kernel.min_blocks and kernel.max_threads:
        warps = -(-kernel.max_threads // 32) * kernel.min_blocks
        most = REGISTERS // QUARTERS // (-(-warps // QUARTERS) * 32) // UNIT * UNIT
    else:
        return None
    return min(most, max(asked, default=most))


def compile_setmaxnreg(machine: Machine, ins: Instruction, following: int) -> Callable[[Group], int]:
    """What ends a block of code: the threads go on at ``following``, after a wait where registers are missing.

    Raises:
        InvalidValue: a number of registers that ptxas refuses.
    """
    operand = ins.operands[0] if len(ins.operands) == 1 else None
    if not isinstance(operand, Imm) or not ins.has("inc", "dec"):
        raise ins.unknown("setmaxnreg takes inc or dec and one constant")
    number = operand.value
    if number % UNIT or not LEAST <= number <= MOST:
        raise InvalidValue(f"{ins.where}: setmaxnreg of {number} registers a thread; pass a multiple of {UNIT} from "
                           f"{LEAST} to {MOST}")
    if registers_at_launch(machine.program.kernel) is None:
        return lambda group: following
    if ins.guard is not None:
        raise ins.unknown("a predicated setmaxnreg is not simulated; branch around it")
    if ins.has("inc"):
        return lambda group: machine.batch.registers.request(group, ins, number, following)

    def release(group: Group) -> int:
        machine.batch.registers.release(group.lanes, number)
        return following

    return release


@dataclass(slots=True, eq=False)
class Waiting:
    """The threads at one ``setmaxnreg.inc``, which asks for ``number`` registers each."""

    group: Group
    ins: Instruction
    number: int
    following: int


class RegisterPool:
    """The registers of all blocks of one batch: what each thread holds, what each block has left."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.each = registers_at_launch(batch.machine.program.kernel) or 0
        self.held = np.full(batch.blocks * batch.padded, self.each, np.int64)
        self.free = np.zeros(batch.blocks, np.int64)
        self.per_block = -(-batch.padded // 128)
        self.waiting: dict[int, Waiting] = {}

    def release(self, lanes: LaneSet, number: int) -> None:
        """``setmaxnreg.dec``: the threads keep ``number`` registers each."""
        less = np.maximum(self.held[lanes.lanes] - number, 0)
        self.held[lanes.lanes] -= less
        np.add.at(self.free, lanes.block_of, less)
        self.grant()

    def request(self, group: Group, ins: Instruction, number: int, following: int) -> int:
        """``setmaxnreg.inc``: the threads wait for their warpgroup, and for ``number`` registers each."""
        known = self.waiting.get(ins.index)
        if known is None:
            self.waiting[ins.index] = Waiting(group, ins, number, following)
        else:
            program = self.batch.machine.program
            live = self.batch.machine.code[following].live
            known.group = merge([known.group, group], self.batch.pool, program.slots, live)
        self.grant()
        return -1

    def grant(self) -> None:
        """Let go the warpgroups whose registers are there."""
        for waiter in list(self.waiting.values()):
            lanes = waiter.group.lanes
            whole, missing = self._wants(waiter)
            granted = np.zeros(len(whole), bool)
            for warpgroup in np.flatnonzero(whole):
                block = warpgroup // self.per_block
                if missing[warpgroup] <= self.free[block]:
                    self.free[block] -= missing[warpgroup]
                    granted[warpgroup] = True
            mask = granted[lanes.warpgroup_of]
            if not mask.any():
                continue
            self.held[lanes.lanes[mask]] = np.maximum(self.held[lanes.lanes[mask]], waiter.number)
            self._let_go(waiter, mask)

    def _wants(self, waiter: Waiting) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Per warpgroup of the batch: whether all its live threads wait here, and how many registers they lack."""
        batch, lanes = self.batch, waiter.group.lanes
        size = batch.blocks * self.per_block
        live = LaneSet(np.flatnonzero(batch.live), batch.padded)
        here = np.bincount(index(lanes.warpgroup_of), minlength=size)
        whole = (here > 0) & (here == np.bincount(index(live.warpgroup_of), minlength=size))
        missing = np.zeros(size, np.int64)
        np.add.at(missing, lanes.warpgroup_of, np.maximum(waiter.number - self.held[lanes.lanes], 0))
        return whole, missing

    def _let_go(self, waiter: Waiting, mask: NDArray[np.bool_]) -> None:
        batch, group = self.batch, waiter.group
        if mask.all():
            del self.waiting[waiter.ins.index]
            going = group
        else:
            slots, live = batch.machine.program.slots, batch.machine.code[waiter.following].live
            lanes, chosen = batch.pool.subset(group.lanes, mask)
            going = group.take(chosen, lanes, slots, live)
            lanes, rest = batch.pool.subset(group.lanes, ~mask)
            waiter.group = group.take(rest, lanes, slots, live)
        going.block, going.polled = waiter.following, False
        batch.ready.append(going)

    def deadlock(self) -> None:
        """Report every setmaxnreg at which threads wait for ever."""
        for waiter in self.waiting.values():
            lanes = waiter.group.lanes
            whole, missing = self._wants(waiter)
            first = int(lanes.warpgroup_of[0])
            mine = lanes.lanes[lanes.warpgroup_of == first]
            block = first // self.per_block
            if whole[first]:
                why = self._shortage(waiter.number, mine, int(missing[first]), int(self.free[block]))
            else:
                why = (f"{len(mine)} threads of a warpgroup wait at setmaxnreg.inc {waiter.number}, the others never "
                       "come; all of a warpgroup must execute the same setmaxnreg")
            self.batch.machine.fault("deadlock", waiter.ins, why, lanes.lanes, batch=self.batch)

    def _shortage(self, number: int, lanes: NDArray[np.int64], missing: int, free: int) -> str:
        threads = self.batch.machine.threads
        held = int(self.held[lanes].min())
        possible = held + free // len(lanes) // UNIT * UNIT
        return (f"setmaxnreg.inc {number} waits for {missing:,} registers for {len(lanes)} threads, {free:,} of the "
                f"block's {threads * self.each:,} are free (it began with {self.each} for each of {threads} threads), "
                f"and no more will come; ask for at most {possible} here, or give {missing - free:,} more away by "
                "setmaxnreg.dec")
