"""The cost model of products on tensor cores, and the ways of their blocks to share K.

The numbers are the profile's.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

from ...problem import Problem, varied
from ..family import Estimated
from ..ffma.tiled import SPLITS
from ..profile import Machine
from ..registry import FLOAT, Kernel
from ..widths import widths
from .schemes import ROWS, Scheme, TensorConfig, operand, oriented

_MOST_SPLIT = 64
# How often a chunk's products are added up in FP32 (`accumulations`). The tensor cores truncate: below so many k-steps
# that shows beside FP32's rounding, and with few results, whose reference has short sums, every wgmma's sum is added up
# by itself (256 x 256 x 4096, uniform: 1.5 eps in the mean otherwise, 0.5 of cuBLAS). Beyond so many of a block's
# k-steps four additions are more rounding than they save of truncation.
_TWICE_K, _FOUR_TIMES_K = 768, {"fp16x3": 4096, "tf32x3": 2048}
_FEW_RESULTS = 1 << 19  # of one matrix
TWICE, FOUR_TIMES = 2, 4


def estimate_us(kernel: Kernel, config: TensorConfig, problem: Problem, machine: Machine, ready: str = "") -> float:
    """Microseconds of a tensor-core kernel with what goes before and after it.

    ``ready``: ``"a"`` or ``"b"``, the problem's operand that has been split before; kernels that read it as it is have
    no use for that.
    """
    p, scheme, sms, numbers = oriented(config, problem), kernel.family.scheme, machine.sms, machine.profile.emulated
    assert scheme is not None
    if p.trans_c and ready:
        ready = "b" if ready == "a" else "a"
    bandwidth = machine.bandwidth * machine.profile.tiled.bandwidth_share
    chunks, tiles, panels = -(-p.k // scheme.chunk), config.tiles(p), kernel.family.panels
    split = "".join(name for name in panels if name != ready)  # by a pass before, which writes them and reads them
    size = sum(operand(scheme, rows, p.k, p.batch.sizes, strides).bytes
               for name, rows, strides in (("a", p.m, p.batch.a), ("b", p.n, p.batch.b)) if name in split)
    begin = numbers.start_us + numbers.split_us * bool(split)
    moved = 0.0  # of what is split on the way
    if panels == "ab":
        begin += size * (1 + FLOAT / (scheme.planes * scheme.element)) / bandwidth
        # A block of one warpgroup has half the rows. Other schemes have so many more products.
        chunk = numbers.panels_chunk_us * (config.bm / ROWS) * scheme.products / 3
    else:
        begin += 2 * size / bandwidth
        moved = float(p.m * p.k + p.m * p.n + (0 if panels else p.k * p.n))
        chunk = (numbers.fused_chunk_us if not panels else
                 numbers.streamed_64_chunk_us if config.bn == 64 else numbers.streamed_128_chunk_us)
        width_a, width_b = widths(p)
        # Where tiles or chunks pass an edge and rows start at 16 bytes, all wait for the slowest tile; where rows start
        # anywhere, copies are by words, and those of A's columns by more of them.
        if min(width_a, width_b) == 4 and (p.m % config.bm or p.n % config.bn or p.k % scheme.chunk):
            chunk *= 1 + numbers.edge_factor
        chunk += numbers.skew_us * ((width_a < 4) * (1 + p.trans_a) + (width_b < 4 and not panels))
    if config.accumulations == FOUR_TIMES:
        chunk += numbers.four_times_us
    if config.split == 0:
        shared = tiles % sms
        parts = min(sms, shared * chunks)
        length = -(-shared * chunks // parts)
        # A range touches two tiles, unless ranges end where tiles do.
        touched = 1 if length * parts == shared * chunks and chunks % length == 0 else 2
        turns = tiles // sms * (chunks * chunk + numbers.tile_us) + length * chunk + touched * numbers.tile_us
        blocks = max(parts, tiles)
        begin += numbers.ranges_us * (panels != "ab")
    else:
        blocks = tiles * config.split
        parts = blocks if config.split > 1 else 0
        turns = -(-blocks // sms) * (-(-chunks // config.split) * chunk + numbers.tile_us)
    reduce = 2 * parts * config.bm * config.bn * FLOAT / bandwidth
    # Few SMs reach more than their share of the bandwidth: its square root.
    memory = FLOAT * max(p.batch.count, 1) * moved / bandwidth / sqrt(min(1.0, blocks / sms))
    # What is split on the way does not come at once at the bandwidth of the memory.
    us = begin + max(turns, numbers.tile_us + memory + min(memory, numbers.ramp_us)) + reduce
    return us if config.split == 1 else us * (1 + numbers.shared_factor)  # of near equals the simplest


def accumulations(scheme: Scheme, problem: Problem) -> int:
    """How often a chunk's products are added up in FP32 for ``problem``, of blocks that have all of K."""
    few = scheme.name in _FOUR_TIMES_K and problem.batch.count == 1 and problem.m * problem.n <= _FEW_RESULTS
    return FOUR_TIMES if few else TWICE if problem.k < _TWICE_K else 1


def sharing_k(kernel: Kernel, config: TensorConfig, problem: Problem, machine: Machine,
              ready: str, whole: bool = False) -> Iterator[Estimated]:
    """``config`` in every way to share K that is considered, with its modelled microseconds; ``whole``: blocks share
    none."""
    scheme = kernel.family.scheme
    assert scheme is not None
    chunks, tiles, sms = -(-problem.k // scheme.chunk), config.tiles(oriented(config, problem)), machine.sms
    splits = [1]
    if not whole:
        splits += [0] if chunks > 1 and tiles % sms else []
        splits += [split for split in SPLITS if split <= _MOST_SPLIT and tiles * split <= 2 * sms
                   and 2 * split <= chunks]
    for split in splits:
        parts = split or max(1.0, sms / tiles)
        # Sums of which a block adds up many k-steps are carried over twice, not four times.
        long = config.accumulations == FOUR_TIMES and problem.k >= parts * _FOUR_TIMES_K[scheme.name]
        way = varied(config, split=split, accumulations=TWICE if long else config.accumulations)
        yield way, estimate_us(kernel, way, problem, machine, ready)
