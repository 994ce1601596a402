"""Which recipe: a small grid around the best known, each candidate built and proved, ranked by the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ...errors import InvalidValue
from ..elf import Cubin
from .loop import Rebuilt, rebuild
from .recipe import Recipe

_STARTS = (14, 10, 6, 2)
_BARRIERS = (-24, -16)


@dataclass(frozen=True)
class Candidate:
    """A recipe and what came of it: the loop, or why there is none."""

    recipe: Recipe
    built: Rebuilt | None
    why: str = ""

    @property
    def slots(self) -> float:
        """Modelled issue slots of a turn: an instruction each, and the cycles that FFMAs wait for banks."""
        if self.built is None:
            return float("inf")
        return self.built.turn + self.built.block.steps * (self.built.cycles - self.built.step)


def grid(around: Recipe | None = None) -> tuple[Recipe, ...]:
    """The recipes that are tried, the best known first: loads shifted in the step, and the barrier."""
    first = around or Recipe()
    recipes = [first]
    for barrier in _BARRIERS:
        for start in _STARTS:
            shift = start - first.offsets[0]
            recipes.append(replace(first, barrier=barrier, offsets=tuple(one + shift for one in first.offsets)))
    even = replace(first, first=first.offsets)
    return tuple(dict.fromkeys((*recipes, even)))


def search(cubin: Cubin, recipes: Iterable[Recipe], limit: int, name: str = "",
           done: Callable[[str], None] | None = None) -> list[Candidate]:
    """Every recipe built and proved, those with fewest modelled slots first; among equals, in the order given.

    Raises:
        InvalidValue: none can be built: what the first raised.
    """
    candidates = []
    first: InvalidValue | None = None
    for recipe in recipes:
        try:
            candidates.append(Candidate(recipe, rebuild(cubin, recipe, limit, name)))
        except InvalidValue as error:
            candidates.append(Candidate(recipe, None, str(error)))
            first = first or error
        if done is not None:
            done("built and proved" if candidates[-1].built else "not built")
    if first is not None and all(one.built is None for one in candidates):
        raise first
    return sorted(candidates, key=lambda one: one.slots)
