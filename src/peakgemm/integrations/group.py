"""What `peakgemm.distributed` knows of a process group: how its ranks reach each other, and how fast."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ..arrays.base import FLOAT
from ..errors import MissingComponent
from ..problem import Problem
from ..runtime import device
from ..runtime.device import Gpu
from .exchange import Exchange
from .overlap import PLAIN, Link, SharedProduct, Way, best

log = logging.getLogger("peakgemm")
_PROBE_BYTES = 32 << 20
_ROUNDS = 10
_SLEEP_CYCLES = 4_000_000  # some 2 ms


class Group:
    """A process group with its exchange and its link; made once for each, by a collective call.

    Attributes:
        group, world, rank: torch's.
        link: measured when the group is first used, alike on all ranks; None: nothing is overlapped.
        gpu: this rank's.
        exchange: None where ranks cannot reach each other's memory.
    """

    def __init__(self, group: dist.ProcessGroup, timeout_s: float) -> None:
        self.group, self.world, self.rank = group, dist.get_world_size(group), dist.get_rank(group)
        self.link: Link | None = None
        self.exchange: Exchange | None = None
        self.gpu: Gpu | None = None
        self._chosen: dict[Any, Way] = {}  # to ask the model takes longer than a small product
        if "nccl" not in str(dist.get_backend_config(group)):
            return
        self.gpu = device.require(torch.cuda.current_device())
        exchange: Exchange | None = None
        try:
            exchange = Exchange(group, timeout_s)
        except Exception as error:  # of many kinds: torch's, by its version and the machine
            log.info("peakgemm.distributed: rank %d: no symmetric memory (%s)", self.rank, error)
        every: list[Any] = [None] * self.world
        dist.all_gather_object(every, ((self.gpu.name, self.gpu.sm_count), exchange is not None,
                                       exchange is not None and exchange.by_kernel), group=group)
        kinds, reached, by_kernel = zip(*every, strict=True)
        if exchange is not None and all(reached) and len(set(kinds)) == 1:
            exchange.by_kernel = all(by_kernel)
            self.exchange, self.link = exchange, self._measured(exchange)
        elif self.rank == 0:
            why = ("the GPUs are of unlike kinds: " + ", ".join(name for name, _ in kinds) if len(set(kinds)) > 1 else
                   "the GPUs do not reach each other's memory")
            log.warning("peakgemm.distributed: products and collectives do not overlap, as %s", why)

    def _measured(self, exchange: Exchange) -> Link:
        """Times of copies and all-gathers on the device, the slowest of all ranks."""
        few, many = 256, _PROBE_BYTES // FLOAT  # floats: what a call costs besides the bytes shows, or does not
        x, every = (torch.zeros(size, device="cuda") for size in (2 * many, self.world * many))
        others = [rank for rank in range(self.world) if rank != self.rank]

        def copies(floats: int) -> None:
            exchange.begin(self.world * floats)
            for other in others:
                exchange.push(other, self.rank * floats, x[:floats])
            for other in others:
                exchange.pull(other, other * floats, (1, floats))
            exchange.end()

        def gather(floats: int) -> None:
            dist.all_gather_into_tensor(every[:self.world * floats], x[:floats], group=self.group)

        def direct(floats: int) -> None:
            exchange.gather(x[None, :floats])

        calls = [partial(copies, few), partial(copies, many), partial(copies, 2 * many), partial(gather, few),
                 partial(gather, many), partial(direct, few), partial(direct, many // 4),
                 partial(every[:many].copy_, x[:many])]
        times = torch.tensor([self._timed(call) for call in calls], device="cuda")
        dist.all_reduce(times, dist.ReduceOp.MAX, group=self.group)
        copy_few, copy_many, copy_more, gather_few, gather_many, direct_few, direct_many, own = times.tolist()

        def gbs(floats: float, us: float) -> float:
            return 1e-3 * FLOAT * floats / max(us, 1e-3)

        received = len(others) * many
        return Link(copy_few, gbs(received, copy_more - copy_many), gather_few,
                    gbs(received, gather_many - gather_few), direct_few, gbs(received / 4, direct_many - direct_few),
                    gbs(many, own))

    def _timed(self, once: Callable[[], Any]) -> float:
        """Microseconds on the device, which begins when the host has enqueued all rounds: what the host takes is hidden
        behind products, as it is here. The least of three, for others may use the link."""
        together = torch.zeros(1, device="cuda")
        best = float("inf")
        for _ in range(3):
            once()
            torch.cuda.synchronize()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            dist.all_reduce(together, group=self.group)  # devices begin together
            torch.cuda._sleep(_SLEEP_CYCLES)
            start.record()
            for _ in range(_ROUNDS):
                once()
            end.record()
            end.synchronize()
            best = min(best, float(1e3 * start.elapsed_time(end) / _ROUNDS))
        return best

    def ways(self, rows: int, k: int, n: int, precision: str, scatter: bool) -> list[Way]:
        """How a product with ``(k, n)`` may run, of which each rank has so many rows. Its times are those of packed
        matrices: ranks must agree, whatever the strides of each."""
        if self.link is None or self.gpu is None or self.world == 1:
            return [PLAIN]
        gpu = self.gpu
        from ..selection.choose import product_us

        def us(rows: int) -> float:
            return product_us(Problem.contiguous(rows, n, k), gpu.arch, gpu.sm_count, gpu.name, precision)
        return SharedProduct(self.world, rows, FLOAT * (n if scatter else k), us, self.link, scatter).ways()

    def best_way(self, rows: int, k: int, n: int, precision: str, scatter: bool) -> Way:
        """The way that `ways` says is the fastest, the same as before for the same sizes."""
        key = rows, k, n, precision, scatter
        if key not in self._chosen:
            self._chosen[key] = best(self.ways(*key))
        return self._chosen[key]


_groups: dict[Any, Group] = {}


def known(group: Any, timeout: timedelta | None = None) -> Group:
    """What is known of ``group`` (None: the default one); the first call for it is collective.

    Raises:
        MissingComponent: there is no process group.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise MissingComponent("peakgemm.distributed needs torch.distributed's process group; call "
                               "torch.distributed.init_process_group first, under torchrun say")
    group = group if group is not None else dist.group.WORLD
    found = _groups.get(group)
    if found is None:
        found = _groups[group] = Group(group, (timeout or _timeout_of(group)).total_seconds())
    return found


def _timeout_of(group: Any) -> timedelta:
    """NCCL's own, that `init_process_group` or `new_group` was given; ten minutes where this torch does not tell."""
    try:
        found = group._get_backend(torch.device("cuda")).options._timeout
    except (AttributeError, RuntimeError):
        found = None
    return found if isinstance(found, timedelta) else timedelta(minutes=10)

