"""`Exchange`, its words and halves, between ranks that are threads; and the model that chooses a way."""
# ruff: noqa: F401, F811  (fixtures of tests/support)

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from peakgemm.errors import LaunchFailed  # noqa: E402
from peakgemm.integrations import collective, exchange  # noqa: E402
from peakgemm.integrations.overlap import Link, SharedProduct, Way, best, ranges  # noqa: E402
from thread_ranks import Ranks, threads  # noqa: E402


def whole(seed: int, *shape: int) -> Any:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


def group(world: int, rank: int) -> Any:
    return SimpleNamespace(world=world, rank=rank, link=None, gpu=None, group=None,
                           exchange=exchange.Exchange("group", 10.0))


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("chunks", [1, 2])
def test_many_calls(threads: Any, world: int, chunks: int) -> None:
    """Calls of both kinds and of growing sizes, while ranks run ahead of each other."""
    ranks = threads(world)

    def work(rank: int) -> None:
        ours = group(world, rank)
        assert ours.exchange.by_kernel
        ours.exchange.by_kernel = chunks == 1
        for i in range(8):
            if (i + rank) % 3 == 0:
                time.sleep(0.003)
            rows, k, n = 4 * (1 + i % 3) * (3000 if i == 5 else 1), 12, 8 * world
            a, b = whole(i, world * rows, k * world), whole(i + 99, k * world, n)
            rank_rows, own = slice(rank * rows, (rank + 1) * rows), slice(rank * k, (rank + 1) * k)
            got = collective.shared_product(a[rank_rows], b, ours, "ieee", scatter=False, chunks=chunks)
            assert torch.equal(got, a @ b), i
            got = collective.shared_product(a[:, own], b[own], ours, "ieee", scatter=True, chunks=chunks)
            assert torch.equal(got, (a @ b)[rank_rows]), i
            mine = torch.empty(rows * k * world + 1)[rank % 2:][:rows * k * world].view(rows, -1)  # at 16 bytes, or not
            mine.copy_(a[rank_rows])
            for head in (0, 1, rows - 1, rows):
                got = collective._by(Way(1, 0, head), mine, b, ours, "ieee", False)
                assert torch.equal(got, a @ b), (i, head)

    ranks.run(work)
    assert ranks.waited > 0 and not any(ranks.queues.values())
    assert len(ranks.shared) == 2  # the memory has grown once


def test_a_call_on_another_stream_comes_after_those_before(threads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They read what its pushes let others overwrite."""
    ordered: list[tuple[int, int]] = []

    def work(rank: int) -> None:
        pushes = exchange.Exchange("group", 10.0)
        monkeypatch.setattr(exchange.signals, "order", lambda first, second, by: ordered.append((first, second)))
        for stream in (0, 0, 77, 77, 0):
            monkeypatch.setattr(exchange.eager, "current_stream", lambda index, stream=stream: stream)
            pushes.begin(0)

    threads(1).run(work)
    assert ordered == [(0, 77), (77, 0)]


def test_a_missing_signal_is_noticed(threads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks of these tests see what goes wrong."""
    monkeypatch.setattr("thread_ranks.SECONDS", 0.3)
    ranks = threads(2)
    arrived = exchange.Exchange._arrived
    monkeypatch.setattr(exchange.Exchange, "_arrived", lambda self, at, source: arrived(self, at, source) + (
        2048 if at != self.rank else 0))  # written elsewhere

    def work(rank: int) -> None:
        ours = group(2, rank)
        for _ in range(4):
            collective.shared_product(whole(1, 4, 6), whole(2, 6, 8), ours, "ieee", scatter=False, chunks=1)

    with pytest.raises((TimeoutError, threading.BrokenBarrierError)):
        ranks.run(work)


def test_a_rank_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing(nullcontext[None]):
        cuda_stream = 5

        def __init__(self, *args: Any) -> None:
            super().__init__()

        def record(self, stream: Any) -> None:
            pass

        def query(self) -> bool:
            return False

    for name in ("Event", "Stream", "stream", "device", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, Nothing)
    written: dict[int, int] = {}
    monkeypatch.setattr(exchange.signals, "write", lambda address, value, stream: written.update({address: value}))
    watch = exchange._Watch(SimpleNamespace(  # type: ignore[arg-type]
        world=2, rank=1, device=torch.device("cpu"), timeout_s=0.1, flags=lambda rank: rank << 20))
    watch.check()
    watch.add()
    end = time.monotonic() + 10
    while len(written) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    words = (0, 4, exchange._GIVEN_UP)
    assert written == {(1 << 20) + word: exchange._RELEASED for word in words}
    with pytest.raises(LaunchFailed, match="rank 1 waited 0 s for a part of a matrix from another rank, which has"):
        watch.check()


LINK = Link(copy_us=10, copy_gbs=400, collective_us=20, collective_gbs=300, direct_us=6, direct_gbs=250, own_gbs=1000)


def test_the_model() -> None:
    def product(rows: int) -> float:
        return max(200.0, rows * 2.4)  # 8192 columns and K

    small = SharedProduct(2, 64, 4 * 8192, product, LINK).ways()
    assert [way.name for way in small] == ["plain", "direct", "overlap/1"]
    assert small[0] == Way(0, 20 + 64 * 32768 / 300e3 + 128 * 2.4)
    assert best(small) == small[1] == Way(1, 6 + 64 * 32768 / 250e3 + 128 * 2.4, 0)
    large = SharedProduct(2, 4096, 4 * 8192, product, LINK).ways()
    assert [way.name for way in large] == ["plain", "direct", *(f"head/{head}" for head in range(512, 4096, 512)),
                                           "overlap/1", "overlap/2", "overlap/4"]
    hidden = pytest.approx(2 * 4096 * 2.4 + LINK.launch_us)  # the copies take less than the head
    assert {way.head: way.us for way in large}[512] == hidden
    assert large[9].us == hidden and best(large).us == hidden
    # A slow link: what is not hidden counts, and chunks hide more.
    slow = Link(10, 10, 20, 10, 6, 10, 1000)
    found = {way.name: way.us for way in SharedProduct(2, 4096, 4 * 8192, product, slow).ways()}
    assert found["overlap/4"] < found["overlap/1"] < found["plain"]
    assert found["overlap/1"] == pytest.approx(10 + 4096 * 32768 / 10e3 + 5 + 4096 * 2.4)
    assert found["head/512"] == pytest.approx(10 + 4096 * 32768 / 10e3 + 3584 * 32.768 / 1000 + 5 + 7680 * 2.4)
    scatter = SharedProduct(2, 4096, 4 * 8192, product, LINK, scatter=True).ways()
    assert scatter[0].us == pytest.approx(8192 * 2.4 + 20 + 4096 * 32768 / 300e3)
    assert min(scatter, key=lambda way: way.us).chunks in (2, 4) and best(scatter).chunks
    assert [way.name for way in SharedProduct(2, 3, 4, product, LINK).ways()] == ["plain", "direct", "overlap/1"]


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("way", [Way(1, 0, 3), Way(1, 0, 8), Way(1, 0), Way(2, 0), Way(4, 0)], ids=lambda way: way.name)
def test_what_is_left_after_the_first_rows(world: int, way: Way) -> None:
    """A rank multiplies all rows, once; after a head the first and the last rank have one range left."""
    head = 8 if way.head is None else way.head
    for rank in range(world):
        left = ranges(world, rank, 8, way)
        first = 8 * rank + (8 - head if rank == world - 1 else 0)
        done = [*range(first, first + head), *(row for part in left for row in range(part.start, part.stop))]
        assert sorted(done) == list(range(8 * world))
        assert sum(x.own for x in left) == 8 - head and sum(x.arriving for x in left) == 8 * (world - 1)
        assert len(left) == (1 + (0 < rank < world - 1) if way.head is not None else (world - 1) * way.chunks)
