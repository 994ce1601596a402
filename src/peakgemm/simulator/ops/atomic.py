"""atom and red. Lanes that meet at one address take turns in lane order, so results are repeatable."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks.access import Site
from ..core.floats import canonical, flush
from ..core.lanes import DTYPES, Group
from ..front.ptx import BYTES, Imm, Instruction, Reg
from .build import Build, Step, builder
from .memory import address, by_space, chosen_lanes, flag, resolve, space_of

Array = NDArray[Any]
OPERATIONS = ("add", "and", "or", "xor", "min", "max", "exch", "cas", "inc", "dec")
# ufunc.at applies them lane by lane, so no result needs the value before
UNORDERED = {"add": np.add, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "min": np.minimum,
             "max": np.maximum}  # fmt: skip


def _apply(operation: str, old: Array, b: Array, c: Array | None) -> Array:
    if operation in UNORDERED:
        return np.asarray(UNORDERED[operation](old, b))
    if operation == "exch":
        return b
    if operation == "cas":
        assert c is not None
        return np.asarray(np.where(old == b, c, old))
    one = old.dtype.type(1)
    if operation == "inc":
        return np.asarray(np.where(old >= b, old.dtype.type(0), old + one))
    return np.asarray(np.where((old == 0) | (old > b), b, old - one))


def turns(memory: Array, index: Array, operation: str, b: Array, c: Array | None) -> Array:
    """Apply ``operation`` at ``memory[index]`` lane after lane; the values before, per lane."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    rank = np.arange(len(index)) - np.repeat(starts, np.diff(np.append(starts, len(index))))
    old = np.empty(len(index), memory.dtype)
    by_rank = np.argsort(rank, kind="stable")
    for chosen in np.split(order[by_rank], np.cumsum(np.bincount(rank))[:-1]):
        at = index[chosen]
        old[chosen] = memory[at]
        memory[at] = _apply(operation, old[chosen], b[chosen], None if c is None else c[chosen])
    return old


@builder("atom", "red")
def atomic(b: Build, ins: Instruction) -> Step:
    operation = next((part for part in ins.parts[1:] if part in OPERATIONS), "")
    kind = ins.types[-1]
    returns = ins.base == "atom"
    if kind not in ("u32", "s32", "b32", "f32", "u64", "s64", "b64", "f64") or not operation or ins.has("v2", "v4"):
        raise ins.unknown()
    dtype = DTYPES[kind]
    operands = list(ins.operands)
    target = operands.pop(0) if returns else None
    if isinstance(target, Reg):
        returns = b.program.is_read(target.name)
    into = b.program.slot[target.name] if returns and isinstance(target, Reg) else None
    space = space_of(ins)
    if space == "cluster" or ins.has("async"):
        raise ins.unknown("atomics on the shared memory of other blocks are not simulated")
    get, guard = address(b, ins, operands[0], space), b.guard(ins)
    sources = [b.src(ins, operand, kind) for operand in operands[1:]
               if isinstance(operand, (Reg, Imm))]
    site = Site(b.machine, ins, BYTES[kind], "atom")
    view = {4: "u32", 8: "u64"}[BYTES[kind]]
    polls = operation in ("cas", "exch")

    def step(group: Group) -> None:
        lanes, places = chosen_lanes(b, guard, group)
        if not lanes.n:
            return
        at = get(group) if places is None else get(group)[places]
        values = []
        for source in sources:
            given = np.broadcast_to(np.asarray(source(group), dtype), (group.lanes.n,))
            values.append(given if places is None else given[places])
        for where, some, there, sub in by_space(b, space, lanes, at):
            offsets, valid, views = resolve(b, site, where, some, there, "a", True)
            if where == "global" and b.machine.global_log is not None:
                able = some if valid is None else b.machine.pool.get(some.lanes[valid])
                b.machine.global_log.write(site, able, offsets)
            if b.machine.fences:
                flag(b, site, where, some, offsets, valid)
            mine = values if sub is None else [value[sub] for value in values]
            if valid is not None:
                mine = [value[valid] for value in mine]
            memory = views[BYTES[kind]].view(dtype)
            index = offsets // BYTES[kind]
            first = mine[0]
            if kind == "f32" and where == "global":  # subnormals are flushed in global memory, not in shared
                first = flush(first)
            second = mine[1] if len(mine) > 1 else None
            if into is None and operation in UNORDERED and not (kind.startswith("f") and operation != "add"):
                UNORDERED[operation].at(memory, index, first)
                b.machine.progress += 1
            elif len(offsets):
                old = turns(memory, index, operation, first, second)
                if not polls or (memory[index] != old).any():
                    b.machine.progress += 1
                if into is not None:
                    whole = old
                    if valid is not None:
                        whole = np.zeros(some.n, dtype)
                        whole[valid] = old
                    chosen = places if sub is None else sub if places is None else places[sub]
                    row = group.rows[view][into[1]]
                    row[slice(None) if chosen is None else chosen] = whole.view(row.dtype)
            if kind == "f32" and len(index):
                touched = memory[index]
                if np.isnan(touched).any():
                    memory[index] = canonical(touched)
        if polls:
            group.polled = True

    return step
