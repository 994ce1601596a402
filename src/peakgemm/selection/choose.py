"""(problem, device) to kernel and configuration: the user's tuning entry, else the best by a cost model.

The models of the families count what a launch must do, with the numbers of the GPU's profile. The
choice is deterministic: equal estimates go to the configuration that is named first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from ..errors import InvalidValue
from ..kernels import shortfall
from ..kernels.emulated.schemes import SCHEMES, Scheme, schemes_on
from ..kernels.ffma import repack
from ..kernels.library import EMULATED, KERNELS, kernel_named
from ..kernels.profile import Machine
from ..kernels.recipe import Recipe
from ..kernels.registry import Kernel
from ..kernels.validity import computes, is_valid
from ..problem import Config, Problem
from ..runtime.architectures import architecture
from . import tuned
from .machine import machine


class Candidate(NamedTuple):
    """A kernel, its configuration, and the models' time in microseconds."""

    kernel: Kernel
    config: Config
    us: float

    @property
    def label(self) -> str:
        """Kernel and configuration in words."""
        return f"{self.kernel.name} {self.config.label()}"

# Sums over fewer k-steps are so nearly exact in FP32 that 22 bits are not better: whatever a profile says.
EMULATED_K = 64


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


@lru_cache(maxsize=8)  # an emulated product asks twice
def candidates(problem: Problem, machine: Machine, scheme: Scheme | None = None,
               ready: str = "") -> tuple[Candidate, ...]:
    """Every kernel and configuration considered for ``problem``, with its modelled microseconds, best first.

    ``scheme``: of tensor cores; None: of FFMAs. ``ready``: see `choose`.
    """
    found = [Candidate(kernel, config, us) for kernel in (KERNELS if scheme is None else EMULATED)
             if kernel.family.scheme is scheme and kernel.is_for(machine.arch)
             for config, us in kernel.family.candidates(kernel, problem, machine, ready)
             if computes(kernel, config, problem)]
    return tuple(sorted(found, key=attrgetter("us")))  # of equals the first named


@lru_cache(maxsize=8)
def chains(problem: Problem, machine: Machine) -> tuple[Candidate, ...]:
    """Those that sum every element by one chain over K (`Kernel.is_ascending`), best first."""
    found = {(kernel, config): us for kernel in KERNELS if kernel.is_for(machine.arch)
             for config, us in kernel.family.chains(kernel, problem, machine) if computes(kernel, config, problem)}
    ranked = sorted((Candidate(*key, us) for key, us in found.items()), key=attrgetter("us"))
    return tuple(each for each in ranked if each.kernel.is_ascending(each.config, problem))


def _best(ranked: Sequence[Candidate], problem: Problem, gpu: Machine) -> tuple[Candidate, tuple[str, ...]]:
    """The first that is not known to fall short as it is compiled here, and in words what was passed over."""
    passed: list[str] = []
    for candidate in ranked:
        why = shortfall.known(candidate.kernel, candidate.config, problem, gpu.arch.name)
        if not why:
            return candidate, tuple(passed)
        passed.append(f"{candidate.label}: as compiled here, {why}")
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
        kernel, config, us = candidates(problem, gpu, SCHEMES[precision], ready)[0]
        return Choice(kernel, config, "named", f"asked for by name; {kernel.idea}: {us:.0f} us by the model, with the "
                                               f"numbers of the profile '{gpu.profile.name}'")
    ieee = _fastest(problem, gpu, device_name)
    worth = gpu.profile.emulated.worth_share if gpu.profile.architecture == arch else None
    if problem.is_empty or not there or worth is None:
        why = ("nothing to multiply" if problem.is_empty else
               f"tensor cores were not measured to win on {arch} by the profile '{gpu.profile.name}'")
        return replace(ieee, reason=f"IEEE FFMA, {why}: {ieee.reason}")
    if not ready and tuned.lookup(problem, device_name, precision) is not None:
        return replace(ieee, source="tuned", reason="IEEE FFMA, measured to be faster than tensor cores on "
                                                    f"{device_name} for this very shape: {ieee.reason}")
    return _faster(ieee, problem, gpu, worth, ready)


def _faster(ieee: Choice, problem: Problem, gpu: Machine, worth: float, ready: str = "") -> Choice:
    """``ieee``, or fp16x3 where the models say that it takes less than that share of its time: between equals they
    err."""
    kernel, config, ours = candidates(problem, gpu, SCHEMES["fp16x3"], ready)[0]
    theirs = _modelled(ieee, candidates(problem, gpu))
    if ours < worth * theirs and problem.k >= EMULATED_K:
        return Choice(kernel, config, "heuristic", f"{kernel.name} on tensor cores, {kernel.idea}: {ours:.0f} us by "
                                                   f"the model, IEEE FFMA {theirs:.0f}, by the numbers of the profile "
                                                   f"'{gpu.profile.name}'")
    return replace(ieee, reason=f"IEEE FFMA: {theirs:.0f} us by the model, {kernel.name} on tensor cores "
                                f"{ours:.0f}; {ieee.reason}")


def _modelled(choice: Choice, ranked: Sequence[Candidate]) -> float:
    """Microseconds of the candidate that ``choice`` is; of a tuned one that is no candidate those of the model's
    best."""
    return next((each.us for each in ranked if each[:2] == (choice.kernel, choice.config)), ranked[0].us)


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
    return _modelled(chosen, chains(problem, gpu) if precision == "reproducible" else
                     candidates(problem, gpu, chosen.kernel.family.scheme))


def warm_set(arch: str) -> list[Recipe]:
    """What `cache warm` compiles: every configuration of ``arch`` for aligned operands of each layout, and what adds up
    partial sums or repacks the first chunk of K; and the kernels of linear algebra."""
    from ..kernels.linalg import leaves  # no product needs them

    problems = [Problem(1024, 1024, 1024, 1024, 1024, 1024, trans_a=ta, trans_b=tb)
                for ta in (False, True) for tb in (False, True)]
    gpu = machine(arch, architecture(arch).gpu_sms)
    each = [(kernel, config) for kernel in KERNELS for config in kernel.family.configs(kernel, gpu)]
    recipes = [kernel.recipe(config, problem, arch) for kernel, config in each for problem in problems]
    recipes += [kernel.reduce_recipe(config, problems[0], arch) for kernel, config in each if config.cluster == 1]
    if any(kernel.tensor_copies for kernel, _ in each):
        recipes.append(repack.recipe(arch))
    return list(dict.fromkeys([*recipes, *leaves.recipes(arch)]))
