"""(problem, device) to kernel and configuration: the user's tuning entry, else the best by a cost model.

The models (tile_model.py for tiles, and those beside the other kernels) count what a launch must do. The choice is
deterministic: equal estimates go to the configuration that is named first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from . import tuned
from .emulate.estimate import best as best_emulated
from .errors import InvalidValue
from .kernels import skinny, small, wide
from .kernels.library import (
    FAMILIES,
    compile_for,
    compile_reduce,
    copied_by_words,
    first_recipe,
    kernel_named,
)
from .kernels.registry import Kernel
from .kernels.repack import Repack
from .kernels.schedule import sharing
from .kernels.schemes import SCHEMES, schemes_on
from .kernels.skinny import SKINNY
from .kernels.small import SMALL
from .kernels.validity import is_valid
from .kernels.wide import WIDE
from .problem import Config, Problem
from .runtime.architectures import Architecture, architecture
from .runtime.compile import Compiled
from .tile_model import (
    WIDE_RATES,
    compiled,
    configurations,
    modelled_us,
    repack_us,
    results_stored,
    ways,
)


@dataclass(frozen=True, slots=True)
class Choice:
    """What runs, where the decision comes from (``tuned``, ``heuristic``, or ``named`` by the caller) and
    one sentence why."""

    kernel: Kernel
    config: Config
    source: str
    reason: str


# What the models of small and of thin products do not know: blocks that wait beside those of the launch before, and
# have asked for their operands. 24 x 24 x 24 takes 1.3 us where 1.95 are modelled, 60 drawn thin products 0.2 less than
# modelled in the median. Less for all of their tiles alike, as among those they know which is fastest.
_BESIDE_US = {SMALL: 0.65, SKINNY: 0.2}
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
        if limits.lie_beside(FAMILIES[kernel].schedule(config, problem, sm_count).blocks, sm_count):
            others = [(kernel, config, us - _BESIDE_US[kernel]) for kernel, config, us in others]
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


@lru_cache(maxsize=4096)
def choose(problem: Problem, arch: str, sm_count: int, device_name: str = "", precision: str = "ieee",
           ready: str = "") -> Choice:
    """The kernel and configuration for ``problem`` on a GPU of ``arch`` (``sm_NN``) with ``sm_count`` SMs.

    Deterministic; ``device_name`` says whose tuning entries are asked first.
    ``precision``: see `peakgemm.matmul`; ``"emulated"`` takes tensor cores where the models say that they win.
    ``ready``: which operand of the problem, ``"a"`` or ``"b"``, has been split for tensor cores before.

    Raises:
        InvalidValue: an architecture that the table does not hold, or a scheme that it has no kernel for.
    """
    if precision != "ieee":
        return _emulated(problem, arch, sm_count, device_name, precision, ready)
    return _fastest(problem, arch, sm_count, device_name)


def _fastest(problem: Problem, arch: str, sm_count: int, device_name: str) -> Choice:
    """What was measured to be the fastest, or what the models say is."""
    limits = architecture(arch)
    known = tuned.lookup(problem, device_name)
    if known is not None:
        name, config, source = known
        if is_valid(kernel_named(name), config, limits, problem):
            return Choice(kernel_named(name), config, source, f"measured on {device_name} for this very shape")
    ranked = candidates(problem, arch, sm_count)
    kernel, config, us = ranked[0]
    return Choice(kernel, config, "heuristic",
                  f"the model's best of {len(ranked)} candidates: {us:.0f} us for {problem.m} x {problem.n} x "
                  f"{problem.k} on {sm_count} SMs")


tuned.remembering.add(choose.cache_clear)


# Sums over fewer k-steps are so nearly exact in FP32 that 22 bits are not better.
_EMULATED_K = 64
# Of IEEE's modelled time, what tensor cores may take: between equals the models err, by 5 % and more.
_WORTH = 0.945
# Where "emulated" takes tensor cores: a scheme that is named runs wherever there is a kernel.
_MEASURED = (90,)


def _emulated(problem: Problem, arch: str, sm_count: int, device_name: str, precision: str, ready: str) -> Choice:
    """A scheme that was named, or for ``"emulated"`` the faster of fp16x3 and IEEE FFMA."""
    limits, p = architecture(arch), problem
    there = schemes_on(limits)
    if precision != "emulated" and precision not in there:
        raise InvalidValue(f"precision = {precision!r}: there is no such kernel for {arch}, which has "
                           f"{', '.join(there) or 'none of the schemes'}; use 'emulated', which runs IEEE FFMA there, "
                           "or 'ieee'")
    if precision != "emulated" and not p.is_empty:
        kernel, config, us = best_emulated(SCHEMES[precision], p, limits, sm_count, ready)
        return Choice(kernel, config, "named", f"asked for by name; {kernel.idea}: {us:.0f} us by the model")
    ieee = _fastest(problem, arch, sm_count, device_name)
    if p.is_empty or limits.number not in _MEASURED:
        why = "nothing to multiply" if p.is_empty else f"tensor cores were not measured to win on {arch}"
        return replace(ieee, reason=f"IEEE FFMA, {why}: {ieee.reason}")
    return _faster(ieee, problem, arch, sm_count, ready)


def _faster(ieee: Choice, problem: Problem, arch: str, sm_count: int, ready: str = "") -> Choice:
    """``ieee``, or fp16x3 where the models say that it is faster by more than they err."""
    kernel, config, ours = best_emulated(SCHEMES["fp16x3"], problem, architecture(arch), sm_count, ready)
    theirs = _modelled(ieee, problem, arch, sm_count)
    if ours < _WORTH * theirs and problem.k >= _EMULATED_K:
        return Choice(kernel, config, "heuristic", f"{kernel.name} on tensor cores, {kernel.idea}: {ours:.0f} us by "
                                                   f"the model, IEEE FFMA {theirs:.0f}")
    return replace(ieee, reason=f"IEEE FFMA: {theirs:.0f} us by the model, {kernel.name} on tensor cores "
                                f"{ours:.0f}; {ieee.reason}")


def _modelled(choice: Choice, problem: Problem, arch: str, sm_count: int) -> float:
    """Microseconds of the candidate that ``choice`` is; of a tuned one that is no candidate those of the model's
    best."""
    ranked = candidates(problem, arch, sm_count)
    return next((us for kernel, config, us in ranked if (kernel, config) == (choice.kernel, choice.config)),
                ranked[0][2])


def warm_set(arch: str) -> list[tuple[str, Callable[[], Compiled]]]:
    """What `cache warm` compiles, with a label each: every configuration of ``arch`` for aligned operands of each
    layout, and what adds up partial sums or repacks the first chunk of K."""
    problems = [Problem(1024, 1024, 1024, 1024, 1024, 1024, trans_a=ta, trans_b=tb)
                for ta in (False, True) for tb in (False, True)]
    known = configurations(arch)
    each = dict.fromkeys((kernel, way) for kernel, config in known for way in compiled(config))
    found: list[tuple[str, Callable[[], Compiled]]] = [
        (f"{kernel.name} {config.label()}", partial(compile_for, kernel, config, problem, arch))
        for kernel, config in each for problem in problems]
    found += [(f"sums of {config.label()}", partial(compile_reduce, kernel, config, problems[0], arch))
              for kernel, config in known if config.cluster == 1]
    for config in WIDE_RATES:
        if is_valid(WIDE, config, architecture(arch)):
            found += [("the first chunk of K", partial(first_recipe(arch).make, "cubin")),
                      (f"{WIDE.name} {config.label()}", partial(compile_for, WIDE, config, problems[0], arch)),
                      (f"sums of {config.label()}", partial(compile_reduce, WIDE, config, problems[0], arch))]
    return found
