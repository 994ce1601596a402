"""Strong accesses: volatile, relaxed, acquire, release and atomic ones, as PTX's memory consistency model has them.

Two strong accesses to one place are no data race where the scope of each has the other's thread. Volatile ones are
strong and wide, but CUDA C++ looks at data through volatile variables too, and the value found is then a matter of
timing. So a pair of volatile accesses is only forgiven where one of them is a *look*: a load in a loop that repeats it
from one address and stores nothing, or one whose value does nothing but decide branches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..front.program import Program
from ..front.ptx import Instruction, Mem, Reg

WORDS = ("volatile", "relaxed", "acquire", "release", "acq_rel", "mmio")
CTA, CLUSTER, WIDE = 0, 1, 2  # scopes: threads of a block, of a cluster, all
SCOPES = {"cta": CTA, "cluster": CLUSTER, "gpu": WIDE, "sys": WIDE, "gl": WIDE}
STRONG, VOLATILE, LOOK, SCOPE = 1, 2, 4, 3  # bits, the last one the place of the scope
STORES = ("st", "red", "atom", "stmatrix", "cp")
FEW = 1024  # lanes of an instruction that looks at flags, rather than at data
NO_DATA = ("setp", "bra", "bar", "barrier", "vote", "nanosleep")


@dataclass(frozen=True, slots=True)
class Strength:
    """``bits`` for comparisons of many at once (0: a weak access); what it reads, writes and orders."""

    bits: int = 0
    scope: int = CTA
    acquires: bool = False
    releases: bool = False
    reads: bool = False
    writes: bool = False

    @property
    def weak(self) -> bool:
        """Whether it is an ordinary access."""
        return not self.bits


WEAK = Strength()


def scope_of(ins: Instruction, default: int = WIDE) -> int:
    """The scope that an instruction names."""
    return next((SCOPES[part] for part in ins.parts[1:] if part in SCOPES), default)


def orders(ins: Instruction) -> bool:
    """Whether it is a fence of memory; ``fence.proxy`` and ``fence.mbarrier_init`` are something else."""
    return ins.base == "membar" or (ins.base == "fence" and not ins.has("proxy", "mbarrier_init"))


def strength(program: Program, ins: Instruction) -> Strength:
    """What kind of access an instruction is."""
    atomic = ins.base in ("atom", "red")
    if (ins.base not in ("ld", "st") and not atomic) or ins.has("async"):
        return WEAK
    if not atomic and not ins.has(*WORDS):
        return WEAK
    scope = scope_of(ins)
    bits = STRONG | scope << SCOPE
    if ins.has("volatile"):
        bits |= VOLATILE | (LOOK if ins.base == "ld" and looks(program, ins) else 0)
    return Strength(bits, scope, ins.has("acquire", "acq_rel"), ins.has("release", "acq_rel"), ins.base != "st",
                    ins.base != "ld")


def forgiven(one: Any, other: Any, apart: Any) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of pairs of accesses, by their bits: which are no race in any order, and which are none once the one that writes
    has been seen to be before. ``apart`` is the scope that has both threads."""
    both = np.bitwise_and(one, other)
    strong = (both & STRONG != 0) & (np.minimum(np.right_shift(one, SCOPE), np.right_shift(other, SCOPE)) >= apart)
    return strong & ((both & VOLATILE == 0) | (np.bitwise_or(one, other) & LOOK != 0)), strong


def looks(program: Program, ins: Instruction) -> bool:
    """Whether a load only looks at a flag: it polls, or its value, no float, decides branches and is nothing else."""
    return _polls(program, ins) or (not ins.types[-1].startswith("f") and _decides(program, ins))


def _polls(program: Program, ins: Instruction) -> bool:
    memory = ins.operands[1]
    if not isinstance(memory, Mem):
        return False
    base = memory.base.name if isinstance(memory.base, Reg) else ""
    code = program.kernel.instructions
    start = next(block for block in program.blocks if block.start <= ins.index < block.end)

    def quiet(number: int) -> bool:
        block = program.blocks[number]
        return all(code[k].base not in STORES and base not in program.flow[k][1] for k in range(block.start, block.end))

    seen: set[int] = set()
    waiting = [start.number]
    while waiting:
        number = waiting.pop()
        if not quiet(number):
            continue
        for following in program.blocks[number].successors:
            if following == start.number:
                return True
            if following not in seen:
                seen.add(following)
                waiting.append(following)
    return False


def _decides(program: Program, ins: Instruction) -> bool:
    from_it = set(program.flow[ins.index][1])
    code = program.kernel.instructions
    grown = True
    while grown:
        grown = False
        for other in code:
            uses, defines = program.flow[other.index]
            if other is ins or other.base in NO_DATA or from_it.isdisjoint(uses):
                continue
            if other.base in STORES or other.base in ("ld", "shfl", "cvta", "mma", "wgmma"):
                return False
            grown |= not from_it.issuperset(defines)
            from_it.update(defines)
    return True
