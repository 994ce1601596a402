"""Products with a short K, and many small ones: bound by memory and by latency, not by FFMAs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import hypot

from ...errors import InvalidValue
from ...problem import Config, Problem, varied
from ..family import MAX_BLOCKS, Estimated
from ..profile import Machine
from ..registry import FLOAT, Kernel, default_of
from ..schedule import Schedule, arguments, cut
from ..widths import whole_widths, widest
from .tiled import TILED, estimated

HALF = 32       # k-steps
_PAD = 4  # words between rows of shared memory, where K is contiguous
STEPS = (8, 16, 32, 64)
SHORT_K = STEPS[-1]  # a block asks for all of it at once, or for half of it;
MOST_K = 256    # in batches of thin ones other blocks hide that it asks again: 352 x 9 x 70 in 551 32 us, `skinny` 63
THIN = 64       # rows or columns of a product that is hardly more than its large operand and C
_FEW = 4        # rows or columns, of which ffma/skinny.cu reads the large operand faster where K is long
_SHORT = 32     # rows and columns of a product that is worth a comparison whatever its K
_SECTOR = 8     # floats
_BLOCK = 128    # threads
_CHUNKED_BLOCKS = 6  # of 128 threads an SM, of 4 x 4 results a thread whose sums are in chunks: registers allow no more
_MOST_AGAIN = 4  # times that an operand is read by tiles with few results
# Tiles, thread tiles, and blocks an SM, of 128 threads or more (with more blocks registers spill).
_TILES = ((8, 8, 2, 2, 10), (16, 16, 4, 4, 8), (32, 32, 4, 4, 8), (64, 64, 8, 4, 7), (64, 32, 4, 4, 8),
          (32, 64, 4, 4, 8), (64, 16, 4, 4, 8), (128, 8, 4, 4, 8), (8, 128, 4, 4, 8))
_LEAST_RESULTS = 1024  # of a tile where there are many in either direction


@dataclass(frozen=True, slots=True)
class SmallConfig(Config):
    """``bm x bn`` is the tile of a team of threads, ``bk`` the k-steps of both operands in shared memory at once."""

    stages: int = 1   # parts of ``bk``, awaited one after the other
    min_blocks: int = 1
    slices: int = 1   # teams of a block, each with a tile of its own
    chunked: bool = False
    traits = "fragment_steps", "chunk_steps"

    @property
    def fragment_steps(self) -> int:
        """The k-steps of both operands that a thread holds in registers: of larger thread tiles four would spill."""
        return 4 if self.tm * self.tn <= MOST_RESULTS else 2

    @property
    def chunk_steps(self) -> int:
        """The k-steps whose sums are added up among themselves, before they join those of the others; 0: one chain.

        By eight, errors are 0.6 of one chain's with 64 k-steps, for 5 % of the time. The smallest tiles always have
        their sums in chunks, of four, which costs them no latency that tells.
        """
        return 4 if self.tm * self.tn <= 4 else 8 if self.chunked else 0


def _shared(c: Config) -> int:
    """Bytes of both operands of every team, as if K were contiguous in both: that is where rows are padded."""
    return c.slices * (c.bm + c.bn) * (c.bk + _PAD) * FLOAT


# Results a thread whose sums may be in chunks: of more, registers would leave few blocks.
MOST_RESULTS = 16
_FEW_SUMS = 3  # that are added up one after the other: two by two is no better, and takes 12 x 12 x 12 6 % longer


def _specialisation(config: SmallConfig, problem: Problem) -> dict[str, int]:
    """The macros that a compilation takes from the problem.

    An even number of chunks of four k-steps is added up two by two (PAIRED): of 16 subnormal products four sums, one
    added to the others after the other, err more than cuBLAS's two.
    """
    sums = -(-problem.k // 4) if config.chunk_steps == 4 else 0
    return {"PAIRED": int(sums > _FEW_SUMS and sums % 2 == 0)} | layouts(problem)


def layouts(problem: Problem) -> dict[str, int]:
    """The macros of layouts, of the width of copies, and of operands that come by way of L1."""
    p, (width_a, width_b) = problem, whole_widths(problem)
    return {"TRANS_A": int(p.trans_a), "TRANS_B": int(p.trans_b), "WIDTH_A": width_a, "WIDTH_B": width_b,
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
    p, (down, across) = problem, config.grid(problem)
    tiles = down * across * p.batch.count
    if tiles > most_tiles(config):
        raise InvalidValue(f"{p.m} x {p.n} x {p.batch.count} in tiles of {config.bm} x {config.bn} asks for {tiles} "
                           f"tiles, the limit is {most_tiles(config)}; use a larger tile or split the product")
    return Schedule(-(-tiles // config.slices), tiles,
                    arguments(p, tiles, 0, 0, 0, cut(down, across, config.raster)))


def most_tiles(c: Config) -> int:
    """Tiles of a launch: those that the last block's teams would have are counted in 32 bits, too."""
    return MAX_BLOCKS - c.slices


def _one_chain(c: SmallConfig, p: Problem) -> bool:
    """As of `wide`, of the groups of k-steps that a thread holds. Slices are teams with a tile each."""
    return not c.chunk_steps and p.k % c.fragment_steps == 0


def applies(problem: Problem, machine: Machine) -> bool:
    """Whether K is short enough for a comparison."""
    p, (short, long) = problem, sorted((problem.m, problem.n))
    thin = p.batch.count > 1 and short <= THIN and (short > _FEW or long <= _SHORT)
    return machine.arch.has_cp_async and p.k <= (MOST_K if thin else SHORT_K)


def estimate_us(config: SmallConfig, problem: Problem, machine: Machine) -> float:
    """Modelled time of a launch in microseconds; only the ranking is meant.

    Instructions of a thread over the issue slots of its SM, bytes over the bandwidth, and latencies of a wave of
    blocks: the root of the sum of their squares.
    """
    p, c, (down, across), arch = problem, config, config.grid(problem), machine.arch
    numbers, tiled = machine.profile.small, machine.profile.tiled
    blocks = -(-down * across * p.batch.count // c.slices)
    words_a, words_b, abreast, sectors = _accesses(p)
    groups, rounds = -(-p.k // c.fragment_steps), max(c.steps(p), 1)
    quads = words = 0.0  # copies of a thread
    for side, by_words, along_k in ((c.bm, words_a, not p.trans_a), (c.bn, words_b, p.trans_b)):
        if not by_words:
            quads += side * c.bk * rounds / (4 * c.threads)
        else:  # where rows lie along K, all of a round's places are asked for
            words += side * (c.bk * rounds if along_k else min(groups * c.fragment_steps, c.bk * rounds)) / c.threads
    instructions = numbers.quad_slots * quads + numbers.word_slots * words + groups * c.fragment_steps * c.tm * c.tn
    warps = c.threads * c.slices / arch.warp_size
    issue = warps * instructions / (arch.sub_partitions * machine.mhz * numbers.issued_share)
    work = (issue + numbers.block_us) * -(-blocks // machine.sms)
    # Words of a row that one store writes, the gaps where a thread has two quads of it included, and the sectors that
    # they lie in.
    wide = min(c.tn, 4)
    apart = wide > abreast  # a thread's columns
    run = max(min(c.bn // c.tn if apart else c.bn, p.n), 1)
    touched = (-(-run // _SECTOR) * _SECTOR if sectors else run + _SECTOR - 1) * (1 if apart else c.tn // wide)
    results = p.m * p.n * (1 + numbers.partly_factor * (touched / run - 1))
    memory = (FLOAT * (p.m * p.k + p.k * p.n + results) * p.batch.count
              / (machine.bandwidth * tiled.bandwidth_share))
    resident = min(c.min_blocks, arch.shared_per_sm // (_shared(c) + arch.shared_reserved))
    waves = max(1.0, blocks / (machine.sms * resident))
    in_line = 0 if c.chunk_steps == 4 else groups
    latency = waves * (numbers.round_us * (rounds - 1) + numbers.group_us * in_line)
    overlap = tiled.overlap_us if arch.launches_overlap(blocks, machine.sms) else 0.0
    return numbers.start_us + hypot(memory, work, latency) - overlap


@lru_cache(maxsize=256)  # half of what a first call's choice costs, else
def tiles(k: int) -> tuple[SmallConfig, ...]:
    """Every tile, for so many k-steps."""
    bk = next((steps for steps in STEPS if steps >= k), SHORT_K)
    return tuple(config for tile in _TILES for config in _of(*tile, bk))


def _of(bm: int, bn: int, tm: int, tn: int, blocks: int, bk: int) -> Iterator[SmallConfig]:
    teams = max(_BLOCK * tm * tn // (bm * bn), 1)
    config = SmallConfig(bm, bn, bk, tm, tn, slices=teams, min_blocks=blocks)
    if bk < SHORT_K:
        yield config
        return
    if tm * tn <= MOST_RESULTS:
        config = replace(config, chunked=True, min_blocks=min(blocks, _CHUNKED_BLOCKS))
        # The first half is multiplied while the other is under way: the fastest where few blocks follow, and 1000 of 64
        # took 22.5 us by 32 x 64 so, 24.1 without parts.
        yield replace(config, stages=2)
    # One half after the other: other blocks hide the wait, and less is under way at once. 700 of 64 x 64 x 128 take
    # 30.8 us by 32 x 64 so, 33.1 otherwise.
    yield replace(config, bk=HALF)


def configurations(problem: Problem, machine: Machine) -> Iterator[SmallConfig]:
    """The configurations worth a comparison for ``problem``; none where the kernel does not apply."""
    p = problem
    # 20 x 1000000 x 20 took 183 us by tiles of 32 columns, 103 by 64, 78 by 128.
    far_a, far_b = (FLOAT * side * p.k > machine.l2_bytes / 2 and other <= THIN
                    for side, other in ((p.m, p.n), (p.n, p.m)))
    # Where K lies along rows of A and not of B, and all is copied by sixteen bytes, there are registers for one block
    # more: 1000 of 64 take 21.6 us so, 22.7 with seven an SM.
    eighth = not (p.trans_a or p.trans_b or any(_accesses(p)[:2]))
    for c in tiles(p.k) if applies(p, machine) else ():
        # Not an operand twice, nor in short rows, of which the L2 holds little.
        if (far_b and (c.bn < THIN or c.bm < p.m)) or (far_a and (c.bm < THIN or c.bn < p.n)):
            continue
        # Nor much of a tile past the edge, nor many tiny ones.
        down, across = c.grid(p)
        if (c.bm < 2 * max(p.m, 8) and c.bn < 2 * max(p.n, 8) and down * across * p.batch.count <= most_tiles(c)
                and (min(down, across) <= _MOST_AGAIN or c.bm * c.bn >= _LEAST_RESULTS)):
            yield c
            if (c.bm, c.bn, c.tm) == (64, 64, 8) and HALF < p.k <= SHORT_K and eighth:
                yield replace(c, stages=2, min_blocks=c.min_blocks + 1)


@lru_cache(maxsize=8)  # a model asks for each of its tiles
def _accesses(p: Problem) -> tuple[bool, bool, int, bool]:
    """Whether words of A and of B are copied by themselves; results that a thread may store at once; and whether
    rows of C are whole sectors."""
    macros = layouts(p)
    return (macros["WIDTH_A"] == 1, macros["WIDTH_B"] == 1, 1 if p.trans_b else macros["WIDTH_C"],
            p.ldc % _SECTOR == 0)


def _chains(kernel: Kernel, problem: Problem, machine: Machine) -> Iterator[Estimated]:
    """The same with sums that are not in chunks, whose time is taken to be that of those that are."""
    for config, us in estimated(configurations, estimate_us)(kernel, problem, machine):
        yield varied(config, chunked=False), us


SMALL = Kernel(
    -1, "small", "a tile a team of threads, 64 k-steps of its operands asked for at once; many blocks an SM",
    default_of("small", SmallConfig), _constraints, _shared, dynamic=True, needs=("cp.async",), folder="ffma",
    family=replace(TILED, schedule=schedule, specialisation=_specialisation,
                   one_chain=_one_chain, candidates=estimated(configurations, estimate_us),
                   chains=_chains, numbers="small", tiled=False),
)
