"""A GPU whose clock the test turns."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from peakgemm.tools.bench import timer
from peakgemm.tools.bench.sensors import Reading


class FakePeer:
    """A GPU whose work takes what it says; ``slow`` stretches everything, as a falling clock does."""

    def __init__(self) -> None:
        self.now = 0.0  # ms
        self.slow = 1.0
        self.calls: list[str] = []
        self.captured = 0
        self.launch = 0.0  # ms until work begins on a GPU that has nothing to do
        self.last: Event | None = None
        self.idle = False

    def work(self, name: str, ms: float) -> Callable[[], None]:
        def run() -> None:
            self.now += ms * self.slow + self.idle * self.launch
            self.idle = False
            self.calls.append(name)
        return run

    def record(self) -> Event:
        self.calls.append("|")
        self.last = Event(self, self.now)
        return self.last

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        self.captured += 1
        return run


class Event:
    def __init__(self, peer: FakePeer, at: float) -> None:
        self.peer, self.at = peer, at

    def sync(self) -> None:
        self.peer.idle |= self.peer.last is self

    def __sub__(self, earlier: Event) -> float:
        return self.at - earlier.at


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> FakePeer:
    fake = FakePeer()
    monkeypatch.setattr(timer, "Sensors", lambda: SimpleNamespace(read=lambda: Reading(1980, 650.0, 55)))
    monkeypatch.setattr(timer, "time", SimpleNamespace(monotonic=lambda: fake.now / 1e3))
    return fake
