"""Which registers hold a value that is still wanted, at the start of each block."""

from __future__ import annotations

from collections.abc import Mapping

from ..encoding import ALWAYS, Register
from ..program import Program


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
            if word.never:
                continue
            read |= word.reads - written
            if word.guard == ALWAYS:
                written |= word.writes
        uses[start], kills[start] = frozenset(read), frozenset(written)
    found: dict[int, frozenset[Register]] = dict.fromkeys(uses, frozenset())
    changed = True
    while changed:
        changed = False
        for start in reversed(list(uses)):
            out = frozenset[Register]().union(*(found.get(goes, frozenset()) for goes in program.successors[start]))
            fresh = uses[start] | (out - kills[start])
            if fresh != found[start]:
                found[start], changed = fresh, True
    return found


def live_behind(program: Program, start: int, known: Mapping[int, frozenset[Register]]) -> frozenset[Register]:
    """The registers that are live where control leaves a loop of one block."""
    leaves = [goes for goes in program.successors[start] if goes != start]
    return frozenset[Register]().union(*(known.get(goes, frozenset()) for goes in leaves))
