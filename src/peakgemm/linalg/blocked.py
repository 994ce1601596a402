"""Blocked algorithms of triangular matrices, recorded as steps of a program: diagonal blocks are inverted by small
kernels, and all else is products.

Every function takes lower triangles. An upper one is the transpose of a lower one, and a solve from the right that of the
transposed system: callers pass transposed matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..kernels.linalg import leaves
from ..problem import Triangle
from .program import Matrix, Program

LEAF = 128  # rows and columns that one thread block factors or inverts


@dataclass(frozen=True, slots=True)
class Inverses:
    """The inverses of the diagonal blocks of a lower triangular matrix.

    Attributes:
        width: rows and columns of a block; the last one may have fewer.
        blocks: ``(batch, blocks, width, width)``, zeros above each diagonal.
    """

    width: int
    blocks: Matrix

    def block(self, index: int, size: int) -> Matrix:
        """The inverse of one block of that size, of each matrix of the batch."""
        view = self.blocks.view
        step, (down, right) = self.blocks.strides[1], self.blocks.strides[2:]
        pointer = view.pointer + 4 * index * step
        return Matrix(self.blocks.buffer, view._replace(pointer=pointer, shape=(view.shape[0], size, size),
                                                        strides=(self.blocks.strides[0], down, right)))


def allocate_inverses(program: Program, count: int, size: int, width: int) -> Inverses:
    """Memory for the inverses of diagonal blocks of ``width``, a multiple of `LEAF`."""
    width = min(width, -(-size // LEAF) * LEAF)
    return Inverses(width, program.allocate(count, -(-size // width), width, width))


def invert_blocks(program: Program, lower: Matrix, width: int, unit: bool = False) -> Inverses:
    """The inverses of the diagonal blocks of ``lower``: those of `LEAF` by a kernel, grown by products to ``width``.

    ``[A 0; B C]^-1 = [A^-1 0; -C^-1 B A^-1 C^-1]``; all pairs of a size are one batched product.
    """
    count, size, _ = lower.shape
    inverses = allocate_inverses(program, count, size, width)
    program.kernel(leaves.invert_block(program.arch, size, inverses.width, leaves.strides(lower), count, unit),
                   a=lower, c=inverses.blocks)
    width, whole = inverses.width, size // inverses.width
    if whole:
        first = lower.diagonal(0, width).repeated(whole, width, width)
        _grow(program, first, inverses.blocks, width)
    if rest := size - whole * width:
        _grow(program, lower.diagonal(whole * width, rest), inverses.block(whole, rest), rest)
    return inverses


def _grow(program: Program, lower: Matrix, inverse: Matrix, size: int) -> None:
    """``inverse`` holds those of the `LEAF` blocks on the diagonal of ``lower``, and zeros; complete it."""
    half = LEAF
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
    program.product(between, lower.block(half, 0, rest, half), inverse.diagonal(0, half))
    program.product(inverse.block(half, 0, rest, half), inverse.diagonal(half, rest), between, alpha=-1.0)


def solve(program: Program, lower: Matrix, inverses: Inverses, right: Matrix, out: Matrix, *, alpha: float = 1.0,
          transposed: bool = False) -> None:
    """``out := alpha L^-1 right``, or with L^T, block row by block row.

    Each row of blocks is one product with all rows that are solved, and one with the inverse of its diagonal block.
    ``out`` may be ``right`` itself, and shares no other memory with it.
    """
    size, width = lower.rows, inverses.width
    columns = right.columns
    blocks = range(-(-size // width))
    between = program.allocate(*right.shape[:-2], min(width, size), columns)
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
        if done or source.buffer == target.buffer:  # in place, the product may not read what it writes
            rest = between.block(0, 0, rows, columns)
            program.product(rest, factor, solved, source, alpha=-1.0, beta=alpha)
            source, scale = rest, 1.0
        program.product(target, inverse, source, alpha=scale)


def factor(program: Program, matrix: Matrix, out: Matrix, info: Matrix, width: int) -> Inverses:
    """``out := L`` with ``L L^T`` the symmetric matrix whose lower triangle is in ``matrix``, which is overwritten, by
    recursion on halves (Toledo, "Locality of Reference in LU Decomposition with Partial Pivoting", 1997).

    Of ``out`` the lower triangle is written, and of the diagonal blocks of `LEAF` zeros above. ``info``: an int32 for
    each matrix, 0 before. The inverses of the diagonal blocks of ``width`` are by-products.
    """
    count, size, _ = matrix.shape
    inverses = allocate_inverses(program, count, size, width)
    _factor(program, matrix, out, info, inverses, 0, size)
    return inverses


def _factor(program: Program, matrix: Matrix, out: Matrix, info: Matrix, inverses: Inverses, first: int,
            size: int) -> None:
    width = inverses.width
    index, inside = divmod(first, width)
    if size <= LEAF:
        whole = inverses.block(index, min(width, out.rows - index * width))
        program.kernel(
            leaves.cholesky_block(program.arch, size, leaves.strides(matrix), leaves.strides(out), leaves.strides(whole),
                                  matrix.shape[0], first, inside, whole.columns),
            a=matrix.diagonal(first, size), c=out.diagonal(first, size), c0=info, workspace=whole.block(inside, 0, size,
                                                                                                    whole.columns))
        return
    half = LEAF
    while 2 * half < size:
        half *= 2
    rest, below = size - half, first + half
    _factor(program, matrix, out, info, inverses, first, half)
    panel, target = matrix.block(below, first, rest, half), out.block(below, first, rest, half)
    triangle = out.diagonal(first, half)
    if half <= width:
        inverse = inverses.block(index, min(width, out.rows - index * width)).diagonal(inside, half)
        program.product(target, panel, inverse.mT)
    else:
        _solve_panel(program, triangle, inverses, first, panel, target)
    corner = matrix.diagonal(below, rest)
    program.product(corner, target, target.mT, corner, alpha=-1.0, beta=1.0, triangle=Triangle.LOWER)
    _factor(program, matrix, out, info, inverses, below, rest)
    if size <= width:
        inverse = inverses.block(index, min(width, out.rows - index * width)).diagonal(inside, size)
        join(program, out.diagonal(first, size), inverse, half)


def _solve_panel(program: Program, lower: Matrix, inverses: Inverses, first: int, panel: Matrix,
                 out: Matrix) -> None:
    """``out := panel L^-T``, whose blocks' inverses begin with row ``first``; ``panel`` is overwritten."""
    width, rows = inverses.width, panel.rows
    for column in range(0, lower.rows, width):
        wide = min(width, lower.rows - column)
        source = panel.block(0, column, rows, wide)
        if column:
            program.product(source, out.block(0, 0, rows, column), lower.block(column, 0, wide, column).mT, source,
                            alpha=-1.0, beta=1.0)
        program.product(out.block(0, column, rows, wide), source, inverses.block((first + column) // width, wide).mT)
