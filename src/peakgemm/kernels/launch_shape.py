"""The launch that a kernel, a config and a problem make: the same on a GPU and in the simulator."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidValue
from ..problem import Config, Problem
from .registry import Kernel

MAX_BLOCKS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """Blocks and threads along x, dynamic shared memory in bytes, and the arguments after A, B, C."""

    blocks: int
    threads: int
    shared_bytes: int
    args: tuple[int, int, int, int, int, int, float, float]


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
                       (p.m, p.n, k, p.lda, p.ldb, p.ldc, p.alpha, p.beta))
