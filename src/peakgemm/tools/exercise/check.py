"""An exercise's file on the simulator, beside the rung that is its goal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...errors import InvalidValue
from ...kernels.recipe import Recipe
from ...kernels.registry import Kernel
from ...problem import Config, Problem, varied
from ...runtime.source import assemble
from ..bench.errors import EPSILON, bound
from ..bench.ladder import static_row
from ..bench.simulated import matrices
from ..explore.kernels import problem_for
from ..simulator import Report, run_rung
from .exercises import ARCH, Exercise

_STEPS = 4  # times those of the goal: so that a loop that never ends is told within seconds
_SHORT = (3, 5, 7)  # what the second product lacks of M, N, K: no tile divides it


@dataclass(frozen=True)
class Finding:
    """A goal: whether it is met, and in words what was found."""

    goal: str
    met: bool
    said: str


def check(one: Exercise, file: Path) -> Iterator[Finding]:
    """Each goal of an exercise in turn.

    Raises:
        CompileFailed, MissingComponent, InvalidValue, UnknownInstruction: the file cannot be compiled or run.
    """
    shape = problem_for(one.goal, ARCH)
    m, n, k = (size - less for size, less in zip(shape, _SHORT, strict=True))
    kernel, (wanted, _) = _kernel(one, file), _run(one.goal, shape)
    for size in (shape, (m, n, k)):
        report, wrong = _run(kernel, size, _STEPS * wanted.steps)
        where = " x ".join(map(str, size))
        yield Finding(f"no fault, {where}", report.clean, _faults(report))
        yield Finding(f"right result, {where}", not wrong, wrong or "every element")
        if report.stopped:
            return
        if size == shape:
            first = report
    for name in one.counters:
        count, most = first.counters[name], wanted.counters[name]
        yield Finding(name.replace("_", " "), count <= most,
                      f"{count:,}, at most {most:,}" + (_costliest(first, name) if count > most else ""))
    if one.blocks:
        fit, least = _blocks(kernel), _blocks(one.goal)
        yield Finding("blocks per SM", fit >= least, f"{fit}, at least {least}")


def _blocks(kernel: Kernel) -> int:
    """How many blocks of its aligned compilation an SM holds."""
    return int(static_row(kernel, varied(kernel.config_for(ARCH), aligned=True), ARCH, None)["blocks_per_sm"])


def _kernel(one: Exercise, file: Path) -> Kernel:
    """The rung that is the goal, made from ``file``."""
    try:
        text = assemble(file)
    except UnicodeDecodeError:
        raise InvalidValue(f"{file} is no text in UTF-8; save it as such") from None

    def recipe(kernel: Kernel, config: Config, problem: Problem, arch: str) -> Recipe:
        return replace(one.goal.recipe(config, problem, arch), text=text, entry=one.name, file=file.name)

    return replace(one.goal, family=replace(one.goal.family, recipe=recipe))


def _run(kernel: Kernel, shape: tuple[int, int, int], most: int = 50_000_000) -> tuple[Report, str]:
    """What the simulator says of at most so many steps, and what is wrong with the result."""
    a, b, c = matrices(shape)
    report = run_rung(kernel, a, b, c, arch=ARCH, max_steps=most)
    exact = a.astype(np.float64) @ b
    wrong = np.argwhere(~(abs(c - exact) <= bound(shape[2]) * EPSILON * (abs(a) @ abs(b))))
    if not len(wrong):
        return report, ""
    i, j = wrong[0]
    return report, (f"C[{i}, {j}] is {c[i, j]:g}, should be {exact[i, j]:g}; {len(wrong):,} of {c.size:,} elements are "
                    "wrong")


def _faults(report: Report) -> str:
    if report.clean:
        return "none"
    # A barrier that not all reach comes before the races that it makes.
    first = str(min(report.faults, key=lambda fault: "race" in fault.kind)) if report.faults else report.stopped
    more = len(report.causes()) - 1
    return first + (f"\n    and {more} more like it or of its making" if more > 0 else "")


def _costliest(report: Report, name: str) -> str:
    """The line that adds most to a counter beyond what its accesses need."""
    field = {"shared_wavefronts": "wavefronts", "global_sectors": "sectors"}.get(name)
    if field is None:
        return ""
    (_, line), counts = max(report.by_line().items(),
                            key=lambda item: getattr(item[1], field) - getattr(item[1], f"{field}_ideal"))
    has, needs = getattr(counts, field), getattr(counts, f"{field}_ideal")
    return f"; line {line} has {has:,} where {needs:,} would do" if has > needs else ""
