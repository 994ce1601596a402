"""Frames of functions in each lane's local memory: how large they are, and what lies where.

A frame holds where to return to, the function's results, parameters and local variables, the parameters that it passes
on, and the registers that are kept for the return of a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.lanes import Group
from ..front.program import FRAME, Block, Program
from ..front.ptx import Frame, Instruction, Linked, Operand, Param, Reg, Sym, Vec
from .build import UNSIGNED, Build

STACK = 16384  # bytes of local memory for the frames of functions that call themselves
SIZES = {"d": 8, "r": 4, "h": 2, "p": 1}


class CallSite:
    """A call: ``saved`` are the registers kept for its return, by class, slot and place in the caller's frame."""

    def __init__(self, number: int, block: Block, ins: Instruction, caller: Linked | None) -> None:
        self.number, self.ins, self.caller, self.following = number, ins, caller, block.number + 1
        self.saved: list[tuple[str, int, int]] = []


class Frames:
    """How large the frames of a kernel and of what it calls are; ``own`` bytes are the kernel's variables."""

    def __init__(self, program: Program, own: int) -> None:
        self.linked = program.kernel.linked
        self.functions = list(self.linked.values())
        self.sites: dict[int, CallSite] = {}  # by the block that ends with the call
        self.size = {"": -(-own // 8) * 8, **{one.name: -(-one.size // 8) * 8 for one in self.functions}}
        largest = dict.fromkeys(self.size, 0)
        if self.functions:
            for block in program.blocks:
                last = program.kernel.instructions[block.end - 1] if block.end > block.start else None
                if last is not None and last.base == "call":
                    site = CallSite(len(self.sites), block, last, program.function_at(block))
                    name = site.caller.name if site.caller else ""
                    largest[name] = max(largest[name], self._save(site, program, self.size[name]))
                    self.sites[block.number] = site
        self.by_number = list(self.sites.values())
        self.own = dict(self.size)
        for name, saved in largest.items():
            self.size[name] = -(-(self.size[name] + saved) // 16) * 16 if self.functions else own
        self.total = self.size[""]
        if self.functions:
            deep: dict[str, int] = {}  # callees come first; a ring of calls is passed once
            for one in self.functions:
                deep[one.name] = self.size[one.name] + max((deep.get(name, 0) for name in one.calls), default=0)
            self.total += max(deep.values())
            if any(one.recursive for one in self.functions):
                self.total += STACK

    def _save(self, site: CallSite, program: Program, start: int) -> int:
        """Decide where the registers of a call are kept; the bytes that they take."""
        following = program.blocks[site.following] if site.following < len(program.blocks) else None
        alive = set(following.live_in) if following is not None else set()
        results = site.ins.operands[0]
        if site.ins.guard is None and isinstance(results, Vec):
            alive -= {item.name for item in results.items if isinstance(item, Reg)}
        slots = program.slots_of(alive - {FRAME})
        place = start
        for kind, size in SIZES.items():
            for slot in slots[kind]:
                site.saved.append((kind, slot, place))
                place += size
        return place - start


def place_of(b: Build, ins: Instruction, operand: Operand, param: Param, caller: Linked | None) -> int | None:
    """Where in the caller's frame a parameter of a call lies; None: it is a value."""
    if isinstance(operand, Frame):
        place = operand.offset
    elif isinstance(operand, Sym):
        place = b.machine.address_of(ins, operand.name) + operand.offset
    else:
        return None
    if not 0 <= place <= b.machine.frames.own[caller.name if caller else ""] - param.size:
        raise ins.unknown(f"{param.size} bytes are passed from where there are fewer")
    return place


def into_register(b: Build, ins: Instruction, item: Operand, param: Param) -> Callable[[Group, Any], None]:
    """Put a result, as unsigned words, into a register."""
    if isinstance(item, Reg) and item.name == "_":
        return lambda group, value: None
    if not isinstance(item, Reg) or item.name not in b.program.slot or param.size not in (1, 2, 4, 8):
        raise ins.unknown(f"{item} takes no result of {param.size} bytes")
    kind, slot = b.program.slot[item.name]
    if kind == "p" or SIZES[kind] < param.size:
        raise ins.unknown(f"{item.name} is narrower than a result of {param.size} bytes")
    view = UNSIGNED[kind]
    return lambda group, value: np.copyto(group.rows[view][slot], value, casting="unsafe")
