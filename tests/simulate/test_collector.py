"""The cycle collector is called less often while a kernel is simulated, and as before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest

from peakgemm.errors import InvalidValue
from peakgemm.simulator import launch
from peakgemm.simulator.core.collector import THRESHOLD, seldom


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_as_before_after_the_last_of_several() -> None:
    with seldom():
        with pytest.raises(ZeroDivisionError), seldom():
            assert gc.get_threshold() == (THRESHOLD, 10, 10)
            raise ZeroDivisionError
        assert gc.get_threshold() == (THRESHOLD, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("first", [0, 2 * THRESHOLD])
def test_never_called_more_often(first: int) -> None:
    gc.set_threshold(first, 7, 8)
    with seldom():
        assert gc.get_threshold() == (first, 7, 8)
    assert gc.get_threshold() == (first, 7, 8)


def test_a_run_that_ends_and_one_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    a, seen = np.ones((8, 8), np.float32), list[int]()
    arguments = (a, a, a.copy(), 8, 8, 8, 8, 8, 8, 1.0, 0.0)
    parse = launch._program
    monkeypatch.setattr(launch, "_program", lambda *which: (seen.append(gc.get_threshold()[0]), parse(*which))[1])
    assert launch.run(0, grid=1, block=(32, 32), args=arguments).clean
    with pytest.raises(InvalidValue):
        launch.run(0, grid=1, block=(32, 32), args=arguments[:-1])
    assert (seen, gc.get_threshold()[0]) == ([THRESHOLD, THRESHOLD], 700)
