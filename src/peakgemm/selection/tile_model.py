"""The cost model of tiled kernels: configurations, measured rates, and the microseconds that a launch should take.

It counts what a launch must do: waves of tiles over the SMs at each configuration's measured share of the FP32 peak,
bytes over the memory's bandwidth, and the second kernel where K is shared. Its constants were fitted to times on an
H100 (docs/notebook/19).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from ..kernels.ffma.repack import CHUNK
from ..kernels.ffma.specialised import SPECIALISED
from ..kernels.ffma.staged import STAGED
from ..kernels.ffma.wide import WIDE
from ..kernels.library import copied_by_words
from ..kernels.registry import FLOAT, Kernel
from ..kernels.schedule import cluster_split, sharing
from ..kernels.validity import is_valid, reduces_across_slices, two_rows
from ..kernels.widths import width
from ..problem import Config, Problem
from ..runtime.architectures import Architecture, architecture
from .split_k_model import CLUSTER_SPLIT_K, COLUMNS, REVERSED, SPLIT_K, ring, split_k_us, split_k_ways, tile

# Configuration -> share of the FP32 peak that its main loop reaches, fitted to times on an H100 (docs/notebook/19):
# where rows of B are copied by 16 bytes, and where they are copied word by word (B stored as (N, K), or addresses that
# are no multiple of 16).
_RATES: dict[Config, tuple[float, float]] = {
    ring(128, 256, 16, 8, 16, 8, REVERSED, 232, a_first=True): (0.841, 0.805),
    ring(128, 128, 16, 8, 8, 8, COLUMNS, a_first=True, copy_groups=2): (0.813, 0.799),
    ring(64, 128, 32, 8, 8, 6, COLUMNS, slices=2, a_first=True): (0.798, 0.773),
    ring(64, 128, 16, 8, 8, 4, COLUMNS, producers=64, min_blocks=2, a_first=True): (0.794, 0.782),
    ring(32, 128, 32, 4, 8, 4, COLUMNS, producers=64, min_blocks=2, a_first=True, chunked=True): (0.734, 0.717),
    ring(32, 128, 16, 4, 8, 4, COLUMNS, producers=64, min_blocks=3): (0.736, 0.707),
    ring(64, 64, 16, 4, 8, 4, COLUMNS, producers=64, min_blocks=3): (0.735, 0.716),
    ring(96, 128, 32, 12, 8, 4, REVERSED, 232, slices=2, a_first=True): (0.820, 0.803),
    ring(64, 64, 32, 4, 8, 6, COLUMNS, slices=2, a_first=True, chunked=True): (0.736, 0.720),
    ring(128, 64, 16, 8, 8, 4, REVERSED, producers=64, min_blocks=2, copy_groups=2): (0.795, 0.782),
    ring(32, 64, 32, 4, 4, 6, REVERSED, slices=2, min_blocks=2, chunked=True): (0.613, 0.557),
    ring(64, 32, 32, 4, 4, 6, REVERSED, slices=2, min_blocks=2, chunked=True): (0.578, 0.557),
    ring(32, 32, 32, 4, 4, 8, REVERSED, slices=4, min_blocks=2, chunked=True): (0.493, 0.469),
    # Each block has one tile.
    tile(32, 32, 4, 4, 8, 2, 2, a_first=True): (0.508, 0.456),
    tile(16, 16, 2, 4, 8, 4, 4): (0.220, 0.205),
    tile(16, 16, 2, 4, 16, 4, 4): (0.295, 0.270),
    tile(16, 32, 2, 4, 8, 4, 2): (0.400, 0.350),
    tile(16, 32, 2, 4, 12, 4, 2): (0.380, 0.355),
}
# Tiles (and blocks an SM) that gain where a block knows that it has one alone, by two groups of copying warps.
_ALONE = {(32, 32, 2), (32, 64, 2), (64, 32, 2)}
# Steps of K for which tiles of 2 x 4 results a thread have so many stages, by their columns. Of K from 200 on sixteen
# stages gain up to 40 % (440 x 16 x 532 takes 2.82 us so, 3.80 by eight), 128 loses 10 (1.56 us, 1.43).
_RINGS = {(16, 8): range(7), (16, 16): range(7, 1 << 30),
          (32, 8): range(12), (32, 12): range(12, 1 << 30)}
# Where nearly all SMs have such a tile of 32 columns few steps of K are slower than by 32 x 32 on half as many, beside
# the next launch: 255 takes 3.33 us so, 3.14 by 32 x 32, 319 x 186 x 174 NT 2.81 and 2.66; 224 x 268 x 304 3.61, 3.86.
_CROWDED, _CROWDED_STEPS = 7 / 8, 8
_ONE_SLICE = 16  # k-steps, half of a slice's stage


_FOUR_WARPS = 128  # threads
_UNDEALT = 96  # results a thread, at most: without setmaxnreg more need more registers than 384 threads leave
_STAGED_RATES: dict[Config, tuple[float, float]] = {STAGED.default: (0.45, 0.45)}
WIDE_RATES: dict[Config, tuple[float, float]] = {WIDE.default: (0.868, 0.868)}
_START_US = 2.16        # launch and first tiles
_STORED_PER_US = 1599   # results that leave an SM, for each of its warps that store,
_BY_PAIRS = 2           # and times that, where they pass shared memory in pairs (wide thread tiles)
_TURNOVER = 1.25        # steps of BK, in time, from a block's tile to its next
_LATER_STEP = 0.85      # of the time of a step that the ring holds, for others of a tile of 16 rows
_SLICE_US = 0.230       # of the end of a tile, for each slice whose sums are added to another's,
_SLICE_REDUCTION_US = 0.104    # and where all threads of the block do that together, for 16 results of each;
_GOES_ON_US = 0.15      # before a next tile these wait for each other once more
_WAITED = 0.30          # of a step's time, for each that the last turn of slices lacks: 1000 x 1000 x 200 takes 15.2 us
                        # by steps of 32 and two slices, a K of 256 15.5
# Where the last wave leaves an SM fewer blocks of four warps that multiply than it has room for, these do not run as
# much faster: their time by the blocks missing, to this power, in the only wave and after others.
_LONELY = 0.17, 0.88
_REDUCE_US = -0.30      # a second kernel, less the end of a tile that its own blocks make,
_RANGES_US = 0.09       # and where ranges of k-steps end anywhere: 448 x 1288 x 108 takes 9.5 us by those, 8.0 without
_ALONE_US = 1.075       # less, where a block of a small tile knows that it has one alone,
_EARLY_US = 0.050       # more of it with 16 results a thread at most, whose end is found early,
_OVERLAP_US = 0.530      # and where two launches overlap
_PART_US = 0.031        # of it, for each partial sum that one result is made of
_IN_L2 = 1.5            # times that, for partial sums, which stay there; those of wide tiles do not
_REPACK_US = 5.0        # until the first chunk of K is repacked, where operands are,
_REPACKED_COST = 6e6    # and bytes of them that cost a microsecond more;
_REPACKED_PER_US = 0.5e6  # bytes that are repacked in one
_BANDWIDTH = 0.855      # of the nominal figure
_OVERLAP = 2.5          # power of the sum of both that is the time of what is computed and of what is moved
_RAGGED = 2             # times the bytes of results whose rows start anywhere: they leave word by word
_SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def estimate_us(config: Config, problem: Problem, arch: Architecture, sm_count: int) -> float:
    """Modelled time in microseconds of a tiled kernel.

    Only the ranking is meant: the clock and bandwidth are those of the architecture's reference GPU.
    """
    return modelled_us(config, problem, arch, sm_count, copied_by_words(problem), results_stored(problem))


def results_stored(p: Problem) -> int:
    """Results of a product, those of rows that start anywhere counted as what their stores cost."""
    return p.m * p.n * (1 if width(p.alignment[2], p.ldc, p.n, *p.batch.c) == 4 else _RAGGED)


def modelled_us(config: Config, problem: Problem, arch: Architecture, sm_count: int, by_words: bool,
                results: int) -> float:
    """`estimate_us`, told whether B is copied ``by_words`` and what ``results`` cost (see `results_stored`)."""
    p, slots = problem, sm_count * config.min_blocks
    count = max(p.batch.count, 1)
    tiles = -(-p.m // config.bm) * -(-p.n // config.bn) * count
    steps = max(-(-p.k // config.bk), 1)
    bandwidth = arch.gpu_bandwidth_gbs * 1e3 * _BANDWIDTH  # bytes a microsecond
    memory = FLOAT * (p.m * p.k + p.k * p.n + results) * count / bandwidth
    if (parts := split_k_us(config, tiles, steps, memory, by_words, sm_count)) is not None:
        return parts
    rate = _rate(config)[by_words]
    step_us = _step_us(config, rate, arch)
    pieces = 0  # partial sums of tiles

    def in_turns(steps: int) -> float:
        sooner = (1 - _LATER_STEP) * max(steps - config.stages, 0) if two_rows(config) else 0.0
        return steps + _WAITED * (-steps % config.slices) - sooner

    if config.split == 0:
        shared = tiles % slots
        # A range of k-steps mostly ends inside of a tile.
        pieces = min(slots, shared * steps) + shared
        # Some block has a k-step and a piece at least, alone on its SM where there are few.
        least = 1.0 if shared else 0.0
        turns = tiles // slots * in_turns(steps) * config.min_blocks + max(shared * steps / sm_count, least)
        stored = tiles // slots * config.min_blocks + max(pieces / sm_count, least)
    else:
        split = min(config.split, steps)
        pieces = tiles * split if split > 1 else 0
        whole, rest = divmod(tiles * split, slots)
        # Blocks share their SM's lanes; in the last wave there are fewer to share with.
        last = -(-rest // sm_count)
        stored = whole * config.min_blocks + last
        lonely = float(last)
        if last and config.threads * config.slices <= _FOUR_WARPS:
            lonely *= (config.min_blocks / last) ** _LONELY[whole > 0]
        turns = (whole * config.min_blocks + lonely) * in_turns(-(-steps // split))
    # A block stores or computes; beside others on its SM, these go on meanwhile.
    together = max(1, min(config.min_blocks, -(-tiles // sm_count)))
    all_end = reduces_across_slices(config)
    storing = config.threads * (config.slices if all_end else 1) // 32 * together
    store = stored * config.bm * config.bn / (_stored_per_us(config) * storing) / together
    added_us = _SLICE_REDUCTION_US * config.tm * config.tn / 16 if all_end else _SLICE_US
    store += stored / together * added_us * (config.slices - 1)
    besides = 0.0  # what the sums of several blocks cost, or a lone block saves
    if pieces:
        each = pieces / (tiles % slots if config.split == 0 else tiles)  # partial sums of one result
        moved = 2 * FLOAT * pieces * config.bm * config.bn
        besides = (_REDUCE_US if config.split else _RANGES_US) + _PART_US * each + moved / (bandwidth * _in_l2(config))
    elif config.one_tile:
        besides = -_ALONE_US - _OVERLAP_US * arch.launches_overlap(tiles, sm_count) - _EARLY_US
    if all_end and not config.one_tile:
        besides += _GOES_ON_US
    busy = (turns + stored * _TURNOVER) * step_us + store
    return math.pow(math.pow(busy, _OVERLAP) + math.pow(memory, _OVERLAP), 1 / _OVERLAP) + _START_US + besides


def repack_us(config: Config, problem: Problem, size: int, arch: Architecture) -> float:
    """What a product loses whose idle producer warps repack ``size`` bytes of its operands.

    The first chunk of K is there before; the others must be while the first tiles are computed.
    """
    if not size:
        return 0.0
    tile = -(-problem.k // config.bk) * _step_us(config, _rate(config)[0], arch)
    late = size * max(problem.k - CHUNK, 0) / max(problem.k, 1) / _REPACKED_PER_US - tile
    return _REPACK_US + size / _REPACKED_COST + max(late, 0.0)


def _step_us(config: Config, rate: float, arch: Architecture) -> float:
    """One SM, one step of one block: bm bn bk multiply-adds."""
    return config.bm * config.bn * config.bk / (arch.fp32_lanes_per_sm * rate * arch.gpu_mhz)


@cache
def _stored_per_us(config: Config) -> float:
    return _STORED_PER_US * (_BY_PAIRS if sharing(config, 1) in WIDE_RATES else 1)


@cache
def _in_l2(config: Config) -> float:
    return 1.0 if sharing(config, 1) in WIDE_RATES else _IN_L2


@cache
def _rate(config: Config) -> tuple[float, float]:
    """The measured shares of peak; of a configuration fitted to another architecture, that of its tile."""
    config = replace(config, split=1)
    if config in _RATES:
        return _RATES[config]
    if config in WIDE_RATES:
        return WIDE_RATES[config]
    tile = (config.bm, config.bn, config.tm, config.tn)
    same = [(sum(getattr(known, name) != getattr(config, name) for name in ("min_blocks", "bk")), rate)
            for known, rate in (_RATES | _STAGED_RATES).items() if (known.bm, known.bn, known.tm, known.tn) == tile]
    return min(same, key=lambda one: one[0])[1] if same else (0.5, 0.5)


def _two_rows_pay(config: Config, tiles: int, k: int, sm_count: int) -> bool:
    """Whether ``tiles`` by 2 x 4 results a thread have an SM each, and the stages that ``k`` wants."""
    steps = -(-k // config.bk)
    crowded = config.bn > config.bm and steps <= _CROWDED_STEPS
    return (k > _ONE_SLICE and steps in _RINGS[config.bn, config.stages]
            and tiles <= sm_count * (_CROWDED if crowded else 1))


def ways(config: Config, problem: Problem, sm_count: int) -> Iterator[Config]:
    """The ways of ``config`` to cut the work: tiles whole, or their k-steps shared."""
    slots = sm_count * config.min_blocks
    tiles = -(-problem.m // config.bm) * -(-problem.n // config.bn) * max(problem.batch.count, 1)
    steps = -(-problem.k // config.bk)
    if config.one_tile:
        yield from split_k_ways(config, problem, tiles, steps, sm_count)
        if not cluster_split(config) and (_two_rows_pay(config, tiles, problem.k, sm_count) if two_rows(config)
                                          else tiles <= sm_count):
            yield config
        return
    yield alone(config) if tiles <= slots else config
    if steps > 1 and tiles % slots:
        yield sharing(config, 0)
    for split in _SPLITS:
        # More parts than twice the slots buy nothing and cost workspace; fewer than four steps a part, latency.
        if tiles * split > 2 * slots or 4 * split > steps:
            return
        yield sharing(config, split)


@cache
def alone(config: Config) -> Config:
    """``config`` for blocks that have one tile each, where its threads gain by that."""
    if (config.bm, config.bn, config.min_blocks) not in _ALONE or not config.producers:
        return config
    return replace(config, one_tile=True, copy_groups=2)


@cache
def compiled(config: Config) -> tuple[Config, ...]:
    """``config``, and as what else it is compiled: for blocks with one tile each, and with one part of a tile's K."""
    return tuple(dict.fromkeys((config, alone(config), *((sharing(config, 2),) if config in SPLIT_K else ()))))


@cache
def configurations(arch: str) -> tuple[tuple[Kernel, Config], ...]:
    """The tiled kernels and configurations that the model ranks on ``arch``, all valid there."""
    limits = architecture(arch)
    if not limits.has_cp_async:
        return tuple((STAGED, config) for config in _STAGED_RATES)
    found = []
    for config in (*_RATES, *CLUSTER_SPLIT_K):
        if config.cluster > 1 and limits.number != 90:
            continue
        if config.registers and limits.number != 90:
            if config.tm * config.tn > _UNDEALT:
                continue
            config = replace(config, registers=0)
        fitted: Config | None = config
        while fitted is not None and not is_valid(SPECIALISED, fitted, limits):
            stages = fitted.stages - fitted.slices
            fitted = replace(fitted, stages=stages) if stages >= 2 * fitted.slices else None
        if fitted is not None:
            found.append((SPECIALISED, fitted))
    return tuple(found)
