"""Which registers hold a value that is still wanted."""

from __future__ import annotations

from collections.abc import Mapping

from .encoding import ALWAYS, Register
from .program import Program

_STACK = Register("R", 1)  # the stack pointer, which debuggers and the driver's trap handler know


def live(program: Program) -> Mapping[int, frozenset[Register]]:
    """The registers and predicates that are live where each block begins, by its first place.

    Source: Aho, Lam, Sethi, Ullman, Compilers, 2nd edition, section 9.2.5. A write under a guard keeps what was there.
    """
    uses: dict[int, frozenset[Register]] = {}
    kills: dict[int, frozenset[Register]] = {}
    for start in program.successors:
        read: set[Register] = set()
        written: set[Register] = set()
        for place in program.blocks[start]:
            word = program.words[place]
            read |= word.reads - written
            if word.guard == ALWAYS:
                written |= word.writes
        uses[start], kills[start] = frozenset(read), frozenset(written)
    alive: dict[int, frozenset[Register]] = dict.fromkeys(uses, frozenset())
    changed = True
    while changed:
        changed = False
        for start in reversed(list(uses)):
            fresh = uses[start] | (_behind(program, start, alive) - kills[start])
            if fresh != alive[start]:
                alive[start], changed = fresh, True
    return alive


def live_behind(program: Program, start: int, known: Mapping[int, frozenset[Register]]) -> frozenset[Register]:
    """The registers that are live where control leaves a loop of one block."""
    leaves = [goes for goes in program.successors[start] if goes != start]
    return frozenset[Register]().union(*(known.get(goes, frozenset()) for goes in leaves))


def pressure(program: Program) -> dict[int, int]:
    """How many registers of a thread are in use at each instruction that can be reached, by its place: those that it
    reads, those that it writes, and those that hold a value behind it. The stack pointer is always one."""
    known, counts = live(program), dict[int, int]()
    for start in program.successors:
        alive = set(_behind(program, start, known)) | {_STACK}
        for place in reversed(program.blocks[start]):
            word = program.words[place]
            counts[place] = sum(register.kind == "R" for register in alive | word.reads | word.writes)
            alive = (alive - word.writes if word.guard == ALWAYS else alive) | word.reads | {_STACK}
    return counts


def _behind(program: Program, start: int, known: Mapping[int, frozenset[Register]]) -> frozenset[Register]:
    """The registers that are live behind a block."""
    return frozenset[Register]().union(*(known.get(goes, frozenset()) for goes in program.successors[start]))
