"""Products with at most 16 rows or columns, matrix times vector among them: bound by reading the large operand once.

Called X here, ``R`` rows of K: A, or B transposed where B is the large one (*swapped*); the other is Y, at most 16
columns. `Config` reads: ``bm`` rows of X a block, of which a thread has ``tm`` = 4; ``bn`` = ``tn`` the columns,
padded to a power of two; ``slices`` threads along K for each of them; ``bk`` k-steps of a block at once, a multiple
of 4 ``slices``; ``split`` blocks along K, whose sums a second kernel adds up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import hypot

from ...errors import InvalidValue
from ...problem import Config, Problem
from ...runtime import source
from ...runtime.architectures import Architecture
from ..divide import MOST_PARTS
from ..launch_shape import MAX_BLOCKS
from ..registry import FLOAT, Kernel
from ..schedule import Schedule, arguments
from ..widths import width as vector_width

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

# Of the model, fitted to 3085 times of 153 products on an H100 (docs/notebook/19).
_BANDWIDTH = 0.91   # of the nominal figure, that reading reaches
_SEGMENT = 128      # bytes of X side by side that a warp reads. A read takes so much longer for each time that less lie
_LACK, _LACK_OF_WORDS = 0.315, 0.04  # there, by four words, and by one along the rows,
_NARROW = 0.03                       # and where they do, by four words along the rows: than where more do
_START_US = 0.6     # a launch
_REDUCE_US = 1.3    # a second kernel,
_REREAD = 7.7       # times the time of memory that parts of sums take, written and read
# Latencies of a wave of blocks: of its first load and of its end, of a load to the next into the same register, and of
# each word of Y that a lane fetches before it.
_FIRST_US, _ROUND_US, _FETCH_US = 0.76, 0.52, 0.031
# Issue slots, some of which hide behind what memory takes: of an FFMA, of a load of X, of a word of Y, and of each
# value that is exchanged or added up at a block's end.
_FFMA, _LOAD, _FETCH, _SUM = 0.34, 14.5, 14.7, 19.7
_ENDS = 4           # values that a result takes besides those of the groups of warps
_HEIGHTS = {256: (32, 64, 128, 16), 512: (32, 64, 128), 128: (32, 64)}  # threads of a block -> its rows
_LEAST_ROWS = 32    # of a block, that may be more than half without a row of X
_BEYOND_L2 = 40 << 20  # bytes of X


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


def estimate_us(config: Config, problem: Problem, arch: Architecture, sm_count: int) -> float:
    """Modelled time of a launch in microseconds.

    Only the ranking is meant: the clock and bandwidth are those of the architecture's reference GPU.
    """
    p, c, plan = problem, config, schedule(config, problem, sm_count)
    rows, columns, batch = max(p.m, p.n), min(p.m, p.n), max(p.batch.count, 1)
    by_fours, lies_along_k = width(p) == _PATCH, along_k(p)
    across, patches = c.bm // c.tm, c.bk // (_PATCH * c.slices)
    lanes = max((4 if c.bn >= 8 else 8) if lies_along_k else 1, 32 // across)  # of a warp, along K
    fetched = max(1.0, _PATCH * lanes * patches * c.bn / 32)                   # words of Y a lane
    groups = c.slices // lanes
    if groups * c.bm * c.bn > _MOST_SUMS:
        groups //= 2
    rounds = -(-p.k // (c.bk * plan.parts))
    loads = patches * (_PATCH if by_fours else _PATCH**2)
    slots = (rounds * (_LOAD * loads + _FFMA * patches * _PATCH**2 * c.bn + _FETCH * fetched)
             + _SUM * (_PATCH * c.bn + -(-c.bm * c.bn // c.block_threads) * (groups + _ENDS)))
    work = -(-plan.blocks // sm_count) * c.block_threads / arch.warp_size * slots / (arch.sub_partitions * arch.gpu_mhz)
    beside = (FLOAT * _PATCH if by_fours else FLOAT) * (lanes if lies_along_k else across)  # bytes
    each = _LACK if by_fours else 0.0 if lies_along_k else _LACK_OF_WORDS
    lack = each * max(0.0, _SEGMENT / beside - 1)
    if by_fours and not lies_along_k and beside == _SEGMENT:
        lack = _NARROW
    floats = rows * p.k * batch * (1 + lack) + (p.k + rows) * columns * batch
    if plan.parts > 1:
        floats += _REREAD * plan.whole * c.bm * c.bn * plan.parts
    memory = FLOAT * floats / (arch.gpu_bandwidth_gbs * 1e3 * _BANDWIDTH)
    waves = -(-plan.blocks // (sm_count * c.min_blocks))
    latency = waves * (_FIRST_US + _ROUND_US * (rounds - 1) + _FETCH_US * fetched * rounds)
    return _START_US + hypot(memory, work, latency) + (_REDUCE_US if plan.parts > 1 else 0)


def configurations(problem: Problem, sm_count: int) -> Iterator[Config]:
    """The configurations worth a comparison for ``problem``, the plainest first; none above 16 columns."""
    if not applies(problem):
        return
    columns, rows = sorted((max(problem.m, 1), max(problem.n, 1)))
    bn = _power_of_two(columns)
    quads, resident = _DEPTH[bn]
    low = max(_PATCH, _power_of_two(rows))
    for threads, heights in _HEIGHTS.items():
        for bm in [bm for bm in heights if _worth(problem, bn, bm, threads)] if rows > 16 else (low,):
            slices = threads * _PATCH // bm
            if _PATCH * slices > _MOST_STEPS or bm > max(low, _LEAST_ROWS):
                continue
            bk = min(_PATCH * quads * slices, _MOST_STEPS)
            config = Config(bm, bn, bk, _PATCH, bn, slices=slices, min_blocks=resident // threads)
            yield config
            tiles = -(-rows // bm) * max(problem.batch.count, 1)
            full = sm_count * config.min_blocks // tiles
            most = -(-problem.k // config.bk)
            for split in dict.fromkeys(min(part, most) for part in (full // 4, full // 2, full)):
                if split > 1:
                    yield replace(config, split=split)


def _worth(problem: Problem, bn: int, bm: int, threads: int) -> bool:
    """Whether blocks of ``bm`` rows and so many threads are worth a comparison, of products with more than 16 rows."""
    p, full = problem, bn == MAX_COLUMNS
    if bm == 16:
        # 4096 x 2 x 4096 took 27.3 us so, 23.8 by 32 rows; 16 columns would spill 56 bytes where X is read by words.
        return bn >= _PATCH and (not full or width(p) == _PATCH)
    if bm == 128 and full and not along_k(p) and not swapped(p):
        return False  # 152 bytes would be spilled
    # 1 x 8192 x 8192 took 103 us by 256 threads, 88 by 512.
    return bn >= _PATCH or threads == 512 or FLOAT * max(p.m, p.n) * p.k <= _BEYOND_L2


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
