"""Compile ahead what a wheel brings for an architecture (src/peakgemm/kernels/shipped.py): every kernel that the models
name, one for each layout and width of copies. Of those of few rows or columns and of small matrices, whose sizes are
compiled in, it brings those of large matrices by one to eight vectors; others are left to the first call.

    python -m lab.cubins build/cubins [--arch sm_80 --arch sm_90]

It compiles on all processors, by way of the compile cache: what that holds is not compiled again.
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

from peakgemm.cli.console import progress
from peakgemm.kernels import shipped
from peakgemm.kernels.emulated.schemes import SCHEMES
from peakgemm.kernels.ffma.skinny import SKINNY
from peakgemm.kernels.ffma.small import SMALL
from peakgemm.kernels.ffma.specialised import SPECIALISED
from peakgemm.kernels.library import recipes
from peakgemm.kernels.linalg import leaves
from peakgemm.kernels.profile import Machine
from peakgemm.kernels.recipe import Recipe
from peakgemm.problem import Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.compile import FACTS, Compiled, in_parallel
from peakgemm.runtime.nvrtc import nvrtc_version
from peakgemm.selection.choose import candidates, choose
from peakgemm.selection.machine import machine

ARCH = "sm_90"
BY_SIZE = (SKINNY, SMALL)
# M, N and K of which the models consider every kernel of the schemes: few rows or columns, few tiles, half tiles and
# pairs; a K for each number of accumulations.
SHAPES = [*product((16, 32), (1000,), (64, 1024, 1 << 20)), *product((1000,), (16, 32, 2048), (64, 1024, 1 << 20)),
          *product((1000, 8192), (1000, 8192), (64, 1024))]


def problems(m: int, n: int, k: int) -> Iterator[Problem]:
    """That product in every layout, rows of each operand starting at 16 bytes or anywhere."""
    for ta, tb, a, b in product((False, True), (False, True), (0, 1), (0, 1)):
        yield Problem(m, n, k, (m if ta else k) + a, (k if tb else n) + b, n, trans_a=ta, trans_b=tb)


def ieee(gpu: Machine) -> Iterator[Recipe]:
    """Every tiled configuration as each way is compiled, and what large products need beside."""
    arch, ways = gpu.arch.name, list(SPECIALISED.family.configs(SPECIALISED, gpu))
    for problem in problems(8192, 8192, 8192):
        for way in ways:
            yield SPECIALISED.recipe(way, problem, arch)
            yield SPECIALISED.reduce_recipe(way, problem, arch)
        for kernel, config, _ in candidates(problem, gpu):
            if kernel not in BY_SIZE:
                yield from recipes(kernel, config, problem, arch, gpu.sms)


def thin(gpu: Machine) -> Iterator[Recipe]:
    """What multiplies large matrices by so few vectors, from either side, in every layout."""
    for few, large, ta, tb, swap in product((1, 2, 4, 8), (1024, 4096), *[(False, True)] * 3):
        m, n = (large, few) if swap else (few, large)
        problem = Problem(m, n, large, m if ta else large, large if tb else n, n, trans_a=ta, trans_b=tb)
        chosen = choose(problem, gpu.arch.name, gpu.sms)
        yield from recipes(chosen.kernel, chosen.config, problem, gpu.arch.name, gpu.sms)


def emulated(gpu: Machine) -> Iterator[Recipe]:
    """Every kernel of the schemes that a model considers for some product, its split pass, what adds up its parts."""
    for m, n, k in SHAPES:
        for problem, scheme in product(problems(m, n, k), SCHEMES.values()):
            for kernel, config, _ in candidates(problem, gpu, scheme):
                yield from recipes(kernel, config, problem, gpu.arch.name, gpu.sms)
                yield kernel.reduce_recipe(config, problem, gpu.arch.name)


def wanted(arch: str = ARCH) -> dict[str, Recipe]:
    """Every recipe, by the name of its cubin."""
    gpu = machine(arch, architecture(arch).gpu_sms)
    different = {(made.file, made.entry, made.arch, tuple(made.macros.items())): made
                 for made in (*ieee(gpu), *thin(gpu), *emulated(gpu), *leaves.recipes(arch))}
    return {made.name: made for made in different.values()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the container goes")
    parser.add_argument("--arch", action="append", help=f"one or several  [{ARCH}]")
    args = parser.parse_args()
    for arch in args.arch or [ARCH]:
        compile_all(wanted(arch), args.folder / shipped.container(arch).name)


def compile_all(jobs: dict[str, Recipe], path: Path) -> None:
    """Compile ``jobs`` by this environment's NVRTC into the container ``path``."""
    with progress("compiling", len(jobs)) as done:

        def make(job: Recipe) -> Compiled:
            made = job.compile()
            done(job.entry)
            return made

        made = dict(zip(jobs, in_parallel(make, jobs.values()), strict=True))
    write(path, made, nvrtc_version())
    print(f"{path}: {len(made)} cubins by NVRTC {nvrtc_version()}, {path.stat().st_size / 1e6:.1f} MB")


def write(path: Path, cubins: Mapping[str, Compiled], nvrtc: str) -> None:
    """Make the container of ``cubins``, by name, that NVRTC ``nvrtc`` compiled."""
    places, packed, begin = {}, [], 0
    for name in sorted(cubins):
        packed.append(zlib.compress(cubins[name].code, 9))
        places[name] = begin, len(packed[-1]), [getattr(cubins[name], fact) for fact in FACTS]
        begin += len(packed[-1])
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(json.dumps({"nvrtc": nvrtc, "cubins": places}).encode() + b"\n")
        file.writelines(packed)


if __name__ == "__main__":
    main()
