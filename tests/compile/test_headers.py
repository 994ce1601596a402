"""Headers of the kernels: each is some kernel's, and includes what it needs."""

from __future__ import annotations

import re

from peakgemm.kernels.emulated.product import OLDER, PRODUCTS
from peakgemm.kernels.emulated.schemes import SCHEMES, split_recipe
from peakgemm.kernels.emulated.streamed import FUSED, STREAMED
from peakgemm.kernels.ffma import repack, small
from peakgemm.kernels.ffma.small import SMALL
from peakgemm.kernels.ffma.specialised import SPECIALISED
from peakgemm.kernels.ffma.staged import STAGED
from peakgemm.kernels.ffma.wide import WIDE
from peakgemm.kernels.linalg import leaves
from peakgemm.kernels.recipe import Recipe
from peakgemm.kernels.registry import LADDER
from peakgemm.problem import Problem
from peakgemm.runtime import nvrtc
from peakgemm.runtime.source import KERNELS, assemble
from peakgemm.selection.machine import machine

ARCH = "sm_90"
PROBLEM, SMALL_ONE = Problem.contiguous(4096, 4096, 4096), Problem.contiguous(64, 64, 64)


def recipes() -> list[Recipe]:
    """Of kernels that include all headers between them."""
    gpu, fp16 = machine(ARCH, 132), SCHEMES["fp16x3"]
    slices = next(config for config in SPECIALISED.family.configs(SPECIALISED, gpu) if config.slices == 2)
    made = [kernel.recipe(kernel.config_for(ARCH), PROBLEM, ARCH)
            for kernel in (SPECIALISED, WIDE, STAGED, PRODUCTS["fp16x3"], OLDER["fp16x3"], STREAMED, FUSED)]
    made += [SPECIALISED.recipe(slices, PROBLEM, ARCH), SPECIALISED.reduce_recipe(slices, PROBLEM, ARCH)]
    made += [PRODUCTS["fp16x3"].reduce_recipe(PRODUCTS["fp16x3"].default, PROBLEM, ARCH),
             split_recipe(fp16, PROBLEM, ARCH), repack.recipe(ARCH)]
    made += leaves.recipes(ARCH)
    made += [SMALL.recipe(next(small.configurations(SMALL_ONE, gpu)), SMALL_ONE, ARCH)]
    return made + [kernel.recipe(kernel.config_for(ARCH), PROBLEM, ARCH) for kernel in LADDER]


def refused(header: str, recipe: Recipe) -> str:
    """The compiler's log of that header with the macros of ``recipe`` and nothing before it; empty: it compiles.

    Rung 17 defines its scheme itself.
    """
    macros = [f"--define-macro={name}={value}" for name, value in ({"SCHEME": 0} | recipe.macros).items()]
    target = f"-arch={recipe.arch.replace('sm_', 'compute_')}"
    try:
        nvrtc.build(assemble(KERNELS / header), header, [target, *macros, "--std=c++17"])
    except RuntimeError as error:
        return str(error)
    return ""


def test_each_header_compiles_by_itself() -> None:
    """For one at least of the kernels that include it: of two headers a kernel may take either."""
    of_header: dict[str, list[Recipe]] = {}
    for recipe in recipes():
        for header in re.findall(r'^#line 1 "(include/[^"]+)"', recipe.text, re.M):
            of_header.setdefault(header, []).append(recipe)
    assert of_header.keys() == {path.relative_to(KERNELS).as_posix() for path in (KERNELS / "include").rglob("*.cuh")}
    for header, users in of_header.items():
        assert any(not refused(header, recipe) for recipe in users), refused(header, users[0])
