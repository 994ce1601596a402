"""The cost model of blocks that have one part each of a small tile's K: parts that a second kernel adds up, and parts
that the blocks of a cluster give each other.

32 x 32 x 2048 takes 2.84 us by the first on an H100, 4.22 by blocks that may have several tiles; 32 x 32 x 1024 2.71,
and 1.61 by clusters (docs/notebook/19).
"""

from __future__ import annotations

from collections.abc import Iterator

from ...problem import Config, Problem, varied
from ...runtime.architectures import PORTABLE_CLUSTER, architecture
from ..profile import Cluster, Machine, SplitK

CLUSTERS = 2, 4, 8, 16  # blocks of a cluster that have parts of one small tile's K
_RANGES = (*range(2, 10), 12, 16, 24)
# Every GPU with clusters runs eight blocks of one; sixteen want a group of as many SMs, which a GPU with fewer SMs than
# an H100, or a part of one (MIG), need not have.
_WHOLE_GPU = architecture("sm_90").gpu_sms


def cluster_us(cluster: Cluster, config: Config, steps: int, memory: float, by_words: bool) -> float:
    """Modelled microseconds of tiles that have a cluster each, with ``steps`` of K, whose bytes take ``memory``."""
    each = -(-steps // config.cluster)
    step_us = cluster.step_us + cluster.words_us * by_words
    return (cluster.start_us + cluster.block_us * config.cluster + step_us * each
            + cluster.moved_factor * memory + cluster.later_us * max(each - config.stages, 0)
            + cluster.turn_us * -(-each // config.slices))


def split_k_us(parts: SplitK, config: Config, tiles: int, steps: int, memory: float, by_words: bool,
               sm_count: int) -> float:
    """Modelled microseconds of ``tiles`` whose K is cut into ``config.split`` parts, which a second kernel adds up."""
    step = (parts.step_us + parts.words_us * by_words) * -(-steps // config.split)
    crowded = parts.crowded_us * (2 * tiles * config.split > sm_count)
    return parts.start_us + parts.part_us * config.split + step + crowded + parts.moved_factor * memory


def cluster_ways(config: Config, tiles: int, steps: int, machine: Machine) -> Iterator[Config]:
    """``config`` with each number of blocks a cluster that is considered.

    Two launches overlap, or each waits for the one before: 0.65 us more. The groups of SMs that a cluster has to lie in
    are no multiples of one: of 132 SMs 15 clusters of four find room so, 16 do not. Of few steps blocks with all of K
    are as fast: 42 x 5 x 116 takes 1.30 us so, 1.55 by clusters, 6 x 52 x 139 1.84 and 1.56.
    """
    least = machine.profile.sharing.least_cluster_steps
    yield from (varied(config, cluster=blocks) for blocks in CLUSTERS
                if 2 * (tiles + 1) * blocks <= machine.sms and steps >= max(blocks, least)
                and (blocks <= PORTABLE_CLUSTER or machine.sms >= _WHOLE_GPU))


def split_k_ways(config: Config, problem: Problem, tiles: int, steps: int, machine: Machine) -> Iterator[Config]:
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
