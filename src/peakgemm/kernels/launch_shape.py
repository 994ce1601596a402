"""The launch that a kernel, a config and a problem make: the same on a GPU and in the simulator."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidValue
from ..problem import Config, Problem
from ..runtime.tensor_map import Box
from .registry import Kernel

MAX_BLOCKS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """Blocks and threads along x, dynamic shared memory in bytes, and the arguments after A, B, C.

    ``boxes``: what the tensor maps, the last arguments, say of A and B; none where the compilation takes none.
    """

    blocks: int
    threads: int
    shared_bytes: int
    args: tuple[int, int, int, int, int, int, float, float]
    boxes: tuple[Box, ...] = ()


def launch_shape(kernel: Kernel, config: Config, problem: Problem) -> LaunchShape:
    """How ``kernel`` with a valid ``config`` is launched for ``problem``; no blocks where C is empty.

    Raises:
        InvalidValue: more than 2**31 - 1 blocks.
    """
    p = problem
    blocks = -(-p.m // config.bm) * -(-p.n // config.bn)
    if blocks > MAX_BLOCKS:
        raise InvalidValue(f"{p.m} x {p.n} in tiles of {config.bm} x {config.bn} asks for {blocks} blocks, "
                           f"the limit is {MAX_BLOCKS}; use a larger tile or split the product")
    # BLAS: with alpha = 0 neither A nor B is read, so a NaN there cannot leak.
    k = 0 if p.alpha == 0 else p.k
    return LaunchShape(blocks, config.block_threads, kernel.shared_bytes(config) if kernel.dynamic else 0,
                       (p.m, p.n, k, p.lda, p.ldb, p.ldc, p.alpha, p.beta),
                       _boxes(config, p) if kernel.tensor_copies and config.aligned else ())


def _boxes(c: Config, p: Problem) -> tuple[Box, ...]:
    """Boxes of A and B, one tile of K each. A's is swizzled, for the warps that transpose it."""
    return (Box(0, p.m, p.k, p.lda, c.bm, c.bk, swizzled=True), Box(1, p.k, p.n, p.ldb, c.bk, c.bn))
