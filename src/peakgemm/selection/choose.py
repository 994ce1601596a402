"""(problem, device) to kernel and configuration: the user's tuning entry, else the best by a cost model.

The models, of families and ``*_model.py``, count what a launch must do, with the numbers of the GPU's profile. The
choice is deterministic: equal estimates go to the configuration that is named first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ..errors import InvalidValue
from ..kernels import shortfall
from ..kernels.emulated.schemes import SCHEMES, schemes_on
from ..kernels.ffma import repack
from ..kernels.library import kernel_named
from ..kernels.profile import Machine
from ..kernels.recipe import Recipe
from ..kernels.registry import Kernel
from ..kernels.validity import is_valid
from ..problem import Config, Problem
from ..runtime.architectures import architecture
from . import tuned
from .candidates import Candidate, candidates, chains
from .emulated_model import best as best_emulated
from .emulated_model import estimate_us as emulated_us
from .machine import machine
from .tile_model import compiled, configurations, wide_configurations

# Sums over fewer k-steps are so nearly exact in FP32 that 22 bits are not better: whatever a profile says.
_EMULATED_K = 64


@dataclass(frozen=True, slots=True)
class Choice:
    """What runs, where the decision comes from (``tuned``, ``heuristic``, or ``named`` by the caller) and
    one sentence why. ``passed_over``: what the models rank higher, and why it falls short as it is compiled here."""

    kernel: Kernel
    config: Config
    source: str
    reason: str
    precision: str = "ieee"  # that was asked for
    passed_over: tuple[str, ...] = ()


@lru_cache(maxsize=4096)
def choose(problem: Problem, arch: str, sm_count: int, device_name: str = "", precision: str = "ieee",
           ready: str = "") -> Choice:
    """The kernel and configuration for ``problem`` on a GPU of ``arch`` (``sm_NN``) with ``sm_count`` SMs.

    Deterministic; ``device_name`` says whose tuning entries are asked first, and whose profile.
    ``precision``: see `peakgemm.matmul`; ``"reproducible"`` takes kernels that sum by one chain, ``"emulated"`` tensor
    cores where the models say that they win.
    ``ready``: which operand of the problem, ``"a"`` or ``"b"``, has been split for tensor cores before.

    Raises:
        InvalidValue: an architecture that the table does not hold, or a scheme that it has no kernel for.
    """
    gpu = machine(arch, sm_count, device_name)
    if precision == "ieee":
        return _fastest(problem, gpu, device_name)
    found = (_fastest(problem, gpu, device_name, one_chain=True) if precision == "reproducible" else
             _emulated(problem, gpu, device_name, precision, ready))
    return replace(found, precision=precision)


def _best(ranked: Sequence[Candidate], problem: Problem, gpu: Machine) -> tuple[Candidate, tuple[str, ...]]:
    """The first that is not known to fall short as it is compiled here, and in words what was passed over."""
    passed: list[str] = []
    for candidate in ranked:
        why = shortfall.known(candidate[0], candidate[1], problem, gpu.arch.name)
        if not why:
            return candidate, tuple(passed)
        passed.append(f"{candidate[0].name} {candidate[1].label()}: as compiled here, {why}")
    return ranked[0], ()


def _fastest(problem: Problem, gpu: Machine, device_name: str, one_chain: bool = False) -> Choice:
    """What was measured to be the fastest, or what the models say is; ``one_chain``: of those that sum every element by
    one chain over K."""
    known = tuned.lookup(problem, device_name)
    if known is not None:
        kernel, config = kernel_named(known[0]), known[1]
        if is_valid(kernel, config, gpu.arch, problem) and (not one_chain or kernel.is_ascending(config, problem)):
            return Choice(kernel, config, "tuned", f"measured on {device_name} for this very shape")
    ranked = chains(problem, gpu) if one_chain else candidates(problem, gpu)
    (kernel, config, us), passed = _best(ranked, problem, gpu)
    best = f"the model's best of {len(ranked)} candidates"
    if one_chain:
        handed = ", handed on from block to block where a tile is cut" if config.handed else ""
        reason = f"one chain of FMAs over K{handed}: {best} that sum so, {us:.0f} us"
    else:
        reason = f"{best}: {us:.0f} us for {problem.m} x {problem.n} x {problem.k} on {gpu.sms} SMs"
    reason += f", by the numbers of the profile '{gpu.profile.name}'" + "".join(f"; not {one}" for one in passed)
    return Choice(kernel, config, "heuristic", reason, passed_over=passed)


tuned.cache_invalidators.add(choose.cache_clear)


def _emulated(problem: Problem, gpu: Machine, device_name: str, precision: str, ready: str) -> Choice:
    """A scheme that was named, or for ``"emulated"`` the faster of fp16x3 and IEEE FFMA."""
    there, arch = schemes_on(gpu.arch), gpu.arch.name
    if precision != "emulated" and precision not in there:
        raise InvalidValue(f"precision = {precision!r}: there is no such kernel for {arch}, which has "
                           f"{', '.join(there) or 'none of the schemes'}; use 'emulated', which runs IEEE FFMA there, "
                           "or 'ieee'")
    if precision != "emulated" and not problem.is_empty:
        kernel, config, us = best_emulated(SCHEMES[precision], problem, gpu, ready)
        return Choice(kernel, config, "named", f"asked for by name; {kernel.idea}: {us:.0f} us by the model, with the "
                                               f"numbers of the profile '{gpu.profile.name}'")
    ieee = _fastest(problem, gpu, device_name)
    if problem.is_empty or not there or gpu.profile.emulated.worth_share is None:
        why = ("nothing to multiply" if problem.is_empty else
               f"tensor cores were not measured to win on {arch} by the profile '{gpu.profile.name}'")
        return replace(ieee, reason=f"IEEE FFMA, {why}: {ieee.reason}")
    return _faster(ieee, problem, gpu, gpu.profile.emulated.worth_share, ready)


def _faster(ieee: Choice, problem: Problem, gpu: Machine, worth: float, ready: str = "") -> Choice:
    """``ieee``, or fp16x3 where the models say that it takes less than that share of its time: between equals they
    err."""
    kernel, config, ours = best_emulated(SCHEMES["fp16x3"], problem, gpu, ready)
    theirs = _modelled(ieee, candidates(problem, gpu))
    if ours < worth * theirs and problem.k >= max(_EMULATED_K, gpu.profile.emulated.least_k):
        return Choice(kernel, config, "heuristic", f"{kernel.name} on tensor cores, {kernel.idea}: {ours:.0f} us by "
                                                   f"the model, IEEE FFMA {theirs:.0f}, by the numbers of the profile "
                                                   f"'{gpu.profile.name}'")
    return replace(ieee, reason=f"IEEE FFMA: {theirs:.0f} us by the model, {kernel.name} on tensor cores "
                                f"{ours:.0f}; {ieee.reason}")


def _modelled(choice: Choice, ranked: Sequence[Candidate]) -> float:
    """Microseconds of the candidate that ``choice`` is; of a tuned one that is no candidate those of the model's
    best."""
    return next((us for kernel, config, us in ranked if (kernel, config) == (choice.kernel, choice.config)),
                ranked[0][2])


@lru_cache(maxsize=4096)
def product_us(problem: Problem, arch: str, sm_count: int, device_name: str, precision: str = "ieee") -> float:
    """Modelled microseconds of what is chosen for ``problem``; good for rankings, and to some 10 % besides.

    Raises:
        InvalidValue: see `choose`.
    """
    if problem.is_empty:
        return 0.0
    gpu = machine(arch, sm_count, device_name)
    chosen = choose(problem, arch, sm_count, device_name, precision)
    if chosen.kernel.family.scheme is not None:
        return emulated_us(chosen.kernel, chosen.config, problem, gpu)
    return _modelled(chosen, chains(problem, gpu) if precision == "reproducible" else candidates(problem, gpu))


def warm_set(arch: str) -> list[Recipe]:
    """What `cache warm` compiles: every configuration of ``arch`` for aligned operands of each layout, and what adds up
    partial sums or repacks the first chunk of K."""
    problems = [Problem(1024, 1024, 1024, 1024, 1024, 1024, trans_a=ta, trans_b=tb)
                for ta in (False, True) for tb in (False, True)]
    gpu = machine(arch, architecture(arch).gpu_sms)
    known, wide = configurations(gpu), wide_configurations(gpu)
    each = dict.fromkeys((tiling.kernel, way) for tiling in known for way in compiled(tiling))
    recipes = [kernel.recipe(config, problem, arch) for kernel, config in each for problem in problems]
    recipes += [one.kernel.recipe(one.config, problems[0], arch) for one in wide]
    recipes += [one.kernel.reduce_recipe(one.config, problems[0], arch) for one in (*known, *wide)
                if one.config.cluster == 1]
    if wide:
        recipes.append(repack.recipe(arch))
    return list(dict.fromkeys(recipes))
