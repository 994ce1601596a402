"""An exercise's file on the simulator, beside the rung that is its goal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ...kernels.recipe import Recipe
from ...kernels.registry import Kernel
from ...problem import Config, Problem, varied
from ...runtime.source import assemble
from ..bench.errors import bound, errors
from ..bench.ladder import static_row
from ..bench.simulated import matrices
from ..explore.kernels import problem_for
from ..simulator import Report, run_rung
from .exercises import ARCH, Exercise

_STEPS = 5_000_000  # so that a loop that never ends is told within seconds
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
    kernel = _kernel(one, file)
    for size in (shape, (m, n, k)):
        report, error = _run(kernel, size)
        where = " x ".join(map(str, size))
        yield Finding(f"no fault, {where}", report.clean, _faults(report))
        yield Finding(f"right result, {where}", error <= bound(size[2]),
                      f"largest error {error:.3g} eps |A||B|, at most {bound(size[2]):g}")
        if size == shape:
            first = report
    wanted, _ = _run(one.goal, shape)
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
    def recipe(kernel: Kernel, config: Config, problem: Problem, arch: str) -> Recipe:
        return replace(one.goal.recipe(config, problem, arch), text=assemble(file), entry=one.name, file=file.name)

    return replace(one.goal, family=replace(one.goal.family, recipe=recipe))


def _run(kernel: Kernel, shape: tuple[int, int, int]) -> tuple[Report, float]:
    a, b, c = matrices(shape)
    report = run_rung(kernel, a, b, c, arch=ARCH, max_steps=_STEPS)
    return report, errors(a, b, [c])[0]


def _faults(report: Report) -> str:
    if report.clean:
        return "none"
    first = str(report.faults[0]) if report.faults else report.stopped
    more = len(report.causes()) - 1
    return first + (f"\n    and {more} more like it or of its making" if more > 0 else "")


def _costliest(report: Report, name: str) -> str:
    """The line that adds most to a counter beyond what its accesses need."""
    field = {"shared_wavefronts": "wavefronts", "global_sectors": "sectors"}.get(name)
    if field is None:
        return ""
    (_, line), counts = max(report.by_line().items(),
                            key=lambda item: getattr(item[1], field) - getattr(item[1], f"{field}_ideal"))
    return f"; line {line} has {getattr(counts, field):,} where {getattr(counts, f'{field}_ideal'):,} would do"
