"""Modelled time of an emulated product, and by it the kernel that computes it and how blocks share K."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import sqrt

from ..kernels.emulated.orientation import oriented
from ..kernels.emulated.schemes import (
    FUSED,
    ROWS,
    STREAMED,
    Scheme,
    half_as_high,
    operand,
    product_on,
    scheme_of,
    streamed,
)
from ..kernels.registry import Kernel
from ..kernels.schedule import sharing
from ..kernels.widths import widths
from ..problem import Config, Problem
from ..runtime.architectures import Architecture

# Fitted to 755 times on an H100 (tensor-kernels-apiece.json of commit 53a5958): root mean square error 8 %, 7 % of
# those up to 1.5 times as long as a shape's fastest. By hand what that has few of or none: other schemes, edges.
# A tile's chunk of K, the rest of a tile, what launches cost, what moves through memory (of its nominal
# bandwidth).
_CHUNK_US, _TILE_US = {"fp16x3": 1.0, "tf32x3": 1.25, "bf16x9": 2.95}, 2.1
_HALF_AS_HIGH = 0.65  # of a chunk's time, where tiles have 64 rows
_FUSED_CHUNK_US, _FUSED_TILE_US = 1.27, 1.7
_FUSED_SKEW_US = 0.32, 0.3  # more for a chunk of A, of B, whose rows start anywhere
_FUSED_COLUMNS_US = 0.07  # and where K is contiguous in B: a lane has pieces of four columns
# By columns of a tile.
_STREAMED_CHUNK_US, _STREAMED_TILE_US = {64: 0.93, 128: 1.26}, {64: 1.7, 128: 2.0}
_STREAMED_SKEW_US = 0.49  # more for a chunk of A whose rows start anywhere
_STREAMED_FAR, _FAR_BYTES = 1.05, 40 << 20  # times, of an A that L2 does not keep
_SKEW_DOWN_US = 0.24   # more again where it is A's columns that are contiguous
# Times, of a chunk where tiles or chunks pass an edge and rows start at 16 bytes: all wait for the slowest tile. 700 x
# 900 x 1100 takes the fused kernel 32.4 us, 26 by the model without.
_FUSED_EDGE, _STREAMED_EDGE = 1.19, {64: 1.15, 128: 1.0}
_RAMP_US = 2.6         # until what is split on the way comes at the bandwidth of the memory
_FUSED_SHARE = 0.91    # and of that what the fused kernel reaches
# More for a chunk whose sums are carried over four times: of the product kernel, of the fused one, and by
# columns of a tile of the streamed one. Twice costs nothing more.
_FOUR_TIMES_US, _FUSED_FOUR_TIMES_US, _STREAMED_FOUR_TIMES_US = 0.4, 0.23, {64: 0.18, 128: 0.53}
_TURNED_ACROSS_US = 1.3  # more for a tile of C^T where rows of C start anywhere: pieces of eight floats
_START_US, _FUSED_START_US, _STREAMED_START_US, _REDUCE_US = 2.7, 1.7, 3.7, 1.2
_BANDWIDTH = 0.89
# More of a split pass where rows do not start at 16 bytes.
_UNALIGNED = 1.2
_SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_FLOAT = 4
# Between equals: tiles whole rather than in equal parts, and those rather than in ranges that end anywhere.
_MARGIN, _IN_PARTS = {1: 1.0, 0: 1.06}, 1.05
# With more rows of tiles, pairs of blocks share their copies of B: 16384 gains 6 %, small products nothing.
_CLUSTER_TILES = 32
# How often a chunk's products are added up in FP32 (`accumulations`). The tensor cores truncate: below so many k-steps
# that shows beside FP32's rounding, and with few results, whose reference has short sums, every wgmma's sum is added up
# by itself (256 x 256 x 4096, uniform: 1.5 eps in the mean otherwise, 0.5 of cuBLAS). Beyond so many of a block's
# k-steps four additions are more rounding than they save of truncation.
_TWICE_K, _FOUR_TIMES_K = 768, {"fp16x3": 4096, "tf32x3": 2048}
_FEW_RESULTS = 1 << 19  # of one matrix
TWICE, FOUR_TIMES = 2, 4


def estimate_us(kernel: Kernel, config: Config, problem: Problem, arch: Architecture, sm_count: int,
                ready: str = "") -> float:
    """Microseconds of a tensor-core kernel with what goes before and after it.

    ``ready``: ``"a"`` or ``"b"``, the problem's operand that has been split before; kernels that read it as it is have
    no use for that.
    """
    p, scheme = oriented(config, problem), scheme_of(kernel)
    assert scheme is not None
    if p.trans_c and ready:
        ready = "b" if ready == "a" else "a"
    four_times = config.accumulations == FOUR_TIMES
    bandwidth = arch.gpu_bandwidth_gbs * 1e3 * _BANDWIDTH  # bytes a microsecond
    slow = _UNALIGNED if min(widths(p)) < 4 else 1.0
    chunks, tiles = -(-p.k // scheme.chunk), _tiles(config, problem)
    count, tile = max(p.batch.count, 1), _TILE_US
    edges = min(widths(p)) == 4 and bool(p.m % config.bm or p.n % config.bn or p.k % scheme.chunk)
    if kernel == STREAMED:
        which = config.bn
        chunk, begin, tile = _STREAMED_CHUNK_US[which], _FUSED_START_US, _STREAMED_TILE_US[which]
        chunk *= _STREAMED_EDGE[which] if edges else 1.0
        if widths(p)[0] < 4:
            chunk += _STREAMED_SKEW_US + _SKEW_DOWN_US * p.trans_a
        if _FLOAT * count * p.m * p.k > _FAR_BYTES:
            chunk *= _STREAMED_FAR
        if four_times:
            chunk += _STREAMED_FOUR_TIMES_US[which]
        if ready != "b":
            panels = operand(scheme, p.n, p.k, p.batch.sizes, p.batch.b).bytes
            begin = _STREAMED_START_US + 2 * panels * slow / bandwidth
        moved = float(p.m * p.k + p.m * p.n)
    elif kernel == FUSED:
        chunk, begin, tile = _FUSED_CHUNK_US + _FUSED_COLUMNS_US * p.trans_b, _FUSED_START_US, _FUSED_TILE_US
        chunk *= _FUSED_EDGE if edges else 1.0
        chunk += sum(more for more, width in zip(_FUSED_SKEW_US, widths(p), strict=True) if width < 4)
        if widths(p)[0] < 4:
            chunk += _SKEW_DOWN_US * p.trans_a
        if four_times:
            chunk += _FUSED_FOUR_TIMES_US
        moved = (p.m * p.k + p.k * p.n + p.m * p.n) / _FUSED_SHARE
    else:
        chunk, moved = _CHUNK_US[scheme.name] * (1.0 if config.bm == ROWS else _HALF_AS_HIGH), 0.0
        chunk += _FOUR_TIMES_US if four_times else 0.0
        panels = sum(operand(scheme, rows, p.k, p.batch.sizes, strides).bytes
                    for name, rows, strides in (("a", p.m, p.batch.a), ("b", p.n, p.batch.b)) if name != ready)
        begin = _START_US + panels * (1 + _FLOAT / (scheme.planes * scheme.element)) * slow / bandwidth
    if p.trans_c and p.ldc % 4:
        tile += _TURNED_ACROSS_US
    if config.split == 0:
        shared = tiles % sm_count
        parts = min(sm_count, shared * chunks)
        length = -(-shared * chunks // parts)
        # A range touches two tiles, unless ranges end where tiles do.
        touched = 1 if length * parts == shared * chunks and chunks % length == 0 else 2
        turns = tiles // sm_count * (chunks * chunk + tile) + length * chunk + touched * tile
        blocks = max(parts, tiles)
    else:
        blocks = tiles * config.split
        parts = blocks if config.split > 1 else 0
        turns = -(-blocks // sm_count) * (-(-chunks // config.split) * chunk + tile)
    reduce = _REDUCE_US + 2 * parts * config.bm * config.bn * _FLOAT / bandwidth if parts else 0.0
    # Few SMs reach more than their share of the bandwidth: its square root.
    memory = _FLOAT * count * moved / bandwidth / sqrt(min(1.0, blocks / sm_count))
    return begin + max(turns, tile + memory + min(memory, _RAMP_US)) + reduce


def best(scheme: Scheme, problem: Problem, arch: Architecture, sm_count: int,
         ready: str = "") -> tuple[Kernel, Config, float]:
    """The kernel and configuration that the model thinks fastest, and its microseconds; of near equals the simplest."""
    def rank(one: tuple[Kernel, Config, float]) -> float:
        _, config, us = one
        return us * _MARGIN.get(config.split, _IN_PARTS)

    return min(candidates(scheme, problem, arch, sm_count, ready), key=rank)


def candidates(scheme: Scheme, problem: Problem, arch: Architecture, sm_count: int,
               ready: str = "") -> Iterator[tuple[Kernel, Config, float]]:
    """Every kernel of ``scheme`` in every way to share K that is considered, with its modelled microseconds."""
    kernel, config = product_on(scheme, arch)
    found = [(kernel, config)]
    if kernel.wgmma:
        few = scheme.name in _FOUR_TIMES_K and problem.batch.count == 1 and problem.m * problem.n <= _FEW_RESULTS
        times = FOUR_TIMES if few else TWICE if problem.k < _TWICE_K else 1
        wide = min(problem.m, problem.n) > 128 * _CLUSTER_TILES
        found = [(kernel, _varied(config, times, False, 2 if wide else 1))]
        if scheme_of(FUSED) is scheme:
            if _tiles(half := _varied(half_as_high(scheme), times), problem) <= sm_count:
                found.append((kernel, half))
            # C^T where that makes the larger operand the one that is not split before
            for trans_c in (False, True) if problem.n > problem.m else (False,):
                found += [(one, _varied(tile, times, trans_c)) for one, tile in (
                    (FUSED, FUSED.default), (STREAMED, streamed(64)), (STREAMED, streamed(128)))]
    for kernel, config in found:
        whole = not kernel.wgmma or config.cluster > 1 or config.bm < ROWS
        for split in [1] if whole else _ways(scheme, config, problem, sm_count):
            one = sharing(_for_long_ranges(scheme, config, split, problem, sm_count), split)
            yield kernel, one, estimate_us(kernel, one, problem, arch, sm_count, ready)


def _for_long_ranges(scheme: Scheme, config: Config, split: int, problem: Problem, sm_count: int) -> Config:
    """``config``, or where it carries sums over four times and a block adds up many k-steps one that does so twice."""
    tiles = _tiles(config, problem)
    parts = max(1.0, sm_count / tiles) if split == 0 else split
    if config.accumulations != FOUR_TIMES or problem.k < parts * _FOUR_TIMES_K[scheme.name]:
        return config
    return _varied(config, TWICE, config.trans_c, config.cluster)


@cache
def _varied(config: Config, accumulations: int, trans_c: bool = False, cluster: int = 1) -> Config:
    """Kept, as `sharing` keeps its own."""
    return replace(config, accumulations=accumulations, trans_c=trans_c, cluster=cluster)


def _ways(scheme: Scheme, config: Config, problem: Problem, sm_count: int) -> list[int]:
    chunks, tiles = -(-problem.k // scheme.chunk), _tiles(config, problem)
    ways = [1]
    if chunks > 1 and tiles % sm_count:
        ways.append(0)
    return ways + [split for split in _SPLITS if tiles * split <= 2 * sm_count and 2 * split <= chunks]


def _tiles(config: Config, problem: Problem) -> int:
    p = oriented(config, problem)
    return -(-p.m // config.bm) * -(-p.n // config.bn) * max(p.batch.count, 1)
