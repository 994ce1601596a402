"""Every kernel and configuration that is considered for a problem, with its modelled time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ..kernels.ffma import skinny, small, wide
from ..kernels.ffma.repack import Repack
from ..kernels.ffma.skinny import SKINNY
from ..kernels.ffma.small import SMALL
from ..kernels.ffma.wide import WIDE
from ..kernels.library import FAMILIES, copied_by_words
from ..kernels.registry import Kernel
from ..kernels.schedule import sharing
from ..kernels.validity import is_valid
from ..problem import Config, Problem
from ..runtime.architectures import Architecture, architecture
from .tile_model import WIDE_RATES, configurations, modelled_us, repack_us, results_stored, ways

# What the models of small and of thin products do not know: blocks that overlap those of the launch before, and
# have asked for their operands. 24 x 24 x 24 takes 1.3 us where 1.95 are modelled, 60 drawn thin products 0.2 less than
# modelled in the median. Less for all of their tiles alike, as among those they know which is fastest.
_OVERLAP_US = {SMALL: 0.65, SKINNY: 0.2}
_WIDE_BYTES = 1 << 31    # of both operands, of what is repacked for wide thread tiles
_WIDE_TILES = 1          # for each SM, at least
# Sums this short in wide tiles, and factors by which they must be faster: their model errs most there.
_WIDE_SHORT = (64, 1.05), (200, 1.08)


@lru_cache(maxsize=8)  # an emulated product asks twice
def candidates(problem: Problem, arch: str, sm_count: int) -> tuple[tuple[Kernel, Config, float], ...]:
    """Every kernel and configuration considered for ``problem``, with its modelled microseconds, best first."""
    limits, by_words, results = architecture(arch), copied_by_words(problem), results_stored(problem)
    apply = limits.has_cp_async and small.applies(problem)
    found = [(kernel, way, modelled_us(way, problem, limits, sm_count, by_words, results))
             for kernel, config in configurations(arch) for way in ways(config, problem, sm_count)]
    found += _wide(problem, limits, sm_count)
    others = []
    if skinny.applies(problem):
        others += [(SKINNY, config, skinny.estimate_us(config, problem, limits, sm_count))
                   for config in skinny.configurations(problem, sm_count) if is_valid(SKINNY, config, limits)]
    if apply:
        others += [(SMALL, config, small.estimate_us(config, problem, limits, sm_count))
                   for config in small.configurations(problem) if is_valid(SMALL, config, limits)]
    if others:
        kernel, config, _ = min(others, key=_modelled_time)
        if limits.launches_overlap(FAMILIES[kernel].schedule(config, problem, sm_count).blocks, sm_count):
            others = [(kernel, config, us - _OVERLAP_US[kernel]) for kernel, config, us in others]
    return tuple(sorted(found + others, key=_modelled_time))  # stable: of equals, the first named


def _modelled_time(candidate: tuple[Kernel, Config, float]) -> float:
    return candidate[2]


def _wide(p: Problem, limits: Architecture, sm_count: int) -> Iterator[tuple[Kernel, Config, float]]:
    """Wide thread tiles, for products of many tiles: what they gain pays for repacked operands.

    Results whose rows start anywhere cost them no more than others.
    """
    for config in WIDE_RATES:
        tiles = -(-p.m // config.bm) * -(-p.n // config.bn)
        if tiles < _WIDE_TILES * sm_count or not is_valid(WIDE, config, limits, p):
            continue
        size = Repack(p, wide.to_repack(p)).sums
        if size > _WIDE_BYTES:
            continue
        before = repack_us(config, p, size, limits)
        margin = next((factor for most, factor in _WIDE_SHORT if p.k <= most), 1.0)
        for way in (config, sharing(config, 0)):
            us = modelled_us(way, wide.after_repack(p), limits, sm_count, False, p.m * p.n)
            yield WIDE, way, (before + us) * margin
