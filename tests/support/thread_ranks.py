"""Ranks that are threads, with symmetric memory that is NumPy's: for `exchange.Exchange` without a GPU.

A rank's current stream is its thread. Its side stream is a queue that runs when something waits for it, no sooner; so a
signal that is missing, or a wait for the wrong one, shows as NaN or as a time-out.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from peakgemm.calls import eager
from peakgemm.integrations import exchange
from peakgemm.kernels.exchange import all_gather
from peakgemm.runtime import signals

SECONDS = 20.0


class Ranks:
    """``world`` ranks and what they share."""

    def __init__(self, world: int) -> None:
        self.world, self.here = world, threading.local()
        self.barrier = threading.Barrier(world, timeout=SECONDS)
        self.lock = threading.RLock()
        self.queues: dict[int, deque[Callable[[], bool]]] = {}
        self.shared: dict[int, list[Any]] = {}
        self.rounds = [0] * world
        self.waited = 0

    # Streams: 0 is the thread itself; the others are queues of operations that say whether they could be done ------
    def do(self, stream: int, what: Callable[[], bool]) -> None:
        if stream:
            with self.lock:
                self.queues[stream].append(what)
            return
        for _ in range(int(SECONDS / 1e-3)):
            with self.lock:
                if what():
                    return
                self.waited += 1
                for queue in list(self.queues.values()):
                    while queue and queue[0]():
                        queue.popleft()
            threading.Event().wait(1e-3)
        raise TimeoutError("a signal never came")

    def drain(self, stream: int) -> None:
        """Wait for a side stream."""
        self.do(0, lambda: not self.queues[stream])

    # The driver's calls -------------------------------------------------------------------------------------------
    def write(self, address: int, value: int, stream: int) -> None:
        def store() -> bool:
            ctypes.c_int.from_address(address).value = value
            return True
        self.do(stream, store)

    def wait(self, address: int, value: int, stream: int) -> None:
        self.do(stream, lambda: ctypes.c_int.from_address(address).value >= value)

    def copy(self, to: int, source: int, size: int, stream: int) -> None:
        def move() -> bool:
            ctypes.memmove(to, source, size)
            return True
        self.do(stream, move)

    def order(self, first: int, second: int, by: Any) -> None:
        if first and not second:
            self.drain(first)

    def all_gather(self, gpu: Any, size: int, rank: int, places: all_gather.Places) -> Any:
        """The kernel, with one block."""
        def add(address: int) -> None:
            ctypes.c_uint.from_address(address).value += 1

        def enqueue(a: int, b: int, c0: int, c: int, partial: int, stream: int) -> None:
            def store() -> bool:
                for to, arrived in zip(places.to, places.arrived, strict=True):
                    ctypes.memmove(to, a, size)
                    if arrived != places.arrived[rank]:
                        add(arrived)
                return True
            self.do(stream, store)
            wanted = ctypes.c_uint.from_address(places.expected).value + 1
            for other in range(self.world):
                if other != rank:
                    self.do(stream, lambda other=other: (
                        ctypes.c_uint.from_address(places.words + 4 * other).value >= wanted))
            ctypes.c_uint.from_address(places.expected).value = wanted

        return SimpleNamespace(enqueue=enqueue)

    # torch's symmetric memory ---------------------------------------------------------------------------------------
    def empty(self, size: int, dtype: Any, device: Any) -> Any:
        return torch.full((size // 4,), float("nan")).view(torch.uint8)

    def rendezvous(self, memory: Any, group: Any) -> Any:
        rank = self.here.rank
        with self.lock:
            mine = self.shared.setdefault(self.rounds[rank], [None] * self.world)
            mine[rank] = memory
            self.rounds[rank] += 1
        self.barrier.wait()
        return SimpleNamespace(get_buffer=lambda other, shape, dtype: mine[other])

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """``work(rank)`` in a thread for each rank; what they return, or an error."""
        def each(rank: int) -> Any:
            self.here.rank = rank
            try:
                return work(rank)
            except BaseException:
                self.barrier.abort()
                raise

        with ThreadPoolExecutor(self.world) as pool:
            made = [pool.submit(each, rank) for rank in range(self.world)]
        errors = [error for future in made if (error := future.exception())]
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error  # those that only waited for the rank that failed come last
        return [future.result() for future in made]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Ranks]:
    """Makes ``world`` ranks, in whose threads an `Exchange` can be made and used."""
    def make(world: int) -> Ranks:
        ranks = Ranks(world)
        handles = iter(range(1, 1000))

        def stream(*args: Any, **more: Any) -> Any:
            with ranks.lock:
                handle = next(handles)
                ranks.queues[handle] = deque()
            return SimpleNamespace(cuda_stream=handle)

        import torch.distributed._symmetric_memory as symmetric

        quiet = SimpleNamespace(check=lambda: None, add=lambda: None)
        for module, stand_ins in (
                (torch.cuda, {"Stream": stream, "current_stream": lambda device=None: SimpleNamespace(cuda_stream=0),
                              "current_device": lambda: ranks.here.rank, "synchronize": lambda device=None: None,
                              "is_current_stream_capturing": lambda: False}),
                (symmetric, {"empty": ranks.empty, "rendezvous": ranks.rendezvous}),
                (signals, {"mark": lambda stream: None, **{name: getattr(ranks, name) for name in (
                    "write", "wait", "copy", "order")}}),
                (all_gather, {"compiled": lambda arch: None, "launcher": ranks.all_gather}),
                (eager, {"current_stream": lambda index: 0}),
                (exchange, {"require": lambda index: SimpleNamespace(arch="sm_90"), "_Watch": lambda *args: quiet,
                            "dist": SimpleNamespace(get_world_size=lambda group=None: world,
                                                    get_rank=lambda group=None: ranks.here.rank,
                                                    barrier=lambda group=None: ranks.barrier.wait())})):
            for name, stand_in in stand_ins.items():
                monkeypatch.setattr(module, name, stand_in)
        return ranks
    return make
