"""Calls of functions: frames in each lane's local memory.

A call saves the registers that are alive where it returns to, copies the arguments into the callee's frame and goes to
its first block; lanes that come from different calls run together there. A return sends each lane back to where it
came from. So lanes may call different functions, at different depths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.lanes import Group
from ..front.link import address_of_function
from ..front.program import FRAME, Block
from ..front.ptx import BYTES, Imm, Instruction, Linked, Operand, Param, Reg, Sym, UnknownInstruction, Vec
from .build import Build, Getter
from .device_calls import BUILTINS, Call
from .frames import SIZES, CallSite, into_register, place_of

Array = NDArray[Any]
End = Callable[[Group], int]
NO_BODY = {"malloc": "there is no heap on the device here; pass an array for what it would give",
           "free": "there is no heap on the device here; pass an array for what malloc would give"}


class _Memory:
    """Local memory of the lanes of a group that makes a call or returns."""

    def __init__(self, b: Build, group: Group, slot: int | None) -> None:
        batch = b.machine.batch
        self.views = batch.local_views
        self.home = group.lanes.lanes * batch.local_stride
        self.frame: Any = np.int64(0) if slot is None else group.rows["u32"][slot].astype(np.int64)
        self.own = self.home + self.frame

    def read(self, at: Array, size: int) -> Array:
        """Words of ``size`` bytes."""
        return np.asarray(self.views[size][at >> (size.bit_length() - 1)])

    def write(self, at: Array, size: int, value: Any) -> None:
        """Words of ``size`` bytes."""
        self.views[size][at >> (size.bit_length() - 1)] = value

    def copy(self, source: Array, source_place: int, target: Array, target_place: int, count: int) -> None:
        """Copy ``count`` bytes, in the largest words that both places allow; frames begin at multiples of 16."""
        unit = 8
        while (source_place | target_place | count) % unit:
            unit //= 2
        for step in range(0, count, unit):
            self.write(target + (target_place + step), unit, self.read(source + (source_place + step), unit))


def compile_call(b: Build, block: Block) -> End:
    """What a call does, and where it goes."""
    ins = b.program.kernel.instructions[block.end - 1]
    results, what, arguments = ins.operands[:3]
    assert isinstance(results, Vec) and isinstance(arguments, Vec)
    guard, following = b.guard(ins), block.number + 1
    begin: Callable[[Group], int]
    if isinstance(what, Reg):
        begin = _indirect(b, block, what)
    else:
        assert isinstance(what, Sym)
        linked = b.program.kernel.linked.get(what.name)
        if linked is not None:
            begin = _enter(b, block, linked)
        elif what.name in BUILTINS:
            builtin, call = BUILTINS[what.name], Call(b, block)

            def begin(group: Group) -> int:
                builtin(call, group)
                return following
        else:
            raise missing(ins, what.name)

    return _guarded(b, guard, begin, following)


def _guarded(b: Build, guard: Getter | None, begin: Callable[[Group], int], following: int) -> End:
    """What only the lanes do whose guard holds."""
    if guard is None:
        return begin

    def end(group: Group) -> int:
        mask = np.asarray(guard(group))
        if mask.all() or not mask.any():
            return begin(group) if mask.all() else following
        stay, go = divided(b, group, ~mask), divided(b, group, mask)
        stay.block, go.block = following, begin(go)
        b.machine.batch.ready += [part for part in (stay, go) if part.block >= 0]
        return -1

    return end


def missing(ins: Instruction, name: str) -> UnknownInstruction:
    """The error for a call of a function that has no body here."""
    why = NO_BODY.get(name, "the function has no body in this PTX; compile it into the same file")
    return ins.unknown(f"it calls {name}, which is not simulated: {why}")


def divided(b: Build, group: Group, mask: Array) -> Group:
    """The lanes of ``mask``, with all their registers."""
    lanes, chosen = b.machine.pool.subset(group.lanes, mask)
    every = {kind: np.arange(n) for kind, n in b.program.slots.items()}
    part = group.take(chosen, lanes, b.program.slots, every)
    part.block, part.polled, part.turns = group.block, group.polled, group.turns
    return part


def _caller(b: Build, block: Block) -> tuple[CallSite, int | None]:
    site = b.machine.frames.sites[block.number]
    return site, (b.program.slot[FRAME][1] if site.caller is not None else None)


def _enter(b: Build, block: Block, callee: Linked) -> Callable[[Group], int]:
    """How a group comes into a function: registers are saved, arguments passed, the frame begun."""
    machine, frames = b.machine, b.machine.frames
    site, slot = _caller(b, block)
    ins, own = site.ins, b.program.slot.get(FRAME)
    results, _, arguments = ins.operands[:3]
    assert isinstance(arguments, Vec) and isinstance(results, Vec)
    if len(arguments.items) != len(callee.params) or len(results.items) > len(callee.results):
        raise ins.unknown(f"{callee.name} has {len(callee.params)} parameters and {len(callee.results)} results")
    for item, (param, _) in zip(results.items, callee.results, strict=False):
        _checked_result(b, ins, item, param, site.caller)
    passed: list[tuple[int | Callable[[Group], Any], Param, int]] = []
    for item, (param, place) in zip(arguments.items, callee.params, strict=True):
        known = place_of(b, ins, item, param, site.caller)
        passed.append((_value(b, ins, item, param) if known is None else known, param, place))
    step, room = frames.size[site.caller.name if site.caller else ""], frames.size[callee.name]
    first = next(one.number for one in b.program.blocks if one.start == callee.start)

    def begin(group: Group) -> int:
        memory = _Memory(b, group, slot)
        new = memory.frame + step
        deepest = int(np.max(new)) + room
        if deepest > machine.local_size:
            over = np.flatnonzero(np.broadcast_to(new + room > machine.local_size, (group.lanes.n,)))
            machine.stop("stack_overflow", ins, f"{callee.name} calls itself too often: its frames need more than "
                         f"{machine.local_size:,} bytes of local memory; end the recursion earlier",
                         group.lanes.lanes[over])
        for kind, saved, place in site.saved:
            memory.write(memory.own + place, SIZES[kind], group.base[kind][saved].view(f"u{SIZES[kind]}"))
        target = memory.home + new
        memory.write(target, 4, np.uint32(site.number))
        memory.write(target + 4, 4, memory.frame)
        for source, param, place in passed:
            if isinstance(source, int):
                memory.copy(memory.own, source, target, place, param.size)
            else:
                memory.write(target + place, param.size, source(group))
        if own is not None:
            group.rows["u32"][own[1]][...] = new
        return first

    return begin


def _value(b: Build, ins: Instruction, item: Operand, param: Param) -> Callable[[Group], Any]:
    """A register or literal that is passed for a parameter."""
    if param.type not in BYTES or param.size != BYTES[param.type] or param.size > 8:
        raise ins.unknown(f"a value is passed for a parameter of {param.size} bytes")
    raw = f"u{8 * param.size}"
    literal = isinstance(item, Imm) and item.kind != "int"
    get = b.src(ins, item, {2: "f16", 4: "f32", 8: "f64"}.get(param.size, raw) if literal else raw)
    return lambda group: np.asarray(get(group)).view(f"u{param.size}")


def _checked_result(b: Build, ins: Instruction, item: Operand, param: Param, caller: Linked | None) -> None:
    if place_of(b, ins, item, param, caller) is None:
        into_register(b, ins, item, param)


def _indirect(b: Build, block: Block, what: Reg) -> Callable[[Group], int]:
    """A call through a pointer: each lane goes to the function that its own names."""
    machine, ins = b.machine, b.program.kernel.instructions[block.end - 1]
    known = {address_of_function(n): one for n, one in enumerate(machine.frames.functions)}
    entries: dict[int, Callable[[Group], int]] = {}
    get = b.src(ins, what, "u64")

    def begin(group: Group) -> int:
        targets = np.broadcast_to(np.asarray(get(group)), (group.lanes.n,))
        values = np.unique(targets)
        for value in values.tolist():
            if value not in known:
                machine.stop("call", ins, f"it calls address 0x{value:x}, where no function of this PTX is",
                             group.lanes.lanes[targets == value])
            if value not in entries:
                entries[value] = _enter(b, block, known[value])
        if len(values) == 1:
            return entries[int(values[0])](group)
        for value in values.tolist():
            part = divided(b, group, targets == value)
            part.block = entries[value](part)
            machine.batch.ready.append(part)
        return -1

    return begin


def compile_return(b: Build, block: Block, function: Linked) -> End:
    """``ret`` of a function."""
    ins, guard = b.program.kernel.instructions[block.end - 1], b.guard(b.program.kernel.instructions[block.end - 1])
    slot = b.program.slot[FRAME][1]
    arrivals: dict[int, Callable[[Group, _Memory, Array], int]] = {}

    def leave(group: Group) -> int:
        memory = _Memory(b, group, slot)
        sites, callers = memory.read(memory.own, 4), memory.read(memory.own + 4, 4).astype(np.int64)
        values = np.unique(sites).tolist()
        for value in values:
            if value not in arrivals:
                if value >= len(b.machine.frames.by_number):
                    raise ins.unknown("its frame has been written over")
                arrivals[value] = _arrive(b, b.machine.frames.by_number[value], function, slot)
        if len(values) == 1:
            return arrivals[values[0]](group, memory, callers)
        for value in values:
            mask = sites == value
            part = divided(b, group, mask)
            part.block = arrivals[value](part, _Memory(b, part, slot), callers[mask])
            b.machine.batch.ready.append(part)
        return -1

    return _guarded(b, guard, leave, block.number + 1)


def _arrive(b: Build, site: CallSite, function: Linked, slot: int) -> Callable[[Group, _Memory, Array], int]:
    """How a group comes back to where it was called from."""
    results = site.ins.operands[0]
    assert isinstance(results, Vec)
    given = []
    for item, (param, place) in zip(results.items, function.results, strict=False):
        known = place_of(b, site.ins, item, param, site.caller)
        given.append((into_register(b, site.ins, item, param) if known is None else known, param, place))

    def arrive(group: Group, memory: _Memory, callers: Array) -> int:
        caller = memory.home + callers
        values = [memory.read(memory.own + place, param.size) if callable(to) else None for to, param, place in given]
        for kind, saved, place in site.saved:
            row = memory.read(caller + place, SIZES[kind])
            group.base[kind][saved] = row.view(group.base[kind].dtype)
        for (to, param, place), value in zip(given, values, strict=True):
            if isinstance(to, int):
                memory.copy(memory.own, place, caller, to, param.size)
            else:
                to(group, value)
        if site.caller is not None:
            group.rows["u32"][slot][...] = callers
        return site.following

    return arrive
