"""The cost model of products on tensor cores, and the ways of their blocks to share K.

On an H100 the root mean square error over the 755 times that it was made for is 8 %, and 7 % of those up to 1.5 times
as long as a shape's fastest. The numbers are the profile's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import sqrt

from ...problem import Config, Problem, varied
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
    four_times = config.accumulations == FOUR_TIMES
    bandwidth = machine.bandwidth * numbers.bandwidth_share
    slow = numbers.unaligned_factor if min(widths(p)) < 4 else 1.0
    chunks, tiles = -(-p.k // scheme.chunk), config.tiles(p)
    count, tile = max(p.batch.count, 1), numbers.tile_us
    # Where tiles or chunks pass an edge and rows start at 16 bytes, all wait for the slowest tile: 700 x 900 x 1100
    # takes the fused kernel 32.4 us on an H100.
    edges = min(widths(p)) == 4 and bool(p.m % config.bm or p.n % config.bn or p.k % scheme.chunk)
    if kernel.family.panels == "b":
        row = next(row for row in numbers.streamed if row.columns == config.bn)
        chunk, begin, tile = row.chunk_us, numbers.fused_start_us, row.tile_us
        chunk *= row.edge_factor if edges else 1.0
        if widths(p)[0] < 4:  # rows of A start anywhere; more again where it is A's columns that are contiguous
            chunk += numbers.streamed_skew_us + numbers.skew_down_us * p.trans_a
        if FLOAT * count * p.m * p.k > numbers.far_share * machine.l2_bytes:  # an A that L2 does not keep
            chunk *= numbers.streamed_far_factor
        if four_times:
            chunk += row.four_times_us
        if ready != "b":
            panels = operand(scheme, p.n, p.k, p.batch.sizes, p.batch.b).bytes
            begin = numbers.streamed_start_us + 2 * panels * slow / bandwidth
        moved = float(p.m * p.k + p.m * p.n)
    elif not kernel.family.panels:
        # Where K is contiguous in B a lane has pieces of four columns.
        chunk, begin = numbers.fused_chunk_us + numbers.fused_columns_us * p.trans_b, numbers.fused_start_us
        tile = numbers.fused_tile_us
        chunk *= numbers.fused_edge_factor if edges else 1.0
        skews = numbers.fused_skew_a_us, numbers.fused_skew_b_us
        chunk += sum(more for more, width in zip(skews, widths(p), strict=True) if width < 4)
        if widths(p)[0] < 4:
            chunk += numbers.skew_down_us * p.trans_a
        if four_times:
            chunk += numbers.fused_four_times_us
        moved = (p.m * p.k + p.k * p.n + p.m * p.n) / numbers.fused_share
    else:
        chunk, moved = getattr(numbers, f"{scheme.name}_chunk_us"), 0.0
        chunk *= 1.0 if config.bm == ROWS else numbers.half_as_high_share
        chunk += numbers.four_times_us if four_times else 0.0
        panels = sum(operand(scheme, rows, p.k, p.batch.sizes, strides).bytes
                    for name, rows, strides in (("a", p.m, p.batch.a), ("b", p.n, p.batch.b)) if name != ready)
        begin = numbers.start_us + panels * (1 + FLOAT / (scheme.planes * scheme.element)) * slow / bandwidth
    if p.trans_c and p.ldc % 4:
        tile += numbers.turned_across_us  # pieces of eight floats
    if config.split == 0:
        shared = tiles % sms
        parts = min(sms, shared * chunks)
        length = -(-shared * chunks // parts)
        # A range touches two tiles, unless ranges end where tiles do.
        touched = 1 if length * parts == shared * chunks and chunks % length == 0 else 2
        turns = tiles // sms * (chunks * chunk + tile) + length * chunk + touched * tile
        blocks = max(parts, tiles)
    else:
        blocks = tiles * config.split
        parts = blocks if config.split > 1 else 0
        turns = -(-blocks // sms) * (-(-chunks // config.split) * chunk + tile)
    reduce = numbers.reduce_us + 2 * parts * config.bm * config.bn * FLOAT / bandwidth if parts else 0.0
    # Few SMs reach more than their share of the bandwidth: its square root.
    memory = FLOAT * count * moved / bandwidth / sqrt(min(1.0, blocks / sms))
    # What is split on the way does not come at once at the bandwidth of the memory.
    return begin + max(turns, tile + memory + min(memory, numbers.ramp_us)) + reduce


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


def simplest(ranked: Iterable[tuple[Kernel, Config, float]], machine: Machine) -> tuple[Kernel, Config, float]:
    """Of candidates the fastest by the model; of near equals the simplest: tiles whole rather than in equal parts, and
    those rather than in ranges that end anywhere."""
    numbers = machine.profile.emulated
    factors = {1: 1.0, 0: numbers.ranges_factor}
    return min(ranked, key=lambda candidate: candidate[2] * factors.get(candidate[1].split, numbers.parts_factor))
