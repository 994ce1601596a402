"""Host arrays staged through a device: panels, slots and layouts, with host memory in the device's place."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import api_cases
import peakgemm as pg
import stand_in
from peakgemm.calls import panels
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
    import peakgemm.calls.host
    import peakgemm.calls.prepared

    for module in (peakgemm.calls.host, peakgemm.calls.prepared):
        monkeypatch.setattr(module.device, "here", lambda: stand_in.GPU)
    return log


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_products(device: list[tuple[Any, ...]], data: st.DataObject) -> None:
    api_cases.check_call(lambda options: data.draw(st.sampled_from(options)))


def test_rows_are_cut_and_b_goes_once(device: list[tuple[Any, ...]]) -> None:
    a, b = np.ones((300, 8), np.float32), np.ones((8, 4), np.float32)
    assert (pg.matmul(a, b) == 8).all()
    copied = sum(x[1] for x in device if x[0] == "cuMemcpyHtoDAsync_v2")
    assert copied == a.nbytes + b.nbytes
    products = [x[1] for x in device if x[0] == "product"]
    assert len(products) > 10 and sum(p.m for p in products) == 300


def test_a_column_major_operand_is_copied_as_it_lies(device: list[tuple[Any, ...]]) -> None:
    a = np.asfortranarray(np.random.default_rng(0).standard_normal((30, 8)).astype(np.float32))
    b = np.ones((8, 4), np.float32)
    assert np.allclose(pg.matmul(a, b), a @ b, atol=1e-5)
    assert {x[1].layout for x in device if x[0] == "product"} == {"TN"}


def test_broadcasts_are_copied_once(device: list[tuple[Any, ...]]) -> None:
    a = np.broadcast_to(np.ones((4, 5), np.float32), (2, 4, 5))
    bias = np.ones(3, np.float32)
    got = pg.gemm(a, np.ones((5, 3), np.float32), bias)
    assert (got == 6).all()
    copied = sum(x[1] for x in device if x[0] == "cuMemcpyHtoDAsync_v2")
    assert copied == 4 * (20 + 15 + 3)


def test_prepared_is_not_copied_again(device: list[tuple[Any, ...]]) -> None:
    a, b = np.random.default_rng(0).standard_normal((2, 6, 6)).astype(np.float32)
    for ready, call in ((pg.prepare(b), lambda x: pg.matmul(a, x)),
                        (pg.prepare(b.T), lambda x: pg.gemm(a, x, trans_b=True)),
                        (pg.prepare(b[:, 0].copy()), lambda x: pg.matmul(a, x)[:, None])):
        device.clear()
        got = call(ready)
        assert np.allclose(got, (a @ b)[:, :got.shape[1]], atol=1e-5)
        assert [x[1] for x in device if x[0] == "cuMemcpyHtoDAsync_v2"] == [144]


def test_explained(device: list[tuple[Any, ...]]) -> None:
    said = pg.explain(np.ones((40, 30), np.float32), np.ones((30, 20), np.float32).T.copy().T)
    assert said.where == "stand-in, copied there and back" and said.layout == "NT" and said.tile
