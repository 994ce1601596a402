"""The family of the ladder's rungs: a block computes one tile of one row-major product, in place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from ..errors import InvalidValue
from ..problem import Config, Problem
from ..runtime.architectures import architecture
from ..runtime.convention import Convention
from ..runtime.tensor_map import Box
from . import patched
from .family import MAX_BLOCKS, Family, Launch, Launches
from .recipe import Recipe

if TYPE_CHECKING:
    from .registry import Kernel

# A, B, C; m, n, k, lda, ldb, ldc, alpha, beta. A rung does not wait for the kernel ahead of it.
CONVENTION = Convention(addresses=(0, 1, 3), values="iiiqqqff", dependent=False)


@dataclass(frozen=True, slots=True)
class RungConfig(Config):
    """How a rung of the ladder is cut: of these fields each rung `tunes` some, and has the others fixed.

    ``stages``: 0 where nothing is staged in shared memory. ``aligned`` chooses the compilation with vector accesses and
    no bounds test.
    """

    stages: int = 1
    fragments: int = 1
    raster: int = 1
    min_blocks: int = 1
    passes: int = 1
    aligned: bool = False
    producers: int = 0
    registers: int = 0


def _recipe(kernel: Kernel, config: Config, problem: Problem, arch: str) -> Recipe:
    target = architecture(arch).target(own=kernel.sm_90a)
    return Recipe(kernel.source, kernel.entry, target, config.macros(), kernel.path.name)


def _edited_recipe(kernel: Kernel, config: Config, problem: Problem, arch: str) -> Recipe:
    return replace(_recipe(kernel, config, problem, arch), edit=patched.edit(kernel, config, arch))


def _launches(kernel: Kernel, config: Config, problem: Problem, arch: str, sm_count: int, ready_a: int = 0,
              ready_b: int = 0) -> Launches:
    p = problem
    blocks = prod(config.grid(p))
    if blocks > MAX_BLOCKS:
        raise InvalidValue(f"{p.m} x {p.n} in tiles of {config.bm} x {config.bn} asks for {blocks} blocks, "
                           f"the limit is {MAX_BLOCKS}; use a larger tile or split the product")
    if blocks == 0:
        return Launches(p)
    # BLAS: with alpha = 0 neither A nor B is read, so a NaN there cannot leak.
    k = 0 if p.alpha == 0 else p.k
    return Launches(p, (Launch(
        kernel.recipe(config, p, arch), blocks, config.block_threads,
        CONVENTION.pack(p.m, p.n, k, p.lda, p.ldb, p.ldc, p.alpha, p.beta),
        kernel.shared_bytes(config) if kernel.dynamic else 0, even=False,
        boxes=_boxes(config, p) if kernel.tensor_copies and config.aligned else (), convention=CONVENTION),))


def _boxes(c: Config, p: Problem) -> tuple[Box, ...]:
    """Boxes of A and B, one tile of K each. A's is swizzled, for the warps that transpose it."""
    return (Box(0, p.m, p.k, p.lda, c.bm, c.bk, swizzled=True), Box(1, p.k, p.n, p.ldb, c.bk, c.bn))


def _refuses(problem: Problem) -> Iterator[str]:
    if not problem.is_plain:
        yield (f"layout {problem.layout}, batch of {problem.batch.count}: a rung computes one product of row-major "
               "matrices in place; layouts and batches are the library's")


RUNG = Family(_recipe, launches=_launches, refuses=_refuses)
#: Rung 16, the loop of whose cubin is built anew, and rung 14, which is the same compilation.
EDITED = replace(RUNG, recipe=_edited_recipe)
