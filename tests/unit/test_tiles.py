"""Products of host arrays in tiles, on devices whose streams run as late as they may."""

from __future__ import annotations

import ctypes
import gc
import itertools
import random
import threading
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import lazy_driver
import peakgemm as pg
from lazy_driver import OUT_OF_MEMORY, Devices, await_that, each_begins, present
from peakgemm.calls.host import multi_gpu, products, results, worker
from peakgemm.calls.host.grid import BLOCKS, Grid, Tile, assign_tiles, bands, cuts, grid, growing, sweeping
from peakgemm.calls.host.tile_queue import TileQueue
from peakgemm.calls.host.worker import Worker
from peakgemm.calls.request import Request
from peakgemm.errors import InvalidType, InvalidValue, LaunchFailed, MissingComponent, OutOfMemory
from peakgemm.runtime import device, driver, lanes, pools, transfer


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "LEAST_BYTES", 512)
    monkeypatch.setattr(lanes, "threads", lambda most, devices=1: min(most, 3))


def values(rng: Any, rows: int, columns: int, layout: str = "C") -> Any:
    x = rng.integers(-4, 5, (rows, columns)).astype(np.float32)  # sums are exact, in any order
    if layout == "sliced":
        return np.repeat(x, 2, axis=1)[:, ::2]
    return np.asarray(x, order=layout)


def multiply(devices: Devices, m: int = 64, n: int = 64, k: int = 40, block: int = 16, **more: Any) -> None:
    """A product in square tiles, which must be right."""
    rng = np.random.default_rng(m)
    a, b, out = values(rng, m, k), values(rng, k, n), np.full((m, n), np.nan, np.float32)
    multi_gpu.run(Request(a, b, out=out), devices.gpus, Grid(cuts(m, block), cuts(n, block)), **more)
    assert (out == a @ b).all()


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
    a = b = 4 * 64 * 40
    out = 4 * 64 * 64
    with present(monkeypatch, Devices(1)) as devices:
        multiply(devices)
        assert devices.copied == {"in": a + b, "out": out, "peer": 0}
        assert len(devices.computing) == 2  # streams: a product's last wave leaves SMs to the next one
    with present(monkeypatch, Devices(2)) as devices:
        queues = list[TileQueue]()

        def there() -> int:
            panels = list(queues[0].panels.values())
            return sum(each.way.index == 0 and each.upload.is_enqueued for each in panels)

        def later(name: str) -> int:  # when the first device has two rows' panels, and all columns'
            if name == "cuMemAllocFromPoolAsync" and devices.here.index == 1:
                devices.fail = lambda name: 0
                devices.lock.release()
                await_that(lambda: there() >= 6)
                devices.lock.acquire()
            return 0

        monkeypatch.setattr(multi_gpu, "TileQueue", lambda *what: queues.append(TileQueue(*what)) or queues[0])
        each_begins(monkeypatch, 2)
        devices.fail = later
        multiply(devices)
        assert devices.copied["out"] == out
        assert devices.copied["peer"] > 0 and devices.copied["in"] < 2 * b + a


def test_what_a_device_has_not_enqueued_another_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By as many as there are places for results one of two devices had nothing left to do for a tenth of the time."""
    wait = results.wait
    with present(monkeypatch, Devices(2)) as devices:
        def late(mark: Any, what: str) -> None:  # the second device's first product ends when all others have begun
            if devices.here.index:
                await_that(lambda: len(devices.problems) >= 63)
            wait(mark, what)

        monkeypatch.setattr(results, "wait", late)
        monkeypatch.setattr(results, "UNDER_WAY", 2)
        each_begins(monkeypatch, 2)
        multiply(devices, 160, 160, 8, 20)
        counts = [sum(index == each for index, _ in devices.problems) for each in (0, 1)]
        assert sum(counts) == 64 and counts[1] <= 3  # and the one that it has taken and waits with


def test_the_launching_thread_keeps_the_interpreter_and_those_that_wait_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it waits for it a dozen times a tile, or nobody copies while a thread waits for the device."""
    kept, let_go = set[str](), set[str]()
    with present(monkeypatch, Devices(1)) as devices, monkeypatch.context() as patch:
        class Library:
            def __init__(self, seen: set[str]) -> None:
                self.seen = seen

            def __getattr__(self, name: str) -> Any:
                self.seen.add(name)
                return getattr(devices, name)

        patch.setattr(driver, "library", lambda: Library(let_go))
        patch.setattr(driver, "gil_library", lambda: Library(kept))
        with lanes.lane(0):  # whose streams are made, and whose pool
            kept.clear(), let_go.clear()
        multiply(devices)
    assert {"cuMemAllocFromPoolAsync", "cuStreamWaitEvent", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"} <= kept
    assert {"cuEventSynchronize", "cuStreamSynchronize"} <= let_go - kept


def test_access_waits_until_no_other_call_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread's copies and kernels were under way in the pool; till then each device brings its own panels."""
    with present(monkeypatch, Devices(2)) as devices:
        with pools.under_way(0):
            multiply(devices)
        assert (len(devices.granted), devices.copied["peer"]) == (0, 0)
        for _ in range(50):  # on a busy machine one device may have taken all tiles
            with pools.under_way(2):  # of another device
                multiply(devices)
            if devices.copied["peer"]:
                break
        assert len(devices.granted) == 2 and devices.copied["peer"] > 0


@pytest.mark.parametrize("count", [1, 2])
def test_a_thread_that_cannot_use_its_device(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The product returned without results, or hung where there were more tiles than places."""
    with present(monkeypatch, Devices(count)) as devices, monkeypatch.context() as patch:
        make_current = device.make_current

        def refused(index: int) -> None:
            if threading.current_thread().name.startswith("peakgemm-drain"):
                raise LaunchFailed("GPU 0: its context cannot be made current")
            make_current(index)

        patch.setattr(device, "make_current", refused)
        with pytest.raises(LaunchFailed, match="its context cannot be made current"):
            multiply(devices, block=6)
        assert devices.used == [0] * count


def test_access_is_given_before_anything_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """It changes how a whole pool is mapped; asked for with a panel, it met other devices' copies and kernels."""
    calls = list[str]()
    with present(monkeypatch, Devices(3)) as devices:
        devices.fail = lambda name: calls.append(name) or 0  # type: ignore[func-returns-value]
        for _ in range(2):
            multiply(devices)
    given = [i for i, name in enumerate(calls) if name == "cuMemPoolSetAccess"]
    assert len(given) == 6 and given[-1] < calls.index("cuMemcpyHtoDAsync_v2")


def test_devices_rest_before_panels_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A panel that was asked for, and whose tile another device then took, is waited for by no product: of 3,466 drawn
    products 4 copied it out of memory that was free again."""
    rest, forget, order = Worker.rest, TileQueue.forget, []
    with present(monkeypatch, Devices(2)) as devices, monkeypatch.context() as patch:
        def resting(self: Any) -> None:
            devices.enqueue(self._way.inward, "copy peer", lambda: order.append("copied"))
            rest(self)
            order.append("rested")

        patch.setattr(Worker, "rest", resting)
        patch.setattr(TileQueue, "forget", lambda self: order.append("forgotten") or forget(self))
        multiply(devices)
    assert order == ["copied", "rested", "copied", "rested", "forgotten"]


@pytest.mark.parametrize(("count", "eager"), [(1, 0.0), (1, 1.0), (2, 0.0), (2, 0.7)])
def test_less_memory_than_operands(monkeypatch: pytest.MonkeyPatch, count: int, eager: float) -> None:
    with present(monkeypatch, Devices(count, 150_000, eager)) as devices:  # bytes; the operands have 262,144
        multiply(devices, 512, 512, 64, 64)
        assert max(devices.most) <= 150_000 and devices.used == [0] * count


def test_tiles_get_smaller_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    done = list[int]()
    with present(monkeypatch, Devices(1, 40_000)) as devices:
        multiply(devices, 300, 200, 50, 300, done=done.append)
        assert done == [0] and len(devices.problems) > 4


def test_no_room_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with present(monkeypatch, Devices(1, 1000)) as devices:
        with pytest.raises(OutOfMemory, match=r"a row of A and a column of B, 4,000 bytes, does not fit: GPU 0 has "
                                              r"1,000 of 1,000 bytes free; split the product along K"):
            multiply(devices, 8, 8, 500)
        assert devices.used == [0]


@pytest.mark.parametrize("call", ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuEventSynchronize"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_device_that_fails_ends_all(monkeypatch: pytest.MonkeyPatch, call: str, count: int) -> None:
    with present(monkeypatch, Devices(count)) as devices:
        calls = itertools.count()
        devices.fail = lambda name: 719 * (name == call and next(calls) > 2)
        with pytest.raises(LaunchFailed, match="CUDA_ERROR_LAUNCH_FAILED"):
            multiply(devices)
        devices.fail = lambda name: 0
        gc.collect()
        assert devices.used == [0] * count


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("call", ["cuMemAllocFromPoolAsync", "cuEventRecord", "cuStreamWaitEvent"])
def test_an_interrupt_ends_all(monkeypatch: pytest.MonkeyPatch, call: str, count: int) -> None:
    caller = threading.get_ident()
    with present(monkeypatch, Devices(count)) as devices:
        calls = itertools.count()

        def interrupted(name: str) -> int:
            if name == call and threading.get_ident() == caller and next(calls) == 2:
                raise KeyboardInterrupt
            return 0

        devices.fail = interrupted
        with pytest.raises(KeyboardInterrupt):
            multiply(devices)
        gc.collect()
        assert devices.used == [0] * count
        multiply(devices)


@pytest.mark.parametrize("code", [OUT_OF_MEMORY, 719])
@pytest.mark.parametrize("call", ["", "cuMemAllocFromPoolAsync"])
def test_calls_that_are_refused_at_random(monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    """A product is right or an error; none hangs, and nothing is left on the devices."""
    never = ("cuMemFreeAsync", "cuEventDestroy_v2", "cuMemFreeHost", "cuMemHostGetFlags", "cuGetErrorName",
             "cuGetErrorString")
    for seed in range(8):
        chance, (request, tiles, want) = random.Random(seed), drawn(seed)
        with present(monkeypatch, Devices(1 + seed % 3, chance.choice([1 << 40, 30_000]), 0.5, seed)) as devices:
            devices.fail = lambda name: code * (name in (call or name,) and name not in never
                                                and chance.random() < 0.02)  # noqa: B023
            with suppress(LaunchFailed):
                multi_gpu.run(request, devices.gpus, tiles)
                assert (request.out == want).all()
            devices.fail = lambda name: 0
            gc.collect()
            assert devices.used == [0] * len(devices.gpus)


def test_the_first_error_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fault every call of the context fails, the waits for the lanes too: they would tell that a product has
    failed, and not which."""
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
                multiply(devices)
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
        for way in (None, 0, 1, "all"):  # of which only the first device has what was prepared
            assert (pg.matmul(a, pg.prepare(b), devices=way) == a @ b).all()
    monkeypatch.setattr(products, "TILED_BYTES", 1 << 40)
    with present(monkeypatch, Devices(2)) as devices:
        for devices.eager in (0.0, 0.3):
            assert (pg.matmul(batch, b, devices="all") == batch @ b).all()
            assert (pg.matmul(batch, b) == batch @ b).all()
    assert devices.events == {}


@pytest.mark.parametrize(("names", "error"), [
    ("two", InvalidValue), ([0, 0], InvalidValue), ([], InvalidType), (1.5, InvalidType), ([True], InvalidType),
    (True, InvalidType), (np.array(0), InvalidType), ({}, InvalidType), (9, MissingComponent)])
def test_devices_that_are_none(names: Any, error: type[Exception]) -> None:
    a = np.ones((30, 30), np.float32)
    with pytest.raises(error, match=r"devices|GPU"):
        pg.matmul(a, a, devices=names)
    assert (pg.matmul(a, a, devices="all") == 30).all()  # with a GPU or without


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
    done = list[int]()
    deal = TileQueue([tiles[:1], tiles[1:]], done.append)
    assert [deal.take(0) for _ in range(2)] == [tiles[0], tiles[3]]
    deal.give_back(0, [tiles[3]])
    assert deal.upcoming(0) == [tiles[3]] and deal.take(1) == tiles[1]
    deal.finish(tiles[1])
    assert done == [1]
    first, second = LaunchFailed("an allocation"), LaunchFailed("the product")
    deal.fail(first)
    deal.fail(second, of_result=True)
    assert deal.take(0) is None and deal.error is second


def test_memory_that_is_lost_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another library takes the memory between the question and the allocation."""
    with present(monkeypatch, Devices(1)) as devices:
        calls = itertools.count()
        devices.fail = lambda name: OUT_OF_MEMORY * (name == "cuMemAllocFromPoolAsync" and next(calls) > 8
                                                     and devices.used[0] > 60_000)
        multiply(devices, 160, 160, 64, 32)


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
        monkeypatch.setattr(worker, "choice_for", lambda problem, gpu, precision="ieee", ready="": choice)
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
    with present(monkeypatch, Devices(1)) as devices, monkeypatch.context() as patch:
        run, calls = Worker.run, itertools.count()

        def fail(name: str) -> int:
            devices.room[0] = 3 * 4 * 32 * 64  # others take the rest: three panels fit, or two and a result
            return 719 * (next(calls) > 20_000)

        patch.setattr(Worker, "run", lambda self: setattr(devices, "fail", fail) or run(self))
        multiply(devices, 32, 128, 64, 32)
        assert devices.used == [0]


def test_a_panel_that_was_let_go_is_brought_again_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from the device itself, which asked for access to its own memory meanwhile."""
    refused, launch = threading.Event(), Worker._launch
    with present(monkeypatch, Devices(2)) as devices:
        def short(self: Any, tile: Tile, slot: Any) -> None:
            if devices.here.index and not refused.wait(20):
                pytest.fail("the first device launches nothing")
            if devices.here.index or refused.is_set():
                return launch(self, tile, slot)
            refused.set()
            raise LaunchFailed("8 bytes of device memory: CUDA_ERROR_OUT_OF_MEMORY")

        monkeypatch.setattr(Worker, "_launch", short)
        each_begins(monkeypatch, 2)
        multiply(devices)
        assert devices.used == [0, 0]


def test_a_copy_from_another_device_that_is_refused_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the driver lacked memory for it the tile was launched again, with a panel that had not come."""
    launching, launch = set[int](), Worker._launch
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

        monkeypatch.setattr(Worker, "_launch", watched)
        monkeypatch.setattr(transfer.Upload, "is_enqueued", False)  # so that it is copied when its tile is launched
        each_begins(monkeypatch, 2)
        devices.fail = fail
        with pytest.raises(LaunchFailed, match=r"^copy of 2,560 bytes from GPU \d to GPU \d: CUDA_ERROR_OUT_OF_MEMORY"):
            multiply(devices)
        assert devices.fail is not fail and devices.used == [0, 0]
