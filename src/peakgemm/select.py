"""(problem, device) to kernel and configuration: a tuned entry, the committed table, a cost model, in that order.

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
from .kernels import relay, skinny, small, wide
from .kernels.anew import Anew
from .kernels.library import (
    FAMILIES,
    RELAID,
    SPECIALISED,
    compile_for,
    compile_reduce,
    compile_relay,
    copied_by_words,
    first_recipe,
    kernel_named,
    parts,
)
from .kernels.registry import FLOAT, Kernel
from .kernels.schedule import SHORT, sharing
from .kernels.schemes import SCHEMES, schemes_on
from .kernels.short_sums import (
    ANY,
    CARRYING,
    all_carrying,
    carrying,
    may_carry,
    shortened,
    sliced,
)
from .kernels.skinny import SKINNY
from .kernels.small import SMALL
from .kernels.validity import is_valid
from .kernels.wide import WIDE
from .problem import Config, Problem
from .runtime.architectures import Architecture, architecture
from .runtime.compile import Compiled
from .tile_model import (
    WIDE_RATES,
    anew_us,
    compiled,
    configurations,
    estimate_us,
    modelled_us,
    relay_us,
    results_stored,
    ways,
)


@dataclass(frozen=True, slots=True)
class Choice:
    """What runs, where the decision comes from (``tuned``, ``table``, ``heuristic``, or ``named`` by the caller) and
    one sentence why."""

    kernel: Kernel
    config: Config
    source: str
    reason: str


# What the models of small and of thin products do not know: blocks that wait beside those of the launch before, and
# have asked for their operands. 24 x 24 x 24 takes 1.3 us where 1.95 are modelled, 60 drawn thin products 0.2 less than
# modelled in the median. Less for all of their tiles alike, as among those they know which is fastest.
_BESIDE_US = {SMALL: 0.65, SKINNY: 0.2}
_RELAY_MARGIN = 1.01    # between equals, the one without the memory
_RELAY_TILE = 128 * 128  # results: with smaller tiles nothing was gained
_RELAY_BYTES = 1 << 29   # of B, at most
_WIDE_BYTES = 1 << 31    # of both operands, of what is laid out anew for wide thread tiles
_WIDE_TILES = 1          # for each SM, at least
# Sums this short in wide tiles, and factors by which they must be faster: their model errs most there.
_WIDE_SHORT = (64, 1.05), (200, 1.08)
_REST_MARGIN = 1.002    # between equals, the one with fewer launches


@lru_cache(maxsize=8)  # an emulated product asks twice
def candidates(problem: Problem, arch: str, sm_count: int) -> tuple[tuple[Kernel, Config, float], ...]:
    """Every kernel and configuration considered for ``problem``, with its modelled microseconds, best first."""
    limits, by_words, results = architecture(arch), copied_by_words(problem), results_stored(problem)
    apply = limits.has_cp_async and small.applies(problem)
    found = [(kernel, way, modelled_us(way, problem, limits, sm_count, by_words, results))
             for kernel, config in configurations(arch) for way in ways(config, problem, sm_count)]
    size = FLOAT * problem.n * problem.k
    if limits.has_cp_async and by_words and size <= _RELAY_BYTES and not relay.constraints(problem):
        inner = relay.relaid(problem)
        before = relay_us(size, limits)
        found += [(RELAID, config,
                   before + _RELAY_MARGIN * modelled_us(config, inner, limits, sm_count, False, results))
                  for kernel, config, _ in found if config.bm * config.bn >= _RELAY_TILE and config.cluster == 1]
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
    """Wide thread tiles, for products of many tiles: what they gain pays for operands laid out anew.

    Results whose rows start anywhere cost them no more than others.
    """
    for config in WIDE_RATES:
        tiles = -(-p.m // config.bm) * -(-p.n // config.bn)
        if tiles < _WIDE_TILES * sm_count or not is_valid(WIDE, config, limits, p):
            continue
        size = Anew(p, wide.relays(p)).sums
        if size > _WIDE_BYTES:
            continue
        before = anew_us(config, p, size, limits)
        margin = next((factor for most, factor in _WIDE_SHORT if p.k <= most), 1.0)
        apart = replace(config, rest=p.m % config.bm)  # the rows that leave some of a band of tiles empty
        for each in (config, apart) if apart.rest and is_valid(WIDE, apart, limits, p) else (config,):
            for way in (each, sharing(each, 0)):
                main, *rest = parts(WIDE, way, p)
                q = main.problem
                us = modelled_us(main.config, wide.laid_out(q), limits, sm_count, False, q.m * q.n)
                us += sum(estimate_us(part.config, part.problem, limits, sm_count) for part in rest)
                yield WIDE, way, (before + us) * margin * (_REST_MARGIN if rest else 1.0)


@lru_cache(maxsize=4096)
def choose(problem: Problem, arch: str, sm_count: int, device_name: str = "", precision: str = "ieee",
           ready: str = "") -> Choice:
    """The kernel and configuration for ``problem`` on a GPU of ``arch`` (``sm_NN``) with ``sm_count`` SMs.

    Deterministic; ``device_name`` says whose tuned entries and which committed table are asked first.
    ``precision``: see `peakgemm.matmul`; ``"emulated"`` takes tensor cores where the models say that they win.
    ``ready``: which operand of the problem, ``"a"`` or ``"b"``, has been split for tensor cores before.

    Raises:
        InvalidValue: an architecture that the table does not hold, or a scheme that it has no kernel for.
    """
    if precision != "ieee":
        return _emulated(problem, arch, sm_count, device_name, precision, ready)
    plain = _fastest(problem, arch, sm_count, device_name)
    careful = _as_short_as_cublas(plain, problem, arch, sm_count)
    if careful == plain or plain.source != "heuristic":  # the tuner times what is as short
        return plain
    # Several sums cost 1 % at most. Others are made where an emulated product has them: it takes the same kernel then.
    together = careful.config == replace(plain.config, variant=plain.config.variant | SHORT) or (
        architecture(arch).number in _MEASURED and not problem.is_empty
        and _faster(careful, problem, arch, sm_count).kernel is careful.kernel)
    return careful if together else plain


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
    """A scheme that was named, or for ``"emulated"`` the fastest of fp16x3, tf32x3 in small blocks and IEEE FFMA."""
    limits, p = architecture(arch), problem
    there = schemes_on(limits)
    if precision != "emulated" and precision not in there:
        raise InvalidValue(f"precision = {precision!r}: there is no such kernel for {arch}, which has "
                           f"{', '.join(there) or 'none of the schemes'}; use 'emulated', which runs IEEE FFMA there, "
                           "or 'ieee'")
    if precision != "emulated" and not p.is_empty:
        kernel, config, us = best_emulated(SCHEMES[precision], p, limits, sm_count, ready)
        return Choice(kernel, config, "named", f"asked for by name; {kernel.idea}: {us:.0f} us by the model")
    ieee = accurate(problem, arch, sm_count, device_name)
    if p.is_empty or limits.number not in _MEASURED:
        why = "nothing to multiply" if p.is_empty else f"tensor cores were not measured to win on {arch}"
        return replace(ieee, reason=f"IEEE FFMA, {why}: {ieee.reason}")
    return _faster(ieee, problem, arch, sm_count, ready)


def _faster(ieee: Choice, problem: Problem, arch: str, sm_count: int, ready: str = "") -> Choice:
    """``ieee``, or fp16x3, or tf32x3 in small blocks, where the models say that it is faster by more than they err."""
    kernel, config, ours = best_emulated(None, problem, architecture(arch), sm_count, ready, sliced(problem))
    theirs = _modelled(ieee, problem, arch, sm_count)
    if ours < _WORTH * theirs and problem.k >= _EMULATED_K:
        return Choice(kernel, config, "heuristic", f"{kernel.name} on tensor cores, {kernel.idea}: {ours:.0f} us by "
                                                   f"the model, IEEE FFMA {theirs:.0f}")
    return replace(ieee, reason=f"IEEE FFMA: {theirs:.0f} us by the model, {kernel.name} on tensor cores "
                                f"{ours:.0f}; {ieee.reason}")


def accurate(problem: Problem, arch: str, sm_count: int, device_name: str) -> Choice:
    """The IEEE kernel in the place of an emulated one, with sums as short as cuBLAS's."""
    return _as_short_as_cublas(_fastest(problem, arch, sm_count, device_name), problem, arch, sm_count)


def _as_short_as_cublas(chosen: Choice, problem: Problem, arch: str, sm_count: int) -> Choice:
    """``chosen``, or a kernel whose sums are short where cuBLAS cuts K of small products into many.

    So that cuBLAS's errors are not smaller: ours are several, or carried over 8, 16 or 32 k-steps, for which small
    thread tiles have the registers.
    """
    if not architecture(arch).has_cp_async:
        return chosen  # no kernel of tiles can carry
    way = shortened(chosen.kernel, chosen.config, problem)
    if way is not None:
        return chosen if way == chosen.config else replace(chosen, config=way)
    for kernel, config, _ in candidates(problem, arch, sm_count):
        if (way := shortened(kernel, config, problem)) is not None:
            reason = "the model's best of those whose sums are short, or can be carried over"
            return Choice(kernel, way, chosen.source, reason)
    return chosen


def _modelled(choice: Choice, problem: Problem, arch: str, sm_count: int) -> float:
    """Microseconds of the candidate that ``choice`` is, or was before its sums were carried; of a tuned one that is no
    candidate those of the model's best."""
    ranked = candidates(problem, arch, sm_count)
    for kernel, config, us in ranked:
        if kernel is choice.kernel and config == choice.config:
            return us
        if (kernel is choice.kernel and may_carry(kernel, config, problem.k)
                and carrying(kernel, config, problem.k) == choice.config):
            return us * CARRYING
    return ranked[0][2]


def variants(config: Config) -> tuple[Config, ...]:
    """``config`` and what products run of it (`tile_model.compiled`), and all with several sums or carried ones."""
    own = compiled(config)
    carried = (way for one in own if may_carry(SPECIALISED, one, ANY) for way in all_carrying(one))
    return tuple(dict.fromkeys((*own, *carried)))


def warm_set(arch: str) -> list[tuple[str, Callable[[], Compiled]]]:
    """What `cache warm` compiles, with a label each: every configuration of ``arch`` for aligned operands of each
    layout, and what adds up partial sums or lays B out anew."""
    problems = [Problem(1024, 1024, 1024, 1024, 1024, 1024, trans_a=ta, trans_b=tb)
                for ta in (False, True) for tb in (False, True)]
    known = configurations(arch)
    each = dict.fromkeys((kernel, way) for kernel, config in known for way in compiled(config))
    found: list[tuple[str, Callable[[], Compiled]]] = [
        (f"{kernel.name} {config.label()}", partial(compile_for, kernel, config, problem, arch))
        for kernel, config in each for problem in problems]
    found += [(f"sums of {config.label()}", partial(compile_reduce, kernel, config, problems[0], arch))
              for kernel, config in known if config.cluster == 1]
    if architecture(arch).has_cp_async:
        found += [(f"B of {problem.layout} laid out anew", partial(compile_relay, problem, arch))
                  for problem in problems[:2]]
    for config in WIDE_RATES:
        if is_valid(WIDE, config, architecture(arch)):
            found += [("the first chunk of K", partial(first_recipe(arch).make, "cubin")),
                      (f"{WIDE.name} {config.label()}", partial(compile_for, WIDE, config, problems[0], arch)),
                      (f"sums of {config.label()}", partial(compile_reduce, WIDE, config, problems[0], arch))]
    return found
