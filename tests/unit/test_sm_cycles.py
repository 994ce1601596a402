"""Cycles between marks, on a driver that copies what the test says."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from fake_peer import FakePeer, peer  # noqa: F401
from lab.bill import sm_cycles
from peakgemm.runtime.convention import Convention
from peakgemm.runtime.device import Gpu
from peakgemm.tools.bench.timer import Timer

SMS = 4


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What the SMs' clocks say at each mark; 0: no block came to that SM."""
    looks: list[list[int]] = []

    class Memory:
        pointer = 1 << 20

        def __init__(self, size: int, stream: int) -> None:
            assert (size, stream) == (sm_cycles.MOST * 8 * SMS, 7)

    def demand(what: str, call: str, *args: Any) -> None:
        if call == "cuMemcpyDtoH_v2":
            flat = [clock for look in looks for clock in look]
            size = args[2].value
            assert size == 8 * len(flat)
            ctypes.memmove(args[0], (ctypes.c_int64 * len(flat))(*flat), size)

    monkeypatch.setattr(sm_cycles, "DeviceMemory", Memory)
    monkeypatch.setattr(sm_cycles, "activated", lambda index: nullcontext())
    monkeypatch.setattr(sm_cycles.driver, "demand", demand)
    monkeypatch.setattr(sm_cycles, "compile_source", lambda *_, **__: None)
    return looks


class Launches:
    def __init__(self) -> None:
        self.places: list[int] = []

    def launcher(self, loaded: object, label: str, gpu: Gpu, blocks: int, threads: int, argument: bytes,
                 convention: Convention) -> Launches:
        assert (blocks, threads, argument, convention.addresses) == (SMS, 1024, b"", (0,))
        return self

    def enqueue(self, place: int, *others: int) -> None:
        assert others == (0, 0, 0, 0, 7)
        self.places.append(place)


def test_spans_are_medians_over_the_sms_that_were_seen(clocks: list[list[int]],
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Launches()
    monkeypatch.setattr(sm_cycles, "load", lambda *_: None)
    monkeypatch.setattr(sm_cycles, "Launcher", kernel.launcher)
    gpu = Gpu(0, "x", "sm_90", SMS, 1980, 3352.3, 50 << 20, "13.0")
    counter = sm_cycles.SmCycles(gpu, SimpleNamespace(handle=7))
    for look in ([100, 2000, 30, 0], [1100, 3010, 1050, 5], [3100, 5010, 3000, 9]):
        counter.mark()
        clocks.append(look)
    assert counter.spans() == [1010, 1975]
    assert kernel.places == [(1 << 20) + 8 * SMS * mark for mark in range(3)]
    clocks.clear()
    counter.mark()
    clocks.append([1, 2, 3, 4])
    assert counter.spans() == []


def test_a_timer_counts_beside_the_times(peer: FakePeer) -> None:  # noqa: F811
    class Counter:
        def __init__(self) -> None:
            self.marks: list[float] = []

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
