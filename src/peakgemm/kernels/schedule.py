"""How a kernel of FFMAs is launched for a problem: grid, arguments, workspace; on a GPU and in the simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..problem import Batch, Config, Problem, varied
from ..runtime.convention import pack
from ..runtime.tensor_map import Box

if TYPE_CHECKING:
    from .ffma.repack import Repack

# struct Gemm of include/scheduler/gemm.cuh: 17 long long, 6 int, 2 float, 5 int, 7 pairs of unsigned.
_GEMM = "<17q6i2f5i14I4x"
# Ranges of k-steps: products of their number with a smaller one stay below 2**31.
MOST_PARTS = 46340


@dataclass(frozen=True, slots=True)
class Schedule:
    """How blocks share a problem: ``blocks`` of the kernel and, where partial sums are left, ``reduce_blocks`` of the
    second one, of ``reduce_threads``, or where that is 0 as many as compute a tile.

    ``whole`` tiles are computed by one block, or one cluster, each; the k-steps of ``shared`` tiles are dealt to
    ``parts`` ranges. ``workspace_bytes`` holds what is repacked, then partial sums, or what is handed on of them.
    ``arguments`` is the kernels' struct, ``boxes`` what the copy engine moves. ``repack``: what a kernel before this
    one repacks, or whose flags it sets to zero. ``cluster`` blocks form a cluster where the kernel leaves that to the
    launch.
    """

    blocks: int
    whole: int
    arguments: bytes
    reduce_blocks: int = 0
    shared: int = 0
    parts: int = 0
    workspace_bytes: int = 0
    reduce_threads: int = 0
    repack: Repack | None = None
    boxes: tuple[Box, ...] = ()
    cluster: int = 1


def handing_on(config: Config) -> Config:
    """``config`` by stream-K that hands accumulators on (include/scheduler/handed.cuh)."""
    return varied(config, split=0, handed=True)


def cut(down: int, across: int, raster: int) -> tuple[int, int, int]:
    """What a kernel divides by to place a tile of matrices of ``down`` x ``across``: tiles of a matrix, of ``raster``
    rows of them, and rows in the last group."""
    return down * across, raster * across, down % raster


def arguments(p: Problem, whole: int, shared: int, parts: int, total: int, divisors: tuple[int, int, int]) -> bytes:
    """``struct Gemm`` for a problem, with ``total`` k-steps in ``parts`` ranges; ``divisors``: see `cut`, or whatever a
    kernel that cuts C otherwise divides by."""
    row, column = p.c0 or ((1, p.ldc) if p.trans_c else (p.ldc, 1))
    levels = (1,) * (Batch.MAX_LEVELS - len(p.batch.sizes)) + p.batch.sizes
    strides = [s for x in (p.batch.a, p.batch.b, p.batch.c, p.batch.c0)
               for s in (0,) * (Batch.MAX_LEVELS - len(x)) + x]
    pairs = [x for d in (*divisors, parts, shared, *levels[1:]) for x in divisor(d)]
    return pack(_GEMM, p.lda, p.ldb, p.ldc, row, column, *strides, *levels, p.m, p.n, 0 if p.alpha == 0 else p.k,
                p.alpha, p.beta, whole, shared, parts, *divmod(total, max(parts, 1)), *pairs)


def divisor(d: int) -> tuple[int, int]:
    """Multiplier, below 2**32, and shift for 1 <= ``d`` < 2**31; of 0, which divides nothing, those of 1.

    Division by a number known before the launch is a multiplication, `over` in include/scheduler/gemm.cuh. For
    0 <= x < 2**31, with l = ceil(log2 d) and m = ceil(2**(31 + l) / d), x // d = x m >> 31 + l: m d exceeds 2**(31 + l)
    by less than d <= 2**l, so x m exceeds the true multiple by less than 2**(31 + l) / d (Granlund and Montgomery,
    "Division by Invariant Integers using Multiplication", 1994).
    """
    shift = max(d - 1, 0).bit_length()
    return -(-(1 << (31 + shift)) // max(d, 1)), shift
