"""Natural loops of a control-flow graph.

A loop is what the control flow says it is, not what lies between a label and the branch back to it:
ptxas moves cold blocks out of line, ends loops by a branch out and an unconditional one back (on sm_80
the branch out can be a CALL that never returns), and puts other loops inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .elf import WORD_BYTES


@dataclass(frozen=True, slots=True)
class Loop:
    """A natural loop: ``start`` is the place that every turn passes, ``places`` those of all instructions that can
    run between one pass and the next, in order, loops inside included; ``own`` are those in no loop inside."""

    start: int
    places: tuple[int, ...]
    own: tuple[int, ...]

    @property
    def header(self) -> int:
        """The address that every turn passes."""
        return WORD_BYTES * self.start

    @property
    def code_bytes(self) -> int:
        """Size of the loop's code: what the instruction cache must hold."""
        return WORD_BYTES * len(self.places)


def natural_loops(blocks: Mapping[int, range], successors: Mapping[int, Sequence[int]]) -> tuple[Loop, ...]:
    """Every natural loop, by address. ``successors`` has the blocks that can be reached, the entry first."""
    predecessors: dict[int, list[int]] = {block: [] for block in successors}
    for block, goes in successors.items():
        for follower in goes:
            predecessors[follower].append(block)
    entry = next(iter(successors), 0)
    bodies: dict[int, set[int]] = {}
    for header, before in predecessors.items():
        if len(before) == 1 and header != entry:  # by which it is entered
            continue
        past = _reached(successors, entry, header)
        for block in before:
            if block not in past:  # every path from the entry to it passes the header: a branch back
                # Two branches back to one header are one loop with a `continue`.
                bodies.setdefault(header, {header}).update(_reached(predecessors, block, header))
    own: dict[int, list[int]] = {header: [] for header in bodies}
    for block in sorted(successors):
        around = [header for header, body in bodies.items() if block in body]
        if around:
            own[min(around, key=lambda header: len(bodies[header]))] += blocks[block]
    return tuple(Loop(header, tuple(place for block in sorted(bodies[header]) for place in blocks[block]),
                      tuple(own[header])) for header in sorted(bodies))


def _reached(graph: Mapping[int, Sequence[int]], start: int, without: int) -> set[int]:
    """The blocks that ``graph`` leads to from ``start``, itself among them, by paths that do not pass ``without``."""
    reached = {start} - {without}
    work = list(reached)
    while work:
        fresh = set(graph[work.pop()]) - reached - {without}
        reached |= fresh
        work += fresh
    return reached
