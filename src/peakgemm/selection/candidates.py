"""Every kernel and configuration that is considered for a problem, with its modelled time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from ..kernels.ffma import wide
from ..kernels.ffma.repack import Repack
from ..kernels.ffma.tiled import hands_on
from ..kernels.ffma.wide import WIDE
from ..kernels.library import KERNELS
from ..kernels.profile import Machine, Tile
from ..kernels.registry import Kernel
from ..kernels.schedule import handing_on
from ..kernels.validity import is_valid
from ..kernels.widths import copied_by_words
from ..problem import Config, Problem, varied
from .tile_model import configurations, modelled_us, one_slice, repack_us, results_stored, ways, wide_configurations

Candidate = tuple[Kernel, Config, float]


@lru_cache(maxsize=8)  # an emulated product asks twice
def candidates(problem: Problem, machine: Machine) -> tuple[Candidate, ...]:
    """Every kernel and configuration considered for ``problem``, with its modelled microseconds, best first."""
    by_words, results = copied_by_words(problem), results_stored(problem, machine)
    found = [(tiling.kernel, way, modelled_us(tiling.row, way, problem, machine, by_words, results))
             for tiling in configurations(machine) for way in ways(tiling, problem, machine)]
    found += _wide(problem, machine)
    found += _overlapping([one for kernel in KERNELS if not kernel.family.reproducible
                           for one in _own(kernel, problem, machine)], problem, machine)
    return tuple(sorted(found, key=_modelled_time))  # stable: of equals, the first named


@lru_cache(maxsize=8)
def chains(problem: Problem, machine: Machine) -> tuple[Candidate, ...]:
    """Those that sum every element by one chain over K (`Kernel.is_ascending`), best first.

    Tiles of the tiled kernels, wide ones among them, whole or with accumulators handed on, and small ones; of tiles
    that slices share a variant by one slice, which takes over the numbers of its row. Of few rows or columns the kernel
    that is made for it.
    """
    by_words, results = copied_by_words(problem), results_stored(problem, machine)
    found = [(tiling.kernel, config, modelled_us(tiling.row, config, problem, machine, by_words, results))
             for tiling in configurations(machine) for config in one_slice(tiling, problem, machine)]
    found += _wide(problem, machine, handed=True)
    for kernel in KERNELS:
        own = _own(kernel, problem, machine)
        found += own if kernel.family.reproducible else _overlapping(own, problem, machine)
    plain = ((kernel, varied(config, chunked=False), us) for kernel, config, us in found)
    each = {(kernel, config): us for kernel, config, us in plain if kernel.is_ascending(config, problem)}
    return tuple(sorted(((*key, us) for key, us in each.items()), key=_modelled_time))


def _modelled_time(candidate: Candidate) -> float:
    return candidate[2]


def _own(kernel: Kernel, problem: Problem, machine: Machine) -> list[Candidate]:
    """Those of a kernel whose family has a cost model of its own; of others none."""
    return [(kernel, config, kernel.family.estimate_us(config, problem, machine))
            for config in kernel.family.configurations(problem, machine) if is_valid(kernel, config, machine.arch)]


def _overlapping(found: list[Candidate], problem: Problem, machine: Machine) -> list[Candidate]:
    """What the models of small and of thin products do not know: blocks that overlap those of the launch before, and
    have asked for their operands.

    24 x 24 x 24 takes 1.3 us where 1.95 are modelled. Less for all of their tiles alike, as among those they know which
    is fastest.
    """
    if not found:
        return found
    kernel, config, _ = min(found, key=_modelled_time)
    if not machine.arch.launches_overlap(kernel.family.schedule(config, problem, machine.sms).blocks, machine.sms):
        return found
    return [(kernel, config, us - getattr(machine.profile, kernel.family.numbers).overlap_us)
            for kernel, config, us in found]


def _wide(p: Problem, machine: Machine, handed: bool = False) -> Iterator[Candidate]:
    """Wide thread tiles, for products of many tiles: what they gain pays for repacked operands. ``handed``: with
    accumulators handed on in the place of partial sums.

    Results whose rows start anywhere cost them no more than others. With few k-steps their model errs most, and they
    must be faster by a margin.
    """
    numbers = machine.profile.wide
    for tiling in wide_configurations(machine):
        config, row = tiling.config, tiling.row
        assert isinstance(row, Tile)
        tiles = -(-p.m // config.bm) * -(-p.n // config.bn)
        if tiles < numbers.least_tiles_factor * machine.sms or not is_valid(WIDE, config, machine.arch, p):
            continue
        size = Repack(p, wide.to_repack(p)).sums
        if size > numbers.most_bytes:
            continue
        before = repack_us(row, config, p, size, machine)
        margin = (numbers.short_factor if p.k <= numbers.short_k else
                  numbers.medium_factor if p.k <= numbers.medium_k else 1.0)
        shared = handing_on(config) if handed else varied(config, split=0)
        for way in (config, shared)[:1 + (not handed or hands_on(config, tiles, -(-p.k // config.bk), machine.sms))]:
            us = modelled_us(row, way, wide.after_repack(p), machine, False, p.m * p.n, wide=True)
            yield WIDE, way, (before + us) * margin
