"""Modelled time of an emulated product, and by it the kernel that computes it and how blocks share K."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import chain
from math import sqrt

from ..kernels.posed import TURNED, posed
from ..kernels.registry import Kernel
from ..kernels.schedule import sharing
from ..kernels.schemes import (
    FOUR_TIMES,
    FUSED,
    ROWS,
    SCHEMES,
    SMALL_BLOCKS,
    STREAMED,
    TWICE,
    Scheme,
    carried,
    half_as_high,
    operand,
    product_on,
    scheme_of,
    small_blocks,
    streamed,
    tall,
)
from ..kernels.validity import is_valid
from ..kernels.widths import widths
from ..problem import Config, Problem
from ..runtime.architectures import Architecture

# Fitted to 755 times on an H100, docs/notebook/19: root mean square error 8 %, 7 % of those up
# to 1.5 times as long as a shape's fastest. By hand what that has few of or none: other schemes, edges, tiles of 192
# rows. A tile's chunk of K, the rest of a tile, what launches cost, what moves through memory (of its nominal
# bandwidth).
_CHUNK_US, _TILE_US = {"fp16x3": 1.0, "tf32x3": 1.25, "bf16x9": 2.95}, 2.1
_HALF_AS_HIGH = 0.65  # of a chunk's time, where tiles have 64 rows
_FUSED_CHUNK_US, _FUSED_TILE_US = 1.27, 1.7
_FUSED_SKEW_US = 0.32, 0.3  # more for a chunk of A, of B, whose rows start anywhere
_FUSED_COLUMNS_US = 0.07  # and where K is contiguous in B: a lane has pieces of four columns
# By columns of a tile; 192: of tiles of 192 rows and 128 columns, by hand to docs/notebook/16.
_STREAMED_CHUNK_US, _STREAMED_TILE_US = {64: 0.93, 128: 1.26, 192: 2.15}, {64: 1.7, 128: 2.0, 192: 5.0}
_STREAMED_SKEW_US = 0.49  # more for a chunk of A whose rows start anywhere
_STREAMED_FAR, _FAR_BYTES = 1.05, 40 << 20  # times, of an A that L2 does not keep
_SKEW_DOWN_US = 0.24   # more again where it is A's columns that are contiguous
# Times, of a chunk where tiles or chunks pass an edge and rows start at 16 bytes: all wait for the slowest tile. 700 x
# 900 x 1100 takes the fused kernel 32.4 us, 26 by the model without.
_FUSED_EDGE, _STREAMED_EDGE = 1.19, {64: 1.15, 128: 1.0, 192: 1.0}
_RAMP_US = 2.6         # until what is split on the way comes at the bandwidth of the memory
_FUSED_SHARE = 0.91    # and of that what the fused kernel reaches
# More for a chunk whose sums are carried over four times: of the product kernel, of the fused one, and by
# columns of a tile of the streamed one. Twice costs nothing more.
_FOUR_TIMES_US, _FUSED_FOUR_TIMES_US, _STREAMED_FOUR_TIMES_US = 0.4, 0.23, {64: 0.18, 128: 0.53}
_TURNED_ACROSS_US = 1.3  # more for a tile of C^T where rows of C start anywhere: pieces of eight floats
_START_US, _FUSED_START_US, _STREAMED_START_US, _REDUCE_US = 2.7, 1.7, 3.7, 1.2
_BANDWIDTH, _SMALL_BANDWIDTH = 0.89, 0.82
# Small blocks, by hand to docs/notebook/17, and those of two and three that carry over four
# times to bench-emulated.json: an SM's time for a chunk, whichever of its blocks has it, where it has one of them, two
# or three; the same where sums of 64 columns are carried over four times; of 16 columns. More where columns are
# contiguous in B, and for lines that start anywhere, of each operand; times, where tiles or chunks pass an edge. What
# is left of the first tiles, and of as many as an SM has at a time after those.
_SMALL_CHUNK_US, _SMALL_FOUR_TIMES_US, _SMALL_16_US = (0.5, 0.45, 0.42), (0.7, 0.53, 0.46), (0.45, 0.25, 0.25)
_SMALL_ACROSS_US, _SMALL_SKEW_US, _SMALL_EDGE = 0.055, 0.18, 2.0
_SMALL_START_US, _SMALL_TILE_US, _SMALL_NEXT_TILES_US = 2.2, 2.0, 4.5
_SMALL_REDUCE_US, _SMALL_PARTS = 1.0, 0.25  # partial sums that L2 keeps, in the place of those above
_SMALL_BLOCKS = 3  # of an SM
# More of a split pass where rows do not start at 16 bytes.
_UNALIGNED = 1.2
_SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_SMALL_SPLITS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96)
_FLOAT = 4
# Between equals: tiles whole rather than in equal parts, and those rather than in ranges that end anywhere.
_MARGIN, _IN_PARTS = {1: 1.0, 0: 1.06}, 1.05
# With more rows of tiles, pairs of blocks share their copies of B: 16384 gains 6 %, small products nothing.
_CLUSTER_TILES = 32
_FULL = 0.9  # of the SMs have a tile of 192 rows, where there are such tiles
# Below, the tensor cores' truncation shows beside FP32's rounding: their sums are carried over twice as often. Beyond,
# of a block's k-steps, carrying over four times is more rounding than it saves of truncation.
_TWICE_K, _FOUR_TIMES_K = 768, {"fp16x3": 4096, "tf32x3": 2048}


def estimate_us(kernel: Kernel, config: Config, problem: Problem, arch: Architecture, sm_count: int,
                ready: str = "") -> float:
    """Microseconds of a tensor-core kernel with what goes before and after it.

    ``ready``: ``"a"`` or ``"b"``, the problem's operand that has been split before; kernels that read it as it is have
    no use for that.
    """
    p, scheme = posed(config, problem), scheme_of(kernel)
    assert scheme is not None
    if p.trans_c and ready:
        ready = "b" if ready == "a" else "a"
    four_times = config.variant & ~TURNED == FOUR_TIMES
    bandwidth = arch.gpu_bandwidth_gbs * 1e3  # bytes a microsecond
    if kernel == SMALL_BLOCKS:
        return _small_blocks_us(config, p, bandwidth * _SMALL_BANDWIDTH, sm_count)
    bandwidth *= _BANDWIDTH
    slow = _UNALIGNED if min(widths(p)) < 4 else 1.0
    chunks, tiles = -(-p.k // scheme.chunk), _tiles(config, problem)
    count, tile = max(p.batch.count, 1), _TILE_US
    edges = min(widths(p)) == 4 and bool(p.m % config.bm or p.n % config.bn or p.k % scheme.chunk)
    if kernel == STREAMED:
        which = config.bn if config.bm == ROWS else config.bm
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


def _small_blocks_us(config: Config, p: Problem, bandwidth: float, sm_count: int) -> float:
    """The same of `SMALL_BLOCKS`; ``p`` as it sees it, ``bandwidth`` in bytes a microsecond."""
    count = max(p.batch.count, 1)
    blocks = -(-p.m // config.bm) * -(-p.n // config.bn) * count * config.split
    four_times = config.variant & ~TURNED == FOUR_TIMES and config.bn == 64
    each = _SMALL_16_US if config.bn == 16 else _SMALL_FOUR_TIMES_US if four_times else _SMALL_CHUNK_US
    chunk = each[min(-(-blocks // sm_count), _SMALL_BLOCKS) - 1]
    chunk += _SMALL_ACROSS_US * (not p.trans_b) + _SMALL_SKEW_US * sum(width < 4 for width in widths(p))
    chunk *= _SMALL_EDGE if p.m % config.bm or p.n % config.bn or p.k % config.bk else 1.0
    chunks = -(-p.k // config.bk)
    turns = -(-blocks // sm_count) * -(-chunks // config.split) * chunk
    turns += (-(-blocks // (_SMALL_BLOCKS * sm_count)) - 1) * _SMALL_NEXT_TILES_US
    # An SM that has one block has half its share of what moves under way: it reaches the root of that.
    memory = _FLOAT * count * (p.m * p.k + p.k * p.n + p.m * p.n) / bandwidth
    memory /= sqrt(min(1.0, blocks / (2 * sm_count)))
    reduce = _SMALL_REDUCE_US + _SMALL_PARTS * 2 * blocks * config.bm * config.bn * _FLOAT / bandwidth
    return _SMALL_START_US + _SMALL_TILE_US + max(turns, memory) + (reduce if config.split > 1 else 0.0)


def best(scheme: Scheme | None, problem: Problem, arch: Architecture, sm_count: int, ready: str = "",
         sliced: bool = False) -> tuple[Kernel, Config, float]:
    """The kernel and configuration that the model thinks fastest, and its microseconds; of near equals the simplest.

    ``scheme`` None: fp16x3, or tf32x3 in small blocks.

    ``sliced``: cuBLAS, whose errors are the measure, cuts K of such products into many short sums. Of positive numbers
    the tensor cores' truncation is then more than cuBLAS's rounding (256 x 256 x 4096, uniform: 1.5 eps in the mean
    against 0.5), unless every wgmma's sum is carried over. Where a block adds up many k-steps rounding is the larger
    part: sums that are carried over half as often err less (512 x 512 x 32768, uniform: 0.90 eps instead of 1.00, of
    elements half of which are zero 0.87 instead of 1.11; cuBLAS 1.08 and 0.73).
    """
    def rank(one: tuple[Kernel, Config, float]) -> float:
        _, config, us = one
        return us * _MARGIN.get(config.split, _IN_PARTS)

    found = candidates(scheme or SCHEMES["fp16x3"], problem, arch, sm_count, ready, sliced)
    if scheme is None and arch.number == 90:
        found = chain(found, _in_small_blocks(problem, arch, sm_count, sliced))
    return min(found, key=rank)


def candidates(scheme: Scheme, problem: Problem, arch: Architecture, sm_count: int,
               ready: str = "", sliced: bool = False) -> Iterator[tuple[Kernel, Config, float]]:
    """Every kernel of ``scheme`` in every way to share K that is considered, with its modelled microseconds."""
    kernel, config = product_on(scheme, arch)
    found = [(kernel, config)]
    if kernel.wgmma:
        variant = FOUR_TIMES if sliced else TWICE if problem.k < _TWICE_K else 0
        wide = min(problem.m, problem.n) > 128 * _CLUSTER_TILES
        found = [(kernel, _varied(config, variant, 2 if wide else 1))]
        if scheme_of(FUSED) is scheme:
            if _tiles(half := _varied(half_as_high(scheme), variant), problem) <= sm_count:
                found.append((kernel, half))
            # C^T where that makes the larger operand the one that is not split before
            for turned in (0, TURNED) if problem.n > problem.m else (0,):
                found += [(one, _varied(tile, variant | turned)) for one, tile in (
                    (FUSED, FUSED.default), (STREAMED, streamed(64)), (STREAMED, streamed(128)))]
                high = _varied(tall(), turned)
                if not variant and _ways(scheme, high, problem, sm_count) and is_valid(STREAMED, high, arch, problem):
                    found.append((STREAMED, high))
        if scheme_of(SMALL_BLOCKS) is scheme:
            yield from _in_small_blocks(problem, arch, sm_count, sliced)
    for kernel, config in found:
        whole = not kernel.wgmma or config.cluster > 1 or config.bm < ROWS
        for split in [1] if whole else _ways(scheme, config, problem, sm_count):
            one = sharing(_for_long_ranges(scheme, config, split, problem, sm_count), split)
            yield kernel, one, estimate_us(kernel, one, problem, arch, sm_count, ready)


def _in_small_blocks(problem: Problem, arch: Architecture, sm_count: int,
                     sliced: bool) -> Iterator[tuple[Kernel, Config, float]]:
    """As `candidates`: no more columns than there are, and no more blocks than there is room for at a time."""
    variant = FOUR_TIMES if sliced else TWICE if problem.k < _TWICE_K else 0
    for turned in (0, TURNED):
        across = problem.m if turned else problem.n
        columns = next((few for few in (16, 32) if across <= few), 64)
        if turned and columns == 64:
            continue
        tile = _varied(small_blocks(columns), carried(columns, variant) | turned)
        tiles, chunks = _tiles(tile, problem), -(-problem.k // tile.bk)
        for split in (1, *_SMALL_SPLITS):
            if split == 1 or (tiles * split <= _SMALL_BLOCKS * sm_count and 3 * split <= chunks):
                one = sharing(_for_long_ranges(SCHEMES[SMALL_BLOCKS.name], tile, split, problem, sm_count), split)
                yield SMALL_BLOCKS, one, estimate_us(SMALL_BLOCKS, one, problem, arch, sm_count)


def _for_long_ranges(scheme: Scheme, config: Config, split: int, problem: Problem, sm_count: int) -> Config:
    """``config``, or where it carries sums over four times and a block adds up many k-steps one that does so twice."""
    tiles = _tiles(config, problem)
    parts = max(1.0, sm_count / tiles) if split == 0 else split
    if config.variant & ~TURNED != FOUR_TIMES or problem.k < parts * _FOUR_TIMES_K[scheme.name]:
        return config
    return _varied(config, config.variant & TURNED | TWICE, config.cluster)


@cache
def _varied(config: Config, variant: int, cluster: int = 1) -> Config:
    """Kept, as `sharing` keeps its own."""
    return replace(config, variant=variant, cluster=cluster)


def _ways(scheme: Scheme, config: Config, problem: Problem, sm_count: int) -> list[int]:
    chunks, tiles = -(-problem.k // scheme.chunk), _tiles(config, problem)
    if config.bm > ROWS:  # for one round of blocks that nearly all SMs have; else they lose
        return [split for split in (1, *_SPLITS)
                if _FULL * sm_count <= tiles * split <= sm_count and 2 * split <= chunks]
    ways = [1]
    if chunks > 1 and tiles % sm_count:
        ways.append(0)
    return ways + [split for split in _SPLITS if tiles * split <= 2 * sm_count and 2 * split <= chunks]


def _tiles(config: Config, problem: Problem) -> int:
    p = posed(config, problem)
    return -(-p.m // config.bm) * -(-p.n // config.bn) * max(p.batch.count, 1)
