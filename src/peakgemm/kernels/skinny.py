"""Products with at most 16 rows or columns, matrix times vector among them: bound by reading the large operand once.

Called X here, ``R`` rows of K: A, or B transposed where B is the large one (*swapped*); the other is Y, at most 16
columns. `Config` reads: ``bm`` rows of X a block, of which a thread has ``tm`` = 4; ``bn`` = ``tn`` the columns,
padded to a power of two; ``slices`` threads along K for each of them; ``bk`` k-steps of a block at once, a multiple
of 4 ``slices``; ``split`` blocks along K, whose sums a second kernel adds up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..errors import InvalidValue
from ..problem import Config, Problem
from ..runtime import source
from ..runtime.architectures import Architecture
from .divide import MOST_PARTS
from .launch_shape import MAX_BLOCKS
from .registry import FLOAT, Kernel
from .schedule import Schedule, arguments
from .widths import width as vector_width

MAX_COLUMNS = 16
REDUCE = source.KERNELS / "ffma" / "skinny_reduce.cu"
REDUCE_THREADS = 256
_REDUCE_TEAM = 8  # threads that share a sum of many parts
_PATCH = 4  # rows, and k-steps, that a thread multiplies at once
_MOST_SUMS = 8192  # in shared memory; of more, half are added to the other half first
_MOST_STEPS = 1024  # a block's k-steps at once: K is counted in 32 bits and stepped past by less than that


def _shared(c: Config) -> int:
    """Bytes: each warp's share of Y, then in its place the sums of the groups of warps along K."""
    across = c.bm // c.tm
    most_lanes, least_lanes = max(8, 32 // across), max(1, 32 // across)  # along K, whichever way X lies
    run = most_lanes * c.bk // c.slices
    y = across * c.slices // 32 * c.bn * (run + _PATCH)
    sums = c.slices // least_lanes * c.bm * c.bn
    return max(y, sums // 2 if sums > _MOST_SUMS else sums) * FLOAT


SKINNY = Kernel(
    -1, "skinny", "4x4 patches of the large operand straight into registers, each element read once",
    Config(32, 16, 256, _PATCH, 16, slices=64), "skinny", _shared, dynamic=True, folder="ffma",
    tunes=frozenset({"min_blocks", "slices", "split"}),
)
# Columns -> patches that a thread reads ahead, threads of an SM: all that 64 K registers hold without a spill.
_DEPTH = {1: (2, 768), 2: (2, 768), 4: (2, 512), 8: (2, 512), 16: (1, 512)}

_BANDWIDTH = 0.92       # of the nominal figure, that reading reaches
_L2_BANDWIDTH = 1.8     # in units of that
_ROUND_US = 0.9         # from a load to the next into the same register
_START_US = 1.6         # launch, first loads, sums
_REDUCE_US = 2.6        # a second kernel
_RAGGED_US = 1.3        # a first round of 16 columns that is not whole, for each further 256 threads of a block
_EXPOSED = 0.03         # of each of these, that nothing hides
_OVERHEAD = 1.4         # instructions an FFMA
_END_US = 0.55          # of each wave of blocks (3/4 of the last), where K is short, times the root of its columns


def applies(problem: Problem) -> bool:
    """Whether the product has at most 16 rows or at most 16 columns."""
    return min(problem.m, problem.n) <= MAX_COLUMNS


def swapped(problem: Problem) -> bool:
    """Whether X is B transposed: C has fewer rows than columns."""
    return problem.m < problem.n


def along_k(problem: Problem) -> bool:
    """Whether the rows of X are stored one after the other, K contiguous."""
    return problem.trans_b if swapped(problem) else not problem.trans_a


def width(problem: Problem) -> int:
    """Floats of X that a thread may read at once: 4 where every group of four starts at 16 bytes, else 1."""
    p = problem
    ld, address, steps, rows = ((p.ldb, p.alignment[1], p.batch.b, p.n) if swapped(p) else
                                (p.lda, p.alignment[0], p.batch.a, p.m))
    return vector_width(address, ld, *steps, *(() if along_k(p) else (rows,)))


def specialisation(problem: Problem) -> dict[str, int]:
    """The macros that a compilation takes from the problem."""
    return {"TRANS_A": int(problem.trans_a), "TRANS_B": int(problem.trans_b), "SWAPPED": int(swapped(problem)),
            "WIDTH": width(problem)}


def constraints(c: Config) -> Iterator[str]:
    """Every constraint of the kernel that ``c`` breaks; `validity` adds what the architecture allows."""
    across = c.bm // c.tm
    if c.tm != _PATCH or c.tn != c.bn:
        yield f"TM = {c.tm}, TN = {c.tn} must be {_PATCH} and BN = {c.bn}: a thread has all columns of four rows"
    if c.bn not in _DEPTH:
        yield f"BN = {c.bn} must be one of {', '.join(map(str, _DEPTH))}: columns, padded to a power of two"
    if across & (across - 1) or c.slices & (c.slices - 1):
        yield f"BM / TM = {across}, slices = {c.slices} must be powers of two: sums meet in halves"
    if not 64 <= across * c.slices <= 1024:
        yield f"(BM / TM) slices = {across * c.slices} threads must be 64 to 1024"
    if c.slices < max(8, 32 // max(across, 1)):
        yield f"slices = {c.slices} must be {max(8, 32 // max(across, 1))} at least: whole warps, with lanes along K"
    patches = c.bk // (_PATCH * c.slices)
    if c.bk % (_PATCH * c.slices) or patches & (patches - 1) or not patches or c.bk > _MOST_STEPS:
        yield (f"BK = {c.bk} must be {_PATCH} x slices = {_PATCH * c.slices}, times a power of two, "
               f"{_MOST_STEPS} at most: whole patches a thread")
    if c.split < 1:
        yield f"split = {c.split} must be 1 at least: blocks along K"


def schedule(config: Config, problem: Problem, sm_count: int) -> Schedule:
    """The launch: a block a tile of C and part of K; ``shared`` says how many threads of the second kernel share a sum.

    No blocks where C is empty. ``sm_count`` is not asked: nothing is persistent.

    Raises:
        InvalidValue: more columns than ``config.bn``, or more than 2**31 - 1 blocks.
    """
    p = problem
    rows, columns = (p.n, p.m) if swapped(p) else (p.m, p.n)
    if columns > config.bn:
        raise InvalidValue(f"{p.m} x {p.n}: the smaller side is {columns}, BN = {config.bn} holds no more than that; "
                           "use a larger BN, or another kernel above 16")
    # BLAS: with alpha = 0 neither A nor B is read, so a NaN there cannot leak.
    steps = 0 if p.alpha == 0 else -(-p.k // config.bk)
    down = -(-rows // config.bm)
    tiles = down * p.batch.count if columns else 0
    parts = max(1, min(config.split, steps, MOST_PARTS))
    team = _REDUCE_TEAM if parts > _REDUCE_TEAM else 1
    sums = tiles * config.bm * config.bn if parts > 1 else 0
    reduce_blocks = -(-sums * team // REDUCE_THREADS)
    if max(tiles * parts, reduce_blocks) > MAX_BLOCKS:
        raise InvalidValue(f"{p.m} x {p.n} x {p.batch.count} in tiles of {config.bm} rows asks for "
                           f"{max(tiles * parts, reduce_blocks)} blocks, the limit is {MAX_BLOCKS}; split the product")
    return Schedule(blocks=tiles * parts, reduce_blocks=reduce_blocks, whole=tiles, shared=team, parts=parts,
                    workspace_bytes=sums * parts * FLOAT,
                    # Divisors: tiles along the rows of a matrix, and of all of them, for which there is no other name.
                    arguments=arguments(p, tiles, team, parts, steps, (down, tiles, 1)))


def reduce_macros(config: Config, problem: Problem) -> dict[str, int]:
    """The macros of the kernel that adds up the parts; it takes the main kernel's arguments."""
    return {"BM": config.bm, "BN": config.bn, "BK": 1, "TM": config.tm, "TN": config.tn, "RASTER": 1,
            "SWAPPED": int(swapped(problem))}


def estimate_us(config: Config, problem: Problem, arch: Architecture, sm_count: int, short: bool = False) -> float:
    """Modelled time of a launch in microseconds: the longest of memory, L2, FFMA and latency, and some of the others.

    Only the ranking is meant: the clock and bandwidth are those of the architecture's reference GPU. ``short``: K is so
    short that no loop hides how blocks end; measured on an H100 where K is at most 64.
    """
    p, plan = problem, schedule(config, problem, sm_count)
    rows = max(p.m, p.n)
    matrix = rows * p.k * max(p.batch.count, 1)
    bandwidth = arch.gpu_bandwidth_gbs * 1e3 * _BANDWIDTH / FLOAT  # floats a microsecond
    memory = (matrix + (p.k + rows) * min(p.m, p.n) * max(p.batch.count, 1)) / bandwidth
    l2 = matrix * (1 + config.bn / config.bm) / (bandwidth * _L2_BANDWIDTH)
    compute = matrix * config.bn * _OVERHEAD / (arch.fp32_lanes_per_sm * sm_count * arch.gpu_mhz)
    waves = -(-plan.blocks // (sm_count * config.min_blocks))
    rounds = waves * -(-p.k // (config.bk * plan.parts))
    ends = _END_US * config.bn**0.5 * (waves - 0.25) if short else 0.0
    ragged = 0.0
    if p.k % config.bk and config.bn == MAX_COLUMNS:
        ragged = _RAGGED_US * max(0, config.block_threads // 256 - 1)
    terms = memory, l2, compute, rounds * _ROUND_US
    return max(terms) + _EXPOSED * sum(terms) + _START_US + ragged + ends + (_REDUCE_US if plan.parts > 1 else 0)


def configurations(problem: Problem, sm_count: int) -> Iterator[Config]:
    """The configurations worth a comparison for ``problem``, the plainest first; none above 16 columns."""
    if not applies(problem):
        return
    columns, rows = sorted((max(problem.m, 1), max(problem.n, 1)))
    bn = _power_of_two(columns)
    quads, resident = _DEPTH[bn]
    heights = (32, 64, 128) if rows > 16 else (max(_PATCH, _power_of_two(rows)),)
    for threads in (256, 512):
        for bm in heights:
            slices = threads * _PATCH // bm
            if _PATCH * slices > _MOST_STEPS:
                continue
            bk = min(_PATCH * quads * slices, _MOST_STEPS)
            config = Config(bm, bn, bk, _PATCH, bn, slices=slices, min_blocks=resident // threads)
            yield config
            tiles = -(-rows // bm) * max(problem.batch.count, 1)
            full = sm_count * config.min_blocks // tiles
            for split in (full // 2, full):
                if 1 < split <= -(-problem.k // config.bk):
                    yield replace(config, split=split)


def best(problem: Problem, arch: Architecture, sm_count: int) -> tuple[float, Config]:
    """The configuration with the least `estimate_us`, and that estimate; of equals, the first.

    Raises:
        InvalidValue: more than 16 rows and columns.
    """
    found = [(estimate_us(config, problem, arch, sm_count), config) for config in configurations(problem, sm_count)]
    if not found:
        raise InvalidValue(f"{problem.m} x {problem.n}: the smaller side is above {MAX_COLUMNS}; use a tiled kernel")
    return min(found, key=lambda pair: pair[0])


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
