"""The cost model of blocks that have one part each of a small tile's K: parts that a second kernel adds up, and parts
that the blocks of a cluster give each other. Its constants were fitted to times on an H100 (docs/notebook/19).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from ..kernels.schedule import cluster_split, sharing
from ..kernels.validity import CLUSTERS
from ..problem import Config, FfmaOrder, Problem
from ..runtime.architectures import PORTABLE_CLUSTER

ROWS, REVERSED, COLUMNS = FfmaOrder


def ring(bm: int, bn: int, bk: int, tm: int, tn: int, stages: int, order: FfmaOrder = ROWS, registers: int = 0,
         producers: int = 128, **more: Any) -> Config:
    """A configuration of ffma/specialised.cu."""
    return Config(bm, bn, bk, tm, tn, stages=stages, fragments=2, raster=8, producers=producers, registers=registers,
                  ffma_order=order, **more)


def tile(bm: int, bn: int, tm: int, tn: int, stages: int, slices: int, copy_groups: int, **more: Any) -> Config:
    """One of a block that has one tile, of 32 k-steps a stage; its sums are chunked."""
    return ring(bm, bn, 32, tm, tn, stages, REVERSED, slices=slices, copy_groups=copy_groups, one_tile=True,
                chunked=True, **more)


class _SplitK(NamedTuple):
    """Microseconds of a product whose blocks have one part each of a small tile's K: its launches and their ends, then
    for each part, for each of its steps, where more than half of the SMs have a block, for a step whose B is copied by
    words, and for each microsecond that the operands' bytes take."""

    start: float
    part: float
    step: float
    crowded: float
    words: float
    moved: float


# Fitted to 595 times of 81 shapes, within 6 % of each (docs/notebook/19). 32 x 32 x 2048 takes
# 2.84 us so, 4.22 by blocks that may have several tiles, 25 x 26 x 1385 2.72 and 4.61.
SPLIT_K: dict[Config, _SplitK] = {
    tile(16, 16, 2, 4, 12, 4, 2): _SplitK(2.08, .035, .089, .073, .023, .479),
    tile(16, 16, 2, 4, 16, 4, 4): _SplitK(2.174, .018, .085, .382, .014, .347),
    tile(32, 32, 4, 4, 8, 2, 2, a_first=True): _SplitK(2.591, .019, .209, .095, .049, .52),
}
_RANGES = 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24
_STEPS_OF_A_RANGE = range(3, 41)  # what was measured
# Not of so few steps where tiles of 16 x 16 are so many of the SMs: 128 x 128 x 1024 takes 3.87 us whole and 4.19 in
# two parts, 138 x 138 x 1014 5.00 and 5.25; but 256 x 36 x 852, 48 of them, 3.96 and 3.79.
_WHOLE_STEPS, _WHOLE_TILES = 32, 0.45


class _ClusterSplitK(NamedTuple):
    """Microseconds of a product whose tiles have a cluster each: its launch and its end, then for each block of a
    cluster, for each step of a block, for one whose B is copied by words, for each microsecond that the operands' bytes
    take, for each step more than a block has stages, and for each turn of its slices."""

    start: float
    block: float
    step: float
    words: float
    moved: float
    later: float
    turn: float


# Fitted to 543 times of 95 shapes, within 4 to 6 % in the mean (docs/notebook/19). 32 x 32 x 1024
# takes 1.61 us so, 2.71 by parts that a second kernel adds up, 128 x 128 x 512 2.47, 2.60 by blocks with all of K.
CLUSTER_SPLIT_K: dict[Config, _ClusterSplitK] = {
    tile(16, 16, 2, 4, 8, 4, 4, cluster=2):
        _ClusterSplitK(1.161, .006, .014, .010, .955, .089, .306),
    tile(16, 32, 2, 4, 12, 4, 2, cluster=2):
        _ClusterSplitK(1.313, .005, .078, .030, .564, 0, .210),
    tile(32, 32, 4, 4, 8, 2, 2, a_first=True, cluster=2):
        _ClusterSplitK(1.389, .005, .063, .047, .381, 0, .292),
}
# Every GPU with clusters runs eight blocks of one; sixteen want a group of as many SMs, which a GPU with fewer SMs than
# an H100, or a part of one (MIG), need not have.
_WHOLE_GPU = 132
# Of fewer steps blocks with all of K are as fast: 42 x 5 x 116 takes 1.30 us so, 1.55 by clusters, 6 x 52 x 139 1.84
# and 1.56.
_LEAST_STEPS = 5


def split_k_us(config: Config, tiles: int, steps: int, memory: float, by_words: bool, sm_count: int) -> float | None:
    """Modelled microseconds of such a product of ``tiles`` and ``steps`` of K whose bytes take ``memory``; None where
    blocks have no parts."""
    if cluster_split(config):
        cluster = CLUSTER_SPLIT_K[clustered(config, 2)]
        each = -(-steps // config.cluster)
        return (cluster.start + cluster.block * config.cluster + (cluster.step + cluster.words * by_words) * each
                + cluster.moved * memory + cluster.later * max(each - config.stages, 0)
                + cluster.turn * -(-each // config.slices))
    parts = SPLIT_K.get(sharing(config, 1)) if config.split > 1 else None
    if parts is None:
        return None
    step = (parts.step + parts.words * by_words) * -(-steps // config.split)
    crowded = parts.crowded * (2 * tiles * config.split > sm_count)
    return parts.start + parts.part * config.split + step + crowded + parts.moved * memory


def _whole_tiles_pay(p: Problem, steps: int, sm_count: int) -> bool:
    """Whether blocks with all of K, of tiles of 16 x 16, are so many that parts are there no sooner."""
    tiles = -(-p.m // 16) * -(-p.n // 16) * max(p.batch.count, 1)
    return steps <= _WHOLE_STEPS and _WHOLE_TILES * sm_count < tiles <= sm_count


@cache
def clustered(config: Config, blocks: int) -> Config:
    """``config`` with clusters of so many blocks. Kept, as by `sharing`."""
    return replace(config, cluster=blocks)


def split_k_ways(config: Config, problem: Problem, tiles: int, steps: int, sm_count: int) -> Iterator[Config]:
    """The ways of ``config`` to have the ``steps`` of its ``tiles`` in parts."""
    if cluster_split(config):
        # Two launches overlap, or each waits for the one before: 0.65 us more. The groups of SMs that a
        # cluster has to lie in are no multiples of one: of 132 SMs 15 clusters of four find room so, 16 do not.
        yield from (clustered(config, blocks) for blocks in CLUSTERS
                    if 2 * (tiles + 1) * blocks <= sm_count and steps >= max(blocks, _LEAST_STEPS)
                    and (blocks <= PORTABLE_CLUSTER or sm_count >= _WHOLE_GPU))
    elif config in SPLIT_K and not _whole_tiles_pay(problem, steps, sm_count):
        yield from (sharing(config, parts) for parts in _RANGES
                    if tiles * parts <= sm_count and -(-steps // parts) in _STEPS_OF_A_RANGE)
