"""Tiles by warp-specialised blocks: warps that copy and warps that compute (specialised.cu)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

from ...problem import Config, Problem
from ..constraints import multiple, stored, warp_tile
from ..registry import FLOAT, Kernel, default_of
from . import tile_model
from .tiled import cluster_split, layouts, reduces_across_slices, two_rows

PRODUCER_REGISTERS = 40
_MOST_UNROLLED = 2560  # FFMAs of a thread


class FfmaOrder(IntEnum):
    """The order of a k-step's FFMAs over a thread's tile, always back and forth (include/mma/outer_product*.cuh).

    A row reuses an element of A, a column one of B. ``REVERSED`` begins the first row at its other end. Of the orders
    ptxas makes register allocations with more or fewer bank conflicts.
    """

    ROWS = 0
    ROWS_REVERSED = 1
    COLUMNS = 2


@dataclass(frozen=True, slots=True)
class SpecialisedConfig(Config):
    """How blocks of copying and computing warps are cut."""

    fragments = 2
    traits = ("unroll", "few_registers", "late_pdl_wait", "prefetch_l2", "copies_via_l1", "reduce_across_slices",
              "barrier_lookahead")
    stages: int = 1
    raster: int = 1
    min_blocks: int = 1
    producers: int = 0
    registers: int = 0
    slices: int = 1   # groups of threads that share a block's tile, each with its share of K: intra-block split-K
    split: int = 1
    handed: bool = False
    cluster: int = 1  # blocks that have a part of one tile's K each
    ffma_order: FfmaOrder = FfmaOrder.ROWS
    a_first: bool = False  # A's fragments are loaded before B's, which moves register allocation, too
    chunked: bool = False
    one_tile: bool = False
    # Groups of copying warps that take the tiles of K in turn: fewer warps, which issue more copies each behind the
    # warps that compute, keep more tiles under way.
    copy_groups: int = 1

    @property
    def unroll(self) -> int:
        """The k-steps that the main loop unrolls, of those that a stage holds: 40 KB of code at most."""
        steps = self.bk
        while steps > 2 and self.tm * self.tn * steps > _MOST_UNROLLED:
            steps //= 2
        return steps

    @property
    def few_registers(self) -> bool:
        """Whether the tile's results leave no register to spare: copies of whole tiles have no loop of their own
        then, and nothing that the epilogue reads is held through the main loop."""
        return self.bm * self.bn >= 128 * 256

    @property
    def late_pdl_wait(self) -> bool:
        """Whether a block waits for the kernel before it only once it has its addresses: 0.3 us of 4 at 128.
        ptxas makes other code of larger tiles then, which lost up to 3 %."""
        return self.bm * self.bn <= 64 * 128

    @property
    def prefetch_l2(self) -> bool:
        """Whether a block asks for its first tiles of K to be in L2 while it waits for the kernel before
        (include/copy/prefetch.cuh): 128 takes 2.78 us so, 2.98 without. Of tiles of persistent blocks 128 x 64 alone
        gains; others lose 1 %."""
        return self.late_pdl_wait and (self.one_tile or (self.bm, self.bn) == (128, 64))

    @property
    def copies_via_l1(self) -> bool:
        """Whether copies of 16 bytes go by way of L1, where rows lie across its lines: of tiles by 16 columns and
        2 x 4 results a thread, and of 64 x 128 by two slices. Others gain nothing, or lose up to 3 %."""
        return (self.tm == 2 and self.bn == 16) or (self.slices, self.bm, self.bn) == (2, 64, 128)

    @property
    def reduce_across_slices(self) -> bool:
        """Whether all threads of a block add up and store its tile (include/epilogue/slice_reduction.cuh)."""
        return reduces_across_slices(self)

    @property
    def barrier_lookahead(self) -> int:
        """The k-steps by which a warp tests the barrier of the next stage ahead, to wait only where it was not full: a
        scheduler has one warp or two. 4096 x 32 x 4096 takes 15 % longer without. Four slices have a tile of K each,
        and no next one."""
        return min(2, self.unroll // 2) if self.reduce_across_slices and self.slices == 2 else 0

    def copy_lanes(self, trans_a: bool, trans_b: bool) -> int:
        """The lanes of a warp that copy neighbours along K, of operands with K contiguous (include/copy/panel.cuh).

        Small tiles copy much, and so do those that transpose a row for each 32 results; others lose more by the
        addresses of 16 or 32 lanes than they gain.
        """
        transposed = (not trans_a) * self.bm + trans_b * self.bn
        few = self.bm * self.bn <= 64 * 64 if self.bk == 32 else self.bk == 16 and 32 * transposed >= self.bm * self.bn
        return 8 if not few else 32 if self.tm * self.tn <= 16 and self.bk == 32 else 16


def _constraints(c: SpecialisedConfig) -> Iterator[str]:
    if two_rows(c):  # which are stored by all threads, not by quads of rows
        yield from warp_tile(c)
    else:
        yield from stored(c)
    if c.bk not in (8, 16, 32):
        yield f"BK = {c.bk} must be 8, 16 or 32: copies of a K-contiguous operand are 8 k-steps wide"
    if c.producers not in (32, 64, 128, 256):
        yield f"producers = {c.producers} must be 32, 64, 128 or 256: they cover whole rows of both tiles"
    elif c.copy_groups not in (1, 2, 4, 8) or c.producers % (32 * c.copy_groups) or c.copy_groups > c.stages:
        yield (f"copy_groups = {c.copy_groups} of {c.producers} copying threads and {c.stages} stages must be 1, 2, 4 "
               "or 8, of whole warps, with a stage each")
    else:
        covered = c.producers // c.copy_groups // 8
        yield from multiple(c, "bm", min(c.bm, covered), "rows of A that a round of copies covers")
        yield from multiple(c, "bn", min(c.bn, covered), "rows of B that a round of copies covers")
    if c.stages % c.slices or c.stages < 2 * c.slices:
        yield (f"stages = {c.stages} must be a multiple of slices = {c.slices}, twice as many at least: a slice reads "
               "the same stages in turn, and one tile ahead")
    if c.block_threads > 1024:
        yield f"{c.block_threads} threads a block: 1024 at most; make slices = {c.slices} or the tile smaller"
    if c.cluster > 1 and c.split != 1:
        yield f"split = {c.split} must be 1: a cluster has one tile"
    elif c.one_tile and c.split < 1:
        yield f"split = {c.split} must be 1 or more: a block has one tile, or one part of it"
    if c.cluster > 1 and not (cluster_split(c) and c.cluster in tile_model.CLUSTERS and reduces_across_slices(c)):
        yield (f"cluster = {c.cluster} must be 1, or 2, 4, 8 or 16 where a block has one tile that all its threads "
               "store (include/epilogue/cluster_split_k.cuh)")
    if c.block_threads <= 1024 and c.registers:
        compute = c.threads * c.slices
        pool = 65536 // (c.block_threads * c.min_blocks) // 8 * 8 * c.block_threads
        dealt = c.registers * compute + PRODUCER_REGISTERS * c.producers
        if c.producers % 128 or compute % 128 or c.registers % 8 or not 24 <= c.registers <= 240 or dealt > pool:
            yield (f"registers = {c.registers}: dealing them anew wants whole warpgroups ({compute} and {c.producers} "
                   f"threads), a multiple of 8 up to 240, and {dealt} of at most {pool} in all")


def ring_bytes(c: Config) -> int:
    """Bytes of the stages (rows padded by four words, as K-contiguous operands have them), epilogue, slices' sums."""
    stages = c.stages * c.bk * (c.bm + 4 + c.bn + 4)
    if reduces_across_slices(c):
        given = c.bm * c.bn if cluster_split(c) else 0
        return (stages + c.slices * c.tm * c.tn * (c.threads // 32 * 40 + 2) + given) * FLOAT
    return (stages + c.threads * c.slices * (c.tn + 1) + (c.slices - 1) * c.bm * c.bn) * FLOAT


def _specialisation(config: SpecialisedConfig, problem: Problem) -> dict[str, int]:
    """By how many blocks of a cluster, the launch says. Copies of rows of B word by word want many addresses: the
    registers of a copying thread are too few for four unrolled rounds of copies at an edge as well."""
    layout = layouts(problem)
    by_words = config.registers > 0 and not layout["TRANS_B"] and layout["WIDTH_B"] == 1
    return {"CLUSTER": 1, "CLUSTER_SPLIT_K": int(cluster_split(config)),
            "SPLIT_K": int(config.one_tile and config.split > 1),
            "COPY_LANES": config.copy_lanes(problem.trans_a, problem.trans_b), "EDGE_ROUNDS_A": 2 if by_words else 4,
            "EDGE_ROUNDS_B": 1 if by_words else 4} | layout


SPECIALISED = Kernel(
    -1, "specialised", "warps that copy and warps that compute, on a ring of mbarriers; persistent, stream-K",
    default_of("specialised", SpecialisedConfig), _constraints, ring_bytes, dynamic=True, needs=("cp.async",),
    folder="ffma", bare_loop=True,
    family=replace(tile_model.FAMILY, specialisation=_specialisation),
)
