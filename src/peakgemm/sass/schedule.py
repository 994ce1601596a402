"""What is in flight at each point of a kernel: results not yet written, operands not yet read, scoreboards set.

The state is carried along every path of the control flow to a fixed point. Time is counted in cycles that the stall
fields guarantee, so that of two paths the shorter counts. `hazards` says what of that is a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from .control import BARRIERS, NO_BARRIER
from .encoding import Register, Word
from .program import Program

#: Cycles after which no fixed-latency result can be outstanding: beyond every distance that compiled code leaves.
HORIZON = 40
_TENSOR = "tensor"  # the queue of wgmma, whose groups end together
_MOST_GROUPS = 8


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


Flights = dict[Register, frozenset[Flight]]


@dataclass
class State:
    """What is in flight where a block begins, times counted back from there.

    ``issued`` has for each register the fixed-latency writers of the last cycles, by place, with the time of their
    issue. ``results`` and ``reads`` hold what variable-latency instructions still write and read. ``set`` is when each
    scoreboard was last set.
    """

    issued: dict[Register, dict[int, int]] = field(default_factory=dict)
    results: Flights = field(default_factory=dict)
    reads: Flights = field(default_factory=dict)
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

    def change(self, which: Callable[[Flight], bool], to: Callable[[Flight], Flight | None]) -> None:
        """Put other results and reads in the place of those of ``which``; None: they have ended."""
        for flights in (self.results, self.reads):
            _change(flights, which, to)

    def wait(self, word: Word) -> None:
        """End what an instruction waits for before it issues."""
        if mask := waited(word):
            self.change(lambda flight: bool(flight.barriers & mask), lambda flight: None)
        if word.name == "WARPGROUP" and word.rest >> 80 & 1:  # WARPGROUP.DEPBAR.LE gsb0, count
            left = word.rest >> 38 & 0x3F
            self.change(lambda flight: flight.queue == _TENSOR and flight.groups > left, lambda flight: None)

    def blocking(self, word: Word, program: Program) -> Iterator[tuple[Register, Flight, bool]]:
        """What must have ended before an instruction issues: results of registers that it reads or overwrites (True),
        and reads of registers that it overwrites (False)."""
        reads, writes = word.reads, word.writes
        for register in reads | writes:
            for flight in self.results.get(register, ()):
                keeps_order = flight.queue == word.queue != program.words[flight.place].name
                if not (keeps_order and (flight.queue == _TENSOR or register not in reads)) and \
                        not flight.elsewhere(word):
                    yield register, flight, True
            for flight in self.reads.get(register, ()) if register in writes else ():
                if flight.queue not in (word.queue, word.reader) and not flight.elsewhere(word):
                    yield register, flight, False

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
    entering = {entry: State()}
    work = [entry]
    while work:
        block = work.pop()
        leaving = walk(program, block, entering[block])
        for follower in program.successors.get(block, ()):
            if follower not in entering:
                entering[follower] = leaving.copy()
                work.append(follower)
            elif entering[follower].join(leaving) and follower not in work:
                work.append(follower)
    return entering


def walk(program: Program, block: int, start: State, watch: Watch | None = None) -> State:
    """Pass through a block from the state at its start; the state at its end, times counted back from there."""
    state, clock = start.copy(), 0
    for place in program.blocks[block]:
        word = program.words[place]
        state.wait(word)
        if watch is not None:
            watch(place, word, state, clock)
        step(state, word, place, clock)
        clock += cycles(word)
    return state.later(clock)


def cycles(word: Word) -> int:
    """Cycles until the warp's next instruction may issue. Stall 0 is two at least: USETMAXREG carries it, and the next
    instruction waits for the scoreboard that it sets."""
    return word.control.stall or 2


def waited(word: Word) -> int:
    """The scoreboards, as a mask, that are empty when an instruction issues; DEPBAR.LE counts only down to zero."""
    mask = word.control.wait_mask
    if word.name == "DEPBAR" and not word.rest >> 38 & 0x3F:
        mask |= sum(1 << number for entry, number in word.named if entry.kind == "SB" and number < BARRIERS)
    return mask


def step(state: State, word: Word, place: int, clock: int) -> None:
    """Issue an instruction: what it puts in flight, what it ends."""
    control = word.control
    name = word.queue
    state.set.update({barrier: clock for barrier in (control.write_barrier, control.read_barrier)
                      if barrier != NO_BARRIER})
    writes = word.writes
    for register in writes:
        if word.guard == 7:
            state.results.pop(register, None)
            state.issued.pop(register, None)
        state.reads.pop(register, None)
    predicates = {register.number for register in writes if register.kind == "P"}
    if predicates:  # what was issued under one can no longer be told apart by it
        state.change(lambda flight: flight.guard & 7 in predicates, lambda flight: replace(flight, guard=7))
    if not name or word.never:
        for register in writes:
            state.issued.setdefault(register, {})[place] = clock
        return
    write = 1 << control.write_barrier if control.write_barrier != NO_BARRIER else 0
    _vouch(state.results, word, name, write)
    _vouch(state.reads, word, word.reader, control.sets)
    under = word.guard | word.negated << 3 if word.layout.guard_kind == "P" else 7
    result = Flight(name, write, place, guard=under)
    reading = Flight(word.reader, control.sets, place, guard=under)
    for register in writes:
        state.results[register] = state.results.get(register, frozenset()) | {result}
    for register in word.reads:
        if register.kind == "R":  # predicates and uniform registers are read at issue
            state.reads[register] = state.reads.get(register, frozenset()) | {reading}
    if name == _TENSOR and not word.rest >> 84 & 7:  # gsb0: the last of its group
        state.change(lambda flight: flight.queue == _TENSOR,
                     lambda flight: replace(flight, groups=min(flight.groups + 1, _MOST_GROUPS)))


def _vouch(flights: Flights, word: Word, queue: str, barriers: int) -> None:
    """What a queue that keeps its order holds ends before an instruction behind it does: its scoreboards tell of it."""
    if barriers and queue not in (_TENSOR, word.name):
        _change(flights, lambda flight: flight.queue == queue,
                lambda flight: replace(flight, barriers=flight.barriers | barriers))


def _change(flights: Flights, which: Callable[[Flight], bool], change: Callable[[Flight], Flight | None]) -> None:
    """Put other flights in the place of those of ``which``; None: they have ended."""
    for register, known in list(flights.items()):
        if any(map(which, known)):
            changed = (change(flight) if which(flight) else flight for flight in known)
            if left := frozenset(flight for flight in changed if flight is not None):
                flights[register] = left
            else:
                del flights[register]
