"""The cycle collector is called less often while a kernel is simulated, and as before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from peakgemm.errors import InvalidValue
from peakgemm.tools.simulator import launch
from peakgemm.tools.simulator.core.collector import THRESHOLD


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_a_run_that_ends_and_one_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    a, seen = np.ones((8, 8), np.float32), list[int]()
    arguments = (a, a, a.copy(), 8, 8, 8, 8, 8, 8, 1.0, 0.0)
    parse = launch._program
    monkeypatch.setattr(launch, "_program", lambda *which: (seen.append(gc.get_threshold()[0]), parse(*which))[1])
    assert launch.run(0, grid=1, block=(32, 32), args=arguments).clean
    with pytest.raises(InvalidValue):
        launch.run(0, grid=1, block=(32, 32), args=arguments[:-1])
    assert (seen, gc.get_threshold()[0]) == ([THRESHOLD, THRESHOLD], 700)
