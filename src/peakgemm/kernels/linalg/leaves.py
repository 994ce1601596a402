"""Launches of the kernels that factor, invert and copy blocks: what is left of linear algebra where products do the
rest.

All work on lower triangles; an upper one is that of the transposed matrix, whose row and column strides are exchanged.
Matrices are FP32, and fast where their row or column stride is 1. A kernel is given the addresses A, B, C0, C and the
workspace: each function says what its kernel reads and writes there, of the first matrix of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass

from ...errors import InvalidValue
from ...runtime import source
from ...runtime.architectures import LARGEST_CLUSTER, architecture
from ...runtime.convention import pack
from ..family import MAX_BLOCKS, Launch
from ..recipe import Recipe, text_of

BLOCK = 128     # rows that a thread block factors or inverts
_TILE, _THREADS = 32, 256
# Of kernels by include/linalg/elimination.cuh: threads, and bytes of its struct Shared.
_ELIMINATING, _SHARED = 256 + 128, 4 * (BLOCK * (BLOCK + 4) + BLOCK * 8 + 2 * 16 * (8 * 12 + 4) + 8 * 8)
# Tiles that a block copies, of a matrix that has as many: else each waits for a block of its own to start.
_STRIP, _MANY_TILES = 8, 1 << 13
# Of LU: columns of a panel of which a thread has one row, how many rows a cluster then has, at most, and how many a
# block, where one block does not have all.
_PANEL, _MOST_ROWS, _LU_ROWS = 32, LARGEST_CLUSTER * 512, 256
_FILLERS = 8  # thread blocks that store zeros beside a block of an inverse


@dataclass(frozen=True, slots=True)
class Strides:
    """Elements from row to row, from column to column, and from matrix to matrix of a batch."""

    row: int
    column: int
    batch: int = 0


def triangle(arch: str, rows: int, columns: int, source: Strides, target: Strides, count: int, *, unit: bool = False,
             mirror: bool = False, minus_identity: bool = False) -> Launch:
    """C := the lower triangle of A, or of A less the identity, with zeros above it, and ones on the diagonal where
    ``unit``.

    ``mirror``: the square C := the symmetric matrix of which A has the lower triangle. C may be A, by the same strides.
    """
    lines = count * tiles(rows)
    strip = _STRIP if lines * tiles(columns) >= _MANY_TILES else 1
    blocks = lines * -(-tiles(columns) // strip)
    return launch_of("triangle", arch, blocks, "6q6i", source, target, rows, columns, unit, mirror, strip,
                     minus_identity)


def cholesky_block(arch: str, n: int, matrix: Strides, factor: Strides, inverse: Strides, count: int, *,
                   first: int = 0) -> Launch:
    """C := the Cholesky factor of A, ``n`` <= `BLOCK` rows, whose lower triangle is read; zeros above it. C may be A.

    The workspace: the inverse of the factor, zeros above it.
    C0: an int32 for each matrix, LAPACK's info. A matrix whose info is not 0 is left alone. Where a leading minor is
    not positive definite, info becomes ``first`` plus its order, and what both outputs then hold is undefined.
    """
    _require(1 <= n <= BLOCK, f"a block of {n} rows; give 1 to {BLOCK}")
    return launch_of("cholesky_block", arch, count, "9q2i", matrix, factor, inverse, n, first, eliminates=True)


def skipping_block(arch: str, n: int, matrix: Strides, factor: Strides, inverse: Strides, count: int, *, floor: float,
                   first: int = 0) -> Launch:
    """`cholesky_block` that skips columns whose pivot is at most ``floor``: zeros with a -1 on the diagonal, and zeros
    in the inverse. C0 is not looked at."""
    _require(1 <= n <= BLOCK, f"a block of {n} rows; give 1 to {BLOCK}")
    return launch_of("skipping_block", arch, count, "9q2if4x", matrix, factor, inverse, n, first, floor,
                     eliminates=True)


def invert_block(arch: str, n: int, size: int, matrix: Strides, count: int, *, unit: bool = False) -> Launch:
    """The inverses of the diagonal blocks of `BLOCK` rows of A, whose diagonal is ones, and not read, where ``unit``.

    C: ``[count][ceil(n / size)][size][size]``, on whose diagonals the inverses go, with zeros beside them in their
    rows. Rows behind the last of ``n`` are not written.
    """
    _require(size > 0 and size % BLOCK == 0, f"inverses of {size} rows; give a multiple of {BLOCK}")
    blocks = -(-n // BLOCK)
    fillers = _FILLERS if size > min(n, BLOCK) else 0
    values = matrix, n, size, unit, blocks, count * blocks, 0
    return launch_of("invert_block", arch, count * blocks * (1 + fillers), "3q6i", *values, eliminates=True)


def panel_width(rows: int) -> int:
    """Columns of a panel that `lu_panel` takes of a matrix of so many rows."""
    each = 1
    while each * _MOST_ROWS < rows:
        each *= 2
    _require(each <= 8, f"LU of {rows:,} rows; give {8 * _MOST_ROWS:,} at most")
    return _PANEL // each


def lu_panel(arch: str, rows: int, columns: int, width: int, panel: Strides, pivots: int, moves: int, count: int, *,
             first: int) -> Launch:
    """C := L and U of the panel C by partial pivoting, ``columns`` <= ``width``, a `panel_width`, by one cluster.

    B: LAPACK's ipiv, an int32 for each column, which count the ``first`` rows above the panel. C0: an int32 for each
    matrix, LAPACK's info: what it is not 0 stays. The workspace: how rows move, for `exchange`, two int32 for each of
    ``width`` columns. ``pivots``, ``moves``: int32 from matrix to matrix.
    """
    _require("clusters" in architecture(arch).features, f"linalg_lu_panel: {arch} has no clusters, which LU wants; use "
                                                        "sm_90, or your library's")
    each, cluster = _PANEL // width, 1
    while cluster < LARGEST_CLUSTER and cluster * _LU_ROWS < rows:
        cluster *= 2
    threads = 32 * -(-rows // (32 * each * cluster))
    return launch_of("lu_panel", arch, count * cluster, "5q4i", panel, pivots, moves, rows, columns, first, cluster,
                     threads=threads, shared=4 * threads * (width + 1), cluster=cluster, macros={"ROWS": each})


def exchange(arch: str, columns: int, width: int, matrix: Strides, moves: int, count: int, *, pivots: int,
             skip: int = 0, skipped: int = 0) -> Launch:
    """Exchange rows of C as ``pivots`` pivots of panels of ``width`` say, but not in ``skipped`` columns from ``skip``
    on. The workspace: what `lu_panel` left of each panel there."""
    return launch_of("exchange", arch, count * tiles(columns - skipped), "4q4i", matrix, moves, columns, skip, skipped,
                     pivots, macros={"ROWS": _PANEL // width})


def permutation(arch: str, rows: int, pivots: int, layout: Strides, count: int) -> Launch:
    """C := which of ``rows`` comes where, int32, by LAPACK's ipiv A, a row of ``pivots`` for each matrix."""
    shared = 4 * rows if 4 * rows <= _SHARED else 0
    return launch_of("permutation", arch, count, "3q4i", layout, rows, pivots, bool(shared), 0,
                     shared=shared)


def permute(arch: str, rows: int, columns: int, source: Strides | None, target: Strides, count: int, *,
            moves: bool = False, inverse: bool = False) -> Launch:
    """C := A, or where ``source`` is None the identity, with rows in the order of the `permutation` B if it ``moves``
    them, or of its ``inverse``. They share no memory."""
    values = source or Strides(columns, 1), target, rows, columns, moves, inverse, source is None, 0
    return launch_of("permute", arch, count * tiles(rows) * tiles(columns), "6q6i", *values)


def determinant(arch: str, n: int, matrix: Strides, count: int, *, whole: bool) -> Launch:
    """C := the determinant of each matrix of which A has L and U, and B LAPACK's ipiv; or its sign and the logarithm
    of its absolute value."""
    return launch_of("determinant", arch, count, "3q2i", matrix, n, whole)


def growth(arch: str, n: int, size: int, matrix: Strides, count: int, bound: float, *,
           unit: bool = False) -> Sequence[Launch]:
    """Which inverses of diagonal blocks of A are too large: two kernels, in their order, with the same addresses.

    A: the triangles. B: the inverses of their blocks of ``size`` rows, laid out as `invert_block` does. C0: an int32
    for each, which becomes 1 where the largest row sum of ``|B| |A|`` is greater than ``bound`` or is no number,
    else 0. The workspace: ``n`` floats for each matrix.
    """
    blocks = count * tiles(n)
    return [launch_of("growth", arch, blocks, "3q4if4x", matrix, n, size, unit, second, bound)
            for second in (False, True)]


def substitute(arch: str, size: int, columns: int, matrix: Strides, right: Strides, target: Strides, count: int, *,
               block: int = 0, blocks: int = 0, unit: bool = False, transposed: bool = False,
               skips: bool = False) -> Launch:
    """C := L^-1 B, or L^-T B where ``transposed``, by substitution.

    A: L, ``size`` rows; ``skips``: as `skipping_block` leaves it. B and C: ``size`` x ``columns``; they may be the
    same. C0, if there are ``blocks``: the flags of `growth`, so many for each matrix: only where number ``block`` says
    that an inverse grows too much it is done.
    """
    values = matrix, right, target, size, columns, unit, transposed, block, blocks, skips, 0
    shared = 4 * BLOCK * (BLOCK + 4 + 2 * _TILE)
    return launch_of("substitute", arch, count * tiles(columns), "9q8i", *values, shared=shared)


def recipes(arch: str) -> list[Recipe]:
    """Of all these kernels, most of which are the same whatever the sizes; those that an architecture has cp.async and
    clusters for, but for those of LU of more than 16,384 rows."""
    eliminating = ("cholesky_block", "invert_block", "skipping_block") if architecture(arch).has_cp_async else ()
    names = ("triangle", "growth", "substitute", "permutation", "permute", "determinant", "scale_columns",
             "scaled_triangle", "perturb_columns", "complex_pack", *eliminating)
    panels = [_recipe(name, arch, {"ROWS": each}) for name in ("lu_panel", "exchange") for each in (1, 2)
              if "clusters" in architecture(arch).features]
    sums = [_recipe("checksums", arch, {"RIGHT": right, "LEFT": left})
            for right, left in ((1, 0), (0, 1), (2, 0), (0, 2), (1, 3), (3, 1))]
    return [*(_recipe(name, arch) for name in names), *panels, *sums]


def launch_of(name: str, arch: str, blocks: int, layout: str, *values: Strides | float,
              eliminates: bool = False, threads: int = _THREADS, shared: int = 0, cluster: int = 1,
              macros: dict[str, int] | None = None) -> Launch:
    """The launch of ``NAME.cu``, whose struct has ``values``: strides first."""
    _require(not eliminates or architecture(arch).has_cp_async, f"linalg_{name}: {arch} lacks cp.async, or {_SHARED:,} "
                                                                "bytes of shared memory; use sm_80 or later")
    _require(1 <= blocks <= MAX_BLOCKS, f"linalg_{name}: {blocks} thread blocks; give a batch and sizes that need "
                                        f"1 to {MAX_BLOCKS}")
    flat = [part for value in values for part in (astuple(value) if isinstance(value, Strides) else (value,))]
    if eliminates:
        threads, shared = _ELIMINATING, _SHARED
    return Launch(_recipe(name, arch, macros), blocks, threads, pack(f"<{layout}", *flat), shared, even=cluster == 1,
                  cluster=cluster)


def _recipe(name: str, arch: str, macros: dict[str, int] | None = None) -> Recipe:
    file = source.KERNELS / "linalg" / f"{name}.cu"
    return Recipe(text_of(file), f"linalg_{name}", architecture(arch).name, macros or {}, file.name)


def tiles(size: int) -> int:
    """Tiles along so many rows or columns."""
    return -(-size // _TILE)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvalidValue(message)
