"""Few rows or columns by one chain of FMAs an element: what ``reproducible=True`` takes where `skinny` cuts K.

The large operand is called X here, ``R`` rows of K: B transposed, or A where A is the large one (*swapped*); the other
is Y, at most 32 rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...errors import InvalidValue
from ...problem import Config, Problem
from ...runtime.architectures import Architecture
from ..family import MAX_BLOCKS
from ..profile import Machine
from ..registry import FLOAT, Kernel, default_of
from ..schedule import Schedule, arguments
from ..widths import whole_widths
from .tiled import TILED, estimated

MAX_COLUMNS = 32  # of the small operand's rows: 64 take 67 us against 4096 x 4096, `specialised` 57


@dataclass(frozen=True, slots=True)
class ChainConfig(Config):
    """A block has ``bn`` = 32 rows of X, one for each lane of a warp, and ``bm`` rows of Y, padded to a power of two,
    of which a warp has ``tm``; ``bk``: k-steps of a stage."""

    stages: int = 1
    min_blocks: int = 1
    producers: int = 0  # whose warps take the stages in turn
    traits = ("fragment_steps",)

    @property
    def fragment_steps(self) -> int:
        """The k-steps that a thread reads ahead of those that it multiplies: of few results eight, whose FFMAs take as
        long as shared memory needs to answer."""
        return 8 if self.tm * self.tn <= 2 else 4


def _shared(c: Config) -> int:
    """Bytes of the stages, as if K were contiguous in X: that is where rows are padded, by a quad."""
    return c.stages * (c.bm + c.bn) * (c.bk + 4) * FLOAT


_DEFAULT = default_of("chain", ChainConfig)
LANES = _DEFAULT.bn  # rows of X a block: one for each lane of a warp


def registers(arch: Architecture) -> int:
    """That a thread has at most: what is left where as many blocks as the default configuration asks for share one."""
    default, unit = _DEFAULT, arch.register_granularity // arch.warp_size
    return arch.registers_per_sm // (default.min_blocks * default.block_threads) // unit * unit


def applies(problem: Problem) -> bool:
    """Whether the product has at most 32 rows or at most 32 columns."""
    return min(problem.m, problem.n) <= MAX_COLUMNS


def swapped(problem: Problem) -> bool:
    """Whether X is A: C has more rows than columns."""
    return problem.m > problem.n


def _specialisation(config: Config, problem: Problem) -> dict[str, int]:
    """The macros that a compilation takes from the problem: layouts, and the width of copies, 4 floats where every
    group of four starts at 16 bytes."""
    p, turned, (of_a, of_b) = problem, swapped(problem), whole_widths(problem)
    along_k = p.trans_b if turned else not p.trans_a  # Y, whose k-steps change places where they are not neighbours
    return {"TRANS_A": int(p.trans_a), "TRANS_B": int(p.trans_b), "SWAPPED": int(turned),
            "WIDTH_X": of_a if turned else of_b, "WIDTH_Y": (of_b if turned else of_a) if along_k else 1}


def _constraints(c: Config) -> Iterator[str]:
    """Every constraint of the kernel that ``c`` breaks; `validity` adds what the architecture allows."""
    if c.bn != LANES or c.tn not in (1, 2):
        yield (f"BN = {c.bn}, TN = {c.tn} must be {LANES} and 1 or 2: a lane has a row of the large operand, or two "
               "lanes have two")
    if c.bm & (c.bm - 1) or c.bm > MAX_COLUMNS:
        yield f"BM = {c.bm} must be a power of two, {MAX_COLUMNS} at most: rows of the small operand"
    if c.tm > 8:
        yield f"TM = {c.tm} must be 8 at most: fragments of more rows would spill"
    if c.bk not in (32, 64):
        yield f"BK = {c.bk} must be 32 or 64: a warp copies whole lines"
    if c.producers % 32 or not 32 <= c.producers <= 32 * c.stages:
        yield (f"producers = {c.producers} must be whole warps, 32 to {32 * c.stages}: a stage of {c.stages} for each")


def schedule(config: Config, problem: Problem, sm_count: int) -> Schedule:
    """The launch: a block for each 32 rows of X. No blocks where C is empty; ``sm_count`` is not asked.

    Raises:
        InvalidValue: more rows of Y than ``config.bm``, or more than 2**31 - 1 blocks.
    """
    p = problem
    rows, columns = (p.m, p.n) if swapped(p) else (p.n, p.m)
    if columns > config.bm:
        raise InvalidValue(f"{p.m} x {p.n}: the smaller side is {columns}, BM = {config.bm} holds no more than that; "
                           f"use a larger BM, or another kernel above {MAX_COLUMNS}")
    across = -(-rows // config.bn)
    tiles = across * p.batch.count if columns else 0
    if tiles > MAX_BLOCKS:
        raise InvalidValue(f"{p.m} x {p.n} x {p.batch.count} in tiles of {config.bn} asks for {tiles} blocks, the "
                           f"limit is {MAX_BLOCKS}; split the product")
    # Of the divisors a kernel that cuts C one way needs the tiles of a matrix alone.
    return Schedule(tiles, tiles, arguments(p, tiles, 0, 0, 0, (across, 1, 1)))


def estimate_us(config: Config, problem: Problem, machine: Machine) -> float:
    """Modelled time of a launch in microseconds; only the ranking is meant.

    Wave by wave of blocks, whichever takes longest: the bytes of the operands, the copies of a block's rows of X, or
    what computing warps read of shared memory in each k-step.
    """
    p, c, numbers, arch = problem, config, machine.profile.chain, machine.arch
    rows, columns = max(p.m, p.n), min(p.m, p.n)
    tiles = -(-rows // LANES) * max(p.batch.count, 1)
    # Of a k-step: a wavefront for each warp's words of X, and for four rows of Y, or two where a lane has one of X.
    wavefronts = c.threads / arch.warp_size + c.bm / (2 * c.tn)

    def wave(blocks: int) -> float:
        floats = blocks * LANES * (p.k + columns) + p.k * columns
        memory = FLOAT * floats / (machine.bandwidth * numbers.bandwidth_share)
        read = numbers.wavefront_factor * wavefronts * -(-blocks // machine.sms)
        return max(memory, p.k * max(numbers.step_slots, read) / machine.mhz)

    resident = min(arch.shared_per_sm // (_shared(c) + arch.shared_reserved),
                   arch.blocks_by_registers(registers(arch), c.block_threads))
    full, rest = divmod(tiles, machine.sms * max(resident, 1))
    return numbers.start_us + full * wave(machine.sms * resident) + (wave(rest) if rest else 0.0)


def configurations(problem: Problem, machine: Machine) -> Iterator[ChainConfig]:
    """The one configuration that is considered for ``problem``; none above 32 columns, or without cp.async.

    64 KB of X under way for an SM are enough, and more are slower: 1 x 4096 x 4096 takes 26.1 us so, 27.7 with 128 KB.
    Blocks that share an SM have half as many each: 16 x 11008 x 4096 takes 78.4 us so, 89.0 with as many. Where rows of
    Y are enough, a warp computes on each scheduler.
    """
    if not applies(problem) or not machine.arch.has_cp_async:
        return
    rows, columns = max(problem.m, problem.n), max(min(problem.m, problem.n), 1)
    bm, default = 1 << (columns - 1).bit_length(), _DEFAULT
    lonely = -(-rows // LANES) * problem.batch.count <= machine.sms
    tile = replace(default, bm=bm, tm=max(bm // (2 * machine.arch.sub_partitions), 1), tn=min(bm, 2),
                   stages=default.stages if lonely else default.stages // 2)
    while _shared(tile) > machine.arch.shared_per_block:
        tile = replace(tile, stages=tile.stages - 1, producers=min(tile.producers, LANES * (tile.stages - 1)))
    yield tile


CHAIN = Kernel(
    -1, "chain", "one chain over K an element, a lane a row of the large operand; a deep ring keeps memory busy",
    _DEFAULT, _constraints, _shared, dynamic=True, needs=("cp.async",), folder="ffma",
    family=replace(TILED, schedule=schedule, specialisation=_specialisation, tiled=False,
                   one_chain=lambda config, problem: True, numbers="chain",
                   chains=estimated(configurations, estimate_us)),
)
