"""The cost model of tiled kernels: configurations, and the microseconds that a launch should take.

It counts what a launch must do: waves of tiles over the SMs at the rate of each thread tile's FFMAs, bytes over the
memory's bandwidth, and the second kernel where K is shared. The numbers are the profile's, the formula is the same
for all: tiles that have several blocks' partial sums added up by a second kernel, or by the blocks of a cluster, differ
by what is added at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from math import hypot
from typing import NamedTuple

from ...problem import Config, Problem, varied
from ...runtime.architectures import PORTABLE_CLUSTER, Architecture, architecture
from ..family import Estimated
from ..profile import Machine
from ..registry import FLOAT, Kernel, compared
from ..schedule import handing_on
from ..validity import is_valid
from ..widths import layouts_and_widths
from .tiled import SPLITS, TILED, cluster_split, hands_on, reduces_across_slices, two_rows

_FOUR_WARPS = 128  # threads
_UNDEALT = 96  # results a thread, at most: without setmaxnreg more need more registers than 384 threads leave
_L2_FACTOR = 2  # partial sums stay in L2, which has about twice the memory's bandwidth
CLUSTERS = 2, 4, 8, 16  # blocks of a cluster that have parts of one small tile's K
_RANGES = (*range(2, 10), 12, 16, 24)
_FEW_STAGES = 8  # of tiles with two rows a thread: more where K has more steps
# Every GPU with clusters runs eight blocks of one; sixteen want a group of as many SMs, which a GPU with fewer SMs than
# an H100, or a part of one (MIG), need not have.
_WHOLE_GPU = architecture("sm_90").gpu_sms

# The ways of a configuration to cut a problem that are considered.
Ways = Callable[[Kernel, Config, Problem, Machine], Iterator[Config]]


@lru_cache(maxsize=64)
def tilings(kernel: Kernel, machine: Machine) -> tuple[Config, ...]:
    """The configurations of a tiled kernel that are compared, each as the architecture allows it; none of a kernel that
    is not for it."""
    if not kernel.is_for(machine.arch):
        return ()
    fitted = (_fitted(kernel, config, machine.arch) for config in compared(kernel))
    return tuple(config for config in fitted if config is not None)


def compiled(kernel: Kernel, machine: Machine) -> Iterator[Config]:
    """The configurations of a tiled kernel on a GPU, and as what else each is compiled: for blocks with one tile each,
    with one part of a tile's K."""
    for config in tilings(kernel, machine):
        yield from variants(config)


def variants(config: Config) -> Iterator[Config]:
    """A configuration, and as what else it is compiled."""
    yield config
    if _gains_alone(config):
        yield alone(config)
    if _splits_k(config):
        yield varied(config, split=2)
    if (few := _with_few_stages(config)) != config:
        yield few


def candidates(kernel: Kernel, problem: Problem, machine: Machine, ways: Ways) -> Iterator[Estimated]:
    """Every way of every configuration, with its modelled microseconds."""
    for config in tilings(kernel, machine):
        for way in ways(kernel, config, problem, machine):
            yield way, estimate_us(way, problem, machine)


class Wave(NamedTuple):
    """Of a launch so many alike: blocks that an SM runs at once, k-steps of each, and tiles that each ends."""

    times: float
    blocks: int
    steps: float
    ends: float = 1


def _waves(config: Config, tiles: int, steps: int, sms: int) -> tuple[list[Wave], int, float]:
    """The waves of a launch, its partial sums of tiles, and those of one result."""
    resident = config.min_blocks
    slots = sms * resident
    if config.handed:  # no second kernel; a block stores one tile more than its own, and loads it
        return [Wave(tiles / slots, resident, steps, 1 + 2 * slots / tiles)], 0, 0
    if config.split == 0:
        full, shared = divmod(tiles, slots)
        if not shared:
            return [Wave(full, resident, steps)], 0, 0
        ranges = min(slots, shared * steps)
        parts, blocks = ranges + shared, min(resident, -(-ranges // sms))  # a range mostly ends inside of a tile
        cut = Wave(1, blocks, max(shared * steps / ranges, 1), parts / sms / blocks)
        return [Wave(full, resident, steps), cut], parts, parts / shared
    split = config.cluster if cluster_split(config) else min(config.split, steps)
    full, rest = divmod(tiles * split, slots)
    blocks = -(-rest // sms)
    if full and rest and config.threads * config.slices <= _FOUR_WARPS:
        # Behind a full wave a block of four warps is no faster for having fewer beside it: 512 x 64 x 512 in 96.
        blocks = resident
    last = [Wave(1, blocks, -(-steps // split))] if rest else []
    parts = tiles * split if config.split > 1 else 0
    return [Wave(full, resident, -(-steps // split)), *last], parts, split if parts else 0


def estimate_us(config: Config, problem: Problem, machine: Machine, repacked: int | None = None) -> float:
    """Modelled time in microseconds of a launch of a tiled kernel; only the ranking is meant.

    ``repacked``: of a kernel that copies no operand word by word, the bytes of those that it repacks first; ``problem``
    is the one behind that.
    """
    p, c, sms, numbers = problem, config, machine.sms, machine.profile.tiled
    tiles, steps = c.tiles(p), max(c.steps(p), 1)
    waves, parts, parts_of_one = _waves(c, tiles, steps, sms)
    # Operands whose rows are no quads of words, or lie along K, are copied word by word.
    width = layouts_and_widths(p)
    words = c.bk * ((width["WIDTH_A"] == 1) * c.bm + (width["WIDTH_B"] == 1) * c.bn) if repacked is None else 0
    factor = getattr(numbers, f"ffma_{c.tm}x{c.tn}_factor")
    step = factor * c.bm * c.bn * c.bk / machine.arch.fp32_lanes_per_sm  # cycles of an SM
    # Blocks share their SM's lanes; what a barrier takes the others hide, and half of a tile's end and of its start.
    together = step + numbers.word_cycles * words
    ended = sum(wave.times * (wave.blocks + 1) / 2 * wave.ends for wave in waves)
    in_turn = sum(wave.times * wave.ends for wave in waves)
    cycles = (sum(wave.times * wave.steps * (wave.blocks * together + numbers.barrier_cycles) for wave in waves)
              + ended * (numbers.turnover_factor * step + numbers.result_cycles * c.bm * c.bn))
    busy = cycles / machine.mhz + numbers.slice_us * (c.slices - 1) * in_turn
    bandwidth = machine.bandwidth * numbers.bandwidth_share
    memory = FLOAT * (p.m * p.k + p.k * p.n + p.m * p.n) * max(p.batch.count, 1) / bandwidth
    us = hypot(busy, memory) + (numbers.one_tile_us if c.one_tile else numbers.start_us)
    if c.one_tile and machine.arch.launches_overlap(tiles * c.cluster * max(c.split, 1), sms):
        us -= numbers.overlap_us
    if cluster_split(c):
        us += numbers.cluster_us
    if parts:
        moved = 2 * FLOAT * parts * c.bm * c.bn
        us += numbers.reduce_us + numbers.part_us * parts_of_one + moved / (_L2_FACTOR * bandwidth)
    if repacked:
        us += numbers.repack_us + repacked / bandwidth
    return us


def ways(kernel: Kernel, config: Config, problem: Problem, machine: Machine) -> Iterator[Config]:
    """The ways of a configuration to cut the work: tiles whole, or their k-steps shared."""
    slots = machine.sms * config.min_blocks
    tiles, steps = config.tiles(problem), config.steps(problem)
    if cluster_split(config):
        yield from _cluster_ways(config, tiles, steps, machine)
        return
    if config.one_tile:
        if _splits_k(config):
            yield from (varied(config, split=parts) for parts in _RANGES
                        if tiles * parts <= machine.sms and parts <= steps)
        if tiles <= machine.sms:
            yield config if steps > _FEW_STAGES else _with_few_stages(config)
        return
    yield alone(config) if _gains_alone(config) and tiles <= slots else config
    if steps > 1 and tiles % slots:
        yield varied(config, split=0)
    for split in SPLITS:
        # More parts than twice the slots buy nothing and cost workspace; fewer than four steps a part, latency.
        if tiles * split > 2 * slots or 4 * split > steps:
            return
        yield varied(config, split=split)


def _gains_alone(config: Config) -> bool:
    """Whether blocks that know that they have one tile gain by two groups of copying warps."""
    return reduces_across_slices(config) and not config.one_tile


def _splits_k(config: Config) -> bool:
    """Whether blocks may have one part each of a tile's K: square tiles, which read least for their results."""
    return config.one_tile and config.cluster == 1 and config.bm == config.bn


def _with_few_stages(config: Config) -> Config:
    """Of tiles with two rows a thread, the one for few steps: what its block does not ask for the next launch has."""
    deep = config.one_tile and config.cluster == 1 and two_rows(config) and config.stages > _FEW_STAGES
    return varied(config, stages=_FEW_STAGES) if deep else config


def _cluster_ways(config: Config, tiles: int, steps: int, machine: Machine) -> Iterator[Config]:
    """``config`` with each number of blocks a cluster that is considered.

    Two launches overlap, or each waits for the one before: 0.65 us more. The groups of SMs that a cluster has to lie in
    are no multiples of one: of 132 SMs 15 clusters of four find room so, 16 do not. Of a step for each slice at most
    blocks with all of K are as fast: 42 x 5 x 116 takes 1.30 us so, 1.55 by clusters.
    """
    yield from (varied(config, cluster=blocks) for blocks in CLUSTERS
                if 2 * (tiles + 1) * blocks <= machine.sms and steps >= max(blocks, config.slices + 1)
                and (blocks <= PORTABLE_CLUSTER or machine.sms >= _WHOLE_GPU))


def one_slice(kernel: Kernel, config: Config, problem: Problem, machine: Machine) -> Iterator[Config]:
    """The ways that sum every element by one chain over K: by one slice, whole or with accumulators handed on.

    Of tiles that slices share those of 4 x 4 results a thread: larger ones there are by one slice anyway, and two rows
    a thread take four slices.
    """
    if config.one_tile or config.cluster > 1 or (config.slices > 1 and (config.tm, config.tn) != (4, 4)):
        return
    unsliced = varied(config, slices=1, chunked=False)
    tiles = config.tiles(problem)
    if config.slices == 1:
        yield unsliced
        if may_hand_on(kernel, config) and hands_on(config, tiles, config.steps(problem), machine.sms):
            yield handing_on(unsliced)
        return
    if is_valid(kernel, unsliced, machine.arch):
        yield alone(unsliced) if tiles <= machine.sms * config.min_blocks else unsliced


def may_hand_on(kernel: Kernel, config: Config) -> bool:
    """Whether a configuration is considered with accumulators handed on.

    Not with three blocks an SM, whose waves are fine enough: four drawn products by 64 x 64 took 0.95 to 1.07 of the
    time of the best whole tiles, as the loop has 1.06 modelled cycles an FFMA then, and 1.04 else.
    """
    return kernel.varies("handed") and config.slices == 1 and not config.one_tile and config.min_blocks < 3


def alone(config: Config) -> Config:
    """``config`` for blocks that have one tile each, with two groups of copying warps."""
    return varied(config, one_tile=True, copy_groups=2)


def _fitted(kernel: Kernel, config: Config, limits: Architecture) -> Config | None:
    """``config`` as ``limits`` allow it: without setmaxnreg, and with as many stages as fit. None: not at all."""
    if config.cluster > 1 and "clusters" not in limits.features:
        return None
    if config.registers and "setmaxnreg" not in limits.features:
        if config.tm * config.tn > _UNDEALT:
            return None
        config = varied(config, registers=0)
    while not is_valid(kernel, config, limits):
        stages = config.stages - config.slices
        if stages < 2 * config.slices:
            return None
        config = varied(config, stages=stages)
    return config


#: Of kernels whose blocks have tiles, or ranges of their k-steps.
FAMILY = replace(TILED, configs=compiled, triangles=True,
                 candidates=lambda kernel, problem, machine, ready: candidates(kernel, problem, machine, ways),
                 chains=lambda kernel, problem, machine: candidates(kernel, problem, machine, one_slice))
