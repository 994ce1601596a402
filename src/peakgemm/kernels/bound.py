"""A product bound to a problem and a device: all that is left is addresses and a stream."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache

from ..problem import Config, Problem
from ..runtime import driver
from ..runtime.compile import Compiled, in_parallel
from ..runtime.device import Gpu, activated
from ..runtime.launch import Launcher, load
from . import shortfall
from .family import Launch
from .recipe import Recipe
from .registry import Kernel
from .validity import require

# What enqueues each kernel, and so many bytes behind the workspace's start lies its part of that.
_Passes = tuple[tuple[Callable[[int, int, int, int, int, int], None], int], ...]


class Bound:
    """One product, compiled, loaded and scheduled: its kernels, of which there may be one before and one behind.

    Attributes:
        kernel, config, problem, gpu: what was bound.
        shortfall: why the compiler's code falls short of what the kernel can be (`shortfall`); empty mostly.
        workspace_bytes: device memory that `launch` needs for partial sums, split and repacked operands; 0 mostly.
        half_tiles: parts of the result that the kernel's guard may reroute to FFMA; see `rerouted`.
    """

    __slots__ = ("_counters", "_passes", "_turned", "config", "gpu", "half_tiles", "kernel", "problem", "shortfall",
                 "workspace_bytes")

    def __init__(self, kernel: Kernel, config: Config, problem: Problem, gpu: Gpu, ready_a: int = 0, ready_b: int = 0,
                 *, edit: Callable[[Compiled], Compiled] | None = None) -> None:
        """``ready_a``, ``ready_b``: addresses of operands that were split before; 0: they were not. ``edit`` makes of
        the product's cubin the one that runs in its place: for instruments that time edited code."""
        self.kernel, self.config, self.problem, self.gpu = kernel, config, problem, gpu
        require(kernel, config, gpu.limits, problem)
        plan = kernel.launches(config, problem, gpu.arch, gpu.sm_count, ready_a, ready_b)
        self.workspace_bytes, self.half_tiles, self._counters = plan.workspace_bytes, plan.half_tiles, plan.counters
        self._turned = plan.problem.trans_c
        self.shortfall = ""

        def edited(recipe: Recipe, compiled: Compiled) -> Compiled:
            if recipe.entry != kernel.entry:
                return compiled
            self.shortfall = shortfall.note(kernel, config, recipe, compiled)
            return compiled if edit is None else edit(compiled)

        label = f"{kernel.name} {config.label()} {plan.problem.layout}"
        self._passes = enqueuing(plan.kernels, label, gpu, edited)

    def launch(self, a: int, b: int, c: int, c0: int, workspace: int, stream: int) -> None:
        """Enqueue ``C = alpha op(A) op(B) + beta C0`` on ``stream`` (a ``CUstream`` as an integer) and return.

        All others are device addresses; the caller keeps their memory, aligned as the problem says,
        alive. Nothing is enqueued where C is empty.

        Raises:
            LaunchFailed: the driver's refusal, with kernel, configuration, grid and shared memory.
        """
        if self._turned:
            a, b = b, a
        for enqueue, offset in self._passes:
            enqueue(a, b, c0, c, workspace + offset, stream)

    def rerouted(self, workspace: int, stream: int) -> int:
        """How many half tiles the guard rerouted in the last launch with ``workspace``; waits for ``stream``.

        Where blocks share the K of a tile, and a part of it alone was rerouted for bits that were lost there, this is
        an estimate: of panels each such part counts as a half tile, where operands are split on the way the first one.

        Raises:
            LaunchFailed: the device's error.
        """
        offset, count = self._counters
        counters = (ctypes.c_int * count)()
        with activated(self.gpu.index):
            driver.demand("waiting for a stream", "cuStreamSynchronize", ctypes.c_void_p(stream))
            driver.demand("a copy between host and device", "cuMemcpyDtoH_v2", ctypes.byref(counters),
                          ctypes.c_uint64(workspace + offset), ctypes.c_size_t(ctypes.sizeof(counters)))
        return min(sum(counters), self.half_tiles)


def enqueuing(kernels: Sequence[Launch], label: str, gpu: Gpu,
              edited: Callable[[Recipe, Compiled], Compiled] = lambda recipe, compiled: compiled) -> _Passes:
    """What enqueues each of ``kernels``, compiled in parallel and loaded, and where its part of the workspace lies."""
    passes = []
    for launch, code in zip(kernels, in_parallel(cubin, [launch.recipe for launch in kernels]), strict=True):
        made, shared = edited(launch.recipe, code), launch.shared_bytes
        if launch.even:
            shared = shared_bytes(shared, launch.blocks, room(made.registers, launch.threads, gpu), gpu)
        launcher = Launcher(load(made, shared, gpu, launch.cluster), label, gpu, launch.blocks, launch.threads,
                            launch.arguments, launch.boxes, launch.cluster, launch.convention)
        # The bound method: through the launcher each call would take 0.13 us more.
        passes.append((launcher.enqueue, launch.offset))
    return tuple(passes)


def room(registers: int | None, threads: int, gpu: Gpu) -> int:
    """Blocks of ``threads`` with ``registers`` a thread that an SM has room for, whatever their shared memory.

    ptxas may have left room for more than a tile was made for. None: registers are not known, nor counted.
    """
    return min(gpu.limits.blocks_by_registers(registers or 1, threads), gpu.limits.threads_per_sm // threads)


def shared_bytes(wanted: int, blocks: int, most: int, gpu: Gpu) -> int:
    """Dynamic shared memory in bytes of a launch, ``wanted`` at least; beside it blocks may have half a KB of static.

    With dependent launch (include/ptx/dependents.cuh) blocks gather on the SMs that are free first, as many as there is
    room for, while others get none: 6192 x 110 x 64 took 12.7 us with 3 blocks for each SM and room for 8, and takes
    6.7. So each asks for so much shared memory that one more than an even share of them finds no room.

    Args:
        wanted: what a block needs, in bytes.
        blocks: of the launch.
        most: blocks that an SM has `room` for.
        gpu: where it is launched.
    """
    limits = gpu.limits
    share = -(-blocks // gpu.sm_count)
    fitting = limits.shared_per_sm // (wanted + limits.shared_reserved) if wanted else most
    if not limits.has_dependent_launch or share >= min(most, fitting):
        return wanted
    unit = limits.shared_granularity
    each = (limits.shared_per_sm // (share + 1) // unit + 1) * unit  # one byte less, and one more might fit
    return max(wanted, min(each - limits.shared_reserved, limits.shared_per_block))


@lru_cache(maxsize=512)
def cubin(recipe: Recipe) -> Compiled:
    """What a recipe makes, remembered: a product with operands that were split before is bound for each pair of them,
    and the disk's answer takes 1 to 3 ms."""
    return recipe.make("cubin")


@lru_cache(maxsize=1024)
def bind(kernel: Kernel, config: Config, problem: Problem, gpu: Gpu) -> Bound:
    """Compile (or take from the cache), load and schedule ``kernel`` for ``problem`` on ``gpu``.

    Raises:
        InvalidValue: a config that is not valid here, more than 2**31 - 1 tiles, or more ranges of k-steps than
            `schedule.MOST_PARTS`.
        CompileFailed, MissingComponent, LaunchFailed: see `Recipe.make` and `load`.
    """
    return Bound(kernel, config, problem, gpu)
