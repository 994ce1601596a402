"""Small products of host arrays, in one launch, on devices whose streams run as late as they may."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest

import peakgemm as pg
from lazy_driver import Devices, present
from peakgemm.calls import launch
from peakgemm.calls.host import small_host
from peakgemm.errors import InvalidValue, LaunchFailed


def values(rng: Any, rows: int, columns: int) -> Any:
    return rng.integers(-4, 5, (rows, columns)).astype(np.float32)  # sums are exact, in any order


@pytest.mark.parametrize("eager", [0.0, 1.0])
def test_layouts_and_results(monkeypatch: pytest.MonkeyPatch, eager: float) -> None:
    """Every layout, twice each, so that what is kept serves another product; into a given result as well."""
    rng = np.random.default_rng(6)
    with present(monkeypatch, Devices(1, eager=eager)) as devices:
        for _, (m, n, k), order in itertools.product(range(2), ((5, 7, 3), (1, 4, 9), (30, 1, 2), (17, 33, 64)), "CF"):
            a, b = (np.asarray(values(rng, *shape), order=order) for shape in ((m, k), (k, n)))
            assert (pg.matmul(a, b) == a @ b).all()
            assert (pg.gemm(a.T, b.T, alpha=2.0, trans_a=True, trans_b=True) == 2 * (a @ b)).all()
            out = np.full((m, n), np.nan, np.float32)
            assert pg.matmul(a, b, out=out) is out and (out == a @ b).all()
        assert len(devices.problems) == 48 and len(small_host._SCRATCH.free[0]) == 1
        assert (pg.matmul(a[:, ::2], b[::2]) == a[:, ::2] @ b[::2]).all()  # packed by NumPy first
        square = values(rng, 6, 6)
        for wrong, says in ((square, "out overlaps b"), (np.empty((5, 6), np.float32), "out")):
            with pytest.raises(InvalidValue, match=says):
                pg.matmul(values(rng, 6, 6), square, out=wrong)


def test_odd_factors_are_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A zero's sign makes no other product, which an equal key would not tell apart; nor does each NaN a new one."""
    a, b = np.ones((3, 5), np.float32), np.ones((5, 4), np.float32)
    with present(monkeypatch, Devices(1)):
        for alpha in 3 * (0.0, -0.0, float("nan"), np.float32("nan")):
            got = pg.gemm(a, b, alpha=alpha)
            assert np.isnan(got).all() if np.isnan(alpha) else (got.view(np.uint32) == 0).all()
        assert len(launch.calls) == 2


@pytest.mark.parametrize("eager", [0.0, 0.5])
@pytest.mark.parametrize("locked", [False, True])
def test_the_second_operand_comes_by_a_thread(monkeypatch: pytest.MonkeyPatch, eager: float, locked: bool) -> None:
    monkeypatch.setattr(small_host, "SHARED_BYTES", 8 << 10)
    monkeypatch.setattr(small_host, "LEAST_BYTES", 4 << 10)
    rng = np.random.default_rng(7)
    with present(monkeypatch, Devices(1, eager=eager)) as devices:
        for size in (8, 70, 9, 60):
            a, b = values(rng, size, size), values(rng, size, size)
            if locked:
                devices.locked.append((b.ctypes.data, b.ctypes.data + b.nbytes))
            for x, y in ((a, b), (a.T, b.T)):
                assert (pg.matmul(x, y) == x @ y).all()
        assert small_host._SCRATCH.free[0][0]._uploader is not None
    assert not devices.events


@pytest.mark.parametrize("shared", [0, 1 << 20])
@pytest.mark.parametrize("call", ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"])
@pytest.mark.parametrize("caller", [True, False])
def test_nothing_is_under_way_after_a_failure(monkeypatch: pytest.MonkeyPatch, shared: int, call: str,
                                              caller: bool) -> None:
    """Where one operand's copy is refused the other one's is on another stream, and its memory is the next product's.
    ``caller``: the calling thread's copies alone are refused."""
    monkeypatch.setattr(small_host, "SHARED_BYTES", shared)
    a, b, thread = np.ones((9, 9), np.float32), np.ones((9, 9), np.float32), threading.get_ident()
    with present(monkeypatch, Devices(1)) as devices:
        assert (pg.matmul(a, b) == 9).all()
        kept, used = list(small_host._SCRATCH.free[0]), list(devices.used)
        devices.fail = lambda name: 719 * (name == call and (not caller or threading.get_ident() == thread))
        with pytest.raises(LaunchFailed):
            pg.matmul(a, b)
        assert devices.at_rest(0)
        devices.fail = lambda name: 0
        assert (pg.matmul(a, b) == 9).all() and small_host._SCRATCH.free[0] == kept and devices.used == used


def test_what_is_remembered_may_be_forgotten_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(dict[Any, Any]):  # as another thread's `forget` between a question and the next one
        def __contains__(self, key: object) -> bool:
            known = super().__contains__(key)
            self.clear()
            return known

    a = np.ones((4, 4), np.float32)
    with present(monkeypatch, Devices(1)):
        monkeypatch.setattr(small_host, "_calls", Forgetful())
        for _ in range(2):
            assert (pg.matmul(a, a) == 4).all()


def test_without_room_they_go_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    a, b = values(rng, 20, 30), values(rng, 30, 40)
    with present(monkeypatch, Devices(1, room=6 << 10)) as devices:
        assert (pg.matmul(a, b) == a @ b).all() and len(devices.problems) > 1
        assert (pg.matmul(np.stack([a] * 3), b) == a @ b).all()
