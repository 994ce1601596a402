"""What `peakgemm.distributed` knows of a process group: how its ranks reach each other, and how fast."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from ..errors import MissingComponent
from ..problem import Problem
from ..runtime import device
from ..runtime.device import Gpu
from ..selection.overlap_model import Link, Product, Way
from .exchange import Exchange, Messages, Pushes

log = logging.getLogger("peakgemm")
_PROBE_BYTES = 32 << 20
_ROUNDS = 10
_SLEEP_CYCLES = 4_000_000  # some 2 ms


class Group:
    """A process group with its exchange and its link; made once for each, by a collective call.

    Attributes:
        group, world, rank: torch's.
        link: measured when the group is first used, alike on all ranks; None: nothing is overlapped.
        gpu, chosen: this rank's; what the model said before.
        exchange: None where ranks cannot reach each other's memory.
    """

    def __init__(self, group: dist.ProcessGroup, timeout_s: float) -> None:
        self.group, self.world, self.rank = group, dist.get_world_size(group), dist.get_rank(group)
        self.link: Link | None = None
        self.exchange: Exchange | None = None
        self.gpu: Gpu | None = None
        self.chosen: dict[Any, Way] = {}  # by what is multiplied
        if "nccl" not in str(dist.get_backend_config(group)):
            self.exchange = Messages(group)
            return
        self.gpu = device.require(torch.cuda.current_device())
        kinds: list[Any] = [None] * self.world
        dist.all_gather_object(kinds, (self.gpu.name, self.gpu.sm_count), group=group)
        reached: Pushes | None = None
        try:
            reached = Pushes(group, timeout_s)
        except Exception as error:  # of many kinds: torch's, by its version and the machine
            log.info("peakgemm.distributed: rank %d: no symmetric memory (%s)", self.rank, error)
        every: list[Any] = [None] * self.world
        dist.all_gather_object(every, (reached is not None, reached is not None and reached.by_kernel), group=group)
        if reached is not None and all(reaches for reaches, _ in every) and len(set(kinds)) == 1:
            reached.by_kernel = all(by_kernel for _, by_kernel in every)
            self.exchange = reached
            self.link = self._measured(reached)
        elif self.rank == 0:
            why = ("the GPUs are of unlike kinds: " + ", ".join(name for name, _ in kinds) if len(set(kinds)) > 1 else
                   "the GPUs do not reach each other's memory")
            log.warning("peakgemm.distributed: products and collectives do not overlap, as %s", why)

    def _measured(self, exchange: Pushes) -> Link:
        """Times of copies and all-gathers on the device, the slowest of all ranks."""
        # Floats a row: few, so that what a call costs besides shows; many, so that it does not.
        few, many = 256, _PROBE_BYTES // 4
        x, y = (torch.zeros(many, device="cuda") for _ in range(2))
        found = [self._copy_us(exchange, few), self._copy_us(exchange, many), self._copy_us(exchange, 2 * many),
                 self._gather_us(few), self._gather_us(many), self._timed(lambda: y.copy_(x)),
                 *(self._timed(partial(exchange.gather, x[None, :floats])) for floats in (few, many // 4))]
        shared = torch.tensor(found, device="cuda")
        dist.all_reduce(shared, dist.ReduceOp.MAX, group=self.group)
        copy_few, copy_many, copy_more, gather_few, gather_many, own, direct_few, direct_many = shared.tolist()
        moved = 4e-3 * many  # KB: over us they are GB/s
        others = self.world - 1
        return Link(copy_few, others * moved / max(copy_more - copy_many, 1e-3), gather_few,
                    others * moved / max(gather_many - gather_few, 1e-3), direct_few,
                    others * moved / 4 / max(direct_many - direct_few, 1e-3), moved / max(own, 1e-3))

    def _copy_us(self, exchange: Pushes, floats: int) -> float:
        x = torch.zeros(1, floats, device="cuda")
        others = [rank for rank in range(self.world) if rank != self.rank]

        def once() -> None:
            exchange.begin([(source, source * floats, (1, floats)) for source in others], self.world * floats)
            for other in others:
                exchange.push(other, self.rank * floats, x)
            for other in others:
                exchange.pull(other, other * floats, (1, floats))
            exchange.end()
        return self._timed(once)

    def _gather_us(self, floats: int) -> float:
        x = torch.zeros(floats, device="cuda")
        out = torch.empty(self.world * floats, device="cuda")
        return self._timed(lambda: dist.all_gather_into_tensor(out, x, group=self.group))

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

    def product(self, k: int, n: int, precision: str) -> Product:
        """rows -> microseconds of a product of that many rows with ``(k, n)``, packed: ranks must agree, whatever the
        strides of each."""
        assert self.gpu is not None
        gpu = self.gpu
        from ..selection.choose import product_us

        def us(rows: int) -> float:
            return product_us(Problem.contiguous(rows, n, k), gpu.arch, gpu.sm_count, gpu.name, precision)
        return us


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

