"""(problem, device) to kernel and configuration: the user's tuning entry, else the best by a cost model.

The models (tile_model.py for tiles, and those beside the other kernels) count what a launch must do. The choice is
deterministic: equal estimates go to the configuration that is named first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from ..errors import InvalidValue
from ..kernels.emulated.schemes import SCHEMES, schemes_on
from ..kernels.ffma.wide import WIDE
from ..kernels.library import compile_for, compile_reduce, first_recipe, kernel_named
from ..kernels.registry import Kernel
from ..kernels.validity import is_valid
from ..problem import Config, Problem
from ..runtime.architectures import architecture
from ..runtime.compile import Compiled
from . import tuned
from .candidates import candidates
from .emulated_model import best as best_emulated
from .tile_model import WIDE_RATES, compiled, configurations


@dataclass(frozen=True, slots=True)
class Choice:
    """What runs, where the decision comes from (``tuned``, ``heuristic``, or ``named`` by the caller) and
    one sentence why."""

    kernel: Kernel
    config: Config
    source: str
    reason: str


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
        name, config = known
        if is_valid(kernel_named(name), config, limits, problem):
            return Choice(kernel_named(name), config, "tuned", f"measured on {device_name} for this very shape")
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
