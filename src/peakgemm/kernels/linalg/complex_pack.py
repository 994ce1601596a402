"""Complex matrices made ready for real products, and back: the launch of ``complex_pack.cu``."""

from __future__ import annotations

from enum import IntEnum

from ..family import Launch
from .leaves import Strides, launch_of, tiles


class Mode(IntEnum):
    """What C becomes, of a factor times A.

    ``COPY``: that. ``EMBED``: of each row two of real numbers, ``re, im, re, im ...`` and ``-im, re, -im, re ...``.
    ``PLANES``: three real matrices, both parts and their sum. ``COMBINE``: the complex product of which A has the three
    real products of such planes, plus beta C0. ``JOIN``: the complex matrix of which A has both parts, plus beta C0.
    """

    COPY = 0
    EMBED = 1
    PLANES = 2
    COMBINE = 3
    JOIN = 4


class Part(IntEnum):
    """What of a square C is written, of the lower triangle of A: all, of all of A; that triangle; zeros above it, too;
    or above it the conjugates, of a factor of 1."""

    WHOLE = 0
    LOWER = 1
    LOWER_AND_ZEROS = 2
    MIRRORED = 3


def complex_pack(arch: str, mode: Mode, count: int, rows: int, columns: int, source: Strides, target: Strides, *,
                 plane: int = 0, conjugated: bool = False, second_sign: float = 1.0, factor: complex = 1.0,
                 beta: complex = 0.0, old: Strides | None = None, part: Part = Part.WHOLE,
                 real_diagonal: bool = False) -> Launch:
    """One pass over ``count`` complex matrices.

    Args:
        arch: compiled for.
        mode: what is made.
        count, rows, columns: of the matrices, in complex numbers.
        source, target: from number to number; of planes in floats. The target of ``EMBED`` are the first rows.
        plane: from plane to plane; of ``EMBED`` from the first row of each two to the second, in complex numbers.
        conjugated: A is, first.
        second_sign: of the second rows of ``EMBED``: -1 where the matrix that they are multiplied by is conjugated.
        factor, beta: complex numbers. C0 is not read where ``beta`` is 0.
        old: strides of C0.
        part: of C, of ``COMBINE`` and ``JOIN``.
        real_diagonal: what C has on its diagonal gets an imaginary part of 0.
    """
    blocks = count * tiles(rows) * tiles(columns)
    return launch_of("complex_pack", arch, blocks, "10q6i5f4x", source, old or target, target, plane, rows, columns,
                     mode, conjugated, part, real_diagonal, second_sign, factor.real, factor.imag, beta.real, beta.imag)
