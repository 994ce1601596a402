"""The cost model of ffma/chain.cu: few rows or columns, each element by one chain over K.

Wave by wave of blocks, whichever takes longest: the bytes of the operands, the copies of a block's rows of X, or what
computing warps read of shared memory in each k-step. The numbers are the profile's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..kernels.ffma.chain import CHAIN, LANES, applies, registers
from ..kernels.registry import FLOAT
from ..problem import Config, Problem
from .machine import Machine


def estimate_us(config: Config, problem: Problem, machine: Machine) -> float:
    """Modelled time of a launch in microseconds; only the ranking is meant."""
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

    resident = min(arch.shared_per_sm // (CHAIN.shared_bytes(c) + arch.shared_reserved),
                   arch.blocks_by_registers(registers(arch), c.block_threads))
    full, rest = divmod(tiles, machine.sms * max(resident, 1))
    return numbers.start_us + full * wave(machine.sms * resident) + (wave(rest) if rest else 0.0)


def configurations(problem: Problem, machine: Machine) -> Iterator[Config]:
    """The one configuration that is considered for ``problem``; none above 32 columns, or without cp.async.

    64 KB of X under way for an SM are enough, and more are slower: 1 x 4096 x 4096 takes 26.1 us so, 27.7 with 128 KB.
    Blocks that share an SM have half as many each: 16 x 11008 x 4096 takes 78.4 us so, 89.0 with as many. Where rows of
    Y are enough, a warp computes on each scheduler.
    """
    if not applies(problem) or not machine.arch.has_cp_async:
        return
    rows, columns = max(problem.m, problem.n), max(min(problem.m, problem.n), 1)
    bm, default = 1 << (columns - 1).bit_length(), CHAIN.default
    lonely = -(-rows // LANES) * problem.batch.count <= machine.sms
    tile = replace(default, bm=bm, tm=max(bm // (2 * machine.arch.sub_partitions), 1), tn=min(bm, 2),
                   stages=default.stages if lonely else default.stages // 2)
    while CHAIN.shared_bytes(tile) > machine.arch.shared_per_block:
        tile = replace(tile, stages=tile.stages - 1, producers=min(tile.producers, LANES * (tile.stages - 1)))
    yield tile
