"""Cubins to try the SASS tools on: a few for every change, all of the project's for `make test-all`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from peakgemm.kernels.recipe import Recipe
from peakgemm.kernels.registry import LADDER, rung
from peakgemm.problem import Config
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.compile import compile_source, in_parallel
from peakgemm.runtime.source import assemble
from peakgemm.sass.elf import Cubin
from peakgemm.sass.program import Program
from rung_code import build

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
FIXTURES = Path(__file__).parent / "fixtures"


@cache
def of_rung(number: int, arch: str = "sm_90", config: Config | None = None) -> Cubin:
    """A rung as the ladder compiles it."""
    kernel = rung(number)
    return Cubin.read(build(kernel, config or kernel.config_for(arch), arch).code)


@cache
def of_fixture(name: str, entry: str, arch: str = "sm_90") -> Cubin:
    """A fixture of the tests, every kernel of it; ``entry`` is one."""
    return Cubin.read(compile_source(assemble(FIXTURES / f"{name}.cu"), entry, arch).code)


def program(number: int) -> Program:
    """A rung on sm_90, decoded."""
    return Program.of(of_rung(number))


def every_rung() -> list[Cubin]:
    """Every rung for every architecture that it runs on."""
    jobs = [(kernel, arch) for kernel in LADDER for arch in ARCHITECTURES
            if not kernel.patched and not kernel.lacks(architecture(arch))]
    return [Cubin.read(made.code) for made in in_parallel(lambda job: build(job[0], job[0].config_for(job[1]), job[1]),
                                                          jobs)]


def every_recipe_of_the_library() -> Iterator[tuple[Recipe, Cubin]]:
    """What a wheel brings for sm_90, with what each is compiled from."""
    from lab.cubins import wanted

    jobs = list(wanted().values())
    made = in_parallel(lambda job: job.make("cubin"), jobs)
    yield from zip(jobs, (Cubin.read(each.code) for each in made), strict=True)
