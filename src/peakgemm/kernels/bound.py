"""A kernel of the library bound to a problem and a device: all that is left is addresses and a stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from ..problem import Config, Problem
from ..runtime.compile import Compiled, in_parallel
from ..runtime.device import Gpu
from . import even_share, shortfall
from .ffma import repack
from .library import FAMILIES, compilations
from .registry import Kernel
from .validity import require

_FILLS_AN_SM = 64 * 64  # results of a tile, beside which there is little room


class Bound:
    """One product, compiled, loaded and scheduled.

    Attributes:
        kernel, config, problem: what was bound.
        shortfall: why the compiler's code falls short of what the kernel can be (`shortfall`); empty mostly.
        workspace_bytes: device memory that `launch` needs for partial sums and repacked operands; 0 mostly.
    """

    __slots__ = ("_first", "_product", "_reduce", "_sums", "config", "kernel", "problem", "shortfall",
                 "workspace_bytes")

    def __init__(self, kernel: Kernel, config: Config, problem: Problem, gpu: Gpu,
                 edit: Callable[[Compiled], Compiled] | None = None) -> None:
        """``edit`` makes of the product's cubin the one that runs in its place: for instruments that time edited code.
        """
        self.kernel, self.config, self.problem = kernel, config, problem
        require(kernel, config, gpu.limits, problem)
        family = FAMILIES[kernel]
        plan = family.schedule(config, problem, gpu.sm_count)
        self.workspace_bytes = plan.workspace_bytes
        # Of the launchers the bound methods: through the objects each call would take 0.13 us more.
        self._product: even_share.Enqueue | None = None
        self._reduce: even_share.Enqueue | None = None
        self._first: even_share.Enqueue | None = None
        self._sums = plan.sums
        self.shortfall = ""
        if plan.blocks == 0:
            return
        label = f"{kernel.name} {config.label()} {problem.layout}"
        jobs = compilations(kernel, config, problem, gpu.arch, plan)
        made = in_parallel(lambda job: job(), jobs.values()) if len(jobs) > 1 else [jobs["product"]()]
        compiled = dict(zip(jobs, made, strict=True))
        self.shortfall = shortfall.note(kernel, config, problem, gpu.arch, compiled["product"])
        if edit is not None:
            compiled["product"] = edit(compiled["product"])
        # A kernel that lives on L1 asks for no more than it needs, but where it has a block an SM at most: 16 x 11008 x
        # 4096 took 98 us instead of 79.
        self._product = even_share.launches(
            compiled["product"], label, gpu, plan.arguments + plan.more, kernel.shared_bytes(config), plan.blocks,
            config.block_threads, even=not family.lives_on_l1 or plan.blocks <= gpu.sm_count,
            boxes=family.boxes(config, problem), cluster=plan.cluster)
        if "reduce" in compiled:
            # Its blocks come where the first of many tiles leave room: 160 x 547 x 92 in 89 took 96 us instead of 63.
            # Beside few small tiles they wait on all SMs already.
            waves = plan.whole > 0 and not family.lives_on_l1
            self._reduce = even_share.launches(
                compiled["reduce"], label, gpu, plan.arguments, 0, plan.reduce_blocks, family.reduce_threads(config),
                even=waves or (config.min_blocks == 1 and config.bm * config.bn >= _FILLS_AN_SM))
        if "first" in compiled:
            self._first = even_share.launches(compiled["first"], label, gpu, plan.first_arguments, 0, plan.first_blocks,
                                              32 * repack.FIRST_WARPS, even=False)

    def launch(self, a: int, b: int, c: int, c0: int, workspace: int, stream: int) -> None:
        """Enqueue ``C = alpha op(A) op(B) + beta C0`` on ``stream`` (a ``CUstream`` as an integer) and return.

        All others are device addresses; the caller keeps their memory, aligned as the problem says,
        alive. Nothing is enqueued where C is empty.

        Raises:
            LaunchFailed: the driver's refusal, with kernel, configuration, grid and shared memory.
        """
        if self._product is not None:
            sums = workspace + self._sums
            if self._first is not None:
                self._first(a, b, c0, c, workspace, stream)
            self._product(a, b, c0, c, workspace if self._first is not None else sums, stream)
            if self._reduce is not None:
                self._reduce(a, b, c0, c, sums, stream)


@lru_cache(maxsize=1024)
def bind(kernel: Kernel, config: Config, problem: Problem, gpu: Gpu) -> Bound:
    """Compile (or take from the cache), load and schedule ``kernel`` for ``problem`` on ``gpu``.

    Raises:
        InvalidValue: a config that is not valid here, more than 2**31 - 1 tiles, or more ranges of k-steps than
            `divide.MOST_PARTS`.
        CompileFailed, MissingComponent, LaunchFailed: see `compile_for` and `load`.
    """
    return Bound(kernel, config, problem, gpu)
