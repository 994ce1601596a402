"""Triangular systems."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..calls.request import flag, scales
from .blocked import invert_blocks, solve
from .call import Operation, run
from .program import Matrix, Program
from .symmetric import as_bool, lower_left, one_sided, scaled, transposed, triangle_of

_NARROW, _WIDE, _MANY = 256, 1024, 2048  # rows of a diagonal block that is inverted; by this many columns the wider


def trsm(a: Any, b: Any, *, alpha: float = 1.0, left: bool = True, lower: bool = True, trans: bool = False,
         unit: bool = False, stable: bool = True, out: Any = None, precision: str = "ieee", stream: Any = None) -> Any:
    """``x`` with ``op(a) x = alpha b``, or without ``left`` ``x op(a) = alpha b``, ``a`` triangular: BLAS's ``trsm``.

    Diagonal blocks of ``a`` are inverted, and all else is products.

    Args:
        a: float32, ``(..., N, N)``; the triangle that ``lower`` names is read, and with ``unit`` its diagonal is not,
            but taken for ones. With ``trans`` op(a) is its transpose.
        b: float32, ``(..., N, M)``, or without ``left`` ``(..., M, N)``.
        alpha: a real number.
        stable: where the inverse of a diagonal block grows so that it would cost accuracy, which is decided on the
            device, that block is solved by substitution.
        out: written; it may be ``b`` itself.
        precision, stream: as for `peakgemm.matmul`.

    Returns:
        ``out``, or a new array of the shape of ``b``, with the batches broadcast. A zero on the diagonal of ``a`` gives
        infinities or NaN, as in BLAS.

    Raises:
        InvalidType, InvalidValue, OutOfMemory: as `peakgemm.gemm`; also InvalidValue for an ``a`` that is not square.
    """
    alpha, _ = scales(alpha, 0.0, None)
    left, lower, unit = as_bool(left, "left"), as_bool(lower, "lower"), as_bool(unit, "unit")
    trans = flag(trans, "trans")
    stable = as_bool(stable, "stable")
    arrays = {"a": a, "b": b}
    shape = one_sided("trsm", arrays, left)

    def record(program: Program, m: dict[str, Matrix]) -> None:
        triangle, right, out, turned = lower_left(m["a"], m["b"], m["out"], lower, left, trans)
        inverses = invert_blocks(program, triangle, width_for(right.columns), unit, stable)
        solve(program, triangle, inverses, right, out, alpha=alpha, transposed=turned)

    def on_cpu(a: Any, b: Any, out: Any) -> Any:
        full, right = triangle_of(a, lower, trans, unit), scaled(alpha, b)
        if left:
            return substituted(full, right, lower ^ trans)
        return transposed(substituted(transposed(full), transposed(right), lower == trans))

    return run(Operation("trsm", arrays, shape, record, on_cpu, (alpha, left, lower, trans, unit, stable), "b", out=out,
                         precision=precision, stream=stream))


def solve_triangular(a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False, out: Any = None,
                     precision: str = "ieee", stream: Any = None) -> Any:
    """``x`` with ``a x = b``, by the names of ``torch.linalg.solve_triangular``; see `trsm`."""
    return trsm(a, b, left=left, lower=not as_bool(upper, "upper"), unit=unitriangular, out=out, precision=precision,
                stream=stream)


def substituted(triangle: Any, right: Any, lower: bool) -> Any:
    """``x`` with ``triangle x = right`` for NumPy, in FP64: by halves, the last ones of an upper triangle first."""
    size = triangle.shape[-1]
    if size == 1:
        return np.float64(right) / triangle
    half = size // 2
    first, rest = (slice(half), slice(half, None)) if lower else (slice(half, None), slice(half))
    solved = substituted(triangle[..., first, first], right[..., first, :], lower)
    left = right[..., rest, :] - np.float64(triangle[..., rest, first]) @ solved
    halves = [solved, substituted(triangle[..., rest, rest], left, lower)]
    return np.concatenate(halves if lower else halves[::-1], -2)


def width_for(columns: int) -> int:
    """The width of the diagonal blocks that are inverted for a solve with that many columns: wider ones make larger
    products of the columns, and cost more themselves."""
    return _WIDE if columns >= _MANY else _NARROW
