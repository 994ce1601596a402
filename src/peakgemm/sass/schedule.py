"""What is in flight at each point of a kernel: results not yet written, operands not yet read, scoreboards set.

The state is carried along every path of the control flow to a fixed point. Time is counted in cycles that the stall
fields guarantee, so that of two paths the shorter counts. `hazards` says what of that is a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from .control import BARRIERS, NO_BARRIER
from .encoding import Register, Word
from .program import Program

#: Cycles after which no fixed-latency result can be outstanding: beyond every distance that compiled code leaves.
HORIZON = 40
_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Flight:
    """A result or a read under way: any scoreboard of ``barriers`` (a mask) tells its end; ``place``: who issued it.

    ``groups`` counts the groups of wgmma that have been closed since, its own included. ``guard`` is the predicate that
    it was issued under, as in the word (bit 3: negated), while that holds its value; 7: none.
    """

    queue: str
    barriers: int
    place: int
    groups: int = 0
    guard: int = 7

    def elsewhere(self, word: Word) -> bool:
        """Whether it runs in those threads alone in which an instruction under the opposite guard does not."""
        return self.guard != 7 and self.guard ^ 8 == (word.guard | word.negated << 3) and word.layout.guard_kind == "P"


@dataclass
class State:
    """What is in flight where a block begins, times counted back from there.

    ``issued`` has for each register the fixed-latency writers of the last cycles, by place, with the time of their
    issue. ``results`` and ``reads`` hold what variable-latency instructions still write and read. ``set`` is when each
    scoreboard was last set. ``cached`` is what the reuse cache may hold: slot and bank to register.
    """

    issued: dict[Register, dict[int, int]] = field(default_factory=dict)
    results: dict[Register, frozenset[Flight]] = field(default_factory=dict)
    reads: dict[Register, frozenset[Flight]] = field(default_factory=dict)
    set: dict[int, int] = field(default_factory=dict)

    def copy(self) -> State:
        return State({register: dict(times) for register, times in self.issued.items()}, dict(self.results),
                     dict(self.reads), dict(self.set))

    def later(self, clock: int) -> State:
        """The same, seen from ``clock`` on."""
        kept = {register: {place: time - clock for place, time in times.items() if clock - time < HORIZON}
                for register, times in self.issued.items()}
        return State({register: times for register, times in kept.items() if times}, self.results, self.reads,
                     {barrier: time - clock for barrier, time in self.set.items() if clock - time < HORIZON})

    def join(self, other: State) -> bool:
        """Add what may be in flight by another path; whether that was news."""
        news = False
        for register, times in other.issued.items():
            mine = self.issued.setdefault(register, {})
            for place, time in times.items():
                if mine.get(place, -HORIZON) < time:
                    mine[place] = time
                    news = True
        for mine_flights, flights in ((self.results, other.results), (self.reads, other.reads)):
            for register, more in flights.items():
                known = mine_flights.get(register, frozenset())
                if not more <= known:
                    mine_flights[register] = known | more
                    news = True
        for barrier, time in other.set.items():
            if self.set.get(barrier, -HORIZON) < time:
                self.set[barrier] = time
                news = True
        return news


#: Called for each instruction with its place, the state before it (its waits observed) and the time of its issue.
Watch = Callable[[int, Word, State, int], None]


def states(program: Program) -> dict[int, State]:
    """The state at the start of each block that can be reached, at the fixed point."""
    entry = next(iter(program.blocks))
    found = {entry: State()}
    work = [entry]
    while work:
        block = work.pop()
        leaving = walk(program, block, found[block])
        for follower in program.successors.get(block, ()):
            if follower not in found:
                found[follower] = leaving.copy()
                work.append(follower)
            elif found[follower].join(leaving) and follower not in work:
                work.append(follower)
    return found


def walk(program: Program, block: int, start: State, watch: Watch | None = None) -> State:
    """Pass through a block from the state at its start; the state at its end, times counted back from there."""
    state, clock = start.copy(), 0
    for place in program.blocks[block]:
        word = program.words[place]
        if mask := waited(word):
            _clear(state.results, mask)
            _clear(state.reads, mask)
        if word.name == "WARPGROUP" and word.rest >> 80 & 1:  # WARPGROUP.DEPBAR.LE gsb0, count
            _finish_groups(state, word.rest >> 38 & 0x3F)
        if watch is not None:
            watch(place, word, state, clock)
        step(state, word, place, clock)
        clock += cycles(word)
    return state.later(clock)


def cycles(word: Word) -> int:
    """Cycles until the warp's next instruction may issue. Stall 0 is two at least: USETMAXREG carries it, and the next
    instruction waits for the scoreboard that it sets."""
    return word.control.stall or 2


def _finish_groups(state: State, left: int) -> None:
    """Wait until no more than so many groups of wgmma are under way."""
    for flights in (state.results, state.reads):
        for register in list(flights):
            kept = frozenset(one for one in flights[register] if one.queue != "tensor" or one.groups <= left)
            if kept:
                flights[register] = kept
            else:
                del flights[register]


def _close_group(flights: dict[Register, frozenset[Flight]]) -> None:
    for register, known in flights.items():
        if any(one.queue == "tensor" for one in known):
            flights[register] = frozenset(
                replace(one, groups=min(one.groups + 1, _ROUNDS)) if one.queue == "tensor" else one for one in known)


def waited(word: Word) -> int:
    """The scoreboards, as a mask, that are empty when an instruction issues; DEPBAR.LE counts only down to zero."""
    mask = word.control.wait_mask
    if word.name == "DEPBAR" and not word.rest >> 38 & 0x3F:
        mask |= sum(1 << number for entry, number in word.named if entry.kind == "SB" and number < BARRIERS)
    return mask


def _clear(flights: dict[Register, frozenset[Flight]], mask: int) -> None:
    for register in list(flights):
        kept = frozenset(flight for flight in flights[register] if not flight.barriers & mask)
        if kept:
            flights[register] = kept
        else:
            del flights[register]


def step(state: State, word: Word, place: int, clock: int) -> None:
    """Issue an instruction: what it puts in flight, what it ends."""
    control = word.control
    name = word.queue
    set_now = [barrier for barrier in (control.write_barrier, control.read_barrier) if barrier != NO_BARRIER]
    for barrier in set_now:
        state.set[barrier] = clock
    writes = word.writes
    for register in writes:
        if word.guard == 7:
            state.results.pop(register, None)
            state.issued.pop(register, None)
        state.reads.pop(register, None)
        if register.kind == "P":
            _forget_guard(state.results, register.number)
            _forget_guard(state.reads, register.number)
    if not name or word.never:
        for register in writes if not word.never else ():
            state.issued.setdefault(register, {})[place] = clock
        return
    write = 1 << control.write_barrier if control.write_barrier != NO_BARRIER else 0
    read = 1 << control.read_barrier if control.read_barrier != NO_BARRIER else 0
    reading_queue = word.reader
    if name not in ("tensor", word.name) and write:
        _vouch(state.results, name, write)
    if reading_queue not in ("tensor", word.name) and (write or read):
        _vouch(state.reads, reading_queue, write | read)
    under = word.guard | word.negated << 3 if word.layout.guard_kind == "P" else 7
    result = Flight(name, write, place, guard=under)
    reading = Flight(reading_queue, write | read, place, guard=under)
    for register in writes:
        state.results[register] = state.results.get(register, frozenset()) | {result}
    for register in word.reads:
        if register.kind == "R":  # predicates and uniform registers are read at issue
            state.reads[register] = state.reads.get(register, frozenset()) | {reading}
    if name == "tensor" and not word.rest >> 84 & 7:  # gsb0: the last of its group
        _close_group(state.results)
        _close_group(state.reads)


def _forget_guard(flights: dict[Register, frozenset[Flight]], number: int) -> None:
    """A predicate is written: what was issued under it can no longer be told apart by it."""
    for register, known in flights.items():
        if any(flight.guard & 7 == number for flight in known):
            flights[register] = frozenset(replace(flight, guard=7) if flight.guard & 7 == number else flight
                                          for flight in known)


def _vouch(flights: dict[Register, frozenset[Flight]], name: str, barriers: int) -> None:
    for register, known in flights.items():
        if any(flight.queue == name for flight in known):
            flights[register] = frozenset(replace(flight, barriers=flight.barriers | barriers)
                                          if flight.queue == name else flight for flight in known)
