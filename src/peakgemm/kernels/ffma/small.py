"""Products with a short K, and many small ones: bound by memory and by latency, not by FFMAs.

`Config` reads: ``bm`` x ``bn`` the tile of a team of threads, ``tm`` x ``tn`` of which a thread has; ``bk`` k-steps of
both operands in shared memory at once, awaited in ``stages`` parts; ``slices`` teams a block, each with a tile of its
own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, lru_cache
from math import hypot

from ...errors import InvalidValue
from ...problem import Config, Problem
from ...runtime.architectures import Architecture
from ..launch_shape import MAX_BLOCKS
from ..registry import FLOAT, Kernel
from ..schedule import Schedule, arguments, cut
from ..widths import widest, width

SHORT_K = 64    # a block asks for all of it at once,
_HALF = 32      # or for half of it;
MOST_K = 256    # in batches of thin ones other blocks hide that it asks again: 352 x 9 x 70 in 551 32 us, `skinny` 63
THIN = 64       # rows or columns of a product that is hardly more than its large operand and C
_VIA_L1_K = 32
# Rows or columns -> K beyond which the kernel of thin products is faster: 200000 x 4 x 64 in 21.5 us, here 23.2;
# 300000 x 4 x 40 in 28.3, here 24.6; 300000 x 1 x 48 in 22.0, here 25.3.
_STREAMED = {1: 32, 2: 48, 3: 48, 4: 48}
_PAD = 4  # words between rows of shared memory, where K is contiguous
_STEPS = (8, 16, 32, 64)


def _shared(c: Config) -> int:
    """Bytes of both operands of every team, as if K were contiguous in both: that is where rows are padded."""
    return c.slices * (c.bm + c.bn) * (c.bk + _PAD) * FLOAT


SMALL = Kernel(
    -1, "small", "a tile a team of threads, 64 k-steps of its operands asked for at once; many blocks an SM",
    Config(32, 32, 32, 4, 4, slices=2, min_blocks=8), "small", _shared, dynamic=True, cp_async=True, folder="ffma",
    tunes=frozenset({"min_blocks", "slices", "stages", "chunked"}),
)
# Tile and thread tile -> blocks an SM, of 128 threads or more (with more blocks, registers spill), and how much longer
# its instructions take than the model counts: with up to 32 k-steps, with more of them all at once, in halves. Fitted,
# as what follows, to 2475 times of 337 shapes on an H100, the last two to 3365 of 489 products with more k-steps
# (docs/notebook/19); None: never the fastest.
_TILES: dict[tuple[int, int, int, int], tuple[int, float, float | None, float | None]] = {
    (8, 8, 2, 2): (10, 1.056, 1.212, 1.547), (16, 16, 4, 4): (8, 1.080, 1.245, 1.158),
    (32, 32, 4, 4): (8, 0.999, 1.066, 0.981), (64, 64, 8, 4): (7, 0.988, None, 0.910),
    (64, 32, 4, 4): (8, 0.996, 1.045, 0.958), (32, 64, 4, 4): (8, 1.024, 1.078, 1.005),
    (64, 16, 4, 4): (8, 1.064, 1.183, 1.065), (128, 8, 4, 4): (8, 1.155, 1.047, 1.217),
    (8, 128, 4, 4): (8, 1.148, 1.174, 1.360),
}
_UNKNOWN = 1.2  # of another tile
_START_US = 1.64
_BLOCK_US = 0.029       # a block's, whatever its tiles
_ISSUED = 0.644         # of an SM's issue slots are used at best
# Instructions of a thread that are no FFMAs: whatever its tile, for each copy of four words or of one, for each group
# of k-steps in registers, and for each store; and, with more than 32 k-steps, for each group where K is contiguous in B
# and a thread has more than 16 results, as its words of B meet in banks.
_ENDS, _QUAD, _WORD, _GROUP, _STORE, _ALONG_K = 53, 13.0, 4.1, 12.2, 3.6, 19.9
# Latencies of a wave of blocks: of its loads of BK k-steps after the first, of a group of k-steps, of a store. The
# smallest tiles have none that tells for a group: a block has eight of them, each with few instructions.
_ROUND_US, _GROUP_US, _STORE_US = 0.53, 0.0648, 0.0283
_BANDWIDTH = 1.04       # of the nominal figure
_SECTOR = 8             # results
_PARTLY = 1.08          # of what sectors hold beside the results that one store writes to them
# Results a thread whose sums are in chunks always, and those that have them where K may be longer than a chunk of
# larger tiles; of more, registers would leave few blocks.
_ALWAYS, _CHUNKED = 4, 16
_SUM = 4       # k-steps, of the smallest tiles
_FEW_SUMS = 3  # that are added up one after the other: two by two is no better, and takes 12 x 12 x 12 6 % longer
_CHUNKED_BLOCKS = 6        # of 128 threads an SM then, of 4 x 4 results a thread
_BLOCK = 128  # threads
_MOST_AGAIN = 4  # times that an operand is read by tiles with few results
_BEYOND_L2 = 20 << 20  # bytes of an operand: 20 x 1000000 x 20 took 183 us by tiles of 32 columns, 103 by 64, 78 by 128
_LEAST_RESULTS = 1024  # of a tile where there are many in either direction


def applies(problem: Problem) -> bool:
    """Whether K is short enough for a comparison."""
    p, (short, long) = problem, sorted((problem.m, problem.n))
    most = MOST_K if p.batch.count > 1 and short <= THIN else SHORT_K
    return p.k <= most and (long <= 32 or p.k <= _STREAMED.get(short, most))


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
            "VIA_L1_A": int(p.m <= p.n or p.k <= _VIA_L1_K), "VIA_L1_B": int(p.n < p.m)}


def constraints(c: Config) -> Iterator[str]:
    """Every constraint of the kernel that ``c`` breaks; `validity` adds what the architecture allows."""
    if c.bk not in _STEPS:
        yield f"BK = {c.bk} must be one of {', '.join(map(str, _STEPS))}: k-steps, four at a time"
    if c.stages < 1 or c.bk % (8 * c.stages):
        yield f"stages = {c.stages} must divide BK = {c.bk} into multiples of 8: sums of as many k-steps are added up"
    for name, size, least in (("BM", c.bm, 4), ("BN", c.bn, 4), ("TM", c.tm, 1), ("TN", c.tn, 1)):
        if size < least or size & (size - 1):
            yield f"{name} = {size} must be a power of two, {least} at least: a team's threads share lines evenly"
    if c.chunked and c.tm * c.tn > _CHUNKED:
        yield f"chunked with {c.tm * c.tn} results a thread: {_CHUNKED} at most, a second set of sums takes registers"
    if c.threads * c.slices > 1024:
        yield f"(BM/TM)(BN/TN) slices = {c.threads * c.slices} threads must be 1024 at most"


def schedule(config: Config, problem: Problem, sm_count: int) -> Schedule:
    """The launch: a team a tile of C. No blocks where C is empty; ``sm_count`` is not asked, nothing is persistent.

    Raises:
        InvalidValue: more tiles than the teams of all blocks count in 32 bits.
    """
    p, (down, across) = problem, _grid(config, problem)
    tiles = down * across * p.batch.count
    if tiles > _most_tiles(config):
        raise InvalidValue(f"{p.m} x {p.n} x {p.batch.count} in tiles of {config.bm} x {config.bn} asks for {tiles} "
                           f"tiles, the limit is {_most_tiles(config)}; use a larger tile or split the product")
    return Schedule(blocks=-(-tiles // config.slices), reduce_blocks=0, whole=tiles, shared=0, parts=0,
                    workspace_bytes=0, arguments=arguments(p, tiles, 0, 0, 0, cut(down, across, config.raster)))


def estimate_us(config: Config, problem: Problem, arch: Architecture, sm_count: int) -> float:
    """Modelled time of a launch in microseconds.

    Only the ranking is meant: the clock and bandwidth are those of the architecture's reference GPU.
    """
    p, c, (down, across) = problem, config, _grid(config, problem)
    blocks = -(-down * across * p.batch.count // c.slices)
    words_a, words_b, abreast, sectors = _ways(p)
    group = _group(c)
    groups, rounds = -(-p.k // group), max(-(-p.k // c.bk), 1)
    quads = words = 0.0  # copies of a thread
    for side, by_words, along_k in ((c.bm, words_a, not p.trans_a), (c.bn, words_b, p.trans_b)):
        if not by_words:
            quads += side * c.bk * rounds / (4 * c.threads)
        else:  # where rows lie along K, all of a round's places are asked for
            words += side * (c.bk * rounds if along_k else min(groups * group, c.bk * rounds)) / c.threads
    wide = min(c.tn, 4)
    apart = wide > abreast  # a thread's columns
    stores = c.tm * c.tn // (1 if apart or p.beta != 0 else wide)
    long = p.k > _HALF
    beside = _GROUP + (_ALONG_K if long and p.trans_b and c.tm * c.tn > _CHUNKED else 0)
    instructions = _ENDS + _QUAD * quads + _WORD * words + groups * (group * c.tm * c.tn + beside) + _STORE * stores
    _, short, whole, halves = _TILES.get((c.bm, c.bn, c.tm, c.tn), (0, _UNKNOWN, None, None))
    slower = (whole if c.bk == SHORT_K else halves) or _UNKNOWN if long else short
    warps = c.threads * c.slices / arch.warp_size
    issue = warps * instructions / (arch.sub_partitions * arch.gpu_mhz * _ISSUED)
    work = (issue * slower + _BLOCK_US) * -(-blocks // sm_count)
    # Words of a row that one store writes, the gaps where a thread has two quads of it included, and the sectors that
    # they lie in.
    run = max(min(c.bn // c.tn if apart else c.bn, p.n), 1)
    touched = (-(-run // _SECTOR) * _SECTOR if sectors else run + _SECTOR - 1) * (1 if apart else c.tn // wide)
    results = p.m * p.n * (1 + _PARTLY * (touched / run - 1))
    memory = FLOAT * (p.m * p.k + p.k * p.n + results) * p.batch.count / (arch.gpu_bandwidth_gbs * 1e3 * _BANDWIDTH)
    resident = min(c.min_blocks, arch.shared_per_sm // (_shared(c) + arch.shared_reserved))
    waves = max(1.0, blocks / (sm_count * resident))
    in_line = groups if c.tm * c.tn > _ALWAYS else 0
    latency = waves * (_ROUND_US * (rounds - 1) + _GROUP_US * in_line + _STORE_US * stores)
    return _START_US + hypot(memory, work, latency)


@cache  # half of what a first call's choice costs, else
def tiles(k: int) -> tuple[Config, ...]:
    """Every tile, for so many k-steps."""
    bk = next((steps for steps in _STEPS if steps >= k), SHORT_K)
    found = []
    for (bm, bn, tm, tn), (blocks, _, whole, halves) in _TILES.items():
        teams = max(_BLOCK * tm * tn // (bm * bn), 1)
        config = Config(bm, bn, bk, tm, tn, slices=teams, min_blocks=blocks)
        if bk < SHORT_K:
            found.append(config)
            continue
        if tm * tn <= _CHUNKED:
            config = replace(config, chunked=True, min_blocks=min(blocks, _CHUNKED_BLOCKS))
        if whole:
            # The first half is multiplied while the other is under way: the fastest where few blocks follow, and 1000
            # of 64 took 22.5 us by 32 x 64 so, 24.1 without parts.
            found.append(replace(config, stages=2))
        if halves:
            # One half after the other: other blocks hide the wait, and less is under way at once. 700 of 64 x 64 x 128
            # take 30.8 us by 32 x 64 so, 33.1 otherwise.
            found.append(replace(config, bk=_HALF))
    return tuple(found)


def configurations(problem: Problem) -> Iterator[Config]:
    """The configurations worth a comparison for ``problem``; none where the kernel does not apply."""
    p = problem
    far_a, far_b = (FLOAT * side * p.k > _BEYOND_L2 and other <= THIN for side, other in ((p.m, p.n), (p.n, p.m)))
    # Where K lies along rows of A and not of B, and all is copied by sixteen bytes, there are registers for one block
    # more: 1000 of 64 take 21.6 us so, 22.7 with seven an SM.
    eighth = not (p.trans_a or p.trans_b or any(_ways(p)[:2]))
    for c in tiles(p.k) if applies(p) else ():
        # Not an operand twice, nor in short rows, of which the L2 holds little.
        if (far_b and (c.bn < THIN or c.bm < p.m)) or (far_a and (c.bm < THIN or c.bn < p.n)):
            continue
        # Nor much of a tile past the edge, nor many tiny ones.
        down, across = _grid(c, p)
        if (c.bm < 2 * max(p.m, 8) and c.bn < 2 * max(p.n, 8) and down * across * p.batch.count <= _most_tiles(c)
                and (min(down, across) <= _MOST_AGAIN or c.bm * c.bn >= _LEAST_RESULTS)):
            yield c
            if (c.bm, c.bn, c.tm) == (64, 64, 8) and _HALF < p.k <= SHORT_K and eighth:
                yield replace(c, stages=2, min_blocks=c.min_blocks + 1)


def _group(c: Config) -> int:
    """K-steps that a thread holds at once."""
    return 4 if c.tm * c.tn <= _CHUNKED else 2


@lru_cache(maxsize=8)  # a model asks for each of its tiles
def _ways(p: Problem) -> tuple[bool, bool, int, bool]:
    """Whether words of A and of B are copied by themselves; results that a thread may store at once; and whether
    rows of C are whole sectors."""
    macros = specialisation(p)
    return (macros["WIDTH_A"] == 1, macros["WIDTH_B"] == 1, 1 if p.trans_b else macros["WIDTH_C"],
            p.ldc % _SECTOR == 0)


def _grid(c: Config, p: Problem) -> tuple[int, int]:
    """Tiles of one matrix: down and across."""
    return -(-p.m // c.bm), -(-p.n // c.bn)


def _most_tiles(c: Config) -> int:
    """Tiles of a launch: those that the last block's teams would have are counted in 32 bits, too."""
    return MAX_BLOCKS - c.slices
