"""An emulated product bound to a problem and a device: up to three kernels, in one stream."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable
from functools import lru_cache, partial

from ...errors import InvalidValue
from ...problem import Config, Problem
from ...runtime import driver
from ...runtime.compile import Compiled, in_parallel
from ...runtime.device import Gpu, activated
from .. import even_share
from ..library import Recipe
from ..registry import Kernel
from ..validity import require
from .schemes import (
    HEAD,
    REDUCE_THREADS,
    SPLIT_THREADS,
    Scheme,
    emulation,
    product_on,
    product_recipe,
    reduce_recipe,
    scheme_of,
    split_recipe,
)


class Emulated:
    """One product by a scheme, compiled, loaded and scheduled; `launch` is that of `kernels.bound.Bound`.

    Attributes:
        kernel, config, problem, scheme: what was bound.
        workspace_bytes: device memory for split operands and partial sums; its head tells afterwards what was rerouted.
        half_tiles: parts of 64 rows by a tile's columns of the result (or of its transpose, where that is computed),
            each of which the guard may reroute to FFMA.
    """

    __slots__ = ("_counters", "_passes", "_turned", "config", "gpu", "half_tiles", "kernel", "problem", "scheme",
                 "workspace_bytes")

    def __init__(self, kernel: Kernel, config: Config, problem: Problem, gpu: Gpu, ready_a: int = 0,
                 ready_b: int = 0) -> None:
        scheme = scheme_of(kernel)
        if scheme is None:
            raise InvalidValue(f"{kernel.name} is no tensor-core kernel; use kernels.bound.bind")
        require(kernel, config, gpu.limits, problem)
        self.kernel, self.config, self.problem, self.scheme, self.gpu = kernel, config, problem, scheme, gpu
        plan = emulation(kernel, config, problem, gpu.sm_count, ready_a, ready_b)
        problem = plan.problem
        self.workspace_bytes, self._counters, self._turned = plan.workspace_bytes, plan.counters, problem.trans_c
        self.half_tiles = -(-problem.m // 64) * -(-problem.n // config.bn) * problem.batch.count
        label = f"{kernel.name} {config.label()} {problem.layout}"
        passes: list[tuple[Callable[[], Compiled], int, int, int]] = [
            (partial(_cubin, product_recipe, kernel, config, problem, gpu.arch), kernel.shared_bytes(config),
             plan.blocks, config.block_threads)]
        if plan.split_blocks:
            passes.insert(0, (partial(_cubin, split_recipe, scheme, problem, gpu.arch), scheme.panel, plan.split_blocks,
                              SPLIT_THREADS))
        if plan.reduce_blocks:
            passes.append((partial(_cubin, reduce_recipe, scheme, config, gpu.arch), 0, plan.reduce_blocks,
                           REDUCE_THREADS))
        compiled = in_parallel(lambda each: each[0](), passes)
        self._passes = tuple(even_share.launches(cubin, label, gpu, plan.arguments, *shape)
                             for cubin, (_, *shape) in zip(compiled, passes, strict=True))

    def launch(self, a: int, b: int, c: int, c0: int, workspace: int, stream: int) -> None:
        """Enqueue ``C = alpha op(A) op(B) + beta C0``; see `kernels.bound.Bound.launch`."""
        if self._turned:
            a, b = b, a
        for enqueue in self._passes:
            enqueue(a, b, c0, c, workspace, stream)

    def rerouted(self, workspace: int, stream: int) -> int:
        """How many half tiles the guard rerouted in the last launch with ``workspace``; waits for ``stream``.

        Where blocks share the K of a tile, and a part of it alone was rerouted for bits that were lost there, this is
        an estimate: of panels each such part counts as a half tile, where operands are split on the way the first one.

        Raises:
            LaunchFailed: the device's error.
        """
        offset, count = self._counters
        found = (ctypes.c_int * count)()
        with activated(self.gpu.index):
            driver.demand("waiting for a stream", "cuStreamSynchronize", ctypes.c_void_p(stream))
            driver.demand("a copy between host and device", "cuMemcpyDtoH_v2", ctypes.byref(found),
                          ctypes.c_uint64(workspace + offset), ctypes.c_size_t(ctypes.sizeof(found)))
        return min(sum(found), self.half_tiles)


@lru_cache(maxsize=1024)
def _cubin(recipe: Callable[..., Recipe], *what: Hashable) -> Compiled:
    """What a recipe makes, remembered: a product with operands that were split before is bound for each pair of them,
    and the disk's answer takes 1 to 3 ms."""
    return recipe(*what).make("cubin")


@lru_cache(maxsize=1024)
def bind(kernel: Kernel, config: Config, problem: Problem, gpu: Gpu) -> Emulated:
    """Compile (or take from the cache), load and schedule; see `kernels.bound.bind`."""
    return Emulated(kernel, config, problem, gpu)


class SplitOperand:
    """The split of an operand by itself, once for many products: of ``side`` ``"a"`` or ``"b"``, whose panels differ,
    as columns of B may share a scale.

    Attributes:
        bytes: device memory for it, `PANELS` of them before the panels.
    """

    PANELS = HEAD

    def __init__(self, scheme: Scheme, problem: Problem, gpu: Gpu, side: str = "b") -> None:
        other_is_ready = (0, 1) if side == "a" else (1, 0)
        plan = emulation(*product_on(scheme, gpu.limits), problem, gpu.sm_count, *other_is_ready)
        self.bytes = plan.workspace_bytes
        split = _cubin(split_recipe, scheme, problem, gpu.arch)
        self._split = even_share.launches(split, f"{scheme.name} {problem.layout}", gpu, plan.arguments, scheme.panel,
                                          plan.split_blocks, SPLIT_THREADS)

    def launch(self, operand: int, memory: int, stream: int) -> None:
        """Enqueue the split of ``operand`` into ``memory``.

        Raises:
            LaunchFailed: the driver's refusal.
        """
        self._split(operand, operand, memory, memory, memory, stream)
