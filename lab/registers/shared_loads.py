"""What a stream takes with four schedulers at work, whose loads share the way from shared memory to their registers.

The rule, found by experiment on an H100 (docs/register-file.md tells it with the streams that prove it). Each of the
four sub-partitions goes by `register_file`, `pipes` and `write_backs`, and by three rules more:

* Shared memory sends a **register pair a cycle**, to all of them together. An LDS takes a cycle like an LDS.64, an
  LDS.128 two, one behind the other.
* What it sends needs a **place** until it is written. There are `PLACES` of a pair each, for all four. A load is sent
  when a place is free, two for an LDS.128, `BEFORE` cycles or more before it can be written. So what a sub-partition
  cannot write keeps places from the others.
* Of the sub-partitions with a load that there are places for, the one with the **fewest writes standing at its ports**
  is first; those with as many take turns.

The warps run one stream, one warp a scheduler. They start each turn of the compiled loop together, when the slowest has
come to its end: what they lose to each other they lose in each turn again. What holds up the others is not known.

It errs where loads come in bursts of more than shared memory can send: docs/register-file.md tells by how much.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from lab.registers.pipes import Pipes
from lab.registers.streams import RZ, TURN, WORDS, Op, Stream, predicted
from lab.registers.write_backs import ARRIVES, LOADED, WriteBacks
from peakgemm.sass.register_file import RegisterFile

SCHEDULERS = 4
PLACES = 12
#: Cycles from when a pair is sent to the first in which it may be written.
BEFORE = 8
#: Cycles that the compiled loop takes for its turn beyond `TURN`, with one warp a scheduler: 537 to 539 for 512 NOPs.
TURN_MORE = 5
_WARM, _TURNS = 1, 1  # older streams err by 0.0089 on average, by 0.0085 with two turns and four, at thrice the time


@dataclass(slots=True)
class _Ports(WriteBacks):
    """The write ports of one of the sub-partitions, a cycle at a time."""

    waiting: deque[tuple[int, str, int]] = field(default_factory=deque, init=False)  # from when; load; written

    def issues(self, cycle: int, op: Op) -> bool:
        """Whether ``op`` issues in ``cycle``, all cycles before which are settled; then it does."""
        if cycle in self._closed:
            return False
        if op.name in LOADED:
            if not self._room():
                return False
            first = self._take(cycle, op.name) + ARRIVES[op.name] + (op.reads[0] != RZ)
            self.waiting.append((first - BEFORE, op.name, op.written))
        elif op.written != RZ:
            self._keep(cycle, op.written)
        return True

    @property
    def places(self) -> int:
        """How many places are taken by what is not yet written."""
        return len(self._queue)

    def standing(self, cycle: int) -> int:
        """How many writes have arrived and not been served before ``cycle``."""
        return sum(first <= cycle for first, _, _ in self._queue)

    def send(self, cycle: int) -> int:
        """The load that waits longest is sent in ``cycle``: how many cycles it takes."""
        _, name, written = self.waiting.popleft()
        return self._arrive(cycle + BEFORE, name, written)

    def settle(self, cycle: int) -> None:
        """Give the ports of ``cycle`` to what is there."""
        self._settle(cycle + 1)


@dataclass(slots=True)
class _Way:
    """What leads from shared memory to the sub-partitions."""

    _first: int = field(default=0, init=False)  # whose turn it is
    _free: int = field(default=0, init=False)  # from when the next is sent

    def send(self, cycle: int, ports: Sequence[_Ports]) -> None:
        """What is sent in ``cycle``, if anything."""
        if cycle < self._free:
            return
        places = PLACES - sum(one.places for one in ports)
        chosen, least = None, PLACES + 1
        for each in range(len(ports)):
            number = (self._first + each) % len(ports)
            waiting = ports[number].waiting
            if waiting and waiting[0][0] <= cycle and max(LOADED[waiting[0][1]] // 2, 1) <= places:
                standing = ports[number].standing(cycle)
                if standing < least:
                    chosen, least = number, standing
        if chosen is not None:
            self._first, self._free = (chosen + 1) % len(ports), cycle + ports[chosen].send(cycle)


@dataclass(slots=True)
class _Warp:
    """A warp alone on its scheduler, with ``ops`` as a turn of the loop."""

    ops: Sequence[Op]
    ports: _Ports = field(default_factory=_Ports, init=False)
    _file: RegisterFile = field(default_factory=RegisterFile, init=False)
    _pipes: Pipes = field(default_factory=Pipes, init=False)
    _place: int = field(default=0, init=False)
    _read: int = field(default=0, init=False)  # when the next instruction leaves the read stages
    _ready: int = field(default=0, init=False)  # when its pipe takes it

    def start(self, cycle: int) -> None:
        """Begin a turn behind ``cycle``."""
        self._place = 0
        self._next(cycle)

    def step(self, cycle: int) -> bool:
        """Issue the next instruction in ``cycle`` if it can; whether it was the turn's last."""
        if self._place == len(self.ops) or cycle < self._ready or not self.ports.issues(cycle, self.ops[self._place]):
            return False
        self._file.hold(cycle - self._read)
        self._place += 1
        if self._place == len(self.ops):
            return True
        self._next(cycle)
        return False

    def _next(self, cycle: int) -> None:
        op = self.ops[self._place]
        load = op.name in LOADED
        written = None if load or op.written == RZ else op.written
        self._read = cycle + self._file.read(op.registers, op.reuse, written, load).cycles
        self._ready = self._pipes.issue(self._read, op.name)


def predicted_shared(stream: Stream) -> float:
    """Modelled issue cycles an instruction, one warp on each of the four schedulers; `predicted` where nothing is
    loaded."""
    if not any(op.name in LOADED for op in stream):
        return predicted(stream)
    ops = stream * (WORDS // len(stream))
    warps, way = [_Warp(ops) for _ in range(SCHEDULERS)], _Way()
    ports = [warp.ports for warp in warps]
    turn, now, starts = TURN + TURN_MORE, 1, [0]
    for _ in range(_WARM + _TURNS):
        for warp in warps:
            warp.start(starts[-1])
        busy, until = SCHEDULERS, 0
        while busy or now <= until:
            for warp in warps:
                if warp.step(now):
                    busy -= 1
                    until = now + turn
            way.send(now, ports)
            for one in ports:
                one.settle(now)
            now += 1
        starts.append(until)
    return ((starts[-1] - starts[_WARM]) / _TURNS - turn) / WORDS
