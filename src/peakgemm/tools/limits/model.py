"""An SM in time: warps that issue a kernel's own SASS by its control codes, and wait for what it waits for.

Four schedulers issue an instruction a cycle each, of the same warp as long as it can (the compiler's stall counts and
scoreboards say), else of the youngest. Register reads cost what `sass.register_file` says of the loop; what shared
memory brings goes back a register pair a cycle, and takes write ports that FFMAs keep busy. All latencies come from the
table of the GPU (h100.json): none is fitted to a kernel.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import InvalidValue
from ...sass.encoding import Word
from .execute import Path
from .steps import KEPT, RING, kind_of, read_costs, shortened, shown_as, turns

SCHEDULERS = 4
#: Issues for which a load's registers wait at write ports that FFMAs keep busy, then the cycles that nothing issues.
_PATIENCE, _CLOSED = 16, 3
_WORD = 0xFFFFFFFF
_SHOWN, _KEPT_ISSUES = 512, 200_000  # cycles of `Outcome.issued`, and instructions among which they are looked for
_NEVER = float("inf")
#: Cycles from issue to shared memory, and the wavefront and the register pair of the shortest load.
_ON_THE_WAY = 6
_PIPE_CYCLES = {"alu": 2, "fma": 2, "xu": 8, "uniform": 2, "fp64": 2}  # fp64: 64 lanes an SM, NVIDIA's H100 whitepaper
_WAITS = {"shared": "short scoreboard", "global": "long scoreboard", "": "short scoreboard"}


@dataclass(frozen=True)
class Outcome:
    """``cycles`` of a generation of blocks on an SM; ``turn``: of a turn of the main loop; ``stalls``: the share of the
    warps' cycles by reason; ``issued``: of a stretch of the main loop the cycle of each instruction, how many it takes,
    the warp and the kind, if they are kept."""

    cycles: float
    turn: float
    stalls: Mapping[str, float]
    issued: Sequence[tuple[float, float, int, str]] = ()


@dataclass
class _Warp:
    number: int
    block: int
    steps: list[tuple[int, Any]]
    headers: set[int]  # positions in `steps` at which a turn of the main loop begins
    at: int = 0
    ready: float = 0.0
    before: float = 0.0
    scoreboards: list[float] = field(default_factory=lambda: [0.0] * 6)
    kinds: list[str] = field(default_factory=lambda: [""] * 6)
    copies: float = 0.0
    groups: list[float] = field(default_factory=list)
    tensor: float = 0.0
    stopped: str = ""
    phases: dict[int, tuple[int, int]] = field(default_factory=dict)  # of an mbarrier: the parity and phase waited for
    turns: list[float] = field(default_factory=list)
    throttled: str = ""
    asked: float = 0.0  # when all that it asked of global memory is there
    polled: int = 7  # the scoreboard of its last wait for an mbarrier


@dataclass
class _Barrier:
    """An mbarrier: arrivals that a phase takes and has, bytes that are to come, when each phase ended."""

    count: int = 1
    arrived: int = 0
    bytes: int = 0
    latest: float = 0.0
    done: list[float] = field(default_factory=list)
    waiting: list[tuple[_Warp, int]] = field(default_factory=list)


class Sm:
    """One SM with ``paths``, one a resident block. ``table``: latencies and rates; ``cache``: bytes of L1."""

    def __init__(self, paths: Sequence[Path], table: Mapping[str, Any], arch: str, cache: int,
                 places: Sequence[int], keeps: bool = False) -> None:
        self._issued: list[tuple[float, float, int, str]] | None = [] if keeps else None
        self._program, self._table = paths[0].program, table
        self._reads = read_costs(paths[0], places, arch)
        loops = {one.start: frozenset(one.places) for one in self._program.loops}
        counts = [turns(path, warp, loops) for path in paths[:1] for warp in range(path.warps)]
        long = [one for one in counts if one > KEPT + RING]
        self.dropped = (min(long) - KEPT) // RING * RING if long else 0
        made = {id(path): [shortened(path, warp, loops, self.dropped) for warp in range(path.warps)]
                for path in paths}
        self._warps = [_Warp(0, block, *made[id(path)][warp])
                       for block, path in enumerate(paths) for warp in range(path.warps)]
        for number, one in enumerate(self._warps):
            one.number = number
        self._of_block = [path.warps for path in paths]
        self._kinds = [kind_of(paths[0].texts[place]) for place in range(len(self._program.words))]
        self._control = [word.control for word in self._program.words]
        self._cache: OrderedDict[int, int] = OrderedDict()
        self._room = cache // 128
        self._missing: dict[int, float] = {}
        self._lsu = self._back = self._l2 = self._copies = 0.0
        self._tensor = [0.0] * SCHEDULERS
        self._pipes = [dict[str, float]() for _ in range(SCHEDULERS)]
        self._queues = [deque[float]() for _ in range(SCHEDULERS)]
        self._taken = [0.0] * SCHEDULERS
        self._ports = [deque[float]() for _ in range(SCHEDULERS)]
        self._free, self._last = [0.0] * SCHEDULERS, [-1.0] * SCHEDULERS
        self._greedy: list[_Warp | None] = [None] * SCHEDULERS
        self._bars: dict[tuple[int, int], list[tuple[_Warp, bool]]] = defaultdict(list)
        self._barriers: dict[tuple[int, int], _Barrier] = defaultdict(_Barrier)
        self._stalls: defaultdict[str, float] = defaultdict(float)
        self._try = [0.0] * SCHEDULERS

    def run(self) -> Outcome:
        """Until all warps have ended.

        Raises:
            InvalidValue: warps that wait for what never comes.
        """
        mine = [[one for one in self._warps if one.number % SCHEDULERS == q] for q in range(SCHEDULERS)]
        left, end = len(self._warps), 0.0
        while left:
            q = min(range(SCHEDULERS), key=self._try.__getitem__)
            now = self._try[q]
            if now == _NEVER:
                stuck = {one.stopped for one in self._warps if one.stopped not in ("", "ended")}
                raise InvalidValue(f"{self._program.name}: warps wait for {', '.join(sorted(stuck))} that never comes: "
                                   "this kernel's barriers are not modelled")
            best: _Warp | None = None
            soonest = _NEVER
            greedy = self._greedy[q]
            for one in ([greedy] if greedy is not None else []) + mine[q][::-1]:
                at = self._when(q, one, now)
                if at <= now:
                    best = one
                    break
                soonest = min(soonest, at)
            if best is None:
                self._try[q] = soonest
                continue
            ended = self._issue(q, best, now)
            if ended:
                mine[q].remove(best)
                left, end = left - 1, max(end, now)
            self._try[q] = max(self._free[q], now + 1)
        per_turn = self._turn()
        total = sum(self._stalls.values()) or 1.0
        stalls = {name: one / total for name, one in sorted(self._stalls.items(), key=lambda pair: -pair[1])}
        return Outcome(end + self.dropped * per_turn, per_turn, stalls, self._stretch())

    def _stretch(self) -> Sequence[tuple[float, float, int, str]]:
        """`_SHOWN` cycles from when the first warp has turned three times."""
        begins = [one.turns[min(3, len(one.turns) - 1)] for one in self._warps if one.turns]
        start = min(begins, default=0.0)
        return [one for one in self._issued or () if start <= one[0] < start + _SHOWN]

    def _turn(self) -> float:
        """Cycles of a turn of all warps in the steady state: from when each has turned a third of its turns until one
        has none left."""
        turning = [one.turns for one in self._warps if len(one.turns) > KEPT // 2]
        if not turning:
            return 0.0
        start = max(times[len(times) // 3] for times in turning)
        end = min(times[-1] for times in turning)
        if end <= start:  # they ran one after the other
            start, end = min(times[0] for times in turning), max(times[-1] for times in turning)
        passed = sum(start <= at < end for times in turning for at in times)
        return (end - start) * len(turning) / passed

    def _when(self, q: int, one: _Warp, now: float) -> float:
        """The first cycle in which a warp may issue; `_NEVER` while others must come first."""
        if one.stopped:
            return _NEVER
        if one.ready > now:
            return one.ready
        place, _ = one.steps[one.at]
        waits = self._control[place].wait_mask
        at = max((one.scoreboards[bar] for bar in range(6) if waits >> bar & 1), default=0.0) if waits else 0.0
        what, number = self._kinds[place]
        if what == "groups" and len(one.groups) > number:
            at = max(at, one.groups[len(one.groups) - int(number) - 1])
        elif what == "tensor wait":
            at = max(at, one.tensor + self._table["special"])
        if at > now:
            return at
        if what == "ffma":
            return now
        word = self._program.words[place]
        if what in ("shared", "global"):
            queue = self._queues[q]
            while queue and queue[0] <= now:
                queue.popleft()
            if len(queue) >= self._table["queue"]:
                one.throttled = "mio throttle" if what != "global" else "lg throttle"
                return queue[0]
        else:
            free = self._tensor[q] - 2 * number if what == "tensor" else self._pipes[q].get(word.pipe, 0.0)
            if free > now:
                return free
        return now

    def _issue(self, q: int, one: _Warp, now: float) -> bool:
        place, info = one.steps[one.at]
        word, control, table = self._program.words[place], self._control[place], self._table
        self._account(one, control, now)
        if one.at in one.headers:
            one.turns.append(now)
        cost = 1.0 + self._reads.get(place, 0.0) + self._write_ports(q, now, word)
        self._free[q], self._last[q] = now + cost, now
        self._greedy[q] = one if control.yield_ else None
        one.ready, one.before, one.throttled = now + max(control.stall, 1, cost), now, ""
        if self._issued is not None and len(self._issued) < _KEPT_ISSUES:
            self._issued.append((now, cost, one.number, shown_as(word.name)))
        one.at += 1
        done, read, kind = 0.0, now + table["operands"], ""
        name, (what, number) = word.name, self._kinds[place]
        if word.never or what == "ffma":
            pass
        elif what == "shared":
            done, read, kind = self._shared(q, now, name, info)
        elif what == "global":
            done, read, kind = self._global(q, now, one, name, info)
            one.asked = max(one.asked, done)
        elif what == "group":
            one.groups = [*one.groups[-7:], one.copies]
            done, kind = one.copies, "global"
        elif what in ("bar", "arv"):
            self._bar(one, what == "bar", info, now)
        elif what in ("init", "arrive", "expect", "wait"):
            one.polled = control.write_barrier
            done = self._sync(one, what, info, now)
        elif what == "fence":  # all that the thread has asked is to be performed, by the definition of membar
            done, kind = max(one.asked, now + table["special"]), "global"
            one.ready = max(one.ready, done)
        elif what == "copy":
            self._copy(one, info, now)
        elif what == "tensor":
            cycles = number if name.endswith("GMMA") else number / table["warp_mma_share"]
            self._tensor[q] = one.tensor = max(self._tensor[q], now) + cycles
            done = one.tensor + table["special"]
        else:
            if word.pipe in _PIPE_CYCLES:
                self._pipes[q][word.pipe] = now + _PIPE_CYCLES[word.pipe]
            done = now + table[{"constant": "constant", "local": "l1"}.get(what, "special")]
        if control.write_barrier < 6:
            one.scoreboards[control.write_barrier] = max(one.scoreboards[control.write_barrier], done)
            one.kinds[control.write_barrier] = kind
        if control.read_barrier < 6:
            one.scoreboards[control.read_barrier] = max(one.scoreboards[control.read_barrier], read)
        if one.at == len(one.steps):
            one.stopped = "ended"
            return True
        return False

    def _account(self, one: _Warp, control: Any, now: float) -> None:
        """Where the warp's cycles since its last issue went."""
        at, stalls = one.before, self._stalls
        held = min(max(one.ready, at), now)
        stalls["barrier" if one.throttled == "barrier" else "wait"] += held - at
        waits = [bar for bar in control.waits if one.scoreboards[bar] > held]
        if waits:
            last = max(waits, key=one.scoreboards.__getitem__)
            until = min(one.scoreboards[last], now)
            stalls[_WAITS[one.kinds[last]]] += until - held
            held = until
        stalls[one.throttled if one.throttled not in ("", "barrier") else "not selected"] += max(now - held - 1, 0)
        stalls["selected"] += 1

    def _write_ports(self, q: int, now: float, word: Word) -> float:
        """Cycles that nothing issues because what was loaded has waited too long for the write ports."""
        ports = self._ports[q]
        if not ports or ports[0] > now:
            return 0.0
        idle = int(now - max(self._last[q] + 1, ports[0])) + (0 if word.writes else 1)
        for _ in range(max(idle, 0)):
            if ports and ports[0] <= now:
                ports.popleft()
        if ports and now - ports[0] >= _PATIENCE:
            for _ in range(_CLOSED):
                if ports and ports[0] <= now + _CLOSED:
                    ports.popleft()
            return float(_CLOSED)
        return 0.0

    def _queued(self, q: int, now: float, takes: float) -> float:
        """When an access of a scheduler gets to the SM's pipe of loads and stores."""
        self._taken[q] = max(self._taken[q], now) + takes
        return max(self._lsu, self._taken[q] + _ON_THE_WAY - 2 - takes)

    def _shared(self, q: int, now: float, name: str, info: Any) -> tuple[float, float, str]:
        size, _, wavefronts, _ = info
        takes = self._table["takes"] * max(size // 8, 1)
        start = self._queued(q, now, takes)
        self._lsu = start + max(wavefronts, 1)
        self._queues[q].append(start)
        if not name.startswith("LD"):
            return self._lsu, start + self._table["operands"] - 4, "shared"
        pairs = max(size // 8, 1)
        self._back = max(self._back, self._lsu) + pairs
        for pair in range(pairs):
            self._ports[q].append(self._back + self._table["shared"] - 16 + pair)
        return self._back + self._table["shared"] - _ON_THE_WAY, start + self._table["operands"] - 4, "shared"

    def _global(self, q: int, now: float, one: _Warp, name: str, info: Any) -> tuple[float, float, str]:
        _, _, wavefronts, lines = info
        table = self._table
        start = self._queued(q, now, table["takes"])
        sectors = sum(bits.bit_count() for _, bits in lines)
        busy = max(len(lines) * table["tag_cycles"], wavefronts, sectors / 4, 1.0)
        self._lsu = start + busy
        self._queues[q].append(self._lsu if busy > 4 else start)
        read = start + table["operands"]
        if name.startswith(("ST", "RED")):
            self._l2 = max(self._l2, self._lsu) + 32 * sectors / table["l2_bytes_per_cycle"]
            return self._lsu, max(read, self._l2 - table["store_buffer"]), "global"
        done = self._lsu + table["l1"] - _ON_THE_WAY
        for line, bits in lines:
            done = max(done, self._line(line, bits, self._lsu))
        if name == "LDGSTS":
            one.copies = max(one.copies, done)
        return done, read, "global"

    def _line(self, line: int, bits: int, now: float) -> float:
        """When a line's sectors are there: in L1, under way, or to be brought."""
        table, cached = self._table, self._cache.get(line, 0)
        arrives = self._missing.get(line, 0.0)
        if missing := bits & ~cached:
            brought = 32 * missing.bit_count() / table["l2_bytes_per_cycle"]
            self._l2 = max(self._l2, now) + brought
            arrives = self._missing[line] = max(arrives, self._l2 + table["dram"])
            self._cache[line] = cached | bits
            if len(self._cache) > self._room:
                gone, _ = self._cache.popitem(last=False)
                self._missing.pop(gone, None)
        self._cache.move_to_end(line)
        return arrives

    def _wake(self, one: _Warp, at: float) -> None:
        one.stopped, one.ready, one.throttled = "", max(at, one.ready), "barrier"
        q = one.number % SCHEDULERS
        self._try[q] = min(self._try[q], max(one.ready, self._free[q]))

    def _bar(self, one: _Warp, waits: bool, info: int, now: float) -> None:
        """BAR.SYNC waits, BAR.ARV only arrives."""
        if info < 0:
            return
        count = (info >> 32 & _WORD) // 32 or self._of_block[one.block]
        key = one.block, info & _WORD
        self._bars[key].append((one, waits))
        if waits:
            one.stopped = "a barrier"
        if len(self._bars[key]) >= count:
            for other, waited in self._bars.pop(key):
                if waited:
                    self._wake(other, now + self._table["barrier"])

    def _sync(self, one: _Warp, what: str, info: int, now: float) -> float:
        """An instruction of an mbarrier; when its result is there."""
        if info < 0:
            return now
        takes: float = self._table["mbarrier"]
        key, value, lanes = (one.block, info & _WORD), info >> 32 & _WORD, info >> 64
        barrier = self._barriers[key]
        if what == "init":
            barrier.count = 0x100000 - (value >> 1)
        elif what == "wait":
            parity = value >> 31
            before, phase = one.phases.get(key[1], (parity, -parity))
            phase += parity != before
            one.phases[key[1]] = parity, phase
            if phase >= len(barrier.done):
                one.stopped = "an mbarrier"
                barrier.waiting.append((one, phase))
            return max(now, barrier.done[phase] if 0 <= phase < len(barrier.done) else now) + takes
        else:
            if what == "expect":
                barrier.bytes += value
            barrier.arrived += lanes
            self._complete(barrier, now)
        return now + takes

    def _copy(self, one: _Warp, info: int, now: float) -> None:
        """The copy engine brings what the barrier expects."""
        if info < 0:
            return
        table, barrier = self._table, self._barriers[one.block, info & _WORD]
        size, barrier.bytes = barrier.bytes, 0
        self._copies = max(self._copies, now) + size / table["copy_bytes_per_cycle"]
        self._l2 = max(self._l2, now) + size / table["l2_bytes_per_cycle"]
        self._complete(barrier, max(self._copies, self._l2) + table["tensor_copy"])

    def _complete(self, barrier: _Barrier, at: float) -> None:
        barrier.latest = max(barrier.latest, at)
        if barrier.arrived < barrier.count or barrier.bytes:
            return
        barrier.done.append(barrier.latest)
        barrier.arrived, barrier.latest, woken = barrier.arrived - barrier.count, 0.0, barrier.waiting
        barrier.waiting = []
        for one, phase in woken:
            if phase < len(barrier.done):
                at = barrier.done[phase] + self._table["mbarrier"]
                one.scoreboards = [max(each, at) if bar == one.polled else each
                                   for bar, each in enumerate(one.scoreboards)]
                self._wake(one, barrier.done[phase])
            else:
                barrier.waiting.append((one, phase))
