"""Loads from shared memory that are still under way when a warp arrives at an mbarrier.

A warp that has read a stage of a ring arrives at the stage's barrier, and the next copy may overwrite it. The compiler
keeps the arrival behind the issue of the loads before it, not behind their coming: it waits for no scoreboard of
theirs. None is under way where whatever uses their registers has waited for them before.

That is no fault by itself. A kernel that has begun to read its next stage has those loads under way, and of a load
behind a branch it is not known whether the branch was taken; `peakgemm sass check` looks only where it is asked to.
"""

from __future__ import annotations

from dataclasses import dataclass

from .elf import WORD_BYTES
from .encoding import Word
from .hazards import Hazard
from .program import Program
from .schedule import State, states, walk

_PHASES, _ONE = 0xA7, 84  # low bits of the opcode of waits and arrivals; the bit of one arrival without bytes (A1T0)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One arrival: its address, and those of the loads from shared memory that no scoreboard has been waited for."""

    address: int
    loads: tuple[int, ...]


def is_arrival(word: Word) -> bool:
    """Whether a thread arrives at an mbarrier by it, and expects no bytes: the copy engine's barriers are not meant."""
    return word.name == "SYNCS" and word.opcode & 0xFF == _PHASES and bool(word.rest >> _ONE & 1) and not word.never


def early(program: Program) -> list[Hazard]:
    """Each load that may be under way at an arrival, as `hazards` has its faults; the rule is ``arrival``."""
    message = "arrives while a load from shared memory is not known to have come"
    return [Hazard(arrival.address, "arrival", load, "", message, program.name)
            for arrival in arrivals(program) for load in arrival.loads]


def arrivals(program: Program) -> list[Arrival]:
    """Every arrival of a kernel, by address, with the loads that may be under way on some path to it."""
    under_way: dict[int, tuple[int, ...]] = {}

    def watch(place: int, word: Word, state: State, clock: int) -> None:
        if is_arrival(word):
            under_way[place] = tuple(sorted({flight.place for flights in state.results.values() for flight in flights
                                             if program.words[flight.place].name in ("LDS", "LDSM")}))

    for block, state in states(program).items():
        walk(program, block, state, watch)
    return [Arrival(place * WORD_BYTES, tuple(load * WORD_BYTES for load in loads))
            for place, loads in sorted(under_way.items())]
