"""Modelled time of an emulated product, and by it the kernel that computes it and how blocks share K."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..kernels.library import widths
from ..kernels.registry import Kernel
from ..kernels.schedule import sharing
from ..kernels.schemes import FUSED, STREAMED, Scheme, operand, product_on, scheme_of, streamed
from ..problem import Config, Problem
from ..runtime.architectures import Architecture

# Fitted to times on an H100; root mean square error against the 569 of results/h100/tensor-kernels.json 8 %. A tile's
# chunk of K, the rest of a tile, what launches cost, what moves through memory (of its nominal bandwidth).
_CHUNK_US = {"fp16x3": 1.24, "tf32x3": 1.25, "bf16x9": 2.95}
_FUSED_CHUNK_US, _TILE_US = 2.25, 2.55
_STREAMED_CHUNK_US, _STREAMED_TILE_US = {64: 0.96, 128: 1.39}, {64: 2.1, 128: 2.75}  # by columns of a tile
_STREAMED_SKEW_US, _STREAMED_FAR = 0.48, 1.15  # more for a chunk of A whose rows start anywhere; times, of a large A:
_FAR_BYTES = 40 << 20  # which L2 does not keep
_STREAMED_LONG = 2048, 0.7  # from that K on, the share of the bandwidth at which rows of A come, 256 bytes at a time
# More for a chunk whose sums are carried over four times: of the product kernel (reckoned), of the fused one, and by
# columns of a tile of the streamed one.
_FOUR_TIMES_US, _FUSED_FOUR_TIMES_US, _STREAMED_FOUR_TIMES_US = 0.6, 0.25, {64: 0.3, 128: 0.65}
_START_US, _FUSED_START_US, _STREAMED_START_US, _REDUCE_US = 4.75, 1.1, 5.9, 2.3
_BANDWIDTH = 0.82
# Rows that do not start at 16 bytes are read word by word.
_UNALIGNED = 1.26
_SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_FLOAT = 4
# Between equals: tiles whole rather than in equal parts, and those rather than in ranges that end anywhere; both
# operands split before rather than one.
_MARGIN, _IN_PARTS, _STREAMED_MARGIN = {1: 1.0, 0: 1.05}, 1.02, 1.012
# With more rows of tiles, pairs of blocks share their copies of B: 16384 gains 6 %, small products nothing.
_CLUSTER_TILES = 32
# Below, the tensor cores' truncation shows beside FP32's rounding: their sums are carried over twice as often.
_TWICE_K = 768
# Variants of the kernels: how often a chunk's products of first planes are added up.
TWICE, FOUR_TIMES = 1, 2


def estimate_us(kernel: Kernel, config: Config, problem: Problem, arch: Architecture, sm_count: int,
                ready: str = "") -> float:
    """Microseconds of a tensor-core kernel with what goes before and after it.

    ``ready``: ``"a"`` or ``"b"``, the problem's operand that has been split before.
    """
    p, scheme = problem, scheme_of(kernel)
    assert scheme is not None
    bandwidth = arch.gpu_bandwidth_gbs * 1e3 * _BANDWIDTH  # bytes a microsecond
    slow = _UNALIGNED if min(widths(p)) < 4 else 1.0
    chunks, tiles = -(-p.k // scheme.chunk), _tiles(config, p)
    count, tile = max(p.batch.count, 1), _TILE_US
    if kernel == STREAMED:
        chunk, begin, tile = _STREAMED_CHUNK_US[config.bn], _STREAMED_START_US, _STREAMED_TILE_US[config.bn]
        if widths(p)[0] < 4:
            chunk += _STREAMED_SKEW_US
        if _FLOAT * count * p.m * p.k > _FAR_BYTES:
            chunk *= _STREAMED_FAR
        if config.variant == FOUR_TIMES:
            chunk += _STREAMED_FOUR_TIMES_US[config.bn]
        if not ready:
            begin += operand(scheme, p.n, p.k, p.batch.sizes, p.batch.b).bytes * 2 * slow / bandwidth
        share = _STREAMED_LONG[1] if p.k >= _STREAMED_LONG[0] else 1.0
        least = begin + _FLOAT * count * (p.m * p.k / share + p.m * p.n) / bandwidth
    elif kernel == FUSED:
        chunk, begin = _FUSED_CHUNK_US * slow, _FUSED_START_US
        if config.variant == FOUR_TIMES:
            chunk += _FUSED_FOUR_TIMES_US
        least = _FLOAT * count * (p.m * p.k + p.k * p.n + p.m * p.n) / bandwidth
    else:
        chunk, least = _CHUNK_US[scheme.name], 0.0
        if config.variant == FOUR_TIMES:
            chunk += _FOUR_TIMES_US
        moved = sum(operand(scheme, rows, p.k, p.batch.sizes, strides).bytes
                    for name, rows, strides in (("a", p.m, p.batch.a), ("b", p.n, p.batch.b)) if name != ready)
        begin = _START_US + moved * (1 + _FLOAT / (scheme.planes * scheme.element)) * slow / bandwidth
    if config.split == 0:
        shared = tiles % sm_count
        parts = min(sm_count, shared * chunks)
        length = -(-shared * chunks // parts)
        # A range touches two tiles, unless ranges end where tiles do.
        touched = 1 if length * parts == shared * chunks and chunks % length == 0 else 2
        turns = tiles // sm_count * (chunks * chunk + tile) + length * chunk + touched * tile
    else:
        parts = tiles * config.split if config.split > 1 else 0
        turns = -(-tiles * config.split // sm_count) * (-(-chunks // config.split) * chunk + tile)
    reduce = _REDUCE_US + 2 * parts * config.bm * config.bn * _FLOAT / bandwidth if parts else 0.0
    return max(begin + turns + reduce, least)


def best(scheme: Scheme, problem: Problem, arch: Architecture, sm_count: int, ready: str = "",
         sliced: bool = False) -> tuple[Kernel, Config, float]:
    """The kernel and configuration that the model thinks fastest, and its microseconds; of near equals the simplest.

    ``sliced``: cuBLAS, whose errors are the measure, cuts K of such products into many short sums. Of positive numbers
    the tensor cores' truncation is then more than cuBLAS's rounding (256 x 256 x 4096, uniform: 1.5 eps in the mean
    against 0.5), unless every wgmma's sum is carried over.
    """
    def rank(one: tuple[Kernel, Config, float]) -> float:
        kernel, config, us = one
        return us * _MARGIN.get(config.split, _IN_PARTS) * (_STREAMED_MARGIN if kernel == STREAMED else 1.0)

    return min(candidates(scheme, problem, arch, sm_count, ready, sliced), key=rank)


def candidates(scheme: Scheme, problem: Problem, arch: Architecture, sm_count: int,
               ready: str = "", sliced: bool = False) -> Iterator[tuple[Kernel, Config, float]]:
    """Every kernel of ``scheme`` in every way to share K that is considered, with its modelled microseconds."""
    kernel, config = product_on(scheme, arch)
    found = [(kernel, config)]
    if kernel.wgmma:
        variant = FOUR_TIMES if sliced else TWICE if problem.k < _TWICE_K else 0
        wide = min(problem.m, problem.n) > 128 * _CLUSTER_TILES
        found = [(kernel, replace(config, variant=variant, cluster=2 if wide else 1))]
        if scheme_of(FUSED) is scheme and not ready:
            found.append((FUSED, replace(FUSED.default, variant=variant)))
        if scheme_of(STREAMED) is scheme and ready != "a":
            found += [(STREAMED, replace(streamed(columns), variant=variant)) for columns in (64, 128)]
    for kernel, config in found:
        for split in _ways(scheme, config, problem, sm_count) if kernel.wgmma and config.cluster == 1 else [1]:
            one = sharing(config, split)
            yield kernel, one, estimate_us(kernel, one, problem, arch, sm_count, ready)


def _ways(scheme: Scheme, config: Config, problem: Problem, sm_count: int) -> list[int]:
    chunks, tiles = -(-problem.k // scheme.chunk), _tiles(config, problem)
    ways = [1]
    if chunks > 1 and tiles % sm_count:
        ways.append(0)
    return ways + [split for split in _SPLITS if tiles * split <= 2 * sm_count and 2 * split <= chunks]


def _tiles(config: Config, p: Problem) -> int:
    return -(-p.m // config.bm) * -(-p.n // config.bn) * max(p.batch.count, 1)
