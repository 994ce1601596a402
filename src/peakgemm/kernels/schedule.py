"""How a kernel of the library is launched for a problem: grid, arguments, workspace; on a GPU and in the simulator.

The work of a product is its tiles over the whole batch, or, where they would not fill the GPU, ranges of
their k-steps: split-K and stream-K (Osama et al., "Stream-K", 2023), with the partial sums added up
in a fixed order by a second kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from struct import Struct

from ..errors import InvalidValue
from ..problem import Batch, Config, Problem
from ..runtime.tensor_map import Box
from .divide import MOST_PARTS, divisor
from .ffma.repack import Repack
from .launch_shape import MAX_BLOCKS
from .registry import FLOAT

# struct Gemm of include/scheduler/gemm.cuh: 17 long long, 6 int, 2 float, 5 int, 7 pairs of unsigned.
_GEMM = Struct("<17q6i2f5i14I4x")
_FEW = 8  # results of thread tiles for each SM: with fewer, a thread of the second kernel takes one, else four


@dataclass(frozen=True, slots=True)
class Schedule:
    """One launch: ``blocks`` of the kernel and, where partial sums are left, ``reduce_blocks`` of the second one.

    ``whole`` tiles are computed by one block, or one cluster, each; the k-steps of ``shared`` tiles are dealt to
    ``parts`` ranges. ``workspace_bytes`` holds their partial sums, from byte ``sums`` on, or what is handed on of them;
    blocks of the second kernel have ``reduce_threads``, or where that is 0 as many as compute a tile.
    ``arguments`` is the kernels' struct, ``more`` what the first one's has behind that, ``boxes`` what the copy engine
    moves for it. A kernel before it takes ``first_arguments``: in ``first_blocks`` it repacks the first chunk of K, and
    sets counters and flags to zero (repack.py). ``cluster`` blocks of the first kernel form a cluster where it leaves
    that to the launch.
    """

    blocks: int
    reduce_blocks: int
    whole: int
    shared: int
    parts: int
    workspace_bytes: int
    arguments: bytes
    sums: int = 0
    reduce_threads: int = 0
    first_blocks: int = 0
    first_arguments: bytes = b""
    more: bytes = b""
    boxes: tuple[Box, ...] = ()
    cluster: int = 1


@cache
def sharing(config: Config, split: int) -> Config:
    """``config`` with the k-steps of tiles shared as ``split`` says. Kept: a new one is checked, and models ask for a
    hundred for each shape."""
    return replace(config, split=split)


@cache
def handing_on(config: Config) -> Config:
    """``config`` by stream-K that hands accumulators on (include/scheduler/handed.cuh)."""
    return replace(config, split=0, handed=True)


def hands_on(config: Config, tiles: int, steps: int, sm_count: int) -> bool:
    """Whether ``tiles`` of ``steps`` fill the GPU more than once, and unevenly: else they are computed whole.

    Of fewer tiles than blocks each block's tail would wait for the head that another is still at.
    """
    slots = sm_count * config.min_blocks
    return tiles > slots and tiles % slots > 0 and steps > 1


def schedule(config: Config, problem: Problem, sm_count: int) -> Schedule:
    """The launch of a tiled kernel; no blocks where C is empty.

    Raises:
        InvalidValue: more than 2**31 - 1 blocks, or more ranges of k-steps than `MOST_PARTS`.
    """
    p, slots = problem, sm_count * config.min_blocks
    # BLAS: with alpha = 0 neither A nor B is read, so a NaN there cannot leak.
    steps = 0 if p.alpha == 0 else -(-p.k // config.bk)
    down, across = -(-p.m // config.bm), -(-p.n // config.bn)
    tiles = down * across * p.batch.count
    parts = shared = 0
    if config.one_tile:  # a block, or a cluster, has one tile, or one part of it
        slots = tiles * max(1, min(config.split, steps))
    if config.split > 1 and steps > 1:
        shared, parts = tiles, tiles * min(config.split, steps)
    elif config.handed:
        if hands_on(config, tiles, steps, sm_count):  # ranges of one tile to two, so that none is cut twice
            shared, parts = slots + tiles % slots, slots
    elif config.split == 0 and tiles % slots and steps > 1:
        shared = tiles % slots
        parts = min(slots, shared * steps)
    if (most := max(tiles * config.cluster, parts, shared * config.tm * config.tn)) > MAX_BLOCKS:
        raise InvalidValue(f"{p.m} x {p.n} x {p.batch.count} in tiles of {config.bm} x {config.bn} asks for {most} "
                           f"blocks, the limit is {MAX_BLOCKS}; use a larger tile or split the product")
    if max(parts, shared * config.handed) > MOST_PARTS:
        most = max(1, MOST_PARTS // tiles)
        raise InvalidValue(f"split = {config.split} makes {parts} ranges of k-steps of {tiles} tiles, the limit is "
                           f"{MOST_PARTS}; use split = {most}{' or less' if most > 1 else ', the tiles fill any GPU'}")
    whole, results = tiles - shared, config.tm * config.tn
    place = Repack(p, "", parts) if config.handed and parts else None
    struct = arguments(p, whole, shared, parts, shared * steps, cut(down, across, config.raster))
    # Ranges that end where tiles end leave the second half of the slots unused.
    straddle = parts and place is None and (steps * shared % parts or steps % (steps * shared // parts))
    return Schedule(
        blocks=min(slots, whole + parts) * config.cluster,
        reduce_blocks=0 if place else shared * results if shared * results < _FEW * sm_count else shared * results // 4,
        whole=whole, shared=shared, parts=parts,
        workspace_bytes=(place.sums if place else 0) + parts * (2 if straddle else 1) * config.bm * config.bn * FLOAT,
        arguments=struct,
        sums=place.sums if place else 0,
        first_blocks=place.first_blocks if place else 0,
        first_arguments=struct + place.argument if place else b"",
        cluster=config.cluster,
    )


def cut(down: int, across: int, raster: int) -> tuple[int, int, int]:
    """What a kernel divides by to place a tile of matrices of ``down`` x ``across``: tiles of a matrix, of ``raster``
    rows of them, and rows in the last group."""
    return down * across, raster * across, down % raster


def arguments(p: Problem, whole: int, shared: int, parts: int, total: int, divisors: tuple[int, int, int]) -> bytes:
    """``struct Gemm`` for a problem, with ``total`` k-steps in ``parts`` ranges; ``divisors``: see `cut`, or whatever a
    kernel that cuts C otherwise divides by."""
    row, column = p.c0 or ((1, p.ldc) if p.trans_c else (p.ldc, 1))
    levels = (1,) * (Batch.MAX_LEVELS - len(p.batch.sizes)) + p.batch.sizes
    strides = [s for x in (p.batch.a, p.batch.b, p.batch.c, p.batch.c0)
               for s in (0,) * (Batch.MAX_LEVELS - len(x)) + x]
    pairs = [x for d in (*divisors, parts, shared, *levels[1:]) for x in divisor(d)]
    return _GEMM.pack(p.lda, p.ldb, p.ldc, row, column, *strides, *levels, p.m, p.n, 0 if p.alpha == 0 else p.k,
                      p.alpha, p.beta, whole, shared, parts, *divmod(total, max(parts, 1)), *pairs)
