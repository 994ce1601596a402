"""Where a kernel's loops lie in the instruction cache.

The first-level instruction cache of an H100's SM is taken to have 64 sets of four lines of 128 bytes: what lies a
multiple of 8 KB apart shares a set. A main loop of 35 KB has four lines in most sets and a fifth in some, and warps
that copy wait for instructions where their loop lies in those: with it there 1023 takes 47.5 us, elsewhere 46.5, and
as it is moved on, in steps of 1 to 4 KB, times follow that rule (docs/notebook/08).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..inspect.loops import loops, main_loop
from ..inspect.sass import INSTRUCTION_BYTES, Instruction, disassemble, parse

LINE, SETS, WAYS = 128, 64, 4  # bytes; sets of a cache, and lines of a set
MARGIN = 2  # lines that a loop keeps from crowded sets


def pad_of(cubin: bytes, arch: str) -> int:
    """Instructions to put before the loop that copies (``PAD`` of ffma/specialised.cu), so that it lies in no crowded
    set; 0 where it does not, or where ``cubin`` has no such loop.

    Raises:
        InvalidValue: unknown architecture, or bytes that are not a cubin.
        MissingComponent: nvdisasm is not there, or refuses this architecture.
    """
    code = parse(disassemble(cubin, arch))
    if len(code) * INSTRUCTION_BYTES <= LINE * SETS * WAYS:
        return 0
    main, copying = main_loop(code), copy_loop(code)
    if main is None or not copying:
        return 0
    crowded, mine = crowded_sets(lines(main.instructions)), lines(copying)
    if not _meet(mine, crowded, 0):
        return 0
    moves = range(1, SETS)
    free = [move for move in moves if not _meet({line + move for line in mine}, crowded, MARGIN)]
    move = min(free, default=min(moves, key=lambda by: len({(line + by) % SETS for line in mine} & crowded)))
    return move * LINE // INSTRUCTION_BYTES


def lines(code: Sequence[Instruction]) -> set[int]:
    """Lines of the cache, by number, that ``code`` lies in."""
    return {instruction.address // LINE for instruction in code}


def crowded_sets(of: set[int]) -> set[int]:
    """The sets that those lines fill, and more than others."""
    count = Counter(line % SETS for line in of)
    least = min(count[number] for number in range(SETS))
    return {number for number in range(SETS) if count[number] >= WAYS and count[number] > least}


def copy_loop(code: Sequence[Instruction]) -> tuple[Instruction, ...]:
    """The last loop of a kernel that copies tiles by cp.async, tells a barrier of it, and computes nothing; empty where
    there is none."""
    found = [loop.instructions for _, loop in loops(code)
             if {"LDGSTS", "ARRIVES"} <= {one.base for one in loop.instructions}
             and not any(one.is_ffma for one in loop.instructions)]
    inner = [one for one in found if not any(set(other) < set(one) for other in found)]
    return max(inner, key=lambda loop: loop[0].address, default=())


def _meet(mine: set[int], crowded: set[int], margin: int) -> bool:
    return any((line + by) % SETS in crowded for line in mine for by in range(-margin, margin + 1))
