"""The cost model of tiled kernels: configurations, and the microseconds that a launch should take.

It counts what a launch must do: waves of tiles over the SMs at each configuration's share of the FP32 peak, bytes over
the memory's bandwidth, and the second kernel where K is shared. The numbers are the profile's. Blocks that have one
part each of a small tile's K are counted apart, whether a second kernel adds the parts up or the blocks of a cluster
give them to each other: 32 x 32 x 2048 takes 2.84 us by the first on an H100, 4.22 by blocks that may have several
tiles; 32 x 32 x 1024 2.71, and 1.61 by clusters (docs/notebook/19).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

from ...problem import Config, Problem, varied
from ...runtime.architectures import PORTABLE_CLUSTER, Architecture, architecture
from ..family import Estimated
from ..profile import Cluster, Machine, SplitK, Tile
from ..registry import FLOAT, Kernel
from ..schedule import handing_on
from ..validity import is_valid
from ..widths import copied_by_words, width
from .tiled import SPLITS, TILED, hands_on, reduces_across_slices, two_rows

_FOUR_WARPS = 128  # threads
_UNDEALT = 96  # results a thread, at most: without setmaxnreg more need more registers than 384 threads leave
CLUSTERS = 2, 4, 8, 16  # blocks of a cluster that have parts of one small tile's K
_RANGES = (*range(2, 10), 12, 16, 24)
# Every GPU with clusters runs eight blocks of one; sixteen want a group of as many SMs, which a GPU with fewer SMs than
# an H100, or a part of one (MIG), need not have.
_WHOLE_GPU = architecture("sm_90").gpu_sms

Row = Tile | Cluster  # of a profile: a configuration and its numbers
# The ways of a configuration to cut a problem that are considered.
Ways = Callable[[Kernel, Row, Problem, Machine], Iterator[Config]]


@lru_cache(maxsize=64)
def tilings(kernel: Kernel, machine: Machine) -> tuple[Row, ...]:
    """The profile's rows of a tiled kernel, each configuration as the architecture allows it; none of a kernel that is
    not for it."""
    if not kernel.is_for(machine.arch):
        return ()
    profile = machine.profile
    rows: list[Row] = [row for row in profile.tiles if row.kernel == kernel.name]
    rows += profile.clusters if kernel.varies("cluster") else ()
    fitted = ((row, _fitted(kernel, row.config, machine.arch)) for row in rows)
    return tuple(replace(row, config=config) for row, config in fitted if config is not None)


def compiled(kernel: Kernel, machine: Machine) -> Iterator[Config]:
    """The configurations of a tiled kernel on a GPU, and as what else each is compiled: for blocks with one tile each,
    with one part of a tile's K."""
    for row in tilings(kernel, machine):
        yield from variants(row)


def variants(row: Row) -> Iterator[Config]:
    """A configuration, and as what else it is compiled."""
    yield row.config
    if isinstance(row, Tile) and row.alone:
        yield alone(row.config)
    if isinstance(row, Tile) and row.split_k is not None:
        yield varied(row.config, split=2)


def _compared(kernel: Kernel, problem: Problem, machine: Machine, ways: Ways) -> Iterator[Estimated]:
    by_words, results = copied_by_words(problem), results_stored(problem, machine)
    for row in tilings(kernel, machine):
        for way in ways(kernel, row, problem, machine):
            yield way, modelled_us(row, way, problem, machine, by_words, results)


def results_stored(p: Problem, machine: Machine) -> float:
    """Results of a product, those of rows that start anywhere counted as what their stores cost, word by word."""
    ragged = width(p.alignment[2], p.ldc, p.n, *p.batch.c) != 4
    return p.m * p.n * (machine.profile.tiled.ragged_factor if ragged else 1)


def modelled_us(row: Row, config: Config, problem: Problem, machine: Machine, by_words: bool,
                results: float, wide: bool = False) -> float:
    """Modelled time in microseconds of a tiled kernel; only the ranking is meant.

    Args:
        row: the profile's numbers of the configuration.
        config: a way of it to cut the work.
        by_words: whether B is copied word by word.
        results: see `results_stored`.
        wide: whether it is one of wide thread tiles.
    """
    p, sms, numbers = problem, machine.sms, machine.profile.tiled
    slots, tiles, steps = sms * config.min_blocks, config.tiles(p), max(config.steps(p), 1)
    bandwidth = machine.bandwidth * numbers.bandwidth_share
    memory = FLOAT * (p.m * p.k + p.k * p.n + results) * max(p.batch.count, 1) / bandwidth
    if isinstance(row, Cluster):
        return _cluster_us(row, config, steps, memory, by_words)
    if row.split_k is not None and config.split > 1:
        return _split_k_us(row.split_k, config, tiles, steps, memory, by_words, sms)
    a_step_us = step_us(config, row.words_share if by_words else row.share, machine)
    pieces = 0  # partial sums of tiles

    def in_turns(steps: int) -> float:
        sooner = (1 - numbers.later_step_share) * max(steps - config.stages, 0) if two_rows(config) else 0.0
        # Of a step's time, for each that the last turn of slices lacks: 1000 x 1000 x 200 takes 15.2 us by steps of 32
        # and two slices, a K of 256 15.5.
        return steps + numbers.waited_share * (-steps % config.slices) - sooner

    if config.handed:
        # No second kernel; each block stores one tile more than its own, and loads it.
        turns = tiles / slots * in_turns(steps) * config.min_blocks
        stored = (tiles / slots + 2) * config.min_blocks
    elif config.split == 0:
        shared = tiles % slots
        # A range of k-steps mostly ends inside of a tile.
        pieces = min(slots, shared * steps) + shared
        # Some block has a k-step and a piece at least, alone on its SM where there are few.
        least = 1.0 if shared else 0.0
        turns = tiles // slots * in_turns(steps) * config.min_blocks + max(shared * steps / sms, least)
        stored = tiles // slots * config.min_blocks + max(pieces / sms, least)
    else:
        split = min(config.split, steps)
        pieces = tiles * split if split > 1 else 0
        whole, rest = divmod(tiles * split, slots)
        # Blocks share their SM's lanes; in the last wave there are fewer to share with.
        last = -(-rest // sms)
        stored = whole * config.min_blocks + last
        lonely = float(last)
        if last and config.threads * config.slices <= _FOUR_WARPS:
            # Blocks of four warps that compute do not run as much faster: their time by the blocks missing.
            lonely *= (config.min_blocks / last) ** (numbers.lonely_after_power if whole else numbers.lonely_power)
        turns = (whole * config.min_blocks + lonely) * in_turns(-(-steps // split))
    # A block stores or computes; beside others on its SM, these go on meanwhile.
    together = max(1, min(config.min_blocks, -(-tiles // sms)))
    all_end = reduces_across_slices(config)
    storing = config.threads * (config.slices if all_end else 1) // 32 * together  # warps
    stored_per_us = numbers.stored_per_us * (machine.profile.wide.stored_factor if wide else 1)
    store = stored * config.bm * config.bn / (stored_per_us * storing) / together
    # For each slice whose sums are added to another's; where all threads of a block do it, for 16 results of each.
    added_us = numbers.slice_reduction_us * config.tm * config.tn / 16 if all_end else numbers.slice_us
    store += stored / together * added_us * (config.slices - 1)
    besides = 0.0  # what the sums of several blocks cost, or a lone block saves
    if pieces:
        each = pieces / (tiles % slots if config.split == 0 else tiles)  # partial sums of one result
        moved = 2 * FLOAT * pieces * config.bm * config.bn
        # Partial sums stay in L2; those of wide tiles do not. The second kernel, less the end of a tile that its own
        # blocks make; where ranges end anywhere, 448 x 1288 x 108 takes 9.5 us, 8.0 without.
        besides = ((numbers.reduce_us if config.split else numbers.ranges_us) + numbers.part_us * each
                   + moved / (bandwidth * (1.0 if wide else numbers.in_l2_factor)))
    elif config.one_tile:
        overlap = numbers.overlap_us * machine.arch.launches_overlap(tiles, sms)
        # With 16 results a thread at most, whose end is found early, more.
        besides = -numbers.alone_us - overlap - numbers.early_us * (config.tm * config.tn <= 16)
    if all_end and not config.one_tile:
        besides += numbers.goes_on_us  # before a next tile slices wait for each other once more
    busy = (turns + stored * numbers.turnover_factor) * a_step_us + store
    power = numbers.overlap_power  # of what is computed and of what is moved, which hide each other in part
    return math.pow(math.pow(busy, power) + math.pow(memory, power), 1 / power) + numbers.start_us + besides


def _cluster_us(cluster: Cluster, config: Config, steps: int, memory: float, by_words: bool) -> float:
    """Modelled microseconds of tiles that have a cluster each, with ``steps`` of K, whose bytes take ``memory``."""
    each = -(-steps // config.cluster)
    step_us = cluster.step_us + cluster.words_us * by_words
    return (cluster.start_us + cluster.block_us * config.cluster + step_us * each
            + cluster.moved_factor * memory + cluster.later_us * max(each - config.stages, 0)
            + cluster.turn_us * -(-each // config.slices))


def _split_k_us(parts: SplitK, config: Config, tiles: int, steps: int, memory: float, by_words: bool,
               sm_count: int) -> float:
    """Modelled microseconds of ``tiles`` whose K is cut into ``config.split`` parts, which a second kernel adds up."""
    step = (parts.step_us + parts.words_us * by_words) * -(-steps // config.split)
    crowded = parts.crowded_us * (2 * tiles * config.split > sm_count)
    return parts.start_us + parts.part_us * config.split + step + crowded + parts.moved_factor * memory


def step_us(config: Config, share: float, machine: Machine) -> float:
    """Microseconds of one SM for one k-step of one block: bm bn bk multiply-adds."""
    return config.bm * config.bn * config.bk / (machine.arch.fp32_lanes_per_sm * share * machine.mhz)


def _two_rows_pay(row: Tile, problem: Problem, machine: Machine) -> bool:
    """Whether tiles by 2 x 4 results a thread have an SM each, and the stages that K wants.

    Where nearly all SMs have such a tile of 32 columns few steps of K are slower than by 32 x 32 on half as many,
    beside the next launch: 255 takes 3.33 us so, 3.14 by 32 x 32, 319 x 186 x 174 NT 2.81 and 2.66; 224 x 268 x 304
    3.61, 3.86.
    """
    config, numbers = row.config, machine.profile.tiled
    steps = config.steps(problem)
    crowded = config.bn > config.bm and steps <= numbers.crowded_steps
    return (problem.k > numbers.one_slice_k and row.least_steps <= steps
            and (row.most_steps is None or steps <= row.most_steps)
            and config.tiles(problem) <= machine.sms * (numbers.crowded_share if crowded else 1))


def ways(kernel: Kernel, row: Row, problem: Problem, machine: Machine) -> Iterator[Config]:
    """The ways of a configuration to cut the work: tiles whole, or their k-steps shared."""
    config, slots = row.config, machine.sms * row.config.min_blocks
    tiles, steps = config.tiles(problem), config.steps(problem)
    if isinstance(row, Cluster):
        yield from _cluster_ways(config, tiles, steps, machine)
        return
    if config.one_tile:
        if row.split_k is not None:
            yield from _split_k_ways(config, problem, tiles, steps, machine)
        if _two_rows_pay(row, problem, machine) if two_rows(config) else tiles <= machine.sms:
            yield config
        return
    yield alone(config) if row.alone and tiles <= slots else config
    if steps > 1 and tiles % slots:
        yield varied(config, split=0)
    for split in SPLITS:
        # More parts than twice the slots buy nothing and cost workspace; fewer than four steps a part, latency.
        if tiles * split > 2 * slots or 4 * split > steps:
            return
        yield varied(config, split=split)


def _cluster_ways(config: Config, tiles: int, steps: int, machine: Machine) -> Iterator[Config]:
    """``config`` with each number of blocks a cluster that is considered.

    Two launches overlap, or each waits for the one before: 0.65 us more. The groups of SMs that a cluster has to lie in
    are no multiples of one: of 132 SMs 15 clusters of four find room so, 16 do not. Of few steps blocks with all of K
    are as fast: 42 x 5 x 116 takes 1.30 us so, 1.55 by clusters, 6 x 52 x 139 1.84 and 1.56.
    """
    least = machine.profile.sharing.least_cluster_steps
    yield from (varied(config, cluster=blocks) for blocks in CLUSTERS
                if 2 * (tiles + 1) * blocks <= machine.sms and steps >= max(blocks, least)
                and (blocks <= PORTABLE_CLUSTER or machine.sms >= _WHOLE_GPU))


def _split_k_ways(config: Config, problem: Problem, tiles: int, steps: int, machine: Machine) -> Iterator[Config]:
    """``config`` with each number of parts that is considered; of so many steps a part as were measured."""
    numbers = machine.profile.sharing
    if not _whole_tiles_pay(problem, steps, machine):
        yield from (varied(config, split=parts) for parts in _RANGES if tiles * parts <= machine.sms
                    and numbers.least_range_steps <= -(-steps // parts) <= numbers.most_range_steps)


def _whole_tiles_pay(p: Problem, steps: int, machine: Machine) -> bool:
    """Whether blocks with all of K, of tiles of 16 x 16, are so many that parts are there no sooner: 128 x 128 x 1024
    takes 3.87 us whole and 4.19 in two parts, 138 x 138 x 1014 5.00 and 5.25; but 256 x 36 x 852, 48 of them, 3.96 and
    3.79."""
    tiles, numbers = -(-p.m // 16) * -(-p.n // 16) * max(p.batch.count, 1), machine.profile.sharing
    return steps <= numbers.whole_steps and numbers.whole_share * machine.sms < tiles <= machine.sms


def one_slice(kernel: Kernel, row: Row, problem: Problem, machine: Machine) -> Iterator[Config]:
    """The ways that sum every element by one chain over K: by one slice, whole or with accumulators handed on.

    A tile that slices share takes over the numbers of its row by one slice. Of these those of 4 x 4 results a thread:
    larger ones there are by one slice anyway, and two rows a thread take four slices.
    """
    config = row.config
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
FAMILY = replace(TILED, configs=compiled,
                 candidates=lambda kernel, problem, machine, ready: _compared(kernel, problem, machine, ways),
                 chains=lambda kernel, problem, machine: _compared(kernel, problem, machine, one_slice))
