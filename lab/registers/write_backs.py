"""How what loads from shared memory bring gets into a Hopper sub-partition's register file, beside what FFMAs write.

The rule, found by experiment on an H100 (docs/register-file.md tells it with the streams that prove it). A cycle of a
bank's write port is counted as the cycle in which the instruction issued that it is kept for.

* An arithmetic instruction has the write port of its result's **bank** (`register_file`) for the cycle in which it
  issued. Nothing delays it. An instruction that writes nothing leaves its cycle to others.
* An LDS brings 32 bits through the port of one bank. LDS.64 brings a pair through **both banks in one cycle**, and
  LDS.128 two pairs in two. They stand in one queue, the first `ARRIVES` cycles after the load issued, a cycle later
  where it has an address register, and are written in order, each in the first cycle whose ports are free.
* When the one at the head has been refused in `PATIENCE` cycles in a row, **nothing issues** until it is written. That
  acts `AHEAD` cycles on. So where FFMAs keep the ports busy, it costs three cycles, and what else stands in the queue
  has three free cycles.
* A sub-partition takes a load each two cycles, an LDS.128 each four, and has at most `UNDER_WAY` loads under way.

It holds for a sub-partition that reads shared memory alone, all lanes one word: what the three others add is
`shared_loads`, what conflicts add is not known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from peakgemm.sass.register_file import BANKS

#: Registers that a load from shared memory writes.
LOADED: Mapping[str, int] = {"LDS": 1, "LDS.64": 2, "LDS.128": 4}
#: Cycles from a load's issue to the first in which it may be written.
ARRIVES: Mapping[str, int] = {"LDS": 14, "LDS.64": 14, "LDS.128": 16}
#: Cycles from a load to the next that a sub-partition takes.
TAKES: Mapping[str, int] = {"LDS": 2, "LDS.64": 2, "LDS.128": 4}
PATIENCE = 16
AHEAD = 3
UNDER_WAY = 16


@dataclass(slots=True)
class WriteBacks:
    """One pass over the instructions of a warp, each at the cycle in which it left the read stages."""

    _queue: deque[tuple[int, int, bool]] = field(default_factory=deque, init=False)  # from when; banks; a load's last
    _kept: dict[int, int] = field(default_factory=dict, init=False)  # cycle: banks that FFMAs write
    _closed: set[int] = field(default_factory=set, init=False)  # cycles in which nothing issues
    _now: int = field(default=0, init=False)  # the cycles before it are settled
    _refused: int = field(default=0, init=False)
    _loads: int = field(default=0, init=False)  # under way
    _taken: int = field(default=0, init=False)  # from when the next load is taken

    def arithmetic(self, cycle: int, written: int | None) -> int:
        """The cycle from ``cycle`` on in which an instruction issues that writes ``written`` (None: nothing)."""
        cycle = self._open(cycle)
        if written is not None:
            self._keep(cycle, written)
        return cycle

    def load(self, cycle: int, name: str, written: int, addressed: bool) -> int:
        """The same for a load (a key of `LOADED`); ``addressed``: it reads an address register."""
        cycle = self._open(cycle)
        self._settle(cycle)
        while not self._room():
            cycle = self._open(cycle + 1)
            self._settle(cycle)
        self._arrive(self._take(cycle, name) + ARRIVES[name] + addressed, name, written)
        return cycle

    def _keep(self, cycle: int, written: int) -> None:
        """An FFMA that issued in ``cycle`` has its bank's port."""
        self._kept[cycle] = self._kept.get(cycle, 0) | _bank(written)

    def _room(self) -> bool:
        """Whether one more load can be under way."""
        return self._loads < UNDER_WAY

    def _take(self, cycle: int, name: str) -> int:
        """The cycle from ``cycle`` on in which a load is taken; it is under way then."""
        start = max(cycle, self._taken)
        self._taken, self._loads = start + TAKES[name], self._loads + 1
        return start

    def _arrive(self, first: int, name: str, written: int) -> int:
        """What a load brings joins the queue, from cycle ``first`` on: how many writes that is."""
        writes = max(LOADED[name] // BANKS, 1)
        banks = _bank(written) if LOADED[name] == 1 else _bank(0) | _bank(1)
        self._queue += [(first + each, banks, each == writes - 1) for each in range(writes)]
        return writes

    def _open(self, cycle: int) -> int:
        """The first cycle from ``cycle`` on in which something issues."""
        self._settle(cycle - AHEAD + 1)
        while cycle in self._closed:
            self._closed.discard(cycle)
            cycle += 1
            self._settle(cycle - AHEAD + 1)
        return cycle

    def _settle(self, until: int) -> None:
        """Give the ports of the cycles before ``until`` to what is in the queue."""
        while self._now < until:
            kept, begun = self._kept.pop(self._now, 0), len(self._queue)
            while self._queue and self._queue[0][0] <= self._now and not kept & self._queue[0][1]:
                _, banks, last = self._queue.popleft()
                kept |= banks
                self._loads -= last
            if len(self._queue) < begun:
                self._refused = 0
            elif self._queue and self._queue[0][0] <= self._now:
                self._refused += 1
                if self._refused >= PATIENCE:
                    self._closed.add(self._now + AHEAD)
            self._now += 1


def _bank(register: int) -> int:
    """The bank of a register, as a bit."""
    return 1 << register % BANKS
