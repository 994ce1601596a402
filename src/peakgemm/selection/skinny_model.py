"""The cost model of ffma/skinny.cu: products with at most 16 rows or columns, bound by reading the large operand once.

Loads, words of the other operand, issue slots and latencies; the root of the sum of their squares. The numbers are the
profile's. Names are those of kernels/ffma/skinny.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import hypot

from ..kernels.ffma.skinny import (
    DEPTH,
    MAX_COLUMNS,
    MOST_STEPS,
    MOST_SUMS,
    PATCH,
    along_k,
    applies,
    schedule,
    swapped,
    width,
)
from ..kernels.registry import FLOAT
from ..problem import Config, Problem
from .machine import Machine

_SEGMENT = 128      # bytes of X side by side that a warp reads
_ENDS = 4           # values that a result takes besides those of the groups of warps
_HEIGHTS = {256: (32, 64, 128, 16), 512: (32, 64, 128), 128: (32, 64)}  # threads of a block -> its rows
_LEAST_ROWS = 32    # of a block, that may be more than half without a row of X


def estimate_us(config: Config, problem: Problem, machine: Machine) -> float:
    """Modelled time of a launch in microseconds; only the ranking is meant."""
    p, c, numbers, arch = problem, config, machine.profile.skinny, machine.arch
    plan = schedule(config, problem, machine.sms)
    rows, columns, batch = max(p.m, p.n), min(p.m, p.n), max(p.batch.count, 1)
    by_fours, lies_along_k = width(p) == PATCH, along_k(p)
    across, patches = c.bm // c.tm, c.bk // (PATCH * c.slices)
    lanes = max((4 if c.bn >= 8 else 8) if lies_along_k else 1, 32 // across)  # of a warp, along K
    fetched = max(1.0, PATCH * lanes * patches * c.bn / 32)                    # words of Y a lane
    groups = c.slices // lanes
    if groups * c.bm * c.bn > MOST_SUMS:
        groups //= 2
    rounds = -(-p.k // (c.bk * plan.parts))
    loads = patches * (PATCH if by_fours else PATCH**2)
    # Some of what is issued hides behind what memory takes. At a block's end values are exchanged or added up.
    slots = (rounds * (numbers.load_slots * loads + numbers.ffma_slots * patches * PATCH**2 * c.bn
                       + numbers.fetch_slots * fetched)
             + numbers.sum_slots * (PATCH * c.bn + -(-c.bm * c.bn // c.block_threads) * (groups + _ENDS)))
    work = (-(-plan.blocks // machine.sms) * c.block_threads / arch.warp_size * slots
            / (arch.sub_partitions * machine.mhz))
    # A read takes so much longer for each time that less than a segment lies side by side: by four words, and by one
    # along the rows; and where a segment does, by four words along the rows: than where more do.
    beside = (FLOAT * PATCH if by_fours else FLOAT) * (lanes if lies_along_k else across)  # bytes
    each = numbers.lack_factor if by_fours else 0.0 if lies_along_k else numbers.lack_of_words_factor
    lack = each * max(0.0, _SEGMENT / beside - 1)
    if by_fours and not lies_along_k and beside == _SEGMENT:
        lack = numbers.narrow_factor
    floats = rows * p.k * batch * (1 + lack) + (p.k + rows) * columns * batch
    if plan.parts > 1:
        floats += numbers.reread_factor * plan.whole * c.bm * c.bn * plan.parts
    memory = FLOAT * floats / (machine.bandwidth * numbers.bandwidth_share)
    # A wave's first load and its end, a load to the next into the same register, each word of Y fetched before it.
    waves = -(-plan.blocks // (machine.sms * c.min_blocks))
    latency = waves * (numbers.first_us + numbers.round_us * (rounds - 1) + numbers.fetch_us * fetched * rounds)
    return numbers.start_us + hypot(memory, work, latency) + (numbers.reduce_us if plan.parts > 1 else 0)


def configurations(problem: Problem, machine: Machine) -> Iterator[Config]:
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
            config = Config(bm, bn, bk, PATCH, bn, slices=slices, min_blocks=resident // threads)
            yield config
            tiles = -(-rows // bm) * max(problem.batch.count, 1)
            full = machine.sms * config.min_blocks // tiles
            most = -(-problem.k // config.bk)
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
    near = FLOAT * max(p.m, p.n) * p.k <= machine.profile.skinny.beyond_l2_share * machine.l2_bytes
    return bn >= PATCH or threads == 512 or near


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
