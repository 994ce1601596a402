"""The measuring protocol, against a clock that the test turns."""
# ruff: noqa: F401, F811  (fixtures of tests/support)

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import pytest

from fake_peer import FakePeer, peer
from peakgemm.tools.bench.timer import BURST_MS, Comparison, Timer


def pairs(peer: FakePeer, count: int) -> list[list[str]]:
    """The bursts of the last ``count`` pairs, each between two marks."""
    *bursts, behind = [part.split() for part in " ".join(peer.calls).split("|")]
    assert not behind
    return bursts[-2 * count:]


def test_bursts_alternate_and_last_long_enough(peer: FakePeer) -> None:
    found = Timer(peer).compare([peer.work("A", 0.5)], [peer.work("B", 1.5)])
    assert BURST_MS == 4
    assert pairs(peer, len(found.ours_ms)) == [["A"] * 8, ["B"] * 3] * len(found.ours_ms)
    assert found.state == {"sm_clock_mhz": 1980, "power_w": 650.0, "temperature_c": 55}


def test_no_burst_begins_on_an_idle_gpu(peer: FakePeer) -> None:
    """Its launch would count, of the first of a pair alone."""
    peer.launch = 0.1
    found = Timer(peer).compare([peer.work("A", 2.0)], [peer.work("B", 2.0)])
    assert found.ratios == pytest.approx([1.0] * len(found.ratios))
    assert found.ours_ms == pytest.approx([2.0] * len(found.ours_ms))


def test_a_drifting_clock_leaves_the_ratios(peer: FakePeer) -> None:
    def drifting() -> None:
        work()
        peer.slow *= 1.01

    work = peer.work("B", 5.0)
    found = Timer(peer).compare([peer.work("A", 10.0)], [drifting])
    assert found.ours_ms[-1] > 1.3 * found.ours_ms[0]
    assert found.ratios == pytest.approx([0.5] * len(found.ratios))


def test_small_work_is_captured(peer: FakePeer) -> None:
    found = Timer(peer).compare([peer.work("A", 0.01)], [peer.work("B", 0.02)])
    assert found.mode == "graph"
    assert peer.captured == 2
    assert found.eager_ms == pytest.approx(0.01)
    found = Timer(peer).compare([peer.work("A", 0.3)], [peer.work("B", 0.4)])
    assert (found.mode, found.eager_ms, peer.captured) == ("eager", None, 2)


@pytest.mark.parametrize("ms", [0.05, 1.0, 30.0], ids=["graph", "many a burst", "one a burst"])
def test_operand_sets_rotate(peer: FakePeer, ms: float) -> None:
    ours = [peer.work(f"A{i}", ms) for i in range(3)]
    baseline = [peer.work(f"B{i}", 2 * ms) for i in range(3)]
    found = Timer(peer, seconds=0.4).compare(ours, baseline)
    run = [name for burst in pairs(peer, len(found.ours_ms)) for name in burst if name.startswith("A")]
    assert all(later == f"A{(int(name[1]) + 1) % 3}" for name, later in pairwise(run))
    assert set(run) == {"A0", "A1", "A2"}


def test_more_seconds_give_more_pairs(peer: FakePeer) -> None:
    counts = [len(Timer(peer, seconds=s).compare([peer.work("A", 4.0)], [peer.work("B", 4.0)]).ours_ms)
              for s in (0.08, 0.16, 60)]
    assert counts == [10, 20, 60]


def test_warms_up_once(peer: FakePeer) -> None:
    clock = Timer(peer, seconds=0.1)
    spent = []
    for _ in range(2):
        before = peer.now
        clock.compare([peer.work("A", 5.0)], [peer.work("B", 5.0)])
        spent.append(peer.now - before)
    # Two readings, a tenth of a second apart each, agree at once with this sensor.
    assert spent[0] - spent[1] == pytest.approx(200, abs=20)


def test_to_json() -> None:
    """The ratio is the median of the pairs' ratios, not the ratio of the medians; its spread leaves out the outer
    tenths."""
    found = Comparison("graph", [1.0, 2.0, 2.0], [2.0, 2.0, 3.0], 4.0, {"sm_clock_mhz": 1980, "power_w": None})
    assert found.to_json(2_000_000_000) == {
        "mode": "graph", "tflops": 1.0, "eager_tflops": 0.5, "cublas_tflops": 1.0, "ratio_to_cublas": 1.5,
        "ratio_spread": [1.0, 2.0], "sm_clock_mhz": 1980, "power_w": None,
        "samples_ms": {"ours": [1.0, 2.0, 2.0], "cublas": [2.0, 2.0, 3.0]},
    }
    assert Comparison("eager", [1.0, 2.0, 4.0], [3.0, 2.0, 4.0], None, {}).to_json(1)["ratio_to_cublas"] == 1.0
    spread = Comparison("eager", [1.0] * 20, [float(x) for x in range(20)], None, {}).to_json(1)
    assert (spread["ratio_spread"], spread["eager_tflops"]) == ([2.0, 17.0], None)


def test_a_counter_is_read_beside_the_times(peer: FakePeer) -> None:
    class Counter:
        marks: ClassVar[list[float]] = []

        def mark(self) -> None:
            self.marks.append(peer.now)

        def spans(self) -> list[float]:
            return [1000 * (end - start) for start, end in pairwise(self.marks)]

    times, counts, state = Timer(peer).in_turns([[peer.work("a", 3.0)], [peer.work("b", 5.0)]], ms=6.0, rounds=3,
                                                counter=Counter())
    assert times == [pytest.approx([3.0] * 3), pytest.approx([5.0] * 3)]
    assert counts == [pytest.approx([3000.0] * 3), pytest.approx([5000.0] * 3)]
    assert state["sm_clock_mhz"] == 1980
    assert Timer(peer).in_turns([[peer.work("a", 3.0)]], ms=6.0, rounds=3)[1] == []




class Meter:
    """NVML's energy counter: 400 W, moving every 0.1 s, or standing still; None where there is no counter."""

    def __init__(self, peer: FakePeer, state: str) -> None:
        self.peer, self.state = peer, state

    def energy_j(self) -> float | None:
        return {"moving": self.peer.now // 100 * 40, "still": 40.0, "absent": None}[self.state]


@pytest.mark.parametrize(("state", "ms", "joules"), [
    ("moving", 0.5, 0.2), ("moving", 0.01, 0.004), ("still", 0.5, None), ("absent", 0.5, None)])
def test_energy_is_counted_from_step_to_step(peer: FakePeer, state: str, ms: float, joules: float | None) -> None:
    clock = Timer(peer)
    clock._sensors = Meter(peer, state)
    assert clock.energy([peer.work("A", ms)], 0.35) == (joules and pytest.approx(joules, rel=0.03))
    assert peer.now < 3000  # ms: it gives up
