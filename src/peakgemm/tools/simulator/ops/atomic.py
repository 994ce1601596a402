"""atom and red. Lanes that meet at one address take turns in lane order, so results are repeatable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks.access import Site
from ..core.floats import canonical, flush, odd_sum
from ..core.lanes import DTYPES, Group, LaneSet, elements, word
from ..front.ptx import BYTES, Instruction, Operand, Reg, Vec
from .build import Build, Step, builder
from .float import on_bits, rounded
from .memory import address, by_space, flag, on_lanes, resolve, space_of, vector

Array = NDArray[Any]
POLLS = ("cas", "exch")
OPERATIONS = ("add", "and", "or", "xor", "min", "max", "exch", "cas", "inc", "dec")
# ufunc.at applies them lane by lane, so no result needs the value before
UNORDERED = {"add": np.add, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "min": np.minimum,
             "max": np.maximum}  # fmt: skip


def _apply(operation: str | Callable[..., Any], old: Array, b: Array, c: Array | None) -> Array:
    if not isinstance(operation, str) or operation in UNORDERED:
        return np.asarray((UNORDERED[operation] if isinstance(operation, str) else operation)(old, b))
    if operation == "exch":
        return b
    if operation == "cas":
        assert c is not None
        return np.asarray(np.where(old == b, c, old))
    one = old.dtype.type(1)
    if operation == "inc":
        return np.asarray(np.where(old >= b, old.dtype.type(0), old + one))
    return np.asarray(np.where((old == 0) | (old > b), b, old - one))


def _half_add(kind: str) -> Callable[..., Any]:
    """The sum of words that hold float16, bfloat16 or a pair of them."""
    add = on_bits(kind, lambda x, y: rounded(odd_sum(x.astype(np.float64), y.astype(np.float64)), kind))
    return lambda old, b: word(add(elements(old, kind.removesuffix("x2")), elements(b, kind.removesuffix("x2"))))


def turns(memory: Array, index: Array, operation: str | Callable[..., Any], b: Array, c: Array | None) -> Array:
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
    kind, count = ins.types[-1], vector(ins)
    small = kind in ("f16", "bf16", "f16x2", "bf16x2")
    known = operation == "add" if small or count > 1 else operation == "cas" or (operation and BYTES[kind] in (4, 8))
    if not known or BYTES[kind] not in (2, 4, 8):
        raise ins.unknown()
    apply: str | Callable[..., Any] = _half_add(kind) if small else operation
    kind = f"u{8 * BYTES[kind]}" if small else kind
    dtype, each = DTYPES[kind], BYTES[kind]
    operands = list(ins.operands)
    items = _items(operands.pop(0)) if ins.base == "atom" else ()
    into = [b.program.slot[item.name] if isinstance(item, Reg) and item.name in b.program.slot and
            b.program.is_read(item.name) else None for item in items] or [None] * count
    space = space_of(ins)
    if space == "cluster" or ins.has("async"):
        raise ins.unknown("atomics on the shared memory of other blocks are not simulated")
    get, guard = address(b, ins, operands[0], space), b.guard(ins)
    wanted = 1 + (operation == "cas")
    terms = [[b.src(ins, item, kind) for item in _items(operand)] for operand in operands[1:1 + wanted]]
    if {len(into), *map(len, terms)} != {count} or len(terms) != wanted:
        raise ins.unknown("its operands are not understood")
    sources = [source for sources in zip(*terms, strict=True) for source in sources]
    site, view = Site(b.machine, ins, each * count, "atom"), f"u{8 * each}"
    polls = operation in POLLS

    def step(group: Group, lanes: LaneSet, places: Array | None) -> None:
        at = get(group) if places is None else get(group)[places]
        values = []
        for source in sources:
            given = np.broadcast_to(np.asarray(source(group), dtype), (group.lanes.n,))
            values.append(given.copy() if places is None else given[places])  # results may be sources
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
            chosen = places if sub is None else sub if places is None else places[sub]
            for k in range(count):
                one = mine[k * wanted:][:wanted]
                old = _change(b, views[each].view(dtype), offsets // each + k, apply, one, where, into[k] is not None)
                slot = into[k]
                if slot is not None and old is not None:
                    whole = old
                    if valid is not None:
                        whole = np.zeros(some.n, dtype)
                        whole[valid] = old
                    row = group.rows[view][slot[1]]
                    row[slice(None) if chosen is None else chosen] = whole.view(row.dtype)
        if polls:
            group.polled = True

    return on_lanes(b, guard, step)


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vec) else (operand,)


def _change(b: Build, memory: Array, index: Array, operation: str | Callable[..., Any], values: list[Array], where: str,
            wanted: bool) -> Array | None:
    """Apply an operation at ``memory[index]``; what was there before, None where that is not ``wanted``."""
    first, old = values[0], None
    single = memory.dtype == np.float32
    if single and where == "global":  # subnormals are flushed in global memory, not in shared
        first = flush(first)
    if not wanted and isinstance(operation, str) and operation in UNORDERED and (memory.dtype.kind != "f" or
                                                                                 operation == "add"):
        UNORDERED[operation].at(memory, index, first)
        b.machine.progress += 1
    elif len(index):
        old = turns(memory, index, operation, first, values[1] if len(values) > 1 else None)
        if operation not in POLLS or (memory[index] != old).any():
            b.machine.progress += 1
    if single and len(index):
        touched = memory[index]
        if np.isnan(touched).any():
            memory[index] = canonical(touched)
    return old
