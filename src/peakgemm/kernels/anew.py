"""Operands that a product lays out anew beside its own work (common/lay_out.cuh): where they lie, and its units."""

from __future__ import annotations

from struct import Struct

from ..errors import InvalidValue
from ..problem import Problem
from ..runtime import source
from . import relay
from .divide import divisor
from .registry import FLOAT
from .widths import width

UNIT, CHUNK = 32, 64  # columns and k-steps of a unit
UNIT_BYTES = UNIT * (CHUNK + 4) * FLOAT  # of shared memory; a warp that lays out has two
# What runs before: counters at zero, and the first chunk of K.
FIRST, FIRST_ENTRY, FIRST_WARPS = source.KERNELS / "ffma" / "first_chunk.cu", "ffma_first_chunk", 4
_ANEW = Struct("<3q2I6i")  # struct Anew of common/lay_out.cuh
_MOST = (1 << 31) - 1    # units; each warp asks for one more than there is


class Anew:
    """Operands of a product laid out anew in its workspace: counters, A, B, and partial sums behind them.

    Attributes:
        first_blocks: of the kernel before (0: nothing is laid out).
        a, b, sums: where A and B as laid out, and partial sums, begin, in bytes.
        argument: ``struct Anew``.

    Args:
        problem: the product.
        operands: ``"a"``, ``"b"``, both or none.

    Raises:
        InvalidValue: `constraints`.
    """

    __slots__ = ("a", "argument", "b", "first_blocks", "sums")

    def __init__(self, problem: Problem, operands: str) -> None:
        p = problem
        if broken := constraints(p, operands):
            raise InvalidValue("; ".join(broken))
        columns_a, columns_b, units, chunks = _units(p, operands)
        self.first_blocks = -(-units // FIRST_WARPS)
        self.a = FLOAT * (-(-(1 + chunks) // 4) * 4 if units else 0)  # the counters
        self.b = self.a + relay.size(columns_a, p.k)
        self.sums = self.b + relay.size(columns_b, p.k)
        self.argument = _ANEW.pack(self.a // FLOAT, self.b // FLOAT, self.sums // FLOAT, *divisor(units),
                                   -(-columns_a // UNIT), units, units * chunks, _along_k(not p.trans_a, p, 0, p.lda),
                                   _along_k(p.trans_b, p, 1, p.ldb), 0)


def constraints(problem: Problem, operands: str) -> list[str]:
    """Why ``operands`` of ``problem`` cannot be laid out so."""
    _, _, units, chunks = _units(problem, operands)
    if units * chunks > _MOST - (1 << 20):
        return [f"{problem.m} x {problem.n} x {problem.k}: {units * chunks} units of {UNIT} x {CHUNK} to lay out anew, "
                f"the limit is {_MOST - (1 << 20)}; use 'specialised'"]
    return []


def macros() -> dict[str, int]:
    """What the kernel before is compiled with: no tile of C."""
    return relay.macros(Problem(1, 1, 1, 1, 1, 1))


def _along_k(contiguous: bool, p: Problem, operand: int, ld: int) -> int:
    """Whether K is contiguous in an operand, and its rows begin at 16 bytes (2) or anywhere (1)."""
    return (2 if width(p.alignment[operand], ld) == 4 else 1) if contiguous else 0


def _units(p: Problem, operands: str) -> tuple[int, int, int, int]:
    """Columns of A and of B that are laid out, units of a chunk of K, and chunks."""
    a, b = p.m * ("a" in operands), p.n * ("b" in operands)
    return a, b, -(-a // UNIT) + -(-b // UNIT), -(-p.k // CHUNK)
