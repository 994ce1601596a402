"""Control flow, liveness and register slots of one kernel.

A kernel of PTX names thousands of virtual registers and keeps few of them alive. Each
is given a slot by linear scan over its live interval, so that the register file of a
group of lanes stays small enough for the cache. Slots of one instruction never overlap
between what it reads and what it writes.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from .ptx import BYTES, NOT_UNDERSTOOD, Frame, Instruction, Kernel, Linked, Mem, Operand, Pair, Reg, Sym, Vec

CLASS_OF = {"pred": "p", "b8": "h", "u8": "h", "s8": "h", "b16": "h", "u16": "h", "s16": "h", "f16": "h", "bf16": "h",
            "b32": "r", "u32": "r", "s32": "r", "f32": "r", "f16x2": "r", "bf16x2": "r",
            "b64": "d", "u64": "d", "s64": "d", "f64": "d"}  # fmt: skip
NO_RESULT = {"st", "red", "bra", "ret", "exit", "trap", "brkpt", "bar", "barrier", "cp", "membar", "fence", "mbarrier",
             "prefetch", "prefetchu", "brx", "nanosleep", "discard", "stmatrix", "griddepcontrol", "setmaxnreg",
             "applypriority", "pmevent"}  # fmt: skip
WARP_SYNC = {"shfl", "vote", "match", "redux", "mma", "wgmma", "ldmatrix", "stmatrix", "movmatrix", "elect",
             "activemask"}  # fmt: skip
CARRY = "%cc"
FRAME = "%frame"  # of a function that runs: where its frame begins in local memory
Flow = tuple[list[str], list[str]]


@dataclass(slots=True)
class Block:
    """A basic block: instructions ``start`` to ``end`` (exclusive), successors, slots alive at its start."""

    number: int
    start: int
    end: int
    successors: list[int] = field(default_factory=list)
    live_in: set[str] = field(default_factory=set)
    live_out: set[str] = field(default_factory=set)
    uses: set[str] = field(default_factory=set)
    defines: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Program:
    """A kernel cut into blocks, with ``slot[register] = (class, index)`` and slots per class.

    ``flow`` holds the registers that each instruction reads and those that it writes.
    """

    kernel: Kernel
    blocks: list[Block]
    slot: dict[str, tuple[str, int]]
    slots: dict[str, int]
    block_of_label: dict[str, int]
    flow: list[Flow]
    entry: int = 0  # the block in which the kernel begins, behind those of the functions that it calls

    def function_at(self, block: Block) -> Linked | None:
        """The function that a block is in; None: the kernel."""
        if block.start >= self.kernel.start:
            return None
        return next(one for one in self.kernel.linked.values() if one.start <= block.start < one.end)

    def slots_of(self, names: set[str]) -> dict[str, list[int]]:
        """The slots of ``names`` by class, sorted."""
        out: dict[str, list[int]] = {"p": [], "h": [], "r": [], "d": []}
        for name in names:
            if name in self.slot:  # of a type that the simulator lacks, where it is not
                kind, index = self.slot[name]
                out[kind].append(index)
        return {kind: sorted(set(indices)) for kind, indices in out.items()}

    def is_read(self, name: str) -> bool:
        """Whether any instruction reads the register."""
        return any(name in uses for uses, _ in self.flow)


def smallest_access(kernel: Kernel, other: str, bases: tuple[str, ...]) -> int:
    """Bytes of the smallest element that ``bases`` access outside the space ``other``, at most 4."""
    unit = 4
    for ins in kernel.instructions:
        if ins.base in bases and ins.types and not ins.has(other, "param", "local", "const"):
            unit = min(unit, BYTES[ins.types[-1]])
    return unit


def has_no_result(ins: Instruction) -> bool:
    """Whether no operand of the instruction is written."""
    if ins.base == "mbarrier":
        return not ins.has("arrive", "arrive_drop", "test_wait", "try_wait", "pending_count")
    if ins.base in ("bar", "barrier"):
        return not ins.has("red")
    if ins.base == "wgmma":
        return not ins.has("mma_async")
    return ins.base in NO_RESULT


def _registers(operand: Operand) -> list[str]:
    if isinstance(operand, Reg):
        return [] if operand.name == "_" else [operand.name]
    if isinstance(operand, Frame):
        return [FRAME]
    if isinstance(operand, Mem):
        return [name for item in (operand.base, *operand.index) for name in _registers(item)]
    if isinstance(operand, Vec):
        return [name for item in operand.items for name in _registers(item)]
    if isinstance(operand, Pair):
        return _registers(operand.first) + _registers(operand.second)
    return []


def uses_and_defines(ins: Instruction, known: dict[str, str]) -> Flow:
    """Virtual registers that the instruction reads, and those that it writes."""
    if ins.base == NOT_UNDERSTOOD:
        return ([ins.guard.name] if ins.guard is not None else []), []
    operands = list(ins.operands)
    defines: list[str] = []
    if operands and not has_no_result(ins):
        defines = [name for name in _registers(operands.pop(0)) if name in known]
    uses = [name for operand in operands for name in _registers(operand) if name in known]
    if ins.base == "wgmma":
        uses += defines  # the accumulators
    if ins.has("cc"):
        defines.append(CARRY)
    if ins.guard is not None:
        uses.append(ins.guard.name)
        uses += defines  # lanes whose guard is false keep the old value
    if ins.base in ("addc", "subc", "madc"):
        uses.append(CARRY)
    return uses, defines


def is_barrier(ins: Instruction) -> bool:
    """``bar``/``barrier`` that may block or that other threads wait for."""
    return ins.base in ("bar", "barrier") and not ins.has("warp") and not is_cluster_arrival(ins)


def is_cluster_arrival(ins: Instruction) -> bool:
    """``barrier.cluster.arrive``, which blocks nobody: the wait behind it does."""
    return ins.base == "barrier" and ins.has("cluster") and ins.has("arrive")


def is_warp_barrier(ins: Instruction) -> bool:
    """``bar.warp.sync``."""
    return ins.base in ("bar", "barrier") and "warp" in ins.parts


def ends_block(ins: Instruction) -> bool:
    """Whether control may leave the straight line after the instruction."""
    return ins.base in ("bra", "ret", "exit", "trap", "brx", "setmaxnreg", "call") or is_barrier(ins)


def build(kernel: Kernel) -> Program:
    """Cut ``kernel``, linked with what it calls, into blocks and assign slots."""
    code = kernel.instructions
    kernel.registers.setdefault(CARRY, "pred")
    starts = {0, *(one.start for one in kernel.linked.values())}
    starts |= {index for index in (kernel.start,) if index < len(code)}
    starts |= {index for index in kernel.labels.values() if index < len(code)}
    for ins in code:
        if ends_block(ins) and ins.index + 1 < len(code):
            starts.add(ins.index + 1)
        if ins.base in WARP_SYNC or is_warp_barrier(ins):
            starts.add(ins.index)
    order = sorted(starts)
    blocks = [Block(n, start, end) for n, (start, end) in enumerate(zip(order, [*order[1:], len(code)], strict=False))]
    number = {block.start: block.number for block in blocks}
    end_number = len(blocks)  # a label after the last instruction: the end of the kernel
    labels = {name: number.get(index, end_number) for name, index in kernel.labels.items()}
    for block in blocks:
        last = code[block.end - 1] if block.end > block.start else None
        falls = block.number + 1
        if last is None:
            block.successors = [falls]
        elif last.base == "bra":
            target = last.operands[0]
            assert isinstance(target, Sym)
            block.successors = [labels[target.name]] + ([falls] if last.guard is not None else [])
        elif last.base == "brx":
            table = last.operands[1]
            assert isinstance(table, Sym)
            block.successors = [labels[name] for name in kernel.tables.get(table.name, [])]
        elif last.base in ("ret", "exit", "trap"):
            block.successors = [falls] if last.guard is not None else []
        else:
            block.successors = [falls]
        block.successors = [s for s in block.successors if s < len(blocks)]
    flow = [uses_and_defines(ins, kernel.registers) for ins in code]
    for one in kernel.linked.values():  # each return looks into the frame, as calls do
        for uses, _ in (flow[ins.index] for ins in code[one.start:one.end] if ins.base in ("ret", "call")):
            uses.append(FRAME)
    _liveness(flow, blocks)
    slot, slots = _allocate(kernel, flow, blocks)
    return Program(kernel, blocks, slot, slots, labels, flow, number.get(kernel.start, end_number))


def _liveness(flow: list[Flow], blocks: list[Block]) -> None:
    for block in blocks:
        for uses, defines in flow[block.start:block.end]:
            block.uses.update(name for name in uses if name not in block.defines)
            block.defines.update(defines)
        block.live_in = set(block.uses)
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            out: set[str] = set()
            for successor in block.successors:
                out |= blocks[successor].live_in
            live_in = block.uses | (out - block.defines)
            if out != block.live_out or live_in != block.live_in:
                block.live_out, block.live_in, changed = out, live_in, True


def _allocate(kernel: Kernel, flow: list[Flow],
              blocks: list[Block]) -> tuple[dict[str, tuple[str, int]], dict[str, int]]:
    first: dict[str, int] = {}
    last: dict[str, int] = {}

    def touch(names: set[str], position: int) -> None:  # positions never fall
        first.update(dict.fromkeys(names.difference(first), position))
        last.update(dict.fromkeys(names, position))

    for block in blocks:
        touch(block.live_in, block.start)
        for position in range(block.start, block.end):
            for names in flow[position]:
                for name in names:
                    first.setdefault(name, position)
                    last[name] = position
        touch(block.live_out, block.end)
    slot: dict[str, tuple[str, int]] = {}
    slots = {"p": 0, "h": 0, "r": 0, "d": 0}
    free: dict[str, list[int]] = {kind: [] for kind in slots}
    busy: dict[str, list[tuple[int, int]]] = {kind: [] for kind in slots}
    for name in sorted(first, key=lambda n: (first[n], n)):
        declared = kernel.registers[name]
        if declared not in CLASS_OF:  # refused where it is used
            continue
        kind = CLASS_OF[declared]
        while busy[kind] and busy[kind][0][0] < first[name]:
            heapq.heappush(free[kind], heapq.heappop(busy[kind])[1])
        if free[kind]:
            index = heapq.heappop(free[kind])
        else:
            index, slots[kind] = slots[kind], slots[kind] + 1
        slot[name] = (kind, index)
        heapq.heappush(busy[kind], (last[name], index))
    return slot, slots



