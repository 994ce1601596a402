"""Where the instructions beside the FFMAs stand: a list scheduler over the dependences of `values`.

A position p lies before FFMA p of the turn. FFMAs take a cycle each, so positions count cycles, and err to the safe
side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..encoding import Register
from ..latency import safe
from .block import ORDERED, PASSED, Block, NotUnderstood, Side
from .recipe import Recipe
from .values import TURN, Values

#: Cycles between two instructions of which one must follow the other where the table of latencies says nothing: what
#: reads by a queue holds its registers until a scoreboard says otherwise, which counts from the second cycle on.
_AFTER_QUEUE = 2
_BARRIER = frozenset(("DEPBAR", "BAR"))
_BEHIND_BARRIER = 2


@dataclass(frozen=True, slots=True)
class Edge:
    """``after`` must stand at least ``cycles`` behind ``before`` (places in the block)."""

    before: int
    after: int
    cycles: int


def edges(values: Values) -> list[Edge]:
    """What must follow what in a turn, and how far behind: by the values read, the registers shared, and memory."""
    block = values.block
    result: list[Edge] = []
    order: dict[Register, list[tuple[int, int]]] = defaultdict(list)  # of a register: place of the value, who reads it
    for place in values.places:
        for register, source in values.sources[place].items():
            if source != TURN:
                result.append(Edge(source, place, _latency(values, source, place, register)))
            order[values.home((source, register))].append((source, place))
    definitions: dict[Register, list[int]] = defaultdict(list)
    for place in values.places:
        for register in values.writes(place):
            definitions[values.home((place, register))].append(place)
    for home, places in definitions.items():
        for earlier, later in pairwise([TURN, *places]):
            if earlier != TURN:
                result.append(Edge(earlier, later, 1 if block.words[earlier].queue else 6))
            result += [Edge(reader, later, _AFTER_QUEUE if block.words[reader].queue else 0)
                       for source, reader in order[home] if source == earlier and reader != later]
    kept = [place for place in values.places if block.words[place].name in ORDERED]
    result += [Edge(before, after, _AFTER_QUEUE if block.words[before].name == "LDGDEPBAR" else 1)
               for before, after in pairwise(kept)]
    gates = [place for place in kept if block.words[place].name not in PASSED]
    for load in block.loads.values():
        result += [Edge(load, gate, 1) if load < gate else Edge(gate, load, 1) for gate in gates]
    return result


def _latency(values: Values, before: int, after: int, register: Register) -> int:
    first, second = values.block.words[before], values.block.words[after]
    if first.queue:
        raise NotUnderstood(f"{first.name} in the loop: its {register} comes when it comes")
    return safe(first, second, register)


def has_cycle(values: Values) -> bool:
    """Whether the values cannot be computed in any order with the registers that they have."""
    return len(_sorted(values.places, edges(values), {})) < len(values.places)


def _sorted(places: Sequence[int], known: Sequence[Edge], wanted: Mapping[int, int]) -> list[int]:
    """The places so that each follows what it must, those wanted early first."""
    behind: dict[int, list[int]] = defaultdict(list)
    count = dict.fromkeys(places, 0)
    for edge in known:
        behind[edge.before].append(edge.after)
        count[edge.after] += 1
    ready = [place for place in places if not count[place]]
    ordered = []
    while ready:
        ready.sort(key=lambda place: (wanted.get(place, 0), place), reverse=True)
        ordered.append(ready.pop())
        for after in behind[ordered[-1]]:
            count[after] -= 1
            if not count[after]:
                ready.append(after)
    return ordered


def place(values: Values, recipe: Recipe) -> dict[int, int]:
    """The position of every instruction beside the FFMAs but the branch, by its place in the compiler's block.

    Raises:
        NotUnderstood: dependences leave an instruction no position.
    """
    block, known = values.block, edges(values)
    total = block.steps * block.step
    fixed = _fixed(block, recipe)
    wanted = {one: fixed.get(one, block.before[one]) for one in values.places}
    sequence = _sorted(values.places, known, {})
    if len(sequence) < len(values.places):
        raise NotUnderstood("the loop's instructions depend on each other in a circle")
    into: dict[int, list[Edge]] = defaultdict(list)
    out_of: dict[int, list[Edge]] = defaultdict(list)
    for edge in known:
        into[edge.after].append(edge)
        out_of[edge.before].append(edge)
    latest = dict.fromkeys(sequence, total - 2)
    for one in reversed(sequence):
        latest[one] = min([latest[one], fixed.get(one, total),
                           *(latest[edge.after] - _distance(edge) for edge in out_of[one])])
    branch = len(block.words) - 1
    positions: dict[int, int] = {}
    free = 0
    for one in sequence:  # what must come first is wanted no later than what follows
        wanted[one] = min(max([wanted[one], *(wanted[edge.before] for edge in into[one])]), max(latest[one], 0))
    for one in _sorted(values.places, known, wanted):
        if one == branch:
            positions[one] = total
            continue
        earliest = max([0, *(positions[edge.before] + _distance(edge) for edge in into[one])])
        if one in fixed:
            at = max(fixed[one], earliest)
        else:
            at = max(earliest, min(_even(max(wanted[one], free)), latest[one]))
            free = at + recipe.gap
        if at >= total:
            raise NotUnderstood(f"no room for {block.words[one].name}: it can stand {at} FFMAs from the turn's start "
                                f"at the earliest, of {total}")
        positions[one] = at
    return {one: at for one, at in positions.items() if one != branch}


def _distance(edge: Edge) -> int:
    """Positions between two instructions; at one position they stand in the order of their dependence."""
    return _even(edge.cycles) if edge.cycles > 1 else 0


def _even(position: int) -> int:
    """Between two pairs of FFMAs, whose column element the first keeps for the second."""
    return position + position % 2


def _fixed(block: Block, recipe: Recipe) -> dict[int, int]:
    """Positions that the recipe says: of loads, and of the barrier."""
    positions = {}
    needed = _needed(block.quads)
    barrier = max((block.steps - 1) * block.step + recipe.barrier, 0)
    for step in range(1, block.steps + 1):
        start = (step - 1) * block.step
        places = recipe.places(len(needed), block.step, step == 1)
        for (side, quad), at in zip(needed, places, strict=True):
            position = start + at
            if step == block.steps:
                position = max(position, barrier + _BEHIND_BARRIER)
            positions[block.loads[step, side, quad]] = position
    positions.update({one: barrier for one in block.others if block.words[one].name in _BARRIER})
    # The group that it closes counts for DEPBAR from the second cycle on.
    closed = max(barrier - _AFTER_QUEUE, 0)
    positions.update({one: closed for one in block.others if block.words[one].name == "LDGDEPBAR"})
    return positions


def _needed(quads: tuple[int, int]) -> list[tuple[Side, int]]:
    """The quads of a step in the order in which its FFMAs need them: a quad of rows, all columns, the other rows."""
    return [(0, 0), *((1, quad) for quad in range(quads[1])), *((0, quad) for quad in range(1, quads[0]))]
