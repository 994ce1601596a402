"""The cost model of ffma/chain.cu: few rows or columns, each element by one chain over K.

The bytes of the operands, or what a computing warp issues and waits for in each k-step, whichever takes longer. The
numbers are the profile's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..kernels.ffma.chain import CHAIN, LANES, applies, swapped
from ..kernels.registry import FLOAT
from ..problem import Config, Problem
from .machine import Machine

_MOST_BLOCKS = 3  # of an SM, whose rings share its memory
_WARPS = 4  # that compute, one for each scheduler


def estimate_us(config: Config, problem: Problem, machine: Machine) -> float:
    """Modelled time of a launch in microseconds; only the ranking is meant."""
    p, c, numbers, arch = problem, config, machine.profile.chain, machine.arch
    tiles = -(-max(p.m, p.n) // LANES) * max(p.batch.count, 1)
    memory = (FLOAT * (p.m * p.k + p.k * p.n + p.m * p.n) * p.batch.count
              / (machine.bandwidth * numbers.bandwidth_share))
    # Words of X for each k-step, or four of them at once; of Y four at once; an FFMA for each row of Y.
    along_k = not p.trans_a if swapped(p) else p.trans_b
    issued = numbers.issue_factor * ((0.25 if along_k else 1) + 1.25 * c.tm)
    resident = min(-(-tiles // machine.sms), arch.shared_per_sm // (CHAIN.shared_bytes(c) + arch.shared_reserved))
    beside = -(-c.threads * resident // arch.warp_size // arch.sub_partitions)  # warps of a scheduler
    waves = -(-tiles // (machine.sms * resident))
    chain = waves * p.k * max(numbers.step_slots, beside * issued) / machine.mhz
    return numbers.start_us + max(memory, chain)


def configurations(problem: Problem, machine: Machine) -> Iterator[Config]:
    """The one configuration that is considered for ``problem``; none above 32 columns, or without cp.async.

    Its ring is as deep as the blocks leave room for that an SM has at once.
    """
    if not applies(problem) or not machine.arch.has_cp_async:
        return
    rows, columns = max(problem.m, problem.n), max(min(problem.m, problem.n), 1)
    bm = 1 << (columns - 1).bit_length()
    blocks = min(max(-(-rows // LANES) * problem.batch.count // machine.sms, 1), _MOST_BLOCKS)
    room = min(machine.arch.shared_per_sm // blocks - machine.arch.shared_reserved, machine.arch.shared_per_block)
    one = replace(CHAIN.default, bm=bm, tm=max(bm // (2 * _WARPS), 1), tn=min(bm, 2), stages=1)
    yield replace(one, stages=room // CHAIN.shared_bytes(one))
