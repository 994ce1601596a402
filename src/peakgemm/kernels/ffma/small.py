"""Products with a short K, and many small ones: bound by memory and by latency, not by FFMAs.

`Config` reads: ``bm`` x ``bn`` the tile of a team of threads, ``tm`` x ``tn`` of which a thread has; ``bk`` k-steps of
both operands in shared memory at once, awaited in ``stages`` parts; ``slices`` teams a block, each with a tile of its
own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...errors import InvalidValue
from ...problem import Config, Problem
from ..launch_shape import MAX_BLOCKS
from ..registry import FLOAT, Kernel, default_of
from ..schedule import Schedule, arguments, cut
from ..widths import widest, width
from .tiled import TILED

HALF = 32       # k-steps
_PAD = 4  # words between rows of shared memory, where K is contiguous
STEPS = (8, 16, 32, 64)


def _shared(c: Config) -> int:
    """Bytes of both operands of every team, as if K were contiguous in both: that is where rows are padded."""
    return c.slices * (c.bm + c.bn) * (c.bk + _PAD) * FLOAT


# Results a thread whose sums may be in chunks: of more, registers would leave few blocks.
MOST_RESULTS = 16
_CARRIED = 4   # results a thread, at most, whose sums are always in chunks
_SUM = 4       # k-steps, of the smallest tiles
_FEW_SUMS = 3  # that are added up one after the other: two by two is no better, and takes 12 x 12 x 12 6 % longer


def specialisation(problem: Problem) -> dict[str, int]:
    """The macros that a compilation takes from the problem."""
    p = problem
    sums = -(-p.k // _SUM)
    return {"PAIRED": int(sums > _FEW_SUMS and sums % 2 == 0), "TRANS_A": int(p.trans_a),
            "TRANS_B": int(p.trans_b),
            # Rows of whole quads, too.
            "WIDTH_A": width(p.alignment[0], p.lda, *p.batch.a, p.m if p.trans_a else p.k),
            "WIDTH_B": width(p.alignment[1], p.ldb, *p.batch.b, p.k if p.trans_b else p.n),
            "WIDTH_C": widest(p.alignment[2], p.ldc, *p.batch.c, p.n),
            # The smaller operand, which all tiles read, and A, but for long rows: 8 x 1000000 x 8 takes 23.5 us so,
            # 41.6 past L1; 200000 x 12 x 64 25.3, 37.4 past L1, and 30.0 with both. In batches it makes little
            # difference.
            "VIA_L1_A": int(p.m <= p.n or p.k <= HALF), "VIA_L1_B": int(p.n < p.m)}


def _constraints(c: Config) -> Iterator[str]:
    """Every constraint of the kernel that ``c`` breaks; `validity` adds what the architecture allows."""
    if c.bk not in STEPS:
        yield f"BK = {c.bk} must be one of {', '.join(map(str, STEPS))}: k-steps, four at a time"
    if c.stages < 1 or c.bk % (8 * c.stages):
        yield f"stages = {c.stages} must divide BK = {c.bk} into multiples of 8: sums of as many k-steps are added up"
    for name, size, least in (("BM", c.bm, 4), ("BN", c.bn, 4), ("TM", c.tm, 1), ("TN", c.tn, 1)):
        if size < least or size & (size - 1):
            yield f"{name} = {size} must be a power of two, {least} at least: a team's threads share lines evenly"
    if c.chunked and c.tm * c.tn > MOST_RESULTS:
        yield (f"chunked with {c.tm * c.tn} results a thread: {MOST_RESULTS} at most, a second set of sums takes "
               "registers")
    if c.threads * c.slices > 1024:
        yield f"(BM/TM)(BN/TN) slices = {c.threads * c.slices} threads must be 1024 at most"


def schedule(config: Config, problem: Problem, sm_count: int) -> Schedule:
    """The launch: a team a tile of C. No blocks where C is empty; ``sm_count`` is not asked, nothing is persistent.

    Raises:
        InvalidValue: more tiles than the teams of all blocks count in 32 bits.
    """
    p, (down, across) = problem, grid(config, problem)
    tiles = down * across * p.batch.count
    if tiles > most_tiles(config):
        raise InvalidValue(f"{p.m} x {p.n} x {p.batch.count} in tiles of {config.bm} x {config.bn} asks for {tiles} "
                           f"tiles, the limit is {most_tiles(config)}; use a larger tile or split the product")
    return Schedule(blocks=-(-tiles // config.slices), reduce_blocks=0, whole=tiles, shared=0, parts=0,
                    workspace_bytes=0, arguments=arguments(p, tiles, 0, 0, 0, cut(down, across, config.raster)))


def grid(c: Config, p: Problem) -> tuple[int, int]:
    """Tiles of one matrix: down and across."""
    return -(-p.m // c.bm), -(-p.n // c.bn)


def most_tiles(c: Config) -> int:
    """Tiles of a launch: those that the last block's teams would have are counted in 32 bits, too."""
    return MAX_BLOCKS - c.slices


def _one_chain(c: Config, p: Problem) -> bool:
    """As of `wide`, of the groups of k-steps that a thread holds; few results a thread always have their sums in
    chunks. Slices are teams with a tile each."""
    results = c.tm * c.tn
    return results > _CARRIED and p.k % (4 if results <= MOST_RESULTS else 2) == 0


SMALL = Kernel(
    -1, "small", "a tile a team of threads, 64 k-steps of its operands asked for at once; many blocks an SM",
    default_of("small"), _constraints, _shared, dynamic=True, needs=("cp.async",), folder="ffma",
    tunes=frozenset({"min_blocks", "slices", "stages", "chunked"}),
    family=replace(TILED, schedule=schedule, specialisation=lambda config, problem: specialisation(problem),
                   one_chain=_one_chain, numbers="small", tiled=False),
)
