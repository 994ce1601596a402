"""Host memory in the device's place, for products of host arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import stand_in
from peakgemm.calls import panels, quick
from peakgemm.problem import Problem


class Flat:
    """The process's own memory: device addresses are host addresses."""

    def flat(self, address: int) -> Any:
        return np.ctypeslib.as_array((ctypes.c_float * 4_000_000).from_address(address))


class Memory:
    """Device memory or a pinned buffer: filled with NaN, so that what is not copied shows."""

    def __init__(self, size: int, stream: int = 0) -> None:
        self.size = max(size, 16)
        self._flat = np.full(self.size // 4 + 4, np.nan, np.float32)
        self.pointer = self.address = -(-self._flat.ctypes.data // 16) * 16

    def array(self, shape: tuple[int, ...]) -> Any:
        count = int(np.prod(shape))
        return np.ctypeslib.as_array((ctypes.c_float * max(count, 1)).from_address(self.pointer))[:count].reshape(shape)


class Lane:
    inward, compute, outward = 1, stand_in.STREAM, 3

    def pinned(self, size: int) -> Memory:
        return Memory(size)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What is enqueued, in order."""
    log: list[tuple[Any, ...]] = []

    @contextmanager
    def lane(index: int) -> Iterator[Lane]:
        yield Lane()

    def copy(call: str, to: Any, source: Any, size: int, stream: int) -> None:
        log.append((call, size, stream))
        ctypes.memmove(to, source, size)

    def bound_for(problem: Problem, gpu: Any, choice: Any = None) -> Any:
        log.append(("product", problem))
        return stand_in.Interpreted(problem, Flat())

    monkeypatch.setattr(panels, "lane", lane)
    monkeypatch.setattr(panels, "copy", copy)
    monkeypatch.setattr(panels, "bound_for", bound_for)
    monkeypatch.setattr(panels, "DeviceMemory", Memory)
    monkeypatch.setattr(panels, "order", lambda first, second: None)
    monkeypatch.setattr(panels, "event", lambda stream: None)
    monkeypatch.setattr(panels, "wait", lambda mark: None)
    monkeypatch.setattr(panels, "PANEL_BYTES", 1000)
    monkeypatch.setattr(panels, "LARGE_BYTES", 1000)
    monkeypatch.setattr(quick, "multiply", lambda *args: None)
    import peakgemm.calls.host
    import peakgemm.calls.prepared

    for module in (peakgemm.calls.host, peakgemm.calls.prepared):
        monkeypatch.setattr(module.device, "here", lambda: stand_in.GPU)
    return log
