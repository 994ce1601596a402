"""Loads from shared memory that are still under way when a warp arrives at an mbarrier.

A warp that has read a stage of a ring arrives at the stage's barrier, and the next copy may overwrite it. The compiler
keeps the arrival behind the issue of the loads before it, not behind their coming: it waits for no scoreboard of
theirs. None is under way where whatever uses their registers has waited for them before.

That is no fault by itself. A kernel that has begun to read its next stage has those loads under way, and of a load
behind a branch it is not known whether the branch was taken; `peakgemm sass check` looks only where it is asked to.
"""

from __future__ import annotations

from dataclasses import dataclass

from .control import NO_BARRIER
from .elf import WORD_BYTES
from .encoding import Word
from .hazards import Hazard
from .program import Program
from .schedule import waited

_PHASES, _ONE = 0xA7, 84  # low bits of the opcode of waits and arrivals; the bit of one arrival without bytes (A1T0)
_Loads = dict[int, int]  # place of a load: the scoreboards, as a mask, that tell of its end


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
    return [Hazard(one.address, "arrival", load, "", message, program.name)
            for one in arrivals(program) for load in one.loads]


def arrivals(program: Program) -> list[Arrival]:
    """Every arrival of a kernel, by address, with the loads that may be under way on some path to it.

    A warp's accesses to shared memory end in the order of their issue: a scoreboard that is set by one tells of those
    before it as well (as `schedule` has it).
    """
    entry = next(iter(program.blocks))
    entering: dict[int, _Loads] = {entry: {}}
    work, found = [entry], dict[int, _Loads]()
    while work:
        block = work.pop()
        leaving = _through(program, block, entering[block], found)
        for follower in program.successors.get(block, ()):
            known = entering.get(follower)
            if known is None or any(load not in known or known[load] & ~barriers for load, barriers in leaving.items()):
                entering[follower] = _joined(known or {}, leaving)
                work.append(follower)
    return [Arrival(place * WORD_BYTES, tuple(load * WORD_BYTES for load in sorted(found[place])))
            for place in sorted(found)]


def _joined(first: _Loads, second: _Loads) -> _Loads:
    """What is under way by either path; only a scoreboard that tells of a load on both tells of it."""
    return {load: first.get(load, -1) & second.get(load, -1) for load in first.keys() | second.keys()}


def _through(program: Program, block: int, start: _Loads, found: dict[int, _Loads]) -> _Loads:
    loads = dict(start)
    for place in program.blocks[block]:
        word = program.words[place]
        if mask := waited(word):
            loads = {load: barriers for load, barriers in loads.items() if not barriers & mask}
        if word.never:
            continue
        if is_arrival(word):
            found[place] = _joined(found.get(place, {}), loads)
        if word.queue == "shared":
            if word.name.startswith("LDS"):
                loads[place] = 0
            if word.control.write_barrier != NO_BARRIER:
                loads = {load: barriers | 1 << word.control.write_barrier for load, barriers in loads.items()}
    return loads
