"""Modelled time of an emulated product: the split pass at the memory's pace, waves of tiles at a measured rate."""

from __future__ import annotations

from ..kernels.schemes import Scheme, operand
from ..problem import Problem
from ..runtime.architectures import Architecture

# A tile's chunk of K, from an H100's times at 4096 (results/h100/experiments-emulated.json); what launches and tiles
# cost beside, set so that small products in results/h100/bench-emulated.json are not thought faster than they were.
_CHUNK_US = {"fp16x3": 1.28, "tf32x3": 1.36, "bf16x9": 3.2}
_SPLIT_US, _PRODUCT_US, _TILE_US = 3.0, 3.0, 4.0
_BANDWIDTH = 0.8  # of the nominal figure


def estimate_us(scheme: Scheme, problem: Problem, arch: Architecture, sm_count: int, ready: bool = False) -> float:
    """Microseconds; only the comparison with `select.estimate_us` is meant. ``ready``: B has been split before."""
    p = problem
    operands = [operand(scheme, p.m, p.k, p.batch.sizes, p.batch.a)]
    if not ready:
        operands.append(operand(scheme, p.n, p.k, p.batch.sizes, p.batch.b))
    moved = sum(x.bytes * (1 + 4 / (scheme.planes * scheme.element)) for x in operands)
    split = _SPLIT_US + moved / (arch.gpu_bandwidth_gbs * 1e3 * _BANDWIDTH)
    tiles = -(-p.m // 128) * -(-p.n // 128) * max(p.batch.count, 1)
    waves = -(-tiles // sm_count)
    chunks = -(-p.k // scheme.chunk)
    return split + _PRODUCT_US + waves * (chunks * _CHUNK_US[scheme.name] + _TILE_US)
