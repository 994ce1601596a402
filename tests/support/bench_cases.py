"""`peakgemm bench` with NumPy as its GPU: rivals, and the public calls."""
# ruff: noqa: F401, F811  (fixtures of tests/support)

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from commands import here
from host_peer import GPU, HostBound, HostPeer, HostTimer
from peakgemm.tools.bench import contenders, products


class Rival:
    """A contender of which the test says what it does."""

    def __init__(self, name: str, act: Callable[[Any, Any, Any], Any], capture: bool = True) -> None:
        self.name, self.capture, self._act = name, capture, act
        self.versions = {name: "1.0"}

    def work(self, a: Any, b: Any, out: Any) -> Callable[[], Any]:
        return lambda: self._act(a, b, out)



def into(a: Any, b: Any, out: Any) -> None:
    np.matmul(a, b, out=out)


def broken(a: Any, b: Any, out: Any) -> None:
    raise RuntimeError("no kernel\nand more")


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What is added to every product; 0 at first."""
    say = {"off": 0.0}
    monkeypatch.setattr(products, "bound_for", lambda problem, gpu, choice: HostBound(
        choice.kernel, choice.config, problem, gpu, off=say["off"]))
    monkeypatch.setattr(products, "api", Calls(say))
    return say


class Calls:
    """The public calls, by NumPy: B prepared is a tuple, and every product is off as the test says."""

    def __init__(self, say: dict[str, float]) -> None:
        self.say, self.seen = say, []

    def prepare(self, b: Any, *, precision: str) -> Any:
        self.seen.append(("prepare", precision))
        return precision, b

    def matmul(self, a: Any, b: Any, *, out: Any, precision: str) -> Any:
        self.seen.append(("matmul", precision))
        assert b[0] == precision
        np.matmul(a, b[1], out=out)
        out += np.float32(self.say["off"])
        return out

    def plan(self, a: Any, b: Any, *, out: Any, precision: str) -> Any:
        def execute(first: Any, second: Any, out: Any) -> None:
            self.seen.append(("execute", precision))
            assert first is a and second is b

        return SimpleNamespace(execute=execute, last_path=lambda: f"{precision}, 1 of 2 half tiles by ieee")


@pytest.fixture
def on_host(here: Path, bound: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command, with NumPy as its GPU."""
    monkeypatch.setattr("peakgemm.runtime.device.find", lambda: GPU)
    monkeypatch.setattr("peakgemm.cli.measuring.find_peer", HostPeer)
    monkeypatch.setattr("peakgemm.cli.bench.Timer", lambda peer, seconds: HostTimer(
        lambda work: 12.3456 if hasattr(work, "func") else 9.87654))
    monkeypatch.setattr("peakgemm.cli.bench.copy_gbs", lambda peer, timer: 2987.65)
    monkeypatch.setitem(contenders.CONTENDERS, "triton", lambda peer: Rival("triton", into))
    monkeypatch.setitem(contenders.CONTENDERS, "cupy", lambda peer: Rival("cupy", broken))
    return here
