"""Symmetric positive definite matrices: factorization, solves, inverse."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays.base import is_traced
from ..errors import InvalidValue, PeakgemmError
from ..kernels.linalg.leaves import BLOCK
from ..problem import Triangle
from .blocked import copy_triangle, factor, invert_blocks
from .blocked import solve as solve_blocks
from .call import Operation, run, shape_of
from .program import Matrix, Program
from .symmetric import as_bool, mirrored, one_sided, transposed, triangle_of
from .triangular import substituted, width_for


class NotPositiveDefinite(PeakgemmError, np.linalg.LinAlgError):
    """A matrix has no Cholesky factorization; the message says which, and the order of the leading minor."""


def cholesky(a: Any, *, upper: bool = False, stable: bool = False, out: Any = None, precision: str = "ieee",
             stream: Any = None) -> Any:
    """The lower triangular ``L`` with ``L L^T = a``, or with ``upper`` its transpose.

    Waits for the result, to know whether ``a`` is positive definite; `cholesky_ex` does not.

    Args:
        a: float32, ``(..., N, N)``, symmetric: the lower triangle is read, or with ``upper`` the upper one.
        stable: for matrices whose condition comes near 10^7: columns are solved by substitution where the inverse of a
            diagonal block grows, which the device decides. That takes longer where none does, too.
        out: written, ``(..., N, N)``; it may be ``a`` itself.
        precision, stream: as for `peakgemm.matmul`.

    Returns:
        ``out``, or a new array, with zeros in the other triangle.

    Raises:
        NotPositiveDefinite: a leading minor is not positive, or not a number.
        InvalidType, InvalidValue, OutOfMemory: as `peakgemm.gemm`; also InvalidValue where ``a`` is not square.
    """
    factor, info = cholesky_ex(a, upper=upper, stable=stable, out=out, precision=precision, stream=stream)
    check_info(info)
    return factor


def cholesky_ex(a: Any, *, upper: bool = False, stable: bool = False, out: Any = None, precision: str = "ieee",
                stream: Any = None) -> tuple[Any, Any]:
    """`cholesky` that does not wait, and raises nothing for an ``a`` that is not positive definite.

    Returns:
        The factor, and LAPACK's ``info``: int32 of the batch's shape, 0, or the order of the first leading minor that
        is not positive. The factor of such a matrix is of no use.
    """
    upper, stable = as_bool(upper, "upper"), as_bool(stable, "stable")
    shape = shape_of("cholesky", "a", a, square=True)

    def record(program: Program, m: dict[str, Matrix]) -> None:
        matrix, out = (m["a"].mT, m["out"].mT) if upper else (m["a"], m["out"])
        factor(program, matrix, out, m["info"], stable)
        if out.rows > BLOCK:  # else there are zeros above already
            copy_triangle(program, out, out)

    def on_cpu(a: Any, out: Any) -> Any:
        full = mirrored(a, not upper).reshape(-1, *shape[-2:])
        factors, info = zip(*map(_factor_on_cpu, full), strict=True)
        result = np.stack(factors).reshape(shape)
        return (transposed(result) if upper else result), np.array(info, np.int32).reshape(shape[:-2])

    result: tuple[Any, Any] = run(Operation("cholesky", {"a": a}, shape, record, on_cpu, (upper, stable), "a",
                                            also={"info": (shape[:-2], "int32")}, out=out, precision=precision,
                                            stream=stream))
    return result


def _factor_on_cpu(matrix: Any) -> tuple[Any, int]:
    """The factor and LAPACK's info, by NumPy, which does not tell it: by bisection over the leading minors."""
    good, bad = 0, len(matrix) + 1
    factor = np.zeros_like(matrix)
    while bad - good > 1:
        order = len(matrix) if bad > len(matrix) else (good + bad) // 2
        try:
            factor[:order, :order] = np.linalg.cholesky(matrix[:order, :order])
            failed = bool(np.isnan(np.diagonal(factor)).any())  # not every LAPACK looks for them
        except np.linalg.LinAlgError:
            failed = True
        if failed:
            bad, factor[...] = order, 0
        else:
            good = order
    return factor, bad % (len(matrix) + 1)


def check_info(info: Any) -> None:
    """Wait for `cholesky_ex`'s ``info``.

    Raises:
        NotPositiveDefinite: it is not 0 everywhere.
    """
    if bad := first_nonzero(info):
        which, order = bad
        raise NotPositiveDefinite(f"{which} is not positive definite: its leading minor of order {order} is not "
                                  "positive; add to its diagonal, or use cholesky_ex and read info")


def first_nonzero(info: Any) -> tuple[str, int] | None:
    """Wait for LAPACK's ``info``, or another int32 of each matrix: the first of the batch where it is not 0, in words,
    and what it is there.

    Raises:
        InvalidValue: of a value that JAX traces.
    """
    if is_traced((info,)):
        raise InvalidValue("whether there is a result is not known under JAX's jit, grad and vmap; call cholesky_ex, "
                           "solve_ex, inv_ex or lstsq_ex there, which return info, or the rank")
    values = np.asarray(info.get() if hasattr(info, "get") else info.cpu() if hasattr(info, "cpu") else info)
    bad = np.argwhere(values)
    if not len(bad):
        return None
    index = tuple(int(i) for i in bad[0])
    return f"matrix {index} of the batch" if index else "the matrix", int(values[index])


def cholesky_solve(b: Any, factor: Any, *, upper: bool = False, out: Any = None, precision: str = "ieee",
                   stream: Any = None) -> Any:
    """``x`` with ``a x = b``, given the factor of ``a`` by `cholesky`: the order of arguments is torch's.

    Args:
        b: float32, ``(..., N, M)``.
        factor: float32, ``(..., N, N)``; one triangle is read.
        upper: whether the factor is ``U`` with ``U^T U = a``.
        out: written; it may be ``b`` itself.
        precision, stream: as for `peakgemm.matmul`.

    Raises:
        As `trsm`.
    """
    upper = as_bool(upper, "upper")
    arrays = {"factor": factor, "b": b}
    shape = one_sided("cholesky_solve", arrays, left=True)

    def record(program: Program, m: dict[str, Matrix]) -> None:
        lower = m["factor"].mT if upper else m["factor"]
        inverses = invert_blocks(program, lower, width_for(m["b"].columns), stable=True)
        solve_blocks(program, lower, inverses, m["b"], m["out"])
        solve_blocks(program, lower, inverses, m["out"], m["out"], transposed=True)

    def on_cpu(factor: Any, b: Any, out: Any) -> Any:
        lower = triangle_of(factor, not upper, upper, False)
        return substituted(transposed(lower), substituted(lower, b, True), False)

    return run(Operation("cholesky_solve", arrays, shape, record, on_cpu, (upper,), "b", out=out, precision=precision,
                         stream=stream))


def cholesky_inverse(factor: Any, *, upper: bool = False, out: Any = None, precision: str = "ieee",
                     stream: Any = None) -> Any:
    """The inverse of ``a``, given its factor by `cholesky`; all of it, symmetric.

    Args, raises:
        As `cholesky_solve`.
    """
    upper = as_bool(upper, "upper")
    shape = shape_of("cholesky_inverse", "factor", factor, square=True)

    def record(program: Program, m: dict[str, Matrix]) -> None:
        lower = m["factor"].mT if upper else m["factor"]
        inverse = invert_blocks(program, lower, lower.rows).block(0, lower.rows)
        program.product(m["out"], inverse.mT, inverse, triangle=Triangle.LOWER, sparse=True)
        copy_triangle(program, m["out"], m["out"], mirror=True)

    def on_cpu(factor: Any, out: Any) -> Any:
        lower = triangle_of(factor, not upper, upper, False)
        inverse = substituted(lower, np.eye(shape[-1], dtype=np.float32), True)
        return transposed(inverse) @ inverse

    return run(Operation("cholesky_inverse", {"factor": factor}, shape, record, on_cpu, (upper,), "", out=out,
                         precision=precision, stream=stream))
