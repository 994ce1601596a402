"""What ends a block: branches, exits, barriers.

A branch that only some lanes take splits the group, except where it skips one short
straight block: that is run by the lanes concerned on a copy of the registers it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from ..checks.strength import orders, scope_of
from ..core.barriers import CLUSTER
from ..core.lanes import Group, LaneSet
from ..core.register_pool import compile_setmaxnreg
from ..front.program import WARP_SYNC, Block, is_barrier, is_cluster_arrival, is_warp_barrier
from ..front.ptx import Imm, Instruction, Reg, Sym, UnknownInstruction
from .build import BAD_OPERANDS, Build, Step, builder
from .calls import compile_call, compile_return, divided
from .code import Code
from .mbarrier import per_lane
from .memory import on_lanes
from .warp import Array, Members

End = Callable[[Group], int]
LEAVES = {"bar", "trap", "exit", "ret", "setmaxnreg", "call"}


def compile_kernel(b: Build) -> list[Code]:
    """All blocks of the program, executable."""
    code: list[Code] = []
    instructions = b.program.kernel.instructions
    for block in b.program.blocks:
        first = instructions[block.start] if block.end > block.start else None
        sync = first if first is not None and first.base != "activemask" and (
            first.base in WARP_SYNC or is_warp_barrier(first)) else None
        if sync is not None and sync.operands and isinstance(sync.operands[-1], (Imm, Reg)):
            with suppress(UnknownInstruction):  # its step says so, where it is executed
                b.machine.masks[sync.index] = (b.src(sync, sync.operands[-1], "u32"), b.guard(sync))
        code.append(Code(block.end - block.start, sync, partial(b.block, block), partial(_checked_end, b, block),
                         partial(b.program.slots_of, block.live_in)))
    b.machine.code = code
    return code


def _checked_end(b: Build, block: Block) -> End:
    """What ends a block; where that is not known, what says so when it is reached."""
    if block.end == block.start:  # of a kernel that does nothing
        return _end(b, block)
    ins = b.program.kernel.instructions[block.end - 1]
    try:
        return _end(b, block)
    except UnknownInstruction as error:
        refused = b.refusal(ins, error)
    except BAD_OPERANDS as error:
        refused = b.refusal(ins, ins.unknown(f"its operands or modifiers are not understood ({error})"))
    following = block.number + 1

    def end(group: Group) -> int:
        refused(group)
        return following

    return end


def _end(b: Build, block: Block) -> End:
    following = block.number + 1
    last = b.program.kernel.instructions[block.end - 1] if block.end > block.start else None
    if last is None:
        return lambda group: following
    if last.base == "bra":
        target = last.operands[0]
        assert isinstance(target, Sym)
        number = b.program.block_of_label[target.name]
        if last.guard is None:
            return lambda group: number
        return _branch(b, block, last, number, following)
    if last.base in ("ret", "exit"):
        function = b.program.function_at(block)
        if function is not None and last.base == "ret":
            return compile_return(b, block, function)
        end = len(b.program.blocks)
        if last.guard is None:
            return lambda group: end
        return _branch(b, block, last, end, following)
    if last.base == "call":
        return compile_call(b, block)
    if last.base == "trap":
        return _trap(b, last)
    if last.base == "brx":
        return _table(b, last)
    if last.base == "setmaxnreg":
        return compile_setmaxnreg(b.machine, last, following)
    if is_barrier(last):
        return _barrier(b, last, following)
    return lambda group: following


def _trap(b: Build, ins: Instruction) -> End:
    guard = b.guard(ins)

    def end(group: Group) -> int:
        hit = np.ones(group.lanes.n, bool) if guard is None else np.asarray(guard(group))
        if hit.any():
            b.machine.stop("trap", ins, "the kernel trapped (an assertion or __trap())", group.lanes.lanes[hit])
        return group.block + 1

    return end


def _split(b: Build, group: Group, mask: Any, number: int) -> None:
    """Make the lanes of ``mask`` a group of their own at block ``number``."""
    machine = b.machine
    lanes, chosen = machine.pool.subset(group.lanes, mask)
    live = machine.code[number].live if number < len(machine.code) else {}
    part = group.take(chosen, lanes, b.program.slots, live)
    part.block, part.polled, part.turns = number, group.polled, group.turns
    machine.batch.ready.append(part)


def _branch(b: Build, block: Block, ins: Instruction, target: int, following: int) -> End:
    guard = b.guard(ins)
    assert guard is not None
    counts = b.machine.counts[ins.index]
    hammock = _hammock(b, following, target)
    count = np.count_nonzero

    def end(group: Group) -> int:
        taken = guard(group)
        n = count(taken)
        if n == group.lanes.n:
            return target
        if n == 0:
            return following
        lanes = group.lanes
        per_warp = np.add.reduceat(taken.astype(np.int64), lanes.firsts)
        size = np.diff(np.append(lanes.firsts, lanes.n))
        counts.divergent += int(count((per_warp > 0) & (per_warp < size)))
        if hammock is not None:
            hammock(group, ~taken)
            return target
        ahead = target <= block.number
        if group.polled and ahead:  # the lanes that go on polling step back
            group.turns = 0
        _split(b, group, taken, target)
        if not (group.polled and ahead):
            b.machine.batch.ready[-1].polled = False
        _split(b, group, ~taken, following)
        b.machine.batch.ready[-1].polled = False
        return -1

    return end


def _hammock(b: Build, number: int, join: int) -> Callable[[Group, Any], None] | None:
    """How to run the one block between a branch and its target for some lanes; None where there is more to it."""
    if number >= len(b.program.blocks) or join != number + 1:
        return None
    block = b.program.blocks[number]
    if block.successors != [join] or block.end == block.start:
        return None
    instructions = b.program.kernel.instructions[block.start:block.end]
    if any(is_barrier(ins) or ins.base in WARP_SYNC or ins.base in LEAVES or
           (ins.base == "bra" and ins.guard is not None) for ins in instructions):
        return None
    names = block.uses | block.defines
    for ins in instructions:
        if ins.guard is not None:
            names = names | {ins.guard.name}
    needed = b.program.slots_of(names)
    written = b.program.slots_of(block.defines & block.live_out)
    code = b.machine.code[number]

    def run(group: Group, mask: Any) -> None:
        lanes, chosen = b.machine.pool.subset(group.lanes, mask)
        part = group.part(chosen, lanes, needed)
        for step in code.steps:
            step(part)
        code.warps += lanes.warps
        code.lanes += lanes.n
        b.machine.steps += code.length
        group.put_back(part, chosen, needed, written)
        group.polled |= part.polled

    return run


def _table(b: Build, ins: Instruction) -> End:
    table = ins.operands[1]
    assert isinstance(table, Sym)
    numbers = [b.program.block_of_label[name] for name in b.program.kernel.tables[table.name]]
    get = b.src(ins, ins.operands[0], "u32")
    if ins.guard is not None:
        raise ins.unknown("a predicated indexed branch")

    def end(group: Group) -> int:
        index = np.broadcast_to(np.asarray(get(group)), (group.lanes.n,))
        values = np.unique(index)
        if len(values) == 1:
            return numbers[int(values[0])]
        for value in values:
            _split(b, group, index == value, numbers[int(value)])
        return -1

    return end


def _cluster_barrier(b: Build, ins: Instruction, following: int) -> End:
    before = b.program.kernel.instructions[ins.index - 1] if ins.index else None
    if ins.guard is not None or before is None or not is_cluster_arrival(before):
        raise ins.unknown("a wait at a barrier of the cluster that follows no arrival at once, or under a guard")
    return lambda group: b.machine.batch.barriers.wait(group, ins, CLUSTER, None, following)


def _barrier(b: Build, ins: Instruction, following: int) -> End:
    if ins.has("cluster"):
        return _cluster_barrier(b, ins, following)
    operands = list(ins.operands)
    reduce = ins.has("red")
    answer = operands.pop(0) if reduce else None
    negated = False
    predicate = None
    if reduce:
        source = operands.pop()
        assert isinstance(source, Reg)
        predicate, negated = b.src(ins, Reg(source.name), "pred"), source.negated
    get_id = b.src(ins, operands[0], "u32")
    get_count = b.src(ins, operands[1], "u32") if len(operands) > 1 else None
    guard = b.guard(ins)
    put = None
    if answer is not None:
        kind = "pred" if ins.has("and", "or") else "u32"
        put = b.dst(ins, answer, kind)

    def tell(group: Group, yes: Any, total: Any) -> None:
        assert put is not None
        put(group, yes > 0 if ins.has("or") else yes == total if ins.has("and") else yes.astype(np.uint32))

    def end(group: Group) -> int:
        batch = b.machine.batch
        if guard is not None:
            mask = np.asarray(guard(group))
            if not mask.any():
                return following
            if not mask.all():
                _split(b, group, ~mask, following)
                group = divided(b, group, mask)
        ids = np.broadcast_to(np.asarray(get_id(group)), (group.lanes.n,))
        counts = None if get_count is None else np.broadcast_to(np.asarray(get_count(group)), (group.lanes.n,))
        if (ids != ids[0]).any() or (counts is not None and (counts != counts[0]).any()):
            wide = ids.astype(np.int64) << 32 | (0 if counts is None else counts.astype(np.int64))
            for value in np.unique(wide):
                part = divided(b, group, wide == value)
                after = end(part)
                if after >= 0:
                    part.block = after
                    batch.ready.append(part)
            return -1
        count = None if counts is None else int(counts[0])
        if ins.has("arrive"):
            assert count is not None
            return batch.barriers.arrive(group, ins, int(ids[0]), count, following)
        if predicate is None:
            return batch.barriers.wait(group, ins, int(ids[0]), count, following)
        vote = np.asarray(predicate(group)) ^ negated
        return batch.barriers.wait(group, ins, int(ids[0]), count, following, vote, tell)

    return end


@builder("bar", "barrier")
def warp_barrier(b: Build, ins: Instruction) -> Step:
    if is_cluster_arrival(ins):
        # Nothing lies between it and the wait, so that it makes no difference where threads are counted.
        after = b.program.kernel.instructions[ins.index + 1:ins.index + 2]
        waits = after and after[0].base == "barrier" and after[0].has("cluster") and after[0].has("wait")
        if not waits or ins.guard is not None or ins.has("relaxed"):
            raise ins.unknown("an arrival at a barrier of the cluster that no wait follows at once, or relaxed")
        return lambda group: None
    if "warp" not in ins.parts:
        raise ins.unknown()
    members = Members(b, ins)

    def meet(group: Group, lanes: LaneSet, places: Array | None) -> None:
        members(group)
        mask = per_lane(members.named, group, places)
        b.machine.batch.races.event("warp", lanes, None if (mask == 0xFFFFFFFF).all() else mask)

    return on_lanes(b, members.guard, meet) if b.machine.checks else lambda group: None


@builder("fence", "membar")
def fence(b: Build, ins: Instruction) -> Step:
    """Memory is sequentially consistent here: fences matter to the search for races."""
    proxy = ins.has("proxy") and any(part.startswith("async") for part in ins.parts)
    if not b.machine.checks or not (proxy or orders(ins)):
        return lambda group: None
    event: tuple[Any, ...] = ("proxy",) if proxy else ("fence",)
    scope = () if proxy else (scope_of(ins),)

    return on_lanes(b, b.guard(ins), lambda group, lanes, places: b.machine.batch.races.event(*event, lanes, *scope))


@builder("createpolicy")
def create_policy(b: Build, ins: Instruction) -> Step:
    """A cache hint: any number will do."""
    put = b.dst(ins, ins.operands[0], "b64")
    return lambda group: put(group, np.uint64(0))


@builder("prefetchu", "nanosleep", "discard", "griddepcontrol",
         "applypriority", "pmevent")
def nothing(b: Build, ins: Instruction) -> Step:
    """Instructions that order or hint, and change no value here: memory is sequentially consistent."""
    def step(group: Group) -> None:
        return None

    return step
