"""Blocked algorithms of triangular matrices, recorded as steps of a program: diagonal blocks are inverted by small
kernels, and all else is products.

Every function takes lower triangles. An upper one is the transpose of a lower one, and a solve from the right that of
the transposed system: callers pass transposed matrices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from ..arrays.base import FLOAT
from ..kernels.linalg import leaves
from ..kernels.linalg.leaves import BLOCK
from ..problem import Triangle
from .program import Matrix, Program

# The greatest row of |L^-1| |L|, in rows of the block, with which products are trusted: of random signs the error is
# the unit roundoff times that over the root of the rows, below the bound of substitution.
_GROWTH = 2
_SQUARE = 1024  # columns whose square on the diagonal is a product of its own: half of it is not computed


@dataclass(frozen=True, slots=True)
class Inverses:
    """The inverses of the diagonal blocks of a lower triangular matrix.

    Attributes:
        width: rows and columns of a block; the last one may have fewer.
        blocks: ``(batch, blocks, width, width)``, zeros above each diagonal.
        flags: an int32 for each block, whether its inverse grows too much to be multiplied with; None: nobody asks.
        unit: whether the triangle's diagonal is taken for ones.
        minus_identity: whether the identity was subtracted from each of ``blocks``.
    """

    width: int
    blocks: Matrix
    flags: Matrix | None = None
    unit: bool = False
    minus_identity: bool = False

    def block(self, index: int, size: int) -> Matrix:
        """The inverse of one block of that size, of each matrix of the batch."""
        view = self.blocks.view
        step, (down, right) = self.blocks.strides[1], self.blocks.strides[2:]
        pointer = view.pointer + FLOAT * index * step
        return Matrix(self.blocks.buffer, view._replace(pointer=pointer, shape=(view.shape[0], size, size),
                                                        strides=(self.blocks.strides[0], down, right)))


def copy_triangle(program: Program, source: Matrix, target: Matrix, *, unit: bool = False,
                  mirror: bool = False) -> None:
    """``target :=`` the lower triangle of ``source`` with zeros above, ones on its diagonal where ``unit``; or the
    symmetric matrix of which it is the triangle. Both may be the same."""
    program.kernel(leaves.triangle(program.arch, source.rows, source.columns, source.layout, target.layout,
                                   target.shape[0], unit=unit, mirror=mirror), a=source, c=target)


def invert_blocks(program: Program, lower: Matrix, width: int, unit: bool = False, stable: bool = False) -> Inverses:
    """The inverses of the diagonal blocks of ``lower``: those of `BLOCK` by a kernel, grown by products to ``width``.

    ``[A 0; B C]^-1 = [A^-1 0; -C^-1 B A^-1 C^-1]``; all pairs of a size are one batched product. ``stable``: those that
    grow are flagged for `solve`.
    """
    count, size, _ = lower.shape
    width = -(-min(width, size) // BLOCK) * BLOCK
    inverses = Inverses(width, program.allocate(count, -(-size // width), width, width), unit=unit)
    program.kernel(leaves.invert_block(program.arch, size, width, lower.layout, count, unit=unit), a=lower,
                   c=inverses.blocks)
    whole = size // width
    if whole:
        view = inverses.blocks.view
        first = inverses.blocks._replace(view=view._replace(shape=(count, whole, width, width)))
        _grow(program, lower.diagonal(0, width).repeated(whole, width, width), first, width)
    if rest := size - whole * width:
        _grow(program, lower.diagonal(whole * width, rest), inverses.block(whole, rest), rest)
    if stable:
        inverses = replace(inverses, flags=_flags(program, lower, inverses.blocks, width, unit))
    return inverses


def subtract_identity(program: Program, lower: Matrix, inverses: Inverses) -> Inverses:
    """The inverses less the identity, for `solve` of a triangle near it.

    Emulated products check that no large number hides small ones, as ones on a diagonal do, and fall back to FFMA.
    """
    for index, first in enumerate(range(0, lower.rows, inverses.width)):
        block = inverses.block(index, min(inverses.width, lower.rows - first))
        program.kernel(leaves.triangle(program.arch, block.rows, block.columns, block.layout, block.layout,
                                       block.shape[0], minus_identity=True), a=block, c=block)
    return replace(inverses, minus_identity=True)


def _flags(program: Program, lower: Matrix, inverses: Matrix, width: int, unit: bool) -> Matrix:
    """An int32 for each diagonal block of ``lower``: whether its inverse grows too much to be multiplied with."""
    count, size, _ = lower.shape
    flags, sums = program.allocate(count, 1, -(-size // width)), program.allocate(count, 1, size)
    for launch in leaves.growth(program.arch, size, width, lower.layout, count, _GROWTH * width, unit=unit):
        program.kernel(launch, a=lower, b=inverses, c0=flags, workspace=sums)
    return flags


def _substitute(program: Program, corner: Matrix, right: Matrix, out: Matrix, flags: Matrix | None = None,
                block: int = 0, *, unit: bool = False, transposed: bool = False, skips: bool = False) -> None:
    """``out := corner^-1 right``; of ``flags``, for matrices of the batch whose ``block`` is flagged."""
    launch = leaves.substitute(program.arch, corner.rows, right.columns, corner.layout, right.layout, out.layout,
                               corner.shape[0], block=block, blocks=flags.columns if flags else 0, unit=unit,
                               transposed=transposed, skips=skips)
    program.kernel(launch, a=corner, b=right, c0=flags, c=out)


def _grow(program: Program, lower: Matrix, inverse: Matrix, size: int) -> None:
    """``inverse`` holds those of the `BLOCK` blocks on the diagonal of ``lower``, and zeros; complete it."""
    half = BLOCK
    while half < size:
        pairs = size // (2 * half)
        if pairs:
            join(program, lower.diagonal(0, 2 * half).repeated(pairs, 2 * half, 2 * half),
                 inverse.diagonal(0, 2 * half).repeated(pairs, 2 * half, 2 * half), half)
        first = 2 * half * pairs
        if size - first > half:
            join(program, lower.diagonal(first, size - first), inverse.diagonal(first, size - first), half)
        half *= 2


def join(program: Program, lower: Matrix, inverse: Matrix, half: int) -> None:
    """Of the inverse of ``lower`` what lies below those of its first ``half`` rows and of the others."""
    rest = lower.rows - half
    between = program.allocate(*lower.shape[:-2], rest, half)
    program.product(between, lower.block(half, 0, rest, half), inverse.diagonal(0, half), sparse=True)
    program.product(inverse.block(half, 0, rest, half), inverse.diagonal(half, rest), between, alpha=-1.0, sparse=True)


def solve(program: Program, lower: Matrix, inverses: Inverses, right: Matrix, out: Matrix, *, alpha: float = 1.0,
          transposed: bool = False) -> None:
    """``out := alpha L^-1 right``, or with L^T, block row by block row.

    Each row of blocks is one product with all rows that are solved, and one with the inverse of its diagonal block.
    ``out`` may be ``right`` itself, and shares no other memory with it.
    """
    size, width = lower.rows, inverses.width
    columns = right.columns
    blocks = range(-(-size // width))
    batch, most = right.shape[:-2], min(width, size)
    # Products read it beside the right-hand sides: laid out as these are.
    between = (program.allocate(*batch, columns, most).mT if right.layout.row == 1 else
               program.allocate(*batch, most, columns))
    for index in reversed(blocks) if transposed else blocks:
        first = index * width
        rows = min(width, size - first)
        inverse = inverses.block(index, rows)
        source, target = right.block(first, 0, rows, columns), out.block(first, 0, rows, columns)
        if transposed:
            done = size - first - rows
            factor, solved = lower.block(first + rows, first, done, rows).mT, out.block(first + rows, 0, done, columns)
            inverse = inverse.mT
        else:
            done = first
            factor, solved = lower.block(first, 0, rows, done), out.block(0, 0, done, columns)
        scale = alpha
        checked = inverses.flags is not None and alpha != 1
        if done or checked or source.buffer == target.buffer:  # in place, the product may not read what it writes
            rest = between.block(0, 0, rows, columns)
            program.product(rest, factor, solved, source, alpha=-1.0, beta=alpha, sparse=True)
            source, scale = rest, 1.0
        old, beta = (source, scale) if inverses.minus_identity else (None, 0.0)
        program.product(target, inverse, source, old, alpha=scale, beta=beta, sparse=True)
        if inverses.flags is not None:
            _substitute(program, lower.diagonal(first, rows), source, target, inverses.flags, index, unit=inverses.unit,
                        transposed=transposed)


def largest_half(width: int) -> int:
    """The most columns, by doubling `BLOCK`, that leave some."""
    half = BLOCK
    while 2 * half < width:
        half *= 2
    return half


def factor(program: Program, matrix: Matrix, out: Matrix, info: Matrix | None, stable: bool = False,
           floor: float | None = None) -> None:
    """``out := L`` with ``L L^T = matrix``, of which the lower triangle is read; ``out`` may be it.

    Of ``out`` the lower triangle is written, and of the diagonal blocks of `BLOCK` zeros above. ``info``: an int32 for
    each matrix, 0 before. By recursion on the columns (Toledo, "Locality of Reference in LU Decomposition with Partial
    Pivoting", 1997): the left half of them, of all rows below, is factored, its products are subtracted from the right
    half, then that is factored. `BLOCK` columns are factored on the diagonal and multiplied by the inverse of that;
    ``stable``: where it grows they are solved by substitution. ``floor``: columns of smaller pivots are skipped
    (`leaves.skipping_block`), and there is no ``info``.
    """
    count, size, _ = matrix.shape
    work = program.allocate(count, size, size)  # what is left of the matrix
    if out.buffer == matrix.buffer:  # what a product writes may not be what it reads
        copy_triangle(program, matrix, work)
        matrix = work
    inverse = program.allocate(count, BLOCK, BLOCK)

    def columns(source: Matrix, first: int, width: int) -> None:
        """From ``first`` on, of which ``source`` holds what is left."""
        rows = size - first
        if width <= BLOCK:
            panel, target = (x.block(first, first, rows, width) for x in (source, out))
            layouts = width, panel.layout, target.layout, inverse.layout, count
            block = (leaves.cholesky_block(program.arch, *layouts, first=first) if floor is None else
                     leaves.skipping_block(program.arch, *layouts, first=first, floor=floor))
            program.kernel(block, a=panel, c=target, c0=info, workspace=inverse)
            unsolved, solved = (x.block(width, 0, rows - width, width) for x in (panel, target))
            corner = target.block(0, 0, width, width)
            if floor is not None and rows > width:  # inverses grow where pivots are as small as the floor
                _substitute(program, corner, unsolved.mT, solved.mT, skips=True)
                return
            program.product(solved, unsolved, inverse.diagonal(0, width).mT, sparse=True)
            if stable and rows > width:
                _substitute(program, corner, unsolved.mT, solved.mT, _flags(program, corner, inverse, BLOCK, False))
            return
        half = largest_half(width)
        columns(source, first, half)
        middle, right = first + half, width - half
        left, below = out.block(middle, first, size - middle, half), size - middle - right
        subtract = partial(program.product, alpha=-1.0, beta=1.0, sparse=True)
        if right >= _SQUARE or not below:
            square = left.block(0, 0, right, half)
            subtract(work.diagonal(middle, right), square, square.mT, source.diagonal(middle, right),
                     triangle=Triangle.LOWER)
            subtract(work.block(middle + right, middle, below, right), left.block(right, 0, below, half), square.mT,
                     source.block(middle + right, middle, below, right))
        else:
            subtract(work.block(middle, middle, size - middle, right), left, left.block(0, 0, right, half).mT,
                     source.block(middle, middle, size - middle, right))
        columns(work, middle, right)

    columns(matrix, 0, size)
