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
from typing import Any, Protocol

from .peers import Peer
from .sensors import Reading, Sensors, summary

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

    def to_json(self, flops: int) -> dict[str, Any]:
        """Medians, spread (10th to 90th percentile) and raw samples; TFLOPS from ``flops`` a call."""
        ratios = sorted(self.ratios)
        ours, base = median(self.ours_ms), median(self.baseline_ms)

        def tflops(ms: float | None) -> float | None:
            return None if ms is None else flops / ms / 1e9

        return {
            "mode": self.mode,
            "tflops": tflops(ours),
            "eager_tflops": tflops(self.eager_ms),
            "cublas_tflops": tflops(base),
            "ratio_to_cublas": median(ratios),
            "ratio_spread": [ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]],
            **self.state,
            "samples_ms": {"ours": self.ours_ms, "cublas": self.baseline_ms},
        }


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
        for work in (*ours, *baseline):
            work()
        estimates = [self._estimate(ours), self._estimate(baseline)]
        eager = capture and min(estimates) < GRAPH_BELOW_MS
        bursts = []
        for works, ms in zip((ours, baseline), estimates, strict=True):
            calls = _calls(works, ms)
            bursts.append((self._burst(works, calls, eager), calls))
        if not self._settled:
            self._settle(bursts[1][0])
        pair_s = sum(ms * calls for ms, (_, calls) in zip(estimates, bursts, strict=True)) / 1e3
        pairs = min(MAX_PAIRS, max(MIN_PAIRS, round((seconds or self._seconds) / pair_s)))
        times, state = self._interleave([b for b, _ in bursts], pairs)
        per_call = [[t / calls for t in ts] for ts, (_, calls) in zip(times, bursts, strict=True)]
        return Comparison("graph" if eager else "eager", per_call[0], per_call[1],
                          estimates[0] if eager else None, state)

    def each(self, kinds: Sequence[Sequence[Work]], *, ms: float, rounds: int) -> list[list[float]]:
        """Milliseconds a call of several kinds of work, ``rounds`` figures of each: bursts of about ``ms``, in turns.

        For rankings, where `compare` of each with another would take minutes. Bursts of all rounds are enqueued before
        the first is waited for, so that none begins on an idle GPU.
        """
        return self.in_turns(kinds, ms=ms, rounds=rounds)[0]

    def in_turns(self, kinds: Sequence[Sequence[Work]], *, ms: float, rounds: int, counter: Counter | None = None
                 ) -> tuple[list[list[float]], list[list[float]], dict[str, float | None]]:
        """`each`; what ``counter`` counts a call, likewise (empty without one); the state of the GPU meanwhile
        (`sensors.summary`)."""
        bursts: list[tuple[Work, int]] = []
        for works in kinds:
            for work in works:
                work()
            estimate = self._estimate(works)
            calls = _calls(works, estimate, ms)
            bursts.append((self._burst(works, calls, estimate < GRAPH_BELOW_MS), calls))
        if bursts and not self._settled:
            self._settle(bursts[0][0])
        for burst, _ in bursts:
            burst()
        marks = [self._mark(counter)]
        for _ in range(rounds):
            for burst, _ in bursts:
                burst()
                marks.append(self._mark(counter))
        readings = []
        for mark in marks:
            readings.append(self._sensors.read())  # while what was enqueued behind it works
            mark.sync()
        times = [float(end - start) for start, end in pairwise(marks)]

        def a_call(spans: Sequence[float]) -> list[list[float]]:
            return [[span / calls for span in spans[i::len(bursts)]] for i, (_, calls) in enumerate(bursts)]

        return a_call(times), a_call(counter.spans()) if counter else [], summary(readings)

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
        burst()
        ahead = self._peer.record()
        while time.monotonic() < deadline:
            burst()
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
        """Milliseconds of one eager call: the fastest of three short runs."""
        best = math.inf
        for _ in range(3):
            calls = 1 if best > BURST_MS else 4
            best = min(best, self._timed(self._burst(works, calls, graph=False)) / calls)
            if best > 100:
                break
        return best

    def _burst(self, works: Sequence[Work], calls: int, graph: bool) -> Work:
        turn = cycle(works)  # goes on from burst to burst, so that a burst of one call rotates too

        def run() -> None:
            for _ in range(calls):
                next(turn)()
        return self._peer.capture(run) if graph else run

    def _timed(self, work: Work) -> float:
        start = self._peer.record()
        work()
        end = self._peer.record()
        end.sync()
        return float(end - start)

    def _settle(self, burst: Work) -> None:
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

    def _interleave(self, bursts: Sequence[Work], pairs: int) -> tuple[list[list[float]], dict[str, float | None]]:
        for burst in bursts:
            burst()
        readings: list[Reading] = []
        times: list[list[float]] = [[], []]
        ahead: list[Any] = []
        # One pair is always ahead of the one that is waited for. On a GPU that has nothing to do a launch takes the
        # host's 30 to 150 us, which only the first of the two would bear: ours.
        for turn in range(pairs + 1):
            marks, ahead = ahead, []
            if turn < pairs:
                ahead.append(self._peer.record())
                for burst in bursts:
                    burst()
                    ahead.append(self._peer.record())
            if marks:
                readings.append(self._sensors.read())  # while the GPU works
                marks[-1].sync()
                for i in (0, 1):
                    times[i].append(float(marks[i + 1] - marks[i]))
        return times, summary(readings)


def _calls(works: Sequence[Work], ms: float, burst_ms: float = BURST_MS) -> int:
    """Calls of a burst of so many milliseconds, in whole rounds of the operand sets; or one call."""
    calls = max(1, math.ceil(burst_ms / ms))
    return math.ceil(calls / len(works)) * len(works) if calls > 1 else calls
