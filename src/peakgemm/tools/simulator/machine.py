"""The machine: blocks in batches, groups of lanes by program counter, lowest first.

All lanes of a batch of blocks are NumPy rows. A group is the set of lanes at one block of
code; the group furthest behind runs until it overtakes another, diverges or waits, which
reconverges loops by itself. A group that polls a flag steps back behind the others at each turn
of its loop, and a batch whose groups all poll lets other batches run, so that producers and
consumers at different places make progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from .checks.accumulators import Accumulators, tracked
from .checks.global_races import GlobalLog
from .checks.order import Order
from .checks.races import RaceLog
from .checks.strength import orders
from .core.barriers import Barriers
from .core.lanes import Group, LanePool, LaneSet, merge
from .core.memory import Arena
from .core.observer import Observer
from .core.register_pool import RegisterPool
from .core.tensor_map import TensorMap
from .front.program import Program, smallest_access
from .front.ptx import Instruction
from .ops.build import Getter
from .ops.code import Clock, Code, Stop
from .ops.fma import Scratch
from .report import Fault, InstructionCounts

if TYPE_CHECKING:
    from .ops.frames import Frames

TURNS = 20000  # turns of a loop before a group lets the others run, whatever it does
IDLE = 300  # rounds of polling in which no memory changed: a deadlock


class Machine:
    """What is common to all batches of one run."""

    def __init__(self, program: Program, grid: tuple[int, int, int], block: tuple[int, int, int], arena: Arena,
                 params: dict[str, Any], symbols: dict[str, int], shared_size: int, local_size: int,
                 checks: bool, max_steps: int, frames: Frames, arch: int = 90,
                 maps: Sequence[tuple[TensorMap, int]] = (), cluster: int = 1) -> None:
        self.program, self.grid, self.block_shape, self.arena = program, grid, block, arena
        self.params, self.symbols = params, symbols
        self.spaces: dict[str, str] = {}  # of variables and parameters
        self.shared_size, self.local_size = shared_size, local_size
        self.checks, self.max_steps, self.arch, self.maps = checks, max_steps, arch, maps
        self.frames = frames
        self.printed: list[str] = []
        self.cluster = cluster  # blocks of one: the number is the kernel's own or the launch's
        self.threads = block[0] * block[1] * block[2]
        self.padded = -(-self.threads // 32) * 32
        self.pool = LanePool(self.padded)
        self.counts = [InstructionCounts.none_of(ins) for ins in program.kernel.instructions]
        self.faults: dict[tuple[str, int], Fault] = {}
        self.clean_logs: dict[Any, Any] = {}
        self.logged_bytes = 0
        self.code: list[Code] = []
        self.masks: dict[int, tuple[Getter, Getter | None]] = {}  # of warp-wide instructions, and their guards
        self.batch: Batch = None  # type: ignore[assignment]
        self.steps = 0
        self.clock = Clock()
        self.scratch = Scratch()
        self.progress = 0  # grows when memory changes, or a loop is cut short: not a deadlock
        self.global_log: GlobalLog | None = None
        self.observer: Observer | None = None
        self.time = 0  # how many synchronisations there have been, see `order`
        self.unit = smallest_access(program.kernel, "global", ("ld", "st", "atom", "red"))
        code = program.kernel.instructions
        self.fences = any(orders(ins) or (ins.base in ("ld", "st", "atom", "red") and
                                          ins.has("acquire", "release", "acq_rel")) for ins in code)
        self.told_across = self.fences or cluster > 1  # whether blocks may learn of each other
        self.order = Order(self)
        self.async_reads = any(ins.has("mma_async", "bulk_group") for ins in code)
        self.tracked = tracked(program.kernel)

    def address_of(self, ins: Instruction, name: str) -> int:
        """The address of a variable, as its own space counts it."""
        if name not in self.symbols:
            skipped = self.program.kernel.skipped
            more = f"; not understood: {'; '.join(skipped[:3])}" if skipped else ""
            raise ins.unknown(f"{name} is not a variable of this kernel{more}")
        return self.symbols[name]

    def thread(self, lane: int, batch: Batch | None = None) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Block and thread coordinates of a lane of a batch."""
        number = int((batch or self.batch).numbers[lane // self.padded])
        return self.block_index(number), self.thread_index(lane % self.padded)

    def block_index(self, number: int) -> tuple[int, int, int]:
        """Coordinates of a block."""
        x, y, _ = self.grid
        return number % x, number // x % y, number // (x * y)

    def thread_index(self, number: int) -> tuple[int, int, int]:
        """Coordinates of a thread in its block."""
        x, y, _ = self.block_shape
        return number % x, number // x % y, number // (x * y)

    def fault(self, kind: str, ins: Instruction, message: str, lanes: NDArray[Any], address: int | None = None,
              pair: bool = False, count: int | None = None, batch: Batch | None = None,
              threads: list[Any] | None = None) -> None:
        """Record a finding once per kind and instruction; later ones are counted.

        Raises:
            Stop: the checks are off, and an access was refused.
        """
        times = len(lanes) if count is None else count
        known = self.faults.get((kind, ins.index))
        if known is not None:
            known.count += times
            return
        if threads is None:
            threads = [self.thread(int(lane), batch) for lane in lanes[:4]]
        if pair:
            message = message.format(*[f"{thread} of block {block}" for block, thread in threads])
        self.faults[kind, ins.index] = Fault(kind, message, self.program.kernel.name, ins.file, ins.line, ins.ptx_line,
                                             ins.text, threads, address, times)
        if not self.checks:
            raise Stop(f"{kind} at {ins.where}; run with checks=True to go on past refused accesses")

    def stop(self, kind: str, ins: Instruction, message: str, lanes: NDArray[Any]) -> NoReturn:
        """Record a finding behind which the run cannot go on.

        Raises:
            Stop: always.
        """
        self.fault(kind, ins, message, lanes)
        raise Stop(f"{kind} at {ins.where}")

    def waits(self, ins: Instruction, group: Group, missing: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which lanes of a group name one of the ``missing`` ``(warps, 32)`` in a warp-wide instruction."""
        if ins.index not in self.masks:  # it names all
            return np.asarray(missing.any(axis=1))[group.lanes.ordinal]
        mask, guard = self.masks[ins.index]
        bits: NDArray[Any] = (missing * (np.uint32(1) << np.arange(32, dtype=np.uint32))).sum(axis=1, dtype=np.uint32)
        named = (mask(group) & bits[group.lanes.ordinal]) != 0
        return np.asarray(named if guard is None else named & guard(group))

    def run(self, per_batch: int, at_once: int) -> str:
        """Run all blocks, ``per_batch`` at a time with at most ``at_once`` batches alive; why it stopped, or ""."""
        total = self.grid[0] * self.grid[1] * self.grid[2]
        begun = 0  # blocks
        alive: list[Batch] = []
        number = idle = 0
        seen = -1
        turn = 0
        try:
            while begun < total or alive:
                if begun < total and (not alive or (turn >= len(alive) and len(alive) < at_once)):
                    blocks = np.arange(begun, min(begun + per_batch, total), dtype=np.int64)
                    alive.append(Batch(self, blocks, number))
                    begun += per_batch
                    number, turn = number + 1, len(alive) - 1
                turn %= len(alive)
                self.batch = alive[turn]
                if self.batch.run():
                    self.order.forget(alive.pop(turn))
                    idle = 0
                    continue
                turn += 1
                if turn >= len(alive) and (begun >= total or len(alive) >= at_once):
                    idle = idle + 1 if self.progress == seen else 0
                    seen = self.progress
                    if idle > IDLE:
                        for batch in alive:
                            batch.report_spin()
                            batch.races.finish()
                        return "deadlock: every thread left waits for a flag that none of them sets"
        except Stop as stop:
            if self.checks:
                for batch in alive:
                    batch.races.finish()
            return str(stop)
        return ""

    def finish_counts(self) -> None:
        """Give each instruction the executions of its block."""
        for block, code in zip(self.program.blocks, self.code, strict=False):
            for index in range(block.start, block.end):
                self.counts[index].executions += code.warps
                self.counts[index].threads += code.lanes


class Batch:
    """Some blocks of the grid that run together, and their memory."""

    def __init__(self, machine: Machine, numbers: NDArray[Any], serial: int) -> None:
        self.machine, self.numbers, self.number = machine, numbers, serial
        self.blocks, self.padded, self.pool = len(numbers), machine.padded, machine.pool
        self.shared_size = machine.shared_size
        self.shared_stride = -(-max(machine.shared_size, 16) // 16) * 16
        self.unit = machine.unit
        self.unit_shift = self.unit.bit_length() - 1
        shared = np.zeros(self.blocks * self.shared_stride + 16, np.uint8)
        self.shared_views = {size: shared.view(f"u{size}") for size in (1, 2, 4, 8)} | {16: shared.view("c16")}
        self.written = np.zeros(self.blocks * self.shared_stride // self.unit, bool)
        self.all_written = False
        self.local_stride = -(-max(machine.local_size, 16) // 16) * 16
        self._local: dict[int, NDArray[Any]] | None = None
        self.live = np.zeros(self.blocks * self.padded, bool)
        self.live.reshape(-1, self.padded)[:, :machine.threads] = True
        self.live_total = int(self.live.sum())
        # when all of a block, and of a warp, met last; see `order`
        self.met, self.warp_met = (np.zeros(n, np.int64) for n in (self.blocks, self.blocks * self.padded // 32))
        self.order = machine.order if machine.told_across else Order(machine)
        self.barriers = Barriers(self)
        self.registers = RegisterPool(self)
        self.races = RaceLog(machine, self)
        self.accumulators = Accumulators(machine, self.blocks * self.padded // 32)
        self.ready: list[Group] = []
        self.parked: list[Group] = []
        self._coordinates: dict[tuple[str, int], NDArray[Any]] = {}
        self.mailbox: dict[int, Any] = {}
        everyone = self.pool.get(np.flatnonzero(self.live).astype(np.int64))
        group = Group(everyone, machine.program.slots)
        group.zero()
        group.block = machine.program.entry
        self.ready.append(group)

    def coordinates(self, root: str, axis: int) -> NDArray[Any]:
        """``tid`` or ``ctaid`` along an axis, for every lane of the batch (int64)."""
        found = self._coordinates.get((root, axis))
        if found is None:
            m = self.machine
            lane = np.arange(self.blocks * self.padded, dtype=np.int64)
            if root == "tid":
                index, shape = lane % self.padded, m.block_shape
            else:
                index, shape = self.numbers[lane // self.padded], m.grid
            found = (index % shape[0], index // shape[0] % shape[1], index // (shape[0] * shape[1]))[axis]
            self._coordinates[root, axis] = found
        return found

    @property
    def local_views(self) -> dict[int, NDArray[Any]]:
        """Local memory of all lanes, by the size of its units in bytes."""
        if self._local is None:
            raw = np.zeros(self.blocks * self.padded * self.local_stride, np.uint8)
            self._local = {n: raw.view(f"u{n}") for n in (1, 2, 4, 8)} | {16: raw.view("c16")}
        return self._local

    def mark_written(self, offsets: NDArray[Any], size: int) -> None:
        """Remember that shared memory at ``offsets`` holds something."""
        start = offsets >> self.unit_shift
        for step in range(max(1, size // self.unit)):
            self.written[start + step] = True
        self.all_written = bool(self.written.all())

    def run(self) -> bool:
        """Run until all lanes have ended (True), or every group only polls (False)."""
        machine = self.machine
        code = machine.code
        while True:
            if not self.ready:
                if self.parked:
                    self.ready, self.parked = self.parked, []
                    for group in self.ready:
                        group.turns = -1  # nothing else can run: go on without the missing lanes
                elif self.barriers.waiting or self.registers.waiting:
                    self.registers.deadlock()
                    self.barriers.deadlock()
                    raise Stop(f"deadlock at {'setmaxnreg' if self.registers.waiting else 'a barrier'}")
                else:
                    self.races.finish()
                    return True
            fresh = [group for group in self.ready if not group.polled]
            if not fresh:
                for group in self.ready:
                    group.polled = False
                return False
            group = self._next(fresh)
            number = group.block
            if number >= len(code):
                self.exit(group)
                continue
            some = group if code[number].sync is None else self._complete(group, code[number])
            if some is not None:
                limit = min((other.block for other in self.ready if not other.polled), default=len(code))
                self._advance(some, limit, code)

    def _advance(self, group: Group, limit: int, code: list[Code]) -> None:
        machine = self.machine
        first = True
        while True:
            number = group.block
            block = code[number]
            if block.sync is not None and not first:
                some = self._complete(group, block)
                if some is None:
                    return
                group = some
            first = False
            for step in block.steps:
                step(group)
            block.warps += group.lanes.warps
            block.lanes += group.lanes.n
            machine.steps += block.length
            if machine.steps >= machine.clock.look:
                machine.clock.check(machine.steps)
            if machine.steps > machine.max_steps:
                raise Stop(f"more than max_steps = {machine.max_steps} instructions were executed; "
                           f"the kernel may never end, or max_steps is too small")
            following = block.end(group)
            if following < 0:
                return
            group.block = following
            if following <= number:
                group.turns += 1
                if group.polled or group.turns > TURNS:
                    machine.progress += not group.polled
                    group.polled, group.turns = True, 0
                    break
            if following >= limit or following >= len(code):
                break
        self.ready.append(group)

    def _next(self, fresh: list[Group]) -> Group:
        number = min(group.block for group in fresh)
        same = [group for group in fresh if group.block == number]
        here = [group for group in self.parked if group.block == number]
        for group in same:
            self.ready.remove(group)
        for group in here:
            self.parked.remove(group)
        same += here
        if len(same) > 1:
            code = self.machine.code
            live = code[number].live if number < len(code) else {}
            group = merge(same, self.pool, self.machine.program.slots, live)
        else:
            group = same[0]
        group.polled, group.turns = False, min(one.turns for one in same)
        return group

    def _complete(self, group: Group, code: Code) -> Group | None:
        """The lanes of a group that need not wait for others that a warp-wide instruction names; the rest is parked."""
        ins, stuck = code.sync, group.turns < 0
        assert ins is not None
        group.turns = max(group.turns, 0)
        if ins.has("mma_async"):
            if group.lanes.whole:
                return group
            live = LaneSet(np.flatnonzero(self.live), self.padded)
            missing = np.isin(live.warpgroup_of, group.lanes.warpgroup_of) & ~np.isin(live.lanes, group.lanes.lanes)
            late = np.full(group.lanes.n, missing.any())
        elif group.lanes.full:
            return group
        else:
            missing = self.live.reshape(-1, 32)[group.lanes.warp_of[group.lanes.firsts]] & ~group.lanes.active
            if not missing.any():
                return group
            late = self.machine.waits(ins, group, missing)
        if not late.any():
            return group
        if stuck:
            self.machine.fault("divergent_warp", ins, f"{ins.opcode} names lanes that are elsewhere; all lanes of its "
                               "mask must execute it together", group.lanes.lanes[late])
            return group
        parts: list[Group] = []
        for mask in (late, ~late):
            lanes, chosen = self.pool.subset(group.lanes, mask)
            if lanes.n:
                parts.append(group if lanes.n == group.lanes.n else
                             group.take(chosen, lanes, self.machine.program.slots, code.live))
                parts[-1].block, parts[-1].polled, parts[-1].turns = group.block, group.polled, group.turns
        # Others of the warp that wait here already are joined in `_next`.
        here = any(other.block == group.block for other in self.parked)
        (self.ready if here else self.parked).append(parts[0])
        return parts[1] if len(parts) > 1 else None

    def exit(self, group: Group) -> None:
        """The lanes of a group end."""
        self.live[group.lanes.lanes] = False
        if self.machine.cluster > 1 and self.machine.checks:
            blocks = group.lanes.blocks
            ended = blocks[~self.live.reshape(self.blocks, -1)[blocks].any(axis=1)]
            if len(ended):
                self.races.event("exit", self.pool.get(ended * self.padded))
        self.live_total -= group.lanes.n
        self.ready, self.parked = self.ready + self.parked, []  # some may have waited for these lanes
        self.barriers.release_all()
        self.registers.grant()

    def report_spin(self) -> None:
        """Report the groups that poll without end."""
        for group in self.ready:
            block = self.machine.program.blocks[min(group.block, len(self.machine.program.blocks) - 1)]
            ins = self.machine.program.kernel.instructions[block.start]
            self.machine.fault("deadlock", ins, "threads poll here for a flag that no thread sets any more",
                               group.lanes.lanes, batch=self)
        self.registers.deadlock()
        self.barriers.deadlock()
