"""Tiles by warp-specialised blocks: warps that copy and warps that compute (specialised.cu)."""

from __future__ import annotations

from ...problem import Config
from ..registry import FLOAT, Kernel, default_of
from ..schedule import cluster_split
from ..validity import reduces_across_slices


def ring_bytes(c: Config) -> int:
    """Bytes of the stages (rows padded by four words, as K-contiguous operands have them), epilogue, slices' sums."""
    stages = c.stages * c.bk * (c.bm + 4 + c.bn + 4)
    if reduces_across_slices(c):
        given = c.bm * c.bn if cluster_split(c) else 0
        return (stages + c.slices * c.tm * c.tn * (c.threads // 32 * 40 + 2) + given) * FLOAT
    return (stages + c.threads * c.slices * (c.tn + 1) + (c.slices - 1) * c.bm * c.bn) * FLOAT


SPECIALISED = Kernel(
    -1, "specialised", "warps that copy and warps that compute, on a ring of mbarriers; persistent, stream-K",
    default_of("specialised"), "specialised", ring_bytes, dynamic=True, cp_async=True, folder="ffma",
    tunes=frozenset({"stages", "raster", "min_blocks", "producers", "registers", "slices", "split", "cluster",
                     "ffma_order", "a_first", "chunked", "one_tile", "copy_groups", "handed"}), bare_loop=True,
)
