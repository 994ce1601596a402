"""What is worth timing for a problem: the model's ranking, cut short, with the default in front."""

from __future__ import annotations

from collections.abc import Iterable

from ...kernels.validity import is_valid
from ...problem import Config, Problem, varied
from ...runtime.architectures import architecture
from ...selection.choose import Candidate, choose
from ...selection.choose import candidates as considered
from ...selection.machine import machine

KEEP = 24  # the model's best lie among these, and a search stays below ten seconds


def candidates(problem: Problem, arch: str, sm_count: int, device_name: str = "",
               keep: int = KEEP, precision: str = "ieee") -> list[Candidate]:
    """The default (what `selection.choose` answers), then the model's ``keep`` best others, quickest first; for
    ``"emulated"`` the IEEE kernel alone.

    All are valid on ``arch``; equal estimates stand in `selection.choose.candidates`' order.
    """
    if precision == "emulated":
        choices = [choose(problem, arch, sm_count, device_name, each) for each in (precision, "ieee")]
        return [Candidate(choice.kernel, choice.config, 0.0) for choice in choices]
    limits = architecture(arch)
    choice = choose(problem, arch, sm_count, device_name)
    ranked = [c for c in considered(problem, machine(arch, sm_count, device_name))
              if is_valid(c.kernel, c.config, limits, problem)]
    same = [c for c in ranked if (c.kernel, c.config) == (choice.kernel, choice.config)]
    # A tuned default may be one that the model no longer proposes: it takes part all the same.
    default = same[0] if same else Candidate(choice.kernel, choice.config, ranked[0].us if ranked else 0.0)
    return [default, *(c for c in ranked if c[:2] != default[:2])][:keep + 1]


def compilations(problem: Problem, chosen: Iterable[Candidate]) -> set[tuple[str, Config, tuple[int, ...]]]:
    """What tells the candidates' cubins apart, those of other problems too: how K is split does not."""
    whole = ((c.kernel, varied(c.config, split=1)) for c in chosen)
    return {(kernel.name, config, tuple(kernel.family.specialisation(config, problem).values()))
            for kernel, config in whole}
