"""The measuring protocol, and its only implementation.

Ours and the baseline run interleaved, A B A B, in bursts of a few milliseconds, in one process on
one stream; the figure is the median of the pairwise ratios. The clock is warmed up until it
settles; small products are timed as CUDA-graph replays, with the eager time beside them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from statistics import median
from typing import Any, NamedTuple, Protocol

from .peers import Peer
from .sensors import Sensors, summary

Work = Callable[[], None]

BURST_MS = 4.0        # long enough that an event's resolution (0.5 us) and a launch gap vanish
GRAPH_BELOW_MS = 0.2  # a launch from Python costs up to 20 us of host time: above this it hides
SETTLE_S = 1.5
MIN_PAIRS, MAX_PAIRS = 5, 60


class Counter(Protocol):
    """What counts something on the stream beside the times, as `sm_cycles.SmCycles` does."""

    def mark(self) -> None:
        """Enqueue a look at it."""

    def spans(self) -> list[float]:
        """What was counted from each mark to the next, for all marks since the last call."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Times in milliseconds a call; ``ratios`` are baseline / ours, above 1 where ours is faster."""

    mode: str
    ours_ms: list[float]
    baseline_ms: list[float]
    eager_ms: float | None
    state: dict[str, float | None]

    @property
    def ratios(self) -> list[float]:
        """Baseline over ours, pair by pair."""
        return [b / a for a, b in zip(self.ours_ms, self.baseline_ms, strict=True)]

    @property
    def spread(self) -> tuple[float, float]:
        """The 10th and the 90th percentile of the ratios."""
        ratios = sorted(self.ratios)
        return ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]

    def to_json(self, flops: int) -> dict[str, Any]:
        """Medians, spread (10th to 90th percentile) and raw samples; TFLOPS from ``flops`` a call."""
        ours, base = median(self.ours_ms), median(self.baseline_ms)

        def tflops(ms: float | None) -> float | None:
            return None if ms is None else flops / ms / 1e9

        return {
            "mode": self.mode,
            "tflops": tflops(ours),
            "eager_tflops": tflops(self.eager_ms),
            "cublas_tflops": tflops(base),
            "ratio_to_cublas": median(self.ratios),
            "ratio_spread": list(self.spread),
            **self.state,
            "samples_ms": {"ours": self.ours_ms, "cublas": self.baseline_ms},
        }


class Burst(NamedTuple):
    """Work that is enqueued as one, and how many calls it is."""

    run: Work
    calls: int


class Timer:
    """Times pairs of work on one peer's stream."""

    def __init__(self, peer: Peer, seconds: float = 0.6) -> None:
        self._peer = peer
        self._seconds = seconds
        self._sensors = Sensors()
        self._settled = False

    def compare(self, ours: Sequence[Work], baseline: Sequence[Work], *, capture: bool = True,
                seconds: float | None = None) -> Comparison:
        """Interleave two kinds of work.

        Args:
            ours, baseline: what to enqueue; the calls take them in turn, so
                that several operand sets, together larger than twice the L2, are used in rotation.
            capture: False: never as a CUDA graph, for work that cannot be captured.
            seconds: how long the pairs take together, about; None: as the timer was made.
        """
        estimates = [self._estimate(ours), self._estimate(baseline)]
        graph = capture and min(estimates) < GRAPH_BELOW_MS
        bursts = [self._burst(works, _calls(works, ms), graph)
                  for works, ms in zip((ours, baseline), estimates, strict=True)]
        pair_s = sum(ms * burst.calls for ms, burst in zip(estimates, bursts, strict=True)) / 1e3
        pairs = min(MAX_PAIRS, max(MIN_PAIRS, round((seconds or self._seconds) / pair_s)))
        (ours_ms, baseline_ms), _, state = self._interleave(bursts, pairs)
        return Comparison("graph" if graph else "eager", ours_ms, baseline_ms, estimates[0] if graph else None, state)

    def each(self, kinds: Sequence[Sequence[Work]], *, ms: float, rounds: int) -> list[list[float]]:
        """Milliseconds a call of several kinds of work, ``rounds`` figures of each: bursts of about ``ms``, in turns.

        For rankings, where `compare` of each with another would take minutes.
        """
        return self.in_turns(kinds, ms=ms, rounds=rounds)[0]

    def in_turns(self, kinds: Sequence[Sequence[Work]], *, ms: float, rounds: int, counter: Counter | None = None
                 ) -> tuple[list[list[float]], list[list[float]], dict[str, float | None]]:
        """`each`; what ``counter`` counts a call, likewise (empty without one); the state of the GPU meanwhile
        (`sensors.summary`)."""
        estimates = [self._estimate(works) for works in kinds]
        bursts = [self._burst(works, _calls(works, estimate, ms), estimate < GRAPH_BELOW_MS)
                  for works, estimate in zip(kinds, estimates, strict=True)]
        return self._interleave(bursts, rounds, counter)

    def _interleave(self, bursts: Sequence[Burst], rounds: int, counter: Counter | None = None
                    ) -> tuple[list[list[float]], list[list[float]], dict[str, float | None]]:
        """Bursts in turns, as `in_turns`. Those of all rounds are enqueued before the first is waited for: on an idle
        GPU a launch takes the host's 30 to 150 us, which only the first burst of a round would bear."""
        if bursts and not self._settled:
            self._settle(bursts[-1])
        for burst in bursts:
            burst.run()
        marks = [self._mark(counter)]
        for _ in range(rounds):
            for burst in bursts:
                burst.run()
                marks.append(self._mark(counter))
        readings = []
        for mark in marks[::max(len(bursts), 1)]:
            readings.append(self._sensors.read())  # while what was enqueued behind it works
            mark.sync()

        def a_call(spans: Sequence[float]) -> list[list[float]]:
            return [[span / burst.calls for span in spans[i::len(bursts)]] for i, burst in enumerate(bursts)]

        times = a_call([float(end - start) for start, end in pairwise(marks)])
        return times, a_call(counter.spans()) if counter else [], summary(readings)

    def _mark(self, counter: Counter | None) -> Any:
        if counter is not None:
            counter.mark()
        return self._peer.record()

    def energy(self, works: Sequence[Work], seconds: float, *, capture: bool = True) -> float | None:
        """Joules a call, by NVML's counter over at least ``seconds`` of nothing else; None without a counter.

        The counter moves in steps of some milliseconds to a tenth of a second, so the window begins and ends
        where it moves. One burst is always ahead of the one that is waited for: the GPU never idles.
        """
        last = self._sensors.energy_j()
        if last is None:
            return None
        ms = self._estimate(works)
        calls = _calls(works, ms)
        burst = self._burst(works, calls, capture and ms < GRAPH_BELOW_MS)
        begun: tuple[float, int, float] | None = None
        done, deadline = 0, time.monotonic() + 3 * (seconds + calls * ms / 1e3) + 1
        burst.run()
        ahead = self._peer.record()
        while time.monotonic() < deadline:
            burst.run()
            ended, ahead = ahead, self._peer.record()
            ended.sync()
            done += calls
            joules = self._sensors.energy_j()
            if joules is None or joules == last:
                continue
            last = joules
            if begun is None:
                begun = joules, done, time.monotonic()
            elif time.monotonic() - begun[2] >= seconds:
                return (joules - begun[0]) / (done - begun[1])
        return None

    def _estimate(self, works: Sequence[Work]) -> float:
        """Milliseconds of one eager call: the fastest of three short runs, after a call of each."""
        for work in works:
            work()
        best = math.inf
        for _ in range(3):
            calls = 1 if best > BURST_MS else 4
            best = min(best, self._timed(self._burst(works, calls, graph=False)) / calls)
            if best > 100:
                break
        return best

    def _burst(self, works: Sequence[Work], calls: int, graph: bool) -> Burst:
        turn = cycle(works)  # goes on from burst to burst, so that a burst of one call rotates too

        def run() -> None:
            for _ in range(calls):
                next(turn)()
        return Burst(self._peer.capture(run) if graph else run, calls)

    def _timed(self, burst: Burst) -> float:
        start = self._peer.record()
        burst.run()
        end = self._peer.record()
        end.sync()
        return float(end - start)

    def _settle(self, burst: Burst) -> None:
        """Keep the GPU busy until two clock readings a tenth of a second apart agree to 1 %."""
        deadline, last = time.monotonic() + SETTLE_S, None
        while time.monotonic() < deadline:
            until = time.monotonic() + 0.1
            while time.monotonic() < until:
                self._timed(burst)
            clock = self._sensors.read().sm_clock_mhz
            if last is not None and clock is not None and abs(clock - last) <= 0.01 * last:
                break
            last = clock
        self._settled = True


def _calls(works: Sequence[Work], ms: float, burst_ms: float = BURST_MS) -> int:
    """Calls of a burst of so many milliseconds, in whole rounds of the operand sets; or one call."""
    calls = max(1, math.ceil(burst_ms / ms))
    return math.ceil(calls / len(works)) * len(works) if calls > 1 else calls
