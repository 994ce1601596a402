"""Launches of the small kernels of a QR factorization: ``scale_columns.cu``, ``scaled_triangle.cu`` and
``perturb_columns.cu``."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from math import sqrt

from ..family import Launch
from .leaves import Strides, launch_of, tiles

_STRIPS, _BLOCKS = 64, 1024  # of rows at most, and thread blocks that are enough


class Mode(IntEnum):
    """What of a lower triangle is made: see ``scaled_triangle.cu``."""

    GRAM = 0
    FACTOR = 1
    RESULT = 2


def strips(rows: int, columns: int, count: int) -> int:
    """Into how many strips the rows of columns are divided, for enough thread blocks."""
    return max(1, min(_STRIPS, tiles(rows), -(-_BLOCKS // (tiles(columns) * count))))


def scale_columns(arch: str, rows: int, given: int, columns: int, source: Strides, target: Strides, count: int, *,
                  line: int) -> Sequence[Launch]:
    """Columns scaled by powers of two to norms from 1 to 2: two kernels, in their order, with the same addresses.

    A: ``given`` columns. C: ``columns`` of them, zeros behind the last of A; it may be A. The workspace: a double for
    each column of each of the `strips`. C0: ``[count][3][line]``: by what the scaled column is to be multiplied, 0 for
    one of zeros; its norm, 1 for one of zeros; the given column's sum of squares.
    """
    parts = strips(rows, columns, count)
    return [launch_of("scale_columns", arch, count * parts * tiles(columns), "6q6i", source, target, rows, given,
                      columns, parts, second, line) for second in (False, True)]


def scaled_triangle(arch: str, mode: Mode, rows: int, columns: int, source: Strides, target: Strides, count: int, *,
                    shift: float = 0.0, threshold: float = 0.0, line: int = 0) -> Launch:
    """C := the lower triangle of A with its rows scaled, as ``mode`` says.

    ``GRAM``: a Gram matrix, scaled by powers of two, of ``threshold`` at most, to a diagonal of 1 to 4, to which
    ``shift`` is added; above the diagonal C is left. The workspace: the powers. ``FACTOR``: its factor, scaled back; C
    may be A. C0: an int32 for each row, whether it was skipped. ``RESULT``: R^T, by what `scale_columns` left in B, of
    that ``line``; C may be A. C0: an int32 for each matrix, to which is added how many elements on the diagonal exceed
    ``threshold`` times the norm of their row.
    """
    return launch_of("scaled_triangle", arch, count * tiles(rows) * tiles(columns), "6q3i2fi", source, target, rows,
                     columns, mode, shift, threshold, line)


def perturb_columns(arch: str, rows: int, columns: int, factor: Strides, target: Strides, count: int, *, amount: float,
                    seed: int) -> Launch:
    """Random numbers added to the columns of C that C0, an int32 for each, says were skipped.

    A: R, ``columns`` of each side. The column that is made up of others by row j of R is added a vector of norm
    ``amount`` at most, over the largest element of that row.
    """
    parts = strips(rows, columns, count)
    return launch_of("perturb_columns", arch, count * parts * tiles(columns), "6q4i2f", factor, target, rows, columns,
                     parts, seed, amount, sqrt(3 / rows))

