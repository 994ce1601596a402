"""Host arrays of any strides, and batches of them: in one launch or in tiles, on devices that run late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import api_cases
import peakgemm as pg
from lazy_driver import Devices, each_begins, present
from peakgemm.calls.host import grid, multi_gpu, products, small_host
from peakgemm.calls.host.grid import batch_grid
from peakgemm.calls.request import Request
from peakgemm.errors import InvalidValue
from peakgemm.runtime import lanes, transfer


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "LEAST_BYTES", 512)
    monkeypatch.setattr(lanes, "threads", lambda most, devices=1: min(most, 3))
    monkeypatch.setattr(grid, "MOVED_BYTES", 1000)
    monkeypatch.setattr(small_host, "multiply", lambda *args: None)  # which has tests of its own


@pytest.fixture(params=["one launch", "tiles"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Devices]:
    monkeypatch.setattr(products, "TILED_BYTES", 0 if request.param == "tiles" else 1 << 40)
    with present(monkeypatch, Devices(1, eager=0.3)) as devices:
        yield devices


def integers(rng: Any, shape: tuple[int, ...]) -> Any:
    return rng.integers(-4, 5, shape).astype(np.float32)  # sums are exact, in any order


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_products(device: Devices, data: st.DataObject) -> None:
    api_cases.check_call(lambda options: data.draw(st.sampled_from(options)))


def test_what_is_copied(device: Devices) -> None:
    """Operands as they lie, a broadcast once, a prepared operand when it is prepared, and nothing that is not read."""
    rng = np.random.default_rng(0)
    a, b, batch = integers(rng, (30, 8)), integers(rng, (8, 4)), integers(rng, (3, 9, 4, 8))
    wide, row, hot = np.broadcast_to(a, (2, 30, 8)), integers(rng, (4,)), np.full((3, 4, 4), np.nan, np.float32)
    ready = {x: pg.prepare(y) for x, y in {"b": b, "b.T": b.T, "column": b[:, 0].copy()}.items()}
    many, cs = (integers(rng, shape) for shape in ((3, 1, 8, 5), (4, 4)))
    ready |= {"many": pg.prepare(many), "many.T": pg.prepare(np.swapaxes(many, -1, -2))}
    for call, want, copied in (
            (lambda: pg.matmul(np.asfortranarray(a), b), a @ b, a.size + b.size),
            (lambda: pg.gemm(wide, b, row), wide @ b + row, a.size + b.size + row.size),
            (lambda: pg.matmul(a, ready["b"]), a @ b, a.size),
            (lambda: pg.gemm(a, ready["b.T"], trans_b=True), a @ b, a.size),
            (lambda: pg.matmul(a, ready["column"]), a @ b[:, 0], a.size),
            (lambda: pg.matmul(batch, ready["b"]), batch @ b, batch.size),
            (lambda: pg.matmul(batch, ready["many"]), batch @ many, batch.size),
            (lambda: pg.gemm(batch, ready["many.T"], trans_b=True), batch @ many, batch.size),
            (lambda: pg.gemm(hot, hot, cs, alpha=0.0, beta=2.0), np.stack([2 * cs] * 3), 0),
            (lambda: pg.matmul(hot[..., :0], hot[:, :0]), 0 * np.ones((3, 4, 4)), 0)):
        device.copied["in"] = 0
        got = call()
        assert (got == want).all() and got.shape == want.shape
        assert device.copied["in"] == 4 * copied, copied
    assert "TN" in {problem.layout for _, problem in device.problems}
    said = pg.explain(np.ones((40, 30), np.float32), np.ones((30, 20), np.float32).T.copy().T)
    assert said.where == "stand-in, copied there and back" and said.layout == "NT" and said.tile


def test_matrices_of_a_batch_share_launches_and_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.ones((300, 2, 8), np.float32), np.ones((8, 4), np.float32)
    with present(monkeypatch, Devices(1)) as devices:
        out = np.empty((300, 2, 4), np.float32)
        multi_gpu.run(Request(a, b, out=out), devices.gpus)
        assert (out == 8).all() and devices.copied["in"] == a.nbytes + b.nbytes
        assert len(devices.problems) == 30  # of 10 matrices, each of which moves 96 bytes
        both = np.stack([np.ones((40, 5, 2, 8), np.float32)] * 3)
        devices.problems.clear()
        out = np.empty((3, 40, 5, 2, 4), np.float32)
        multi_gpu.run(Request(both, np.broadcast_to(b, (40, 5, 8, 4)), out=out), devices.gpus)
        assert (out == 8).all() and len(devices.problems) == 60  # 2 of 40 together


def drawn(seed: int) -> tuple[Request, Any]:
    rng = np.random.default_rng(seed)
    batch = tuple(int(x) for x in rng.integers(1, 6, rng.integers(1, 4)))
    m, n, k = (int(x) for x in rng.integers(1, 20, 3))

    def operand(rows: int, columns: int) -> Any:
        own = tuple(size if rng.random() < 0.7 else 1 for size in batch)[rng.integers(0, len(batch) + 1):]
        x = integers(rng, (*own, rows, columns))
        return np.asfortranarray(x) if rng.random() < 0.3 else x

    a, b = operand(m, k), operand(k, n)
    out = np.full((*batch, m, n), np.nan, np.float32)
    beta, c = 0.0, None
    if rng.random() < 0.5:
        beta, c = 2.0, np.broadcast_to(integers(rng, (m, n) if rng.random() < 0.5 else (1, n)), out.shape)
    want = np.broadcast_to(a @ b, out.shape) + (0 if c is None else beta * c)
    return Request(a, b, c, out, 1.0, beta), want


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("eager", [0.0, 0.5])
@pytest.mark.parametrize("room", [1 << 40, 60_000])
def test_batches(monkeypatch: pytest.MonkeyPatch, count: int, eager: float, room: int) -> None:
    """In groups, of which some have less room than they would take."""
    monkeypatch.setattr(multi_gpu, "KEPT_BYTES", 3000)
    for seed in range(12):
        request, want = drawn(seed)
        monkeypatch.setattr(grid, "MOVED_BYTES", (1, 1000, 5000, 1 << 30)[seed % 4])
        with present(monkeypatch, Devices(count, room, eager, seed)) as devices:
            done: list[int] = []
            multi_gpu.run(request, devices.gpus, done=done.append)
            assert (request.out == want).all() and sorted(done) == list(range(len(done)))
            assert devices.used == [0] * count and max(devices.most) <= room
        assert devices.events == {}


def test_devices_share_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    a, b = integers(rng, (40, 6, 7)), integers(rng, (40, 7, 5))
    problems = []
    for count in (1, 3):
        with present(monkeypatch, Devices(count)) as devices, monkeypatch.context() as patch:
            each_begins(patch, count)
            out = np.empty((40, 6, 5), np.float32)
            multi_gpu.run(Request(a, b, out=out), devices.gpus)
            assert (out == a @ b).all() and {index for index, _ in devices.problems} == set(range(count))
            assert devices.copied["out"] == out.nbytes and devices.copied["peer"] == 0
            problems.append(sorted(repr(problem) for _, problem in devices.problems))
    assert problems[0] == problems[1]  # so that the bits are the same


def test_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "MOVED_BYTES", 64 << 20)
    whole = batch_grid((64,), 1024, 1024, 1024, 12 << 20)
    assert [x.stop - x.start for (x,) in whole.groups] == [5] * 12 + [4] and whole.largest == (5, 1024, 1024)
    assert [half.matrices for half in whole.tile(0, 0, 0).halves()] == [(slice(0, 2),), (slice(2, 5),)]
    large = batch_grid((2, 3), 8192, 8192, 8192, 768 << 20)
    cut = batch_grid((2, 3), 8192, 8192, 8192, 768 << 20, 1 << 30)  # of memory
    assert len(large.tiles()) == len(large.groups) == len(cut.groups) == 6 and large.largest == (1, 8192, 8192)
    for each in (whole, large, cut):
        count = len(each.groups) * len(each.rows) * len(each.columns)
        assert [tile.number for tile in each.tiles()] == list(range(count))
    few = batch_grid((2,), 2048, 2048, 2048, 48 << 20)
    assert few.groups == ((slice(0, 1),), (slice(1, 2),)) and len(few.rows) == 2 and len(cut.rows) > 1


def test_a_batch_that_a_prepared_operand_does_not_fit(device: Devices) -> None:
    """Its strides are those of the array it was made of; with a broadcast in between they do not merge."""
    a = np.ones((2, 3, 2, 3, 2, 4, 5), np.float32)
    b = np.ones((2, 1, 2, 1, 2, 5, 4), np.float32)
    assert (pg.matmul(a, b) == 5).all()
    with pytest.raises(InvalidValue, match="is prepared in a layout that this batch cannot use"):
        pg.matmul(a, pg.prepare(b))
