"""Host arrays staged through a device: panels, slots and layouts, with host memory in the device's place."""
# ruff: noqa: F401, F811  (fixtures of tests/support)

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import api_cases
import peakgemm as pg
from host_memory import device


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
