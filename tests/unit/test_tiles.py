"""Products of host arrays in tiles, on devices whose streams run as late as they may."""

from __future__ import annotations

import ctypes
import gc
import logging
import threading
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import lazy_driver
import peakgemm as pg
from lazy_driver import OUT_OF_MEMORY, Devices, each_begins, present
from peakgemm.calls import cache
from peakgemm.calls.host import multi_gpu, products, small_host, tile_queue, tiles
from peakgemm.calls.host.grid import BLOCKS, Grid, Tile, bands, cuts, grid, growing, sweeping
from peakgemm.calls.host.tile_queue import PeerPanel, TileQueue, Transfer, assign_tiles
from peakgemm.calls.request import Request
from peakgemm.errors import InvalidType, InvalidValue, LaunchFailed, OutOfMemory
from peakgemm.runtime import device, driver, lanes, pools, transfer


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "LEAST_BYTES", 512)
    monkeypatch.setattr(transfer, "threads", lambda most, devices=1: min(most, 3))


def values(rng: Any, rows: int, columns: int, layout: str = "C") -> Any:
    x = rng.integers(-4, 5, (rows, columns)).astype(np.float32)  # sums are exact, in any order
    if layout == "sliced":
        return np.repeat(x, 2, axis=1)[:, ::2]
    return np.asarray(x, order=layout)


def drawn(seed: int) -> tuple[Request, Grid, Any]:
    rng = np.random.default_rng(seed)
    m, n, k = (int(x) for x in rng.integers(1, 60, 3))
    a, b = (values(rng, *shape, str(rng.choice(["C", "F", "sliced"]))) for shape in ((m, k), (k, n)))
    out = values(rng, m, n, str(rng.choice(["C", "F", "sliced"])))
    alpha, beta = float(rng.choice([1, 2])), float(rng.choice([0, 0, 3]))
    c = None
    if beta:
        c = out if rng.random() < 0.5 else np.broadcast_to(values(rng, 1, n), (m, n))
    want = alpha * (a @ b) + (0 if c is None else beta * c)
    rows, columns = (cuts(extent, int(rng.integers(5, 40))) for extent in (m, n))
    return Request(a, b, c, out, alpha, beta), Grid(rows, columns), want


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("eager", [0.0, 0.5, 1.0])
def test_products(monkeypatch: pytest.MonkeyPatch, count: int, eager: float) -> None:
    for seed in range(12):
        with present(monkeypatch, Devices(count, eager=eager, seed=seed)) as devices:
            request, tiles, want = drawn(seed)
            done: list[int] = []
            multi_gpu.run(request, devices.gpus, tiles, done=done.append)
            assert (request.out == want).all()
            assert sorted(done) == list(range(len(tiles.rows) * len(tiles.columns)))
            assert devices.used == [0] * count
        assert devices.events == {}


def test_the_same_products_on_one_device_and_on_three(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((70, 33), (33, 90)))
    tiles, found, bits = Grid(cuts(70, 16), cuts(90, 16)), [], []
    for count in (1, 3):
        with present(monkeypatch, Devices(count)) as devices, monkeypatch.context() as patch:
            each_begins(patch, count)
            out = np.empty((70, 90), np.float32)
            multi_gpu.run(Request(a, b, out=out), devices.gpus, tiles)
            found.append(sorted(repr(problem) for _, problem in devices.problems))
            bits.append(out)
            assert len({index for index, _ in devices.problems}) == count
    assert found[0] == found[1] and (bits[0] == bits[1]).all()


def test_operands_go_to_the_devices_once_and_from_device_to_device(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.ones((64, 40), np.float32), np.ones((40, 64), np.float32)
    tiles = Grid(cuts(64, 16), cuts(64, 16))
    with present(monkeypatch, Devices(1)) as devices:
        multi_gpu.run(Request(a, b, out=np.empty((64, 64), np.float32)), devices.gpus, tiles)
        assert devices.copied == {"in": a.nbytes + b.nbytes, "out": 4 * 64 * 64, "peer": 0}
    with present(monkeypatch, Devices(2)) as devices:
        out, brought, settle = np.empty((64, 64), np.float32), threading.Event(), Transfer.set_result
        panels_there = list[Transfer]()

        def settled(self: Transfer, held: PeerPanel | None) -> None:
            settle(self, held)
            if self.device == 0 and held is not None:
                panels_there.append(self)
                if len(panels_there) == 6:
                    brought.set()

        def later(name: str) -> int:  # when the first device has two rows' panels, and all columns'
            if name == "cuMemAllocFromPoolAsync" and devices.here.index == 1:
                devices.fail = lambda name: 0
                devices.lock.release()
                assert brought.wait(20)
                devices.lock.acquire()
            return 0

        monkeypatch.setattr(Transfer, "set_result", settled)
        each_begins(monkeypatch, 2)
        devices.fail = later
        multi_gpu.run(Request(a, b, out=out), devices.gpus, tiles)
        assert (out == 40).all()
        assert devices.copied["out"] == 4 * 64 * 64
        assert devices.copied["peer"] > 0 and devices.copied["in"] < 2 * b.nbytes + a.nbytes


def test_what_a_device_has_not_enqueued_another_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By as many as there are places for results one of two devices had nothing left to do for a tenth of the time."""
    a, b, wait = np.ones((160, 8), np.float32), np.ones((8, 160), np.float32), tile_queue.wait
    cut = Grid(cuts(160, 20), cuts(160, 20))
    with present(monkeypatch, Devices(2)) as devices:
        def late(mark: Any, what: str) -> None:  # the second device's first product ends when all others have begun
            end = time.monotonic() + 20
            while devices.here.index and len(devices.problems) < 63 and time.monotonic() < end:
                time.sleep(0.002)
            wait(mark, what)

        monkeypatch.setattr(tile_queue, "wait", late)
        monkeypatch.setattr(tile_queue, "UNDER_WAY", 2)
        each_begins(monkeypatch, 2)
        out = np.empty((160, 160), np.float32)
        multi_gpu.run(Request(a, b, out=out), devices.gpus, cut)
        counts = [sum(index == each for index, _ in devices.problems) for each in (0, 1)]
        assert (out == a @ b).all() and len(cut.tiles()) == sum(counts) == 64
        assert counts[1] <= 3  # and the one that it has taken and waits with


def test_the_launching_thread_keeps_the_interpreter_and_those_that_wait_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it waits for it a dozen times a tile, or nobody copies while a thread waits for the device."""
    a, kept, let_go = np.ones((40, 40), np.float32), set[str](), set[str]()
    with present(monkeypatch, Devices(1)) as devices:
        class Library:
            def __init__(self, seen: set[str]) -> None:
                self.seen = seen

            def __getattr__(self, name: str) -> Any:
                self.seen.add(name)
                return getattr(devices, name)

        monkeypatch.setattr(driver, "library", lambda: Library(let_go))
        monkeypatch.setattr(driver, "gil_library", lambda: Library(kept))
        with lanes.lane(0):  # whose streams are made, and whose pool
            kept.clear(), let_go.clear()
        multi_gpu.run(Request(a, a, out=np.empty_like(a)), devices.gpus, Grid(cuts(40, 16), cuts(40, 16)))
    assert {"cuMemAllocFromPoolAsync", "cuStreamWaitEvent", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"} <= kept
    assert {"cuEventSynchronize", "cuStreamSynchronize"} <= let_go - kept


def test_threads_that_come_first_together_share_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory in another one than is kept could not be read by other devices."""
    calls, found = list[str](), list[int]()
    with present(monkeypatch, Devices(1)) as devices:
        def slow(name: str) -> int:
            calls.append(name)
            devices.lock.release()
            time.sleep(0.05)
            devices.lock.acquire()
            return 0

        devices.fail = slow
        threads = [threading.Thread(target=lambda: found.append(pools.pool(0))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert calls.count("cuMemPoolCreate") == 1 and len(set(found)) == 1


def test_access_waits_until_no_other_call_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread's copies and kernels were under way in the pool; till then each device brings its own panels."""
    a, b = np.ones((64, 40), np.float32), np.ones((40, 64), np.float32)
    with present(monkeypatch, Devices(2)) as devices:
        for shared in (False, True):
            for _ in range(50 if shared else 1):  # on a busy machine one device may have taken all tiles
                out = np.full((64, 64), np.nan, np.float32)
                with pools.under_way(0 if not shared else 2):  # of another device
                    multi_gpu.run(Request(a, b, out=out), devices.gpus, Grid(cuts(64, 16), cuts(64, 16)))
                assert (out == a @ b).all()
                if devices.copied["peer"]:
                    break
            assert (len(devices.granted), devices.copied["peer"] > 0) == ((2, True) if shared else (0, False))


@pytest.mark.parametrize("count", [1, 2])
def test_a_thread_that_cannot_use_its_device(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The product returned without results, or hung where there were more tiles than places."""
    a = np.ones((60, 40), np.float32)
    with present(monkeypatch, Devices(count)) as devices:
        make_current = device.make_current

        def refused(index: int) -> None:
            if threading.current_thread().name.startswith("peakgemm-drain"):
                raise LaunchFailed("GPU 0: its context cannot be made current")
            make_current(index)

        monkeypatch.setattr(device, "make_current", refused)
        with pytest.raises(LaunchFailed, match="its context cannot be made current"):
            multi_gpu.run(Request(a, a.T, out=np.empty((60, 60), np.float32)), devices.gpus,
                          Grid(cuts(60, 6), cuts(60, 6)))
        assert devices.used == [0] * count


def test_access_is_given_before_anything_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes how a whole pool is mapped; asked for with a panel, it met other devices' copies and kernels."""
    a, b, calls = np.ones((64, 40), np.float32), np.ones((40, 64), np.float32), list[str]()
    with present(monkeypatch, Devices(3)) as devices:
        devices.fail = lambda name: calls.append(name) or 0  # type: ignore[func-returns-value]
        for _ in range(2):
            multi_gpu.run(Request(a, b, out=np.empty((64, 64), np.float32)), devices.gpus,
                          Grid(cuts(64, 16), cuts(64, 16)))
    given = [i for i, name in enumerate(calls) if name == "cuMemPoolSetAccess"]
    assert len(given) == 6 and given[-1] < calls.index("cuMemcpyHtoDAsync_v2")


def test_devices_rest_before_panels_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A panel that was asked for, and whose tile another device then took, is waited for by no product: of 3,466 drawn
    products 4 copied it out of memory that was free again."""
    a, b = np.ones((64, 40), np.float32), np.ones((40, 64), np.float32)
    rest, forget, order = tiles.Worker.rest, TileQueue.forget, []
    with present(monkeypatch, Devices(2)) as devices, monkeypatch.context() as patch:
        def resting(self: Any) -> None:
            devices.enqueue(self._way.inward, "copy peer", lambda: order.append("copied"))
            rest(self)
            order.append("rested")

        patch.setattr(tiles.Worker, "rest", resting)
        patch.setattr(TileQueue, "forget", lambda self: order.append("forgotten") or forget(self))
        multi_gpu.run(Request(a, b, out=np.empty((64, 64), np.float32)), devices.gpus, Grid(cuts(64, 16), cuts(64, 16)))
    assert order == ["copied", "rested", "copied", "rested", "forgotten"]


def test_less_memory_than_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    a, b = values(rng, 512, 64), values(rng, 64, 512)
    tiles, room = Grid(cuts(512, 64), cuts(512, 64)), 150_000  # of 262,144 bytes of operands
    for count, eager in ((1, 0.0), (1, 1.0), (2, 0.0), (2, 0.7)):
        with present(monkeypatch, Devices(count, room, eager)) as devices:
            out = np.full((512, 512), np.nan, np.float32)
            multi_gpu.run(Request(a, b, out=out), devices.gpus, tiles)
            assert (out == a @ b).all()
            assert max(devices.most) <= room and devices.used == [0] * count


def test_tiles_get_smaller_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    a, b = values(rng, 300, 50), values(rng, 50, 200)
    with present(monkeypatch, Devices(1, 40_000)) as devices:
        out, done = np.full((300, 200), np.nan, np.float32), []
        multi_gpu.run(Request(a, b, out=out), devices.gpus, Grid(cuts(300, 300), cuts(200, 200)), done=done.append)
        assert (out == a @ b).all() and done == [0]
        assert len(devices.problems) > 4


def test_no_room_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.ones((8, 500), np.float32), np.ones((500, 8), np.float32)
    with present(monkeypatch, Devices(1, 1000)) as devices:
        with pytest.raises(OutOfMemory, match=r"a row of A and a column of B, 4,000 bytes, does not fit: GPU 0 has "
                                              r"1,000 of 1,000 bytes free; split the product along K"):
            multi_gpu.run(Request(a, b, out=np.empty((8, 8), np.float32)), devices.gpus)
        assert devices.used == [0]


@pytest.mark.parametrize("call", ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuEventSynchronize"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_device_that_fails_ends_all(monkeypatch: pytest.MonkeyPatch, call: str, count: int) -> None:
    a = np.ones((64, 64), np.float32)
    with present(monkeypatch, Devices(count)) as devices:
        seen: list[str] = []

        def fail(name: str) -> int:
            seen.append(name)
            return 719 if name == call and seen.count(call) > 3 else 0

        devices.fail = fail
        with pytest.raises(LaunchFailed, match="CUDA_ERROR_LAUNCH_FAILED"):
            tiles = Grid(cuts(64, 16), cuts(64, 16))
            multi_gpu.run(Request(a, a, out=np.empty((64, 64), np.float32)), devices.gpus, tiles)
        devices.fail = lambda name: 0
        gc.collect()
        assert devices.used == [0] * count


def test_the_first_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fault every call of the context fails, the waits for the lanes too: they would tell that a product has
    failed, and not which."""
    a = np.ones((64, 64), np.float32)
    with present(monkeypatch, Devices(2)) as devices:
        faulted: list[str] = []

        def fail(name: str) -> int:
            if name in ("cuEventQuery", "cuEventSynchronize") and threading.current_thread().name == "peakgemm-drain-1":
                faulted.append(name)
            return 719 * bool(faulted and devices.here.index == 1 and name in (
                "cuEventQuery", "cuEventSynchronize", "cuStreamSynchronize", "cuMemcpyDtoHAsync_v2"))

        devices.fail = fail
        with monkeypatch.context() as patch:
            each_begins(patch, 2)
            with pytest.raises(LaunchFailed, match=r"the product of rows \d+ to \d+ and columns \d+ to \d+ of C on "
                                                   "GPU 1: CUDA_ERROR_LAUNCH_FAILED"):
                multi_gpu.run(Request(a, a, out=np.empty((64, 64), np.float32)), devices.gpus,
                          Grid(cuts(64, 16), cuts(64, 16)))
        devices.fail = lambda name: 0
        gc.collect()
        assert devices.used == [0] * 2


def test_pinned_memory_is_not_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    a, b, out = values(rng, 40, 30), values(rng, 30, 50), np.empty((40, 50), np.float32)
    with present(monkeypatch, Devices(1)) as devices:
        devices.locked = [(x.ctypes.data, x.ctypes.data + x.nbytes) for x in (a, b, out)]
        multi_gpu.run(Request(a, b, out=out), devices.gpus, Grid(cuts(40, 16), cuts(50, 16)))
        assert (out == a @ b).all() and not [at for at in devices.memory if at < 0]


def test_unlike_kinds_are_said_and_dealt_by_speed(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    with present(monkeypatch, Devices(2)) as devices:
        devices.gpus[1] = replace(devices.gpus[1], name="other", sm_count=44)
        a = np.ones((96, 8), np.float32)
        multi_gpu.run(Request(a, a.T, out=np.empty((96, 96), np.float32)), devices.gpus, Grid(cuts(96, 8), cuts(96, 8)))
    assert "GPUs of unlike kinds share a product, by their speed (GPU 0: stand-in" in said[0]
    queues = assign_tiles(Grid(cuts(96, 8), cuts(96, 8)), [3, 1], [None, None])
    assert [len(queue) for queue in queues] == [108, 36]


def test_by_the_public_call(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    a, b = values(rng, 40, 50), values(rng, 50, 60)
    batch = np.stack([a] * 9)
    monkeypatch.setattr(products, "TILED_BYTES", 0)
    with present(monkeypatch, Devices(2)) as devices:
        assert (pg.matmul(a, b) == a @ b).all()
        assert {index for index, _ in devices.problems} == {0}
        for way in ("all", [0, 1], "1,0", (1,)):
            assert (pg.matmul(a, b, devices=way) == a @ b).all()
        assert devices.problems[-1][0] == 1
        assert (pg.gemm(a.T, b, a @ b, beta=-1.0, trans_a=True, devices="all") == 0).all()
        assert (pg.matmul(a, pg.prepare(b)) == a @ b).all()
        for wrong, error in (("two", InvalidValue), ([0, 0], InvalidValue), ([], InvalidType), (1.5, InvalidType),
                             ([True], InvalidType)):
            with pytest.raises(error, match="devices"):
                pg.matmul(a, b, devices=wrong)
    monkeypatch.setattr(products, "TILED_BYTES", 1 << 40)
    with present(monkeypatch, Devices(2)) as devices:
        for devices.eager in (0.0, 0.3):
            assert (pg.matmul(batch, b, devices="all") == batch @ b).all()
            assert (pg.matmul(batch, b) == batch @ b).all()
        small_host._free.clear()
    assert devices.events == {}


def test_without_a_gpu() -> None:
    a = np.ones((30, 30), np.float32)
    assert (pg.matmul(a, a, devices="all") == 30).all()


def test_cuts() -> None:
    for extent in (1, 255, 256, 1000, 5000, 16384, 30000, 100_000):
        for block in (*BLOCKS, 256):
            found = cuts(extent, block)
            assert found[0].start == 0 and found[-1].stop == extent
            assert all(x.stop == y.start for x, y in pairwise(found))
            assert sum((x.stop - x.start) % 256 != 0 for x in found) <= 1
            assert max(x.stop - x.start for x in found) < block + 256
            if len(found) > 4:
                assert max(found[0].stop, extent - found[-1].start) <= max(1024 + 256, block // 2)
    assert grid(30000, 30000, 30000) == grid(30000, 30000, 30000, 70 << 30)
    assert max(x.stop - x.start for x in grid(30000, 30000, 30000, 1 << 30).rows) < 4096
    assert len(grid(1_000_000, 64, 128).columns) == 1 and len(grid(64, 1_000_000, 128).rows) == 1


def test_orders_name_every_tile_once() -> None:
    for rows, columns in ((3, 5), (5, 3), (1, 4), (4, 1)):
        every = {(i, j) for i in range(rows) for j in range(columns)}
        blocks = range(rows), range(columns)
        for order in (growing(*blocks), *(sweeping(*blocks, height) for height in (1, 2))):
            found = list(order)
            assert len(found) == len(every) and set(found) == every
        for weights in ([1], [1, 1], [1, 3, 2], [1] * 8):
            whole = Grid(cuts(rows * 256, 256), cuts(columns * 256, 256))
            queues = assign_tiles(whole, weights, [None] * len(weights), {0})
            numbers = [tile.number for queue in queues for tile in queue]
            assert sorted(numbers) == list(range(1, rows * columns))
    assert bands([10, 10, 10, 10], [1, 3]) == [range(1), range(1, 4)]


def test_a_worker_without_tiles_takes_the_fullest_ones_last() -> None:
    tiles = [Tile(i, slice(0, 1), slice(i, i + 1)) for i in range(4)]
    deal = TileQueue([tiles[:1], tiles[1:]])
    assert [deal.take(0) for _ in range(2)] == [tiles[0], tiles[3]]
    deal.give_back(0, [tiles[3]])
    assert deal.upcoming(0) == [tiles[3]] and deal.take(1) == tiles[1]
    assert deal.finish(tiles[1]) is True
    deal.stop()
    assert deal.take(0) is None


def test_memory_that_is_lost_on_the_way(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Another library takes the memory between the question and the allocation."""
    caplog.set_level(logging.ERROR)
    rng = np.random.default_rng(5)
    a, b = values(rng, 256, 64), values(rng, 64, 256)
    with present(monkeypatch, Devices(1)) as devices:
        calls = [0]

        def fail(name: str) -> int:
            calls[0] += name == "cuMemAllocFromPoolAsync"
            refused = name == "cuMemAllocFromPoolAsync" and calls[0] > 9 and devices.used[0] > 60_000
            return OUT_OF_MEMORY if refused else 0

        devices.fail = fail
        out = np.full((256, 256), np.nan, np.float32)
        multi_gpu.run(Request(a, b, out=out), devices.gpus, Grid(cuts(256, 32), cuts(256, 32)))
        assert (out == a @ b).all()


@pytest.mark.parametrize("eager", [0.0, 1.0])
def test_small_products(monkeypatch: pytest.MonkeyPatch, eager: float) -> None:
    """Every layout, twice each, so that what is kept serves another product; into a given result as well."""
    rng = np.random.default_rng(6)
    with present(monkeypatch, Devices(1, eager=eager)) as devices:
        for _ in range(2):
            for m, n, k in ((5, 7, 3), (1, 4, 9), (30, 1, 2), (17, 33, 64)):
                a, b = values(rng, m, k), values(rng, k, n)
                for order in "CF":
                    x, y = np.asarray(a, order=order), np.asarray(b, order=order)
                    assert (pg.matmul(x, y) == a @ b).all()
                    assert (pg.gemm(x.T, y.T, alpha=2.0, trans_a=True, trans_b=True) == 2 * (a @ b)).all()
                    out = np.full((m, n), np.nan, np.float32)
                    assert pg.matmul(x, y, out=out) is out and (out == a @ b).all()
        assert len(devices.problems) == 48 and [*map(len, small_host._free.values())] == [1]
        square = values(rng, 6, 6)
        with pytest.raises(InvalidValue, match="out overlaps b"):
            pg.matmul(values(rng, 6, 6), square, out=square)
        with pytest.raises(InvalidValue, match="out"):
            pg.matmul(square, square, out=np.empty((5, 6), np.float32))
        used = devices.used[0]
        assert (pg.matmul(a[:, ::2], b[::2]) == a[:, ::2] @ b[::2]).all()  # packed by NumPy first
        devices.fail = lambda name: 719 if name == "cuMemcpyDtoHAsync_v2" else 0
        with pytest.raises(LaunchFailed):
            pg.matmul(a, b)
        devices.fail = lambda name: 0
        assert (pg.matmul(a, b) == a @ b).all() and devices.used[0] == used
        small_host._free.clear()


def test_small_products_by_odd_factors_are_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A zero's sign makes no other product, which an equal key would not tell apart; nor does each NaN a new one."""
    a, b = np.ones((3, 5), np.float32), np.ones((5, 4), np.float32)
    with present(monkeypatch, Devices(1)):
        for _ in range(3):
            for alpha in (0.0, -0.0, float("nan"), np.float32("nan")):
                got = pg.gemm(a, b, alpha=alpha)
                assert np.isnan(got).all() if np.isnan(alpha) else (got.view(np.uint32) == 0).all()
        assert len(cache.calls) == 2
        small_host._free.clear()


@pytest.mark.parametrize("eager", [0.0, 0.5])
@pytest.mark.parametrize("locked", [False, True])
def test_the_second_operand_of_a_small_product_comes_by_a_thread(monkeypatch: pytest.MonkeyPatch, eager: float,
                                                                 locked: bool) -> None:
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
        (place,) = small_host._free[0]
        assert place._copiers is not None
        devices.fail = lambda name: 719 if name == "cuMemcpyHtoDAsync_v2" else 0
        with pytest.raises(LaunchFailed):
            pg.matmul(a, b)
        devices.fail = lambda name: 0
        assert (pg.matmul(a, b) == a @ b).all() and small_host._free[0] == [place]
        place._copiers.close()
        assert not devices.events
        small_host._free.clear()


def test_nothing_is_under_way_after_a_small_product_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One operand's copy is refused; the other one's is on another stream, and its memory is the next product's."""
    monkeypatch.setattr(small_host, "SHARED_BYTES", 0)
    a, b, caller = np.ones((9, 9), np.float32), np.ones((9, 9), np.float32), threading.get_ident()
    with present(monkeypatch, Devices(1)) as devices:
        assert (pg.matmul(a, b) == 9).all()
        (place,) = small_host._free[0]
        devices.fail = lambda name: 719 * (name == "cuMemcpyHtoDAsync_v2" and threading.get_ident() == caller)
        with pytest.raises(LaunchFailed):
            pg.matmul(a, b)
        assert devices.at_rest(0)
        devices.fail = lambda name: 0
        assert (pg.matmul(a, b) == 9).all()
        assert place._copiers is not None
        place._copiers.close()
        small_host._free.clear()


def test_what_is_remembered_of_small_products_may_be_forgotten_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    class Forgetful(dict[Any, Any]):  # as another thread's `forget` between a question and the next one
        def __contains__(self, key: object) -> bool:
            found = super().__contains__(key)
            self.clear()
            return found

    a = np.ones((4, 4), np.float32)
    with present(monkeypatch, Devices(1)):
        monkeypatch.setattr(cache, "calls", forgetful := Forgetful())
        monkeypatch.setattr(small_host, "_calls", forgetful)
        for _ in range(2):
            assert (pg.matmul(a, a) == 4).all()
        small_host._free.clear()


def test_small_products_without_room_go_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    a, b = values(rng, 20, 30), values(rng, 30, 40)
    with present(monkeypatch, Devices(1, room=6 << 10)) as devices:
        assert (pg.matmul(a, b) == a @ b).all() and len(devices.problems) > 1
        assert (pg.matmul(np.stack([a] * 3), b) == a @ b).all()
        small_host._free.clear()


@pytest.mark.parametrize("eager", [0.0, 0.4])
@pytest.mark.parametrize("room", [1 << 30, 220_000])
def test_panels_are_split_once(monkeypatch: pytest.MonkeyPatch, eager: float, room: int) -> None:
    """A split is a copy here; products read the copies, on whichever stream."""
    from peakgemm.kernels import bound
    from peakgemm.kernels.emulated import product as emulated
    from peakgemm.kernels.emulated.product import PRODUCTS
    from peakgemm.selection.choose import Choice

    rng = np.random.default_rng(7)
    a, b = values(rng, 256, 64), values(rng, 64, 320, "F")
    with present(monkeypatch, Devices(1, room, eager)) as devices:
        splits = []

        class Split:
            PANELS = 256

            def __init__(self, scheme: Any, problem: Any, gpu: Any, side: str) -> None:
                self.size = 4 * problem.k * (problem.m if side == "a" else problem.n)
                self.bytes = self.PANELS + self.size
                splits.append((side, self.size))

            def launch(self, operand: int, memory: int, stream: int) -> None:
                devices.enqueue(stream, "split", lambda: ctypes.memmove(memory + 256, operand, self.size))

        class Bound:
            workspace_bytes = 64

            def __init__(self, kernel: Any, config: Any, problem: Any, gpu: Any, ready_a: int, ready_b: int) -> None:
                self._product, self._ready = lazy_driver._Product(problem, devices), (ready_a, ready_b)

            def launch(self, a: int, b: int, c: int, c0: int, workspace: int, stream: int) -> None:
                self._product.launch(*self._ready, c, c0, workspace, stream)

        kernel = PRODUCTS["fp16x3"]
        choice = Choice(kernel, kernel.default, "named", "")
        monkeypatch.setattr(tiles, "choice_for", lambda problem, gpu, precision="ieee", ready="": choice)
        monkeypatch.setattr(emulated, "SplitOperand", Split)
        monkeypatch.setattr(bound, "Bound", Bound)
        out = np.full((256, 320), np.nan, np.float32)
        multi_gpu.run(Request(a, b, out=out, precision="emulated"), devices.gpus, Grid(cuts(256, 64), cuts(320, 64)))
        assert (out == a @ b).all() and devices.used == [0] and max(devices.most) <= room
        if room == 1 << 30:
            assert sorted(splits) == sorted([("a", 4 * 64 * 64)] * 4 + [("b", 4 * 64 * 64)] * 5)


def test_tiles_by_numpy_keep_the_bits_of_reproducible_products(tmp_path: Any) -> None:
    rng = np.random.default_rng(8)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((70, 33), (33, 50)))
    want = pg.replay(a, b)
    out = np.empty_like(want)
    multi_gpu.run(Request(a, b, out=out, precision="reproducible"), [], Grid(cuts(70, 16), cuts(50, 16)))
    assert (out == want).all()
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b)
    pg.multiply_files(tmp_path / "a.npy", tmp_path / "b.npy", tmp_path / "c.npy", precision="reproducible",
                      blocks=(16,))
    assert (np.load(tmp_path / "c.npy") == want).all()


def test_panels_ahead_do_not_take_what_went_for_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were copied again each time that they had made room for it, without end."""
    rng = np.random.default_rng(9)
    a, b, calls = values(rng, 32, 64), values(rng, 64, 128), list[str]()
    with present(monkeypatch, Devices(1)) as devices:
        def fail(name: str) -> int:
            calls.append(name)
            devices.room[0] = 3 * 4 * 32 * 64  # others take the rest: three panels fit, or two and a result
            return 719 * (len(calls) > 20_000)

        out = np.full((32, 128), np.nan, np.float32)
        with monkeypatch.context() as patch:
            run = tiles.Worker.run
            patch.setattr(tiles.Worker, "run", lambda self: setattr(devices, "fail", fail) or run(self))
            multi_gpu.run(Request(a, b, out=out), devices.gpus, Grid(cuts(32, 32), cuts(128, 32)))
        assert (out == a @ b).all() and devices.used == [0]


def test_a_panel_that_was_let_go_is_brought_again_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from the device itself, which asked for access to its own memory meanwhile."""
    rng = np.random.default_rng(10)
    a, b, refused, launch = values(rng, 64, 40), values(rng, 40, 64), threading.Event(), tiles.Worker._launch
    with present(monkeypatch, Devices(2)) as devices:
        def short(self: Any, tile: Tile, slot: Any, lane: int) -> None:
            if devices.here.index and not refused.wait(20):
                pytest.fail("the first device launches nothing")
            if devices.here.index or refused.is_set():
                return launch(self, tile, slot, lane)
            refused.set()
            raise LaunchFailed("8 bytes of device memory: CUDA_ERROR_OUT_OF_MEMORY")

        monkeypatch.setattr(tiles.Worker, "_launch", short)
        each_begins(monkeypatch, 2)
        out = np.full((64, 64), np.nan, np.float32)
        multi_gpu.run(Request(a, b, out=out), devices.gpus, Grid(cuts(64, 16), cuts(64, 16)))
        assert (out == a @ b).all() and devices.used == [0, 0]


def test_a_copy_from_another_device_that_is_refused_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the driver lacked memory for it the tile was launched again, with a panel that had not come."""
    rng = np.random.default_rng(11)
    a, b, launching, launch = values(rng, 64, 40), values(rng, 40, 64), set[int](), tiles.Worker._launch
    with present(monkeypatch, Devices(2)) as devices:
        def watched(self: Any, *what: Any) -> None:
            launching.add(threading.get_ident())
            try:
                launch(self, *what)
            finally:
                launching.discard(threading.get_ident())

        def fail(name: str) -> int:
            if name != "cuMemcpyPeerAsync" or threading.get_ident() not in launching:
                return 0
            devices.fail = lambda name: 0
            return OUT_OF_MEMORY

        monkeypatch.setattr(tiles.Worker, "_launch", watched)
        monkeypatch.setattr(Transfer, "done", lambda self: False)  # so that it is copied when its tile is launched
        each_begins(monkeypatch, 2)
        devices.fail = fail
        out = np.full((64, 64), np.nan, np.float32)
        with pytest.raises(LaunchFailed, match=r"^copy of 2,560 bytes from GPU \d to GPU \d: CUDA_ERROR_OUT_OF_MEMORY"):
            multi_gpu.run(Request(a, b, out=out), devices.gpus, Grid(cuts(64, 16), cuts(64, 16)))
        assert devices.fail is not fail and devices.used == [0, 0]
