"""A kernel's main loop built anew, for Hopper: what maxas did by hand on Maxwell, done to what ptxas made.

The compiler's loop moves accumulators from register to register, reads its fragments in bunches, and pays for banks.
The new one computes the same products in the same order of K, with

- accumulators that stay where they are when a turn begins (`block` finds them),
- fragments in two sets of quads, for even and for odd steps of K,
- FFMAs in an order without a bank conflict (`order`),
- loads of fragments spread evenly, other instructions between them (`place`), what need not be in the loop out of it
  (`values`),
- control bits of its own (`emit`).

It takes the room of the compiler's loop. `rebuild` proves what it makes (`proof`, `hazards`) or raises.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ...errors import InvalidValue
from ..elf import NOP, WORD_BYTES, Cubin
from ..encoding import Register, decode
from ..hazards import Unproved, check, refuse
from ..liveness import live, live_behind
from ..program import Program, with_target
from . import order as orders
from . import proof
from .block import QUAD, Block, NotUnderstood, Side, analyse
from .copies import hoist, merge
from .emit import Emitted, emit
from .place import place
from .recipe import Recipe
from .values import Values, rename

MOST_REGISTERS = 255
# Of a thread's registers the hardware keeps two: ptxas counts three more than the highest number that it uses. On an
# H100 a register beyond is an illegal instruction, and R238 of 240 dealt by setmaxnreg out of range.
RESERVED = 2
_REGISTERS = 0x2F  # the attribute of a kernel's register count
_STACK = 1
_FILE, _GRAIN, _WARP = 65536, 8, 32


@dataclass(frozen=True)
class Rebuilt:
    """A cubin with the new loop, and what there is to say of it.

    ``turn`` and ``before`` are the instructions of a turn now and in the compiler's loop; ``cycles`` the modelled
    cycles of a step's FFMAs, ``step`` how many these are; ``hoisted`` how many instructions left the loop.
    """

    cubin: bytes
    program: Program
    block: Block
    turn: int
    before: int
    cycles: float
    hoisted: int
    registers: int

    @property
    def step(self) -> int:
        """FFMAs of a step of K."""
        return self.block.step


def most_registers(threads: int, blocks: int = 1) -> int:
    """The registers that a thread may have where ``blocks`` of so many threads share an SM's 65536."""
    warps = -(-threads // _WARP) * max(blocks, 1)
    return min(MOST_REGISTERS, _FILE // (warps * _WARP) // _GRAIN * _GRAIN)


def rebuild(cubin: Cubin, recipe: Recipe, limit: int, name: str = "") -> Rebuilt:
    """The cubin with its main loop built by ``recipe``, in at most ``limit`` registers a thread.

    Raises:
        NotUnderstood: the loop is not of the kind that can be built anew, or there are too few registers.
        Unproved: what was built is not proved to compute the same, or has a hazard.
    """
    program = Program.of(cubin, name)
    block = analyse(program)
    known = live(program)
    at_start, behind = known[block.start], live_behind(program, block.start, known)
    values = Values.of(block)
    merge(values)
    taken = block.homes | block.held_registers
    free = _free(values, at_start | behind, limit)
    fragments = _fragments(block, free)
    rename(values, taken, free)
    hoist(values, behind)
    multiplies = orders.order(block)
    made = emit(values, place(values, recipe), multiplies, fragments)
    said = proof.difference(block.words, made.preheader, made.loop, values.carried, at_start, behind)
    if said is not None:
        raise Unproved(f"{program.name}, loop at {block.start * WORD_BYTES:#x}: {said}")
    fresh = _installed(program, block, made)
    inside = range(block.start * WORD_BYTES, (block.start + len(block.words)) * WORD_BYTES)
    if any(address in inside for address in cubin.pinned(program.name)):
        raise NotUnderstood(f"{program.name}: the file points into the loop, which would move")
    refuse(check(fresh))
    count = 1 + RESERVED + max(register.number for word in fresh.words for register in word.reads | word.writes
                    if register.kind == "R")
    before = cubin.kernel(program.name).registers or 0
    data = with_registers(cubin.with_words(fresh.encode(), program.name), program.name, max(count, before))
    return Rebuilt(data, fresh, block, len(made.loop), len(block.words), orders.cycles(block, multiplies),
                   len(made.preheader) if values.preheader else 0, max(count, before))


def _free(values: Values, live_registers: frozenset[Register], limit: int) -> list[int]:
    """The registers that nothing holds when a turn begins or ends, nor any but FFMAs and loads write during it."""
    block = values.block
    used = {register.number for register in live_registers if register.kind == "R"} | block.homes | block.held_registers
    for one in values.places:
        used |= {register.number for register in values.writes(one) if register.kind == "R"}
    return [number for number in range(min(limit, MOST_REGISTERS) - RESERVED)
            if number not in used and number != _STACK]


def _fragments(block: Block, free: list[int]) -> dict[tuple[int, Side, int], int]:
    """The first register of each quad for even steps (where a turn finds them) and odd ones, taken from ``free``."""
    if block.steps % 2:
        raise NotUnderstood(f"{block.steps} steps of K in a turn; two sets of fragments need an even number")
    registers = {(0, side, quad): register for (side, quad), register in block.held.items()}
    for quad in sorted(block.held):
        first = next((one for one in free if one % QUAD == 0 and {one + 1, one + 2, one + 3} <= set(free)), None)
        if first is None:
            raise NotUnderstood(f"no four registers in a row are left for the fragments of odd steps ({len(free)} "
                                "free); the kernel may have more only with fewer threads on an SM")
        registers[1, quad[0], quad[1]] = first
        free[:] = [one for one in free if not first <= one < first + QUAD]
    return registers


def _installed(program: Program, block: Block, made: Emitted) -> Program:
    """The kernel with the new loop in the compiler's room, NOPs behind it: the first waits for what is under way."""
    loop = list(made.loop)
    loop[-1] = with_target(loop[-1], len(loop) - 1, 0)
    nop = decode(NOP, program.arch)
    room = len(block.words) - len(made.preheader) - len(loop)
    if room < 1:
        raise NotUnderstood(f"{program.name}: the new loop has {len(loop)} instructions, {len(made.preheader)} before "
                            f"it; the compiler's has room for {len(block.words)}")
    waits = nop.with_control(wait_mask=made.used, stall=1)
    places = range(block.start, block.start + len(block.words))
    return program.with_block(places, [*made.preheader, *loop, waits, *[nop] * (room - 1)])


def with_registers(data: bytes, name: str, count: int) -> bytes:
    """A copy of a cubin whose kernel has ``count`` registers a thread.

    Raises:
        InvalidValue: more than there are, or a cubin that does not say how many it has.
    """
    if not 1 <= count <= MOST_REGISTERS:
        raise InvalidValue(f"{count} registers; a thread has 1 to {MOST_REGISTERS}")
    cubin = Cubin.read(data)
    section = cubin.section(".nv.info")
    number = next((index for index, symbol in enumerate(cubin.symbols) if symbol.name == name), None)
    if section is None or number is None:
        raise InvalidValue(f"the cubin does not say how many registers {name} has")
    record = struct.pack("<BBHI", 4, _REGISTERS, 8, number)
    at = data.find(record, section.offset, section.offset + section.size)
    if at < 0:
        raise InvalidValue(f"the cubin does not say how many registers {name} has")
    return data[:at + len(record)] + struct.pack("<I", count) + data[at + len(record) + 4:]
