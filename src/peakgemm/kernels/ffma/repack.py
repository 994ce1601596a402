"""Operands repacked by idle producer warps while the main loop runs (include/copy/repack.cuh): where they lie, and its
units.

A repacked operand has K outermost, and rows that begin at 16 bytes, so that the copy engine can bring it.
"""

from __future__ import annotations

from dataclasses import replace
from struct import Struct

from ...errors import InvalidValue
from ...problem import Config, Problem
from ...runtime import source
from ...runtime.architectures import architecture
from ..recipe import Recipe, text_of
from ..registry import FLOAT
from ..schedule import divisor
from ..widths import width

UNIT, CHUNK = 32, 64  # columns and k-steps of a unit
UNIT_BYTES = UNIT * (CHUNK + 4) * FLOAT  # of shared memory; a warp that repacks has two
# What runs before: counters at zero, and the first chunk of K.
_FIRST, FIRST_WARPS = source.KERNELS / "ffma" / "first_chunk.cu", 4
_REPACK = Struct("<3q2I7i4x")  # struct Repack of include/copy/repack.cuh
_MOST = (1 << 31) - 1    # units; each warp asks for one more than there is


class Repack:
    """Operands of a product repacked in its workspace: counters, A, B, flags, and partial sums behind them.

    Attributes:
        first_blocks: of the kernel before (0: nothing is repacked, and there are no flags).
        a, b, sums: where A and B as repacked, and partial sums, begin, in bytes.
        argument: ``struct Repack``.

    Args:
        problem: the product.
        operands: ``"a"``, ``"b"``, both or none.
        flags: of accumulators handed on (include/scheduler/handed.cuh); zero at first, as the counters.

    Raises:
        InvalidValue: `constraints`.
    """

    __slots__ = ("a", "argument", "b", "first_blocks", "sums")

    def __init__(self, problem: Problem, operands: str, flags: int = 0) -> None:
        p = problem
        if broken := constraints(p, operands):
            raise InvalidValue("; ".join(broken))
        columns_a, columns_b, units, chunks = _units(p, operands)
        self.first_blocks = -(-units // FIRST_WARPS) or int(flags > 0)
        self.a = FLOAT * (-(-(1 + chunks) // 4) * 4 if units else 0)  # the counters
        self.b = self.a + size(columns_a, p.k)
        padded = -(-flags // 4) * 4
        self.sums = self.b + size(columns_b, p.k) + FLOAT * padded
        self.argument = _REPACK.pack(self.a // FLOAT, self.b // FLOAT, self.sums // FLOAT, *divisor(units),
                                   -(-columns_a // UNIT), units, units * chunks, _along_k(not p.trans_a, p, 0, p.lda),
                                   _along_k(p.trans_b, p, 1, p.ldb), 0, padded)


def constraints(problem: Problem, operands: str) -> list[str]:
    """Why ``operands`` of ``problem`` cannot be repacked so."""
    _, _, units, chunks = _units(problem, operands)
    if units * chunks > _MOST - (1 << 20):
        return [f"{problem.m} x {problem.n} x {problem.k}: {units * chunks} units of {UNIT} x {CHUNK} to repack, "
                f"the limit is {_MOST - (1 << 20)}; use 'specialised'"]
    return []


def recipe(arch: str) -> Recipe:
    """What the kernel that repacks the first chunk of K is compiled from: no tile of C."""
    macros = Config(UNIT, UNIT, CHUNK, 1, 1).macros() | {"TRANS_B": 0}
    return Recipe(text_of(_FIRST), "ffma_first_chunk", architecture(arch).name, macros, _FIRST.name)


def size(columns: int, steps: int) -> int:
    """Bytes of ``steps`` rows of ``columns`` floats, each a multiple of 16 bytes."""
    return steps * (-(-columns // 4) * 4) * FLOAT


def repacked(problem: Problem, operands: str) -> Problem:
    """The problem that the product then is: those of its ``operands`` are in the workspace."""
    p = problem
    if "a" in operands:
        p = repacked(p.turned(), "b").turned()
    if "b" in operands:
        a, _, c = p.alignment
        p = replace(p, trans_b=False, ldb=max(-(-p.n // 4) * 4, 1), alignment=(a, 16, c))
    return p


def _along_k(contiguous: bool, p: Problem, operand: int, ld: int) -> int:
    """Whether K is contiguous in an operand, and its rows begin at 16 bytes (2) or anywhere (1)."""
    return (2 if width(p.alignment[operand], ld) == 4 else 1) if contiguous else 0


def _units(p: Problem, operands: str) -> tuple[int, int, int, int]:
    """Columns of A and of B that are repacked, units of a chunk of K, and chunks."""
    a, b = p.m * ("a" in operands), p.n * ("b" in operands)
    return a, b, -(-a // UNIT) + -(-b // UNIT), -(-p.k // CHUNK)
