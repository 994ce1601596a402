"""What all kernels of FFMAs have in common: how they are compiled, launched, and their partial sums added up.

What is added up by one chain over K, for `Family.one_chain`, each family's module says.
"""

from __future__ import annotations

from dataclasses import replace

from ...problem import Config, Problem
from ...runtime import source
from ...runtime.architectures import architecture
from ..family import Family, Launch, Launches
from ..recipe import Recipe, text_of
from ..registry import Kernel
from ..schedule import schedule
from ..widths import layouts_and_widths
from . import repack

_REDUCE = source.KERNELS / "ffma" / "reduce.cu"
_FILLS_AN_SM = 64 * 64  # results of a tile, beside which there is little room


def recipe(kernel: Kernel, config: Config, problem: Problem, arch: str) -> Recipe:
    """What ``kernel`` is compiled from for ``config`` and what its family's specialisation takes from ``problem``.

    Registers are dealt by setmaxnreg.
    """
    macros = config.macros() | ({"HANDED": 1} if config.handed else {})
    return Recipe(kernel.source, kernel.entry, architecture(arch).target(own=config.registers > 0),
                  macros | kernel.family.specialisation(config, problem), kernel.path.name, kernel.bare_loop)


def reduce_recipe(kernel: Kernel, config: Config, problem: Problem, arch: str) -> Recipe:
    """What the kernel that adds up partial sums of tiles cut as in ``config`` is compiled from: of the config how C is
    cut alone, and what columns tiles at its edge begin at (include/copy/edge.cuh)."""
    tile = Config(config.bm, config.bn, config.bk, config.tm, config.tn, stages=2, raster=config.raster)
    return Recipe(text_of(_REDUCE), "ffma_reduce", architecture(arch).name,
                  tile.macros() | {"SHIFTED": int(not kernel.tensor_copies)}, _REDUCE.name)


def launches(kernel: Kernel, config: Config, problem: Problem, arch: str, sm_count: int, ready_a: int = 0,
             ready_b: int = 0) -> Launches:
    """The first chunk of operands that are repacked, the product, and the sums of its parts, as there are any."""
    family = kernel.family
    plan = family.schedule(config, problem, sm_count)
    if plan.blocks == 0:
        return Launches(problem, workspace_bytes=plan.workspace_bytes)
    # A kernel that lives on L1 asks for no more than it needs, but where it has a block an SM at most: 16 x 11008 x
    # 4096 took 98 us instead of 79.
    kernels = [Launch(kernel.recipe(config, problem, arch), plan.blocks, config.block_threads,
                      plan.arguments + plan.more, kernel.shared_bytes(config),
                      even=not family.lives_on_l1 or plan.blocks <= sm_count, boxes=plan.boxes, cluster=plan.cluster)]
    if plan.reduce_blocks:
        # Its blocks come where the first of many tiles leave room: 160 x 547 x 92 in 89 took 96 us instead of 63.
        # Beside few small tiles they wait on all SMs already.
        waves = plan.whole > 0 and not family.lives_on_l1
        kernels.append(Launch(kernel.reduce_recipe(config, problem, arch), plan.reduce_blocks,
                              plan.reduce_threads or config.threads, plan.arguments,
                              even=waves or (config.min_blocks == 1 and config.bm * config.bn >= _FILLS_AN_SM),
                              offset=plan.sums))
    if plan.first_blocks:
        kernels.insert(0, Launch(repack.recipe(arch), plan.first_blocks, 32 * repack.FIRST_WARPS, plan.first_arguments,
                                 even=False))
    return Launches(problem, tuple(kernels), plan.workspace_bytes)


def one_chain(config: Config, problem: Problem) -> bool:
    """Without slices. The remainder of K is the first tile, behind zeros: ``fma(0, 0, +0)`` is +0, so that a chain
    begins as if they were not there. Where accumulators are handed on (include/scheduler/handed.cuh) a second block
    goes on with those of the first."""
    return config.slices == 1


def in_place(kernel: Kernel, config: Config) -> tuple[Kernel, Config]:
    """Its tiles whole."""
    return kernel, replace(config, split=1, handed=False)


TILED = Family(recipe, reduce_recipe, launches, schedule, lambda config, problem: layouts_and_widths(problem),
               one_chain=one_chain, in_place=in_place, numbers="tiled", tiled=True)
