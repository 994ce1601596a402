"""Whether a kernel sums every element by one chain of FMAs, k = 0 ... K - 1: what ``reproducible=True`` asks for.

What each family does with K, from its source:

- ``specialised``: one chain where a block has all of a tile's K, without slices and not chunked. The remainder of K is
  the first tile, behind zeros: ``fma(0, 0, +0)`` is +0, so that a chain begins as if they were not there. And where
  accumulators are handed on (include/scheduler/handed.cuh): a second block goes on with those of the first.
- ``wide`` and ``small``: one chain, but zeros come behind the last k-step where K fills no whole stage (group). They
  would turn a sum of -0, as of products that underflow, into +0.
- ``staged``: as ``specialised``.
- ``chain``: always. It is made for this, of few rows or columns.
- ``skinny``: lanes have parts of K each. Never.

All end alike: ``v = alpha acc``, and where beta is not 0, ``fma(beta, c0, v)``.
"""

from __future__ import annotations

from ..problem import Config, Problem
from .ffma.chain import CHAIN
from .ffma.small import MOST_RESULTS, SMALL
from .ffma.specialised import SPECIALISED
from .ffma.staged import STAGED
from .ffma.wide import WIDE
from .registry import Kernel

_CARRIED = 4  # results a thread of `small`, at most, whose sums are always in chunks


def is_ascending(kernel: Kernel, config: Config, problem: Problem) -> bool:
    """Whether ``kernel`` cut as ``config`` sums so for ``problem``, which it is valid for."""
    c = config
    if (c.split != 1 and not c.handed) or c.cluster != 1 or c.chunked:
        return False
    if kernel is SPECIALISED or kernel is STAGED:
        return c.slices == 1
    if kernel is CHAIN:
        return True
    if kernel is WIDE:
        return problem.k % c.bk == 0
    if kernel is SMALL:  # whose slices are teams with a tile each
        results = c.tm * c.tn
        return results > _CARRIED and problem.k % (4 if results <= MOST_RESULTS else 2) == 0
    return False
