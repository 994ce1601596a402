"""What all kernels of FFMAs have in common: how they are compiled, launched, and their partial sums added up.

The work of a product is its tiles over the whole batch, or, where they would not fill the GPU, ranges of their k-steps:
split-K and stream-K (Osama et al., "Stream-K", 2023), with the partial sums added up in a fixed order by a second
kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ...errors import InvalidValue
from ...problem import C, Config, Problem, varied
from ...runtime import source
from ...runtime.architectures import architecture
from ..family import MAX_BLOCKS, Estimated, Family, Launch, Launches
from ..profile import Machine
from ..recipe import Recipe, text_of, triangle_macro
from ..registry import FLOAT, Kernel
from ..schedule import MOST_PARTS, Schedule, arguments, cut
from ..validity import is_valid
from ..widths import layouts_and_widths
from . import repack

_REDUCE = source.KERNELS / "ffma" / "reduce.cu"
_FEW = 8  # results of thread tiles for each SM: with fewer, a thread of the second kernel takes one, else four
_FILLS_AN_SM = 64 * 64  # results of a tile, beside which there is little room
# In so many parts a tile's K is cut: powers of two, and what lies halfway.
SPLITS = tuple(sorted({*(1 << i for i in range(1, 8)), *(3 << i for i in range(6))}))


def cluster_split(config: Config) -> bool:
    """Whether the blocks of a cluster have a part each of a small tile's K, and add up for each other
    (include/epilogue/cluster_split_k.cuh)."""
    return config.cluster > 1 and config.one_tile


def two_rows(c: Config) -> bool:
    """Whether four slices share a tile of 2 x 4 results a thread."""
    return (c.slices, c.tm, c.tn) == (4, 2, 4)


def reduces_across_slices(c: Config) -> bool:
    """Whether all threads of a block add up and store its tile (include/epilogue/slice_reduction.cuh)."""
    return c.slices > 1 and c.tm * c.tn <= 16


def recipe(kernel: Kernel, config: Config, problem: Problem, arch: str) -> Recipe:
    """What ``kernel`` is compiled from for ``config`` and what its family's specialisation takes from ``problem``.

    Registers are dealt by setmaxnreg.
    """
    macros = {"SLICES": config.slices, "HANDED": int(config.handed)} | config.macros() | triangle_macro(problem)
    return Recipe(kernel.source, kernel.entry, architecture(arch).target(own=config.registers > 0),
                  macros | kernel.family.specialisation(config, problem), kernel.path.name, kernel.bare_loop)


def reduce_recipe(kernel: Kernel, config: Config, problem: Problem, arch: str) -> Recipe:
    """What the kernel that adds up partial sums of tiles cut as in ``config`` is compiled from: of the config how C is
    cut alone, and what columns tiles at its edge begin at (include/copy/edge.cuh)."""
    macros = config.tile.macros() | {"RASTER": config.raster, "SHIFTED": int(not kernel.tensor_copies)}
    macros |= triangle_macro(problem)
    return Recipe(text_of(_REDUCE), "ffma_reduce", architecture(arch).name, macros, _REDUCE.name)


def hands_on(config: Config, tiles: int, steps: int, sm_count: int) -> bool:
    """Whether ``tiles`` of ``steps`` fill the GPU more than once, and unevenly: else they are computed whole.

    Of fewer tiles than blocks each block's tail would wait for the head that another is still at.
    """
    slots = sm_count * config.min_blocks
    return tiles > slots and tiles % slots > 0 and steps > 1


def schedule(config: Config, problem: Problem, sm_count: int, operands: str | None = None) -> Schedule:
    """The launch of a tiled kernel; no blocks where C is empty.

    ``operands``: those that are repacked; None: the kernel reads all as they are.

    Raises:
        InvalidValue: more than 2**31 - 1 blocks, or more ranges of k-steps than `MOST_PARTS`.
    """
    p, slots = problem, sm_count * config.min_blocks
    # BLAS: with alpha = 0 neither A nor B is read, so a NaN there cannot leak.
    steps = 0 if p.alpha == 0 else config.steps(p)
    down, across = config.grid(p)
    tiles = down * across * p.batch.count
    parts = shared = 0
    if config.one_tile:  # a block, or a cluster, has one tile, or one part of it
        slots = tiles * max(1, min(config.split, steps))
    if config.split > 1 and steps > 1:
        shared, parts = tiles, tiles * min(config.split, steps)
    elif config.handed:
        if hands_on(config, tiles, steps, sm_count):  # ranges of one tile to two, so that none is cut twice
            shared, parts = slots + tiles % slots, slots
    elif config.split == 0 and tiles % slots and steps > 1:
        shared = tiles % slots
        parts = min(slots, shared * steps)
    if (most := max(tiles * config.cluster, parts, shared * config.tm * config.tn)) > MAX_BLOCKS:
        raise InvalidValue(f"{p.m} x {p.n} x {p.batch.count} in tiles of {config.bm} x {config.bn} asks for {most} "
                           f"blocks, the limit is {MAX_BLOCKS}; use a larger tile or split the product")
    if max(parts, shared * config.handed) > MOST_PARTS:
        most = max(1, MOST_PARTS // tiles)
        raise InvalidValue(f"split = {config.split} makes {parts} ranges of k-steps of {tiles} tiles, the limit is "
                           f"{MOST_PARTS}; use split = {most}{' or less' if most > 1 else ', the tiles fill any GPU'}")
    whole, results = tiles - shared, config.tm * config.tn
    flags = parts if config.handed else 0
    packed = None if operands is None and not flags else repack.Repack(p, operands or "", flags)
    # Ranges that end where tiles end leave the second half of the slots unused.
    straddle = parts and not flags and (steps * shared % parts or steps % (steps * shared // parts))
    return Schedule(
        blocks=min(slots, whole + parts) * config.cluster, whole=whole, shared=shared, parts=parts,
        reduce_blocks=0 if flags else shared * results // (1 if shared * results < _FEW * sm_count else 4),
        workspace_bytes=(packed.sums if packed else 0) + parts * (2 if straddle else 1) * config.bm * config.bn * FLOAT,
        arguments=arguments(p, whole, shared, parts, shared * steps, cut(down, across, config.raster)),
        repack=packed, cluster=config.cluster)


def launches(kernel: Kernel, config: Config, problem: Problem, arch: str, sm_count: int, ready_a: int = 0,
             ready_b: int = 0) -> Launches:
    """The first chunk of operands that are repacked, the product, and the sums of its parts, as there are any."""
    family = kernel.family
    plan = family.schedule(config, problem, sm_count)
    if plan.blocks == 0:
        return Launches(problem, workspace_bytes=plan.workspace_bytes)
    # What the kernel takes that repacks, and one whose operands the copy engine brings from where they are repacked.
    struct = plan.arguments + (plan.repack.argument if plan.repack else b"")
    # A kernel that lives on L1 asks for no more than it needs, but where it has a block an SM at most: 16 x 11008 x
    # 4096 took 98 us instead of 79.
    kernels = [Launch(kernel.recipe(config, problem, arch), plan.blocks, config.block_threads,
                      struct if plan.boxes else plan.arguments, kernel.shared_bytes(config),
                      even=not family.lives_on_l1 or plan.blocks <= sm_count, boxes=plan.boxes, cluster=plan.cluster)]
    if plan.reduce_blocks:
        # Its blocks come where the first of many tiles leave room: 160 x 547 x 92 in 89 took 96 us instead of 63.
        # Beside few small tiles they wait on all SMs already.
        waves = plan.whole > 0 and not family.lives_on_l1
        kernels.append(Launch(kernel.reduce_recipe(config, problem, arch), plan.reduce_blocks,
                              plan.reduce_threads or config.threads, plan.arguments,
                              even=waves or (config.min_blocks == 1 and config.bm * config.bn >= _FILLS_AN_SM),
                              offset=plan.repack.sums if plan.repack else 0))
    if plan.repack and plan.repack.first_blocks:
        kernels.insert(0, Launch(repack.recipe(arch), plan.repack.first_blocks, 32 * repack.FIRST_WARPS, struct,
                                 even=False))
    return Launches(problem, tuple(kernels), plan.workspace_bytes)


def one_chain(config: Config, problem: Problem) -> bool:
    """Without slices. The remainder of K is the first tile, behind zeros: ``fma(0, 0, +0)`` is +0, so that a chain
    begins as if they were not there. Where accumulators are handed on (include/scheduler/handed.cuh) a second block
    goes on with those of the first."""
    return config.slices == 1


def without_workspace(kernel: Kernel, config: Config) -> tuple[Kernel, Config]:
    """Its tiles whole."""
    return kernel, varied(config, split=1, handed=False)


def estimated(configurations: Callable[[Problem, Machine], Iterable[C]],
              estimate_us: Callable[[C, Problem, Machine], float],
              ) -> Callable[..., Iterator[Estimated]]:
    """`Family.candidates` of a kernel with those configurations for a problem, and that estimate of each."""

    def candidates(kernel: Kernel, problem: Problem, machine: Machine, ready: str = "") -> Iterator[Estimated]:
        for config in configurations(problem, machine):
            if is_valid(kernel, config, machine.arch):
                yield config, estimate_us(config, problem, machine)

    return candidates


def layouts(problem: Problem) -> dict[str, int]:
    """The macros of layouts. Tiles at the edge of C begin at columns where copies of as many floats as others' may."""
    macros = layouts_and_widths(problem)
    return macros | {"SHIFTED": macros["WIDTH_B"]}


TILED = Family(recipe, reduce_recipe, launches, schedule, lambda config, problem: layouts(problem),
               one_chain=one_chain, without_workspace=without_workspace, numbers="tiled", tiled=True)
