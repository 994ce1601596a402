"""What a block's warps issue, for `model`: the instructions of a path in order, of its main loop a few turns, with what
each is to the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...sass.banks import reads_of
from ...sass.register_reads import follow, rule_of, steady
from .execute import Path
from .semantics import operands

#: Turns of the main loop that are followed; those between cost what the last of these do. A ring of 2, 3, 4 or 6 stages
#: stands after a multiple of `RING` turns where it stood.
KEPT, RING = 24, 24


def shortened(path: Path, warp: int, loops: Mapping[int, frozenset[int]],
              dropped: int) -> tuple[list[tuple[int, Any]], set[int]]:
    """A warp's instructions with what they access, without ``dropped`` turns of its loop; where turns begin."""
    segments = list(path.of(warp))
    header = main_loop(path, warp, loops)
    passes = [place for place, one in enumerate(segments) if one.start == header]
    first = last = len(segments)
    if dropped and len(passes) > dropped + 4:
        begin = min(KEPT // 2, (len(passes) - dropped) // 2)
        first, last = passes[begin], passes[begin + dropped]
    steps: list[tuple[int, Any]] = []
    begins = set[int]()
    for place, one in enumerate(segments):
        if first <= place < last:
            continue
        if one.start == header:
            begins.add(len(steps))
        for at in range(one.start, one.stop):
            info: Any = None
            if at in one.accesses:
                access = one.accesses[at]
                info = (access.size, access.lanes[warp], access.wavefronts[warp] if access.wavefronts else 0,
                        access.lines[warp] if access.lines else ())
            elif at in one.notes:
                info = one.notes[at][warp]
            steps.append((at, info))
    return steps, begins


def main_loop(path: Path, warp: int, loops: Mapping[int, frozenset[int]]) -> int:
    """The header of the loop in which a warp issues the most instructions; -1: none."""
    inside: Counter[int] = Counter()
    for one in path.of(warp):
        for loop in path.program.loops:
            if one.start in loops[loop.start]:
                inside[loop.start] += one.stop - one.start
    return max(inside, key=lambda start: (inside[start], -start), default=-1)


def turns(path: Path, warp: int, loops: Mapping[int, frozenset[int]]) -> int:
    """How often a warp passes the header of its main loop."""
    header = main_loop(path, warp, loops)
    return sum(one.start == header for one in path.of(warp))


def read_costs(path: Path, places: Sequence[int], arch: str) -> dict[int, float]:
    """Cycles beyond one that an instruction's register reads cost, by place: of the main loop in its steady state, of
    others as they follow."""
    rule, words = rule_of(arch), path.program.words
    everything = follow([reads_of(word) for word in words], rule.reader())
    costs: dict[int, float] = {place: step.cycles - 1 for place, step in enumerate(everything) if step is not None}
    for place, *found in zip(places, *steady([reads_of(words[place]) for place in places], rule), strict=True):
        cycles = [step.cycles - 1 for step in found if step is not None]
        costs[place] = sum(cycles) / len(cycles) if cycles else 0.0
    return {place: cost for place, cost in costs.items() if cost > 0}


def shown_as(name: str) -> str:
    """The kind of an instruction in a picture; see `page`."""
    if name in ("FFMA", "FFMA2") or name.endswith("MMA"):
        return "compute"
    return next((kind for kind, names in (
        ("copy", ("LDG", "UTMA", "UBLK")), ("load", ("LDS",)), ("stage", ("STS",)), ("store", ("STG", "RED", "ATOM")),
        ("barrier", ("BAR", "SYNCS", "DEPBAR", "LDGDEPBAR"))) if name.startswith(names)), "other")


def kind_of(text: str) -> tuple[str, float]:
    """What the model does of an instruction, and a number: what a DEPBAR lets pass, the cycles of a tensor
    instruction."""
    name, mods, given = operands(text)
    if name == "SYNCS":
        return ("init" if "EXCH" in mods else "wait" if "PHASECHK" in mods else "arrive" if "A1T0" in mods
                else "expect"), 0
    if name == "BAR":
        return "arv" if "ARV" in mods else "bar", 0
    if name == "DEPBAR":
        return "groups", int(given[1], 0) if len(given) > 1 else 0
    if name == "WARPGROUP":
        return ("tensor wait", 0) if "DEPBAR" in mods else ("", 0)
    if name.endswith("GMMA"):  # 64 x N x 32 bytes of K: a quarter of it each scheduler's
        return "tensor", int(next(one for one in mods if one.count("x") == 2).split("x")[1]) / 2
    if name.endswith("MMA"):
        return "tensor", 4
    return {"LDGDEPBAR": "group", "UTMALDG": "copy", "UBLKCP": "copy", "MEMBAR": "fence", "FFMA": "ffma",
            **dict.fromkeys(("LDS", "STS", "LDSM", "STSM", "ATOMS"), "shared"),
            **dict.fromkeys(("LDG", "STG", "LDGSTS", "ATOMG", "RED", "REDG", "LD", "ST", "ATOM"), "global"),
            **dict.fromkeys(("LDC", "LDCU"), "constant"), **dict.fromkeys(("LDL", "STL"), "local")}.get(name, ""), 0
