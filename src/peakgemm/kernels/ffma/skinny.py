"""Products with at most 16 rows or columns, matrix times vector among them: bound by reading the large operand once.

Called X here, ``R`` rows of K: A, or B transposed where B is the large one (*swapped*); the other is Y, at most 16
columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import hypot

from ...errors import InvalidValue
from ...problem import Config, Problem
from ...runtime import source
from ...runtime.architectures import architecture
from ..family import MAX_BLOCKS
from ..profile import Machine
from ..recipe import Recipe, text_of
from ..registry import FLOAT, Kernel, default_of
from ..schedule import MOST_PARTS, Schedule, arguments
from ..widths import width as vector_width
from .tiled import TILED, estimated

MAX_COLUMNS = 16
_REDUCE = source.KERNELS / "ffma" / "skinny_reduce.cu"
REDUCE_THREADS = 256
_REDUCE_TEAM = 8  # threads that share a sum of many parts
PATCH = 4  # rows, and k-steps, that a thread multiplies at once
_MOST_SUMS = 8192  # in shared memory; of more, half are added to the other half first
MOST_STEPS = 1024  # a block's k-steps at once: K is counted in 32 bits and stepped past by less than that
_SEGMENT = 128      # bytes of X side by side that a warp reads
_ENDS = 4           # values that a result takes besides those of the groups of warps
_HEIGHTS = {256: (32, 64, 128, 16), 512: (32, 64, 128), 128: (32, 64)}  # threads of a block -> its rows
_LEAST_ROWS = 32    # of a block, that may be more than half without a row of X


@dataclass(frozen=True, slots=True)
class SkinnyConfig(Config):
    """A block has ``bm`` rows of X, of which a thread has ``tm`` = 4, and all columns: ``bn`` = ``tn``, padded to a
    power of two; ``bk``: k-steps of a block at once, a multiple of 4 ``slices``."""

    min_blocks: int = 1
    slices: int = 1   # threads along K for each patch of rows and columns
    split: int = 1    # blocks along K, whose sums a second kernel adds up

    def k_lanes(self, x_along_k: bool) -> int:
        """The lanes of a warp along K. By sixteen bytes eight of them read 128 side by side of a row; four read 64,
        where with many columns more rows a warp make better use of each word of Y."""
        least = 1 if not x_along_k else 4 if self.bn >= 8 else 8
        return max(least, 32 // (self.bm // self.tm))

    def kept(self, x_along_k: bool) -> int:
        """The groups of warps along K whose sums are in shared memory at a time: the others', of many, were added to
        theirs before."""
        groups = self.slices // self.k_lanes(x_along_k)
        return groups // 2 if groups * self.bm * self.bn > _MOST_SUMS else groups

    def y_lanes(self, x_along_k: bool, y_along_k: bool, by_words: bool) -> int:
        """The lanes of a warp along the stored rows of Y, of which there are few. Eight words are a sector; yet where
        X lies along the rows and Y along K, four are 10 % faster."""
        run = self.k_lanes(x_along_k) * self.bk // self.slices  # k-steps of a warp at once
        if y_along_k and self.bn < 8:
            return min(run, 32 // self.bn)
        return min(run if y_along_k else self.bn, 4 if (by_words if x_along_k else y_along_k) else 8)


def _shared(c: SkinnyConfig) -> int:
    """Bytes: each warp's share of Y, then the sums of the groups of warps along K, whichever way X lies."""
    run = max(8, c.k_lanes(False)) * c.bk // c.slices  # k-steps of a warp, at most
    y = c.threads * c.slices // 32 * c.bn * (run + PATCH)
    return max(y, c.kept(False) * c.bm * c.bn) * FLOAT


# Columns -> patches that a thread reads ahead, threads of an SM: all that 64 K registers hold without a spill.
DEPTH = {1: (2, 768), 2: (2, 768), 4: (2, 512), 8: (2, 512), 16: (1, 512)}


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


def _specialisation(config: SkinnyConfig, problem: Problem) -> dict[str, int]:
    """The macros that a compilation takes from the problem, and from how the config reads operands that lie so."""
    p, x_along_k, width_x = problem, along_k(problem), width(problem)
    y_along_k = not p.trans_a if swapped(p) else p.trans_b
    return {"TRANS_A": int(p.trans_a), "TRANS_B": int(p.trans_b), "SWAPPED": int(swapped(p)), "WIDTH": width_x,
            "K_LANES": config.k_lanes(x_along_k), "KEPT": config.kept(x_along_k),
            "Y_LANES": config.y_lanes(x_along_k, y_along_k, width_x == 1)}


def _constraints(c: Config) -> Iterator[str]:
    """Every constraint of the kernel that ``c`` breaks; `validity` adds what the architecture allows."""
    across = c.bm // c.tm
    if c.tm != PATCH or c.tn != c.bn:
        yield f"TM = {c.tm}, TN = {c.tn} must be {PATCH} and BN = {c.bn}: a thread has all columns of four rows"
    if c.bn not in DEPTH:
        yield f"BN = {c.bn} must be one of {', '.join(map(str, DEPTH))}: columns, padded to a power of two"
    if across & (across - 1) or c.slices & (c.slices - 1):
        yield f"BM / TM = {across}, slices = {c.slices} must be powers of two: sums meet in halves"
    if not 64 <= across * c.slices <= 1024:
        yield f"(BM / TM) slices = {across * c.slices} threads must be 64 to 1024"
    if c.slices < max(8, 32 // max(across, 1)):
        yield f"slices = {c.slices} must be {max(8, 32 // max(across, 1))} at least: whole warps, with lanes along K"
    patches = c.bk // (PATCH * c.slices)
    if c.bk % (PATCH * c.slices) or patches & (patches - 1) or not patches or c.bk > MOST_STEPS:
        yield (f"BK = {c.bk} must be {PATCH} x slices = {PATCH * c.slices}, times a power of two, "
               f"{MOST_STEPS} at most: whole patches a thread")
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
    steps = 0 if p.alpha == 0 else config.steps(p)
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
                    workspace_bytes=sums * parts * FLOAT, reduce_threads=REDUCE_THREADS,
                    # Divisors: tiles along the rows of a matrix, and of all of them, for which there is no other name.
                    arguments=arguments(p, tiles, team, parts, steps, (down, tiles, 1)))


def _reduce_recipe(kernel: Kernel, config: Config, problem: Problem, arch: str) -> Recipe:
    """What the kernel that adds up the parts is compiled from; it takes the main kernel's arguments."""
    macros = config.tile.macros() | {"BK": 1, "SWAPPED": int(swapped(problem))}
    return Recipe(text_of(_REDUCE), "ffma_skinny_reduce", architecture(arch).name, macros, _REDUCE.name)


def estimate_us(config: SkinnyConfig, problem: Problem, machine: Machine) -> float:
    """Modelled time of a launch in microseconds; only the ranking is meant.

    Loads, words of the other operand, issue slots and latencies; the root of the sum of their squares.
    """
    p, c, numbers, arch = problem, config, machine.profile.skinny, machine.arch
    plan = schedule(config, problem, machine.sms)
    rows, columns, batch = max(p.m, p.n), min(p.m, p.n), max(p.batch.count, 1)
    by_fours, lies_along_k = width(p) == PATCH, along_k(p)
    across, patches, lanes = c.bm // c.tm, c.bk // (PATCH * c.slices), c.k_lanes(lies_along_k)
    fetched = max(1.0, PATCH * lanes * patches * c.bn / 32)  # words of Y a lane
    rounds = -(-p.k // (c.bk * plan.parts))
    loads = patches * (PATCH if by_fours else PATCH**2)
    # Some of what is issued hides behind what memory takes. At a block's end values are exchanged or added up.
    slots = (rounds * (numbers.load_slots * loads + numbers.ffma_slots * patches * PATCH**2 * c.bn)
             + numbers.sum_slots * (PATCH * c.bn + -(-c.bm * c.bn // c.block_threads) * (c.kept(lies_along_k) + _ENDS)))
    work = (-(-plan.blocks // machine.sms) * c.block_threads / arch.warp_size * slots
            / (arch.sub_partitions * machine.mhz))
    # A read takes so much longer for each time that less than a segment lies side by side.
    beside = (FLOAT * PATCH if by_fours else FLOAT) * (lanes if lies_along_k else across)  # bytes
    lack = numbers.lack_factor * max(0.0, _SEGMENT / beside - 1) if by_fours or not lies_along_k else 0.0
    floats = rows * p.k * batch * (1 + lack) + (p.k + rows) * columns * batch
    if plan.parts > 1:
        floats += numbers.reread_factor * plan.whole * c.bm * c.bn * plan.parts
    memory = FLOAT * floats / (machine.bandwidth * numbers.bandwidth_share)
    # A load to the next into the same register, each word of Y fetched before it.
    waves = -(-plan.blocks // (machine.sms * c.min_blocks))
    latency = waves * (numbers.round_us * (rounds - 1) + numbers.fetch_us * fetched * rounds)
    overlap = numbers.overlap_us if arch.launches_overlap(plan.blocks, machine.sms) else 0.0
    return (numbers.start_us + hypot(memory, work, latency) - overlap
            + (numbers.reduce_us if plan.parts > 1 else 0))


def configurations(problem: Problem, machine: Machine) -> Iterator[SkinnyConfig]:
    """The configurations worth a comparison for ``problem``, the plainest first; none above 16 columns."""
    if not applies(problem):
        return
    columns, rows = sorted((max(problem.m, 1), max(problem.n, 1)))
    bn = _power_of_two(columns)
    quads, resident = DEPTH[bn]
    low = max(PATCH, _power_of_two(rows))
    for threads, heights in _HEIGHTS.items():
        worth = [bm for bm in heights if _worth(problem, bn, bm, threads, machine)]
        for bm in worth if rows > MAX_COLUMNS else (low,):
            slices = threads * PATCH // bm
            if PATCH * slices > MOST_STEPS or bm > max(low, _LEAST_ROWS):
                continue
            bk = min(PATCH * quads * slices, MOST_STEPS)
            config = SkinnyConfig(bm, bn, bk, PATCH, bn, slices=slices, min_blocks=resident // threads)
            yield config
            tiles = -(-rows // bm) * max(problem.batch.count, 1)
            full = machine.sms * config.min_blocks // tiles
            most = config.steps(problem)
            for split in dict.fromkeys(min(part, most) for part in (full // 4, full // 2, full)):
                if split > 1:
                    yield replace(config, split=split)


def _worth(problem: Problem, bn: int, bm: int, threads: int, machine: Machine) -> bool:
    """Whether blocks of ``bm`` rows and so many threads are worth a comparison, of products with more than 16 rows."""
    p, full = problem, bn == MAX_COLUMNS
    if bm == 16:
        # 4096 x 2 x 4096 took 27.3 us so, 23.8 by 32 rows; 16 columns would spill 56 bytes where X is read by words.
        return bn >= PATCH and (not full or width(p) == PATCH)
    if bm == 128 and full and not along_k(p) and not swapped(p):
        return False  # 152 bytes would be spilled
    # 1 x 8192 x 8192 took 103 us by 256 threads, 88 by 512.
    near = FLOAT * max(p.m, p.n) * p.k <= machine.l2_bytes
    return bn >= PATCH or threads == 512 or near


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


SKINNY = Kernel(
    -1, "skinny", "4x4 patches of the large operand straight into registers, each element read once",
    default_of("skinny", SkinnyConfig), _constraints, _shared, dynamic=True, folder="ffma",
    # Lanes have parts of K each, so that no sum is one chain.
    family=replace(TILED, schedule=schedule, specialisation=_specialisation, reduce_recipe=_reduce_recipe, tiled=False,
                   one_chain=lambda config, problem: False, candidates=estimated(configurations, estimate_us),
                   numbers="skinny", lives_on_l1=True),
)
