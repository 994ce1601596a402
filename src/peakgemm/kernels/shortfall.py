"""Compilations that fall short of what their kernel's main loop can be: the choice takes the next best instead.

A release of ptxas may spill in a loop, or move accumulators from register to register: 12 x 16 results a thread once
lost 21 % to that by NVRTC 13.5. So each compilation of a kernel with a bare loop (`registry.Kernel`) is read once, and
those that fall short are remembered; figures of what another process compiled lie in the cache, or in the wheel.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ..problem import Config, Problem
from ..runtime.compile import Compiled
from ..runtime.main_loop import CompiledLoop
from .recipe import Recipe
from .registry import Kernel

log = logging.getLogger("peakgemm")
#: The least share of the FP32 peak that a loop must leave, of the share that FFMAs and 16-byte loads of their fragments
#: alone would. Sound compilations leave 0.80 to 0.96 of it (results/sm_90/compilers.json; 0.80 by NVRTC 13.5 with
#: 2 x 4 results a thread); the one that moved accumulators left 0.74. This lies between.
LEAST = 0.77
_known: dict[Recipe, str] = {}


def reason(config: Config, loop: Mapping[str, Any] | None) -> str:
    """Why a compilation of ``config`` falls short by the figures of its main loop; empty where it does not."""
    if loop is None:
        return ""
    figures, fragments = CompiledLoop(**loop), (config.tm + config.tn) / 4
    if figures.local:
        return f"its main loop has {figures.local} loads and stores of spilled registers a turn"
    least = LEAST * config.tm * config.tn / (config.tm * config.tn + fragments)
    if figures.share < least:
        return (f"its main loop leaves {figures.share:.0%} of the FP32 peak, {least:.0%} are expected: "
                f"{figures.ffmas} FFMAs of {figures.instructions} instructions, "
                f"{figures.cycles_per_ffma:.2f} cycles an FFMA")
    return ""


def known(kernel: Kernel, config: Config, problem: Problem, arch: str) -> str:
    """Why the compilation that would run falls short, as far as it has been compiled before; empty: it does not."""
    if not kernel.bare_loop:
        return ""
    recipe = kernel.recipe(config, problem, arch)
    if recipe not in _known:
        loop = recipe.known_loop()
        if loop is None:
            return ""
        _known[recipe] = reason(config, loop)
    return _known[recipe]


def note(kernel: Kernel, config: Config, recipe: Recipe, compiled: Compiled) -> str:
    """Remember what a compilation by ``recipe`` is like, and return why it falls short; empty: it does not."""
    if not kernel.bare_loop or compiled.loop is None:
        return ""
    why = reason(config, compiled.loop)
    if why:
        if _known.get(recipe) != why:
            log.warning("peakgemm: %s %s is not run: as compiled here, %s; the next best kernel runs instead.",
                        kernel.name, config.label(), why)
        _known[recipe] = why
    return why
