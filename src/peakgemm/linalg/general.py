"""General matrices: LU by partial pivoting, and what follows from it: solves, inverses, determinants."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..errors import InvalidValue, PeakgemmError
from ..kernels.linalg import leaves
from ..kernels.linalg.leaves import BLOCK
from .blocked import invert_blocks, largest_half
from .blocked import solve as solve_blocks
from .call import Operation, run, shape_of
from .positive_definite import cholesky, cholesky_solve, first_nonzero
from .program import Matrix, Program
from .symmetric import as_bool, one_sided, transposed, triangle_of
from .triangular import substituted, width_for


class SingularMatrix(PeakgemmError, np.linalg.LinAlgError):
    """A matrix has no inverse; the message says which, and the column whose pivot is 0."""


def lu_factor(a: Any, *, out: Any = None, precision: str = "ieee", stream: Any = None) -> tuple[Any, Any]:
    """`lu_factor_ex` without its ``info``: the factors of a singular matrix are those of LAPACK, and nothing is raised.
    """
    return lu_factor_ex(a, out=out, precision=precision, stream=stream)[:2]


def lu_factor_ex(a: Any, *, out: Any = None, precision: str = "ieee", stream: Any = None) -> tuple[Any, Any, Any]:
    """``P L U = a`` by partial pivoting, as LAPACK's ``getrf``; waits for nothing.

    By recursion on the columns (Toledo, "Locality of Reference in LU Decomposition with Partial Pivoting", 1997). The
    pivot of a column is its largest element, and of equal ones the uppermost.

    Args:
        a: float32, ``(..., M, N)``, of 65,536 rows at most.
        out: written, ``(..., M, N)``; it may be ``a`` itself.
        precision, stream: as for `peakgemm.matmul`.

    Returns:
        U on and above the diagonal, and below it L, whose diagonal is ones. LAPACK's ``ipiv``, int32,
        ``(..., min(M, N))``: row i was exchanged with row ``ipiv[i]``, counted from 1. LAPACK's ``info``, int32, of the
        batch's shape: 0, or the number of the first pivot that is 0.

    Raises:
        InvalidType, InvalidValue, OutOfMemory: as `peakgemm.gemm`; also InvalidValue for a GPU without clusters (sm_90
            has them).
    """
    shape = shape_of("lu_factor", "a", a)
    *batch, rows, columns = shape
    also = {"pivots": ((*batch, min(rows, columns)), "int32"), "info": (tuple(batch), "int32")}

    def record(program: Program, m: dict[str, Matrix]) -> None:
        out = m["out"]
        matrix = out if out.layout.column == 1 else program.allocate(*out.shape)  # rows are exchanged fast where packed
        copy_rows(program, m["a"], matrix)
        factor(program, matrix, m["pivots"], m["info"])
        copy_rows(program, matrix, out)

    def on_cpu(a: Any, out: Any) -> Any:
        factors, pivots, info = zip(*map(_factor_on_cpu, a.reshape(-1, rows, columns)), strict=True)
        return (np.reshape(factors, shape), np.reshape(pivots, also["pivots"][0]),
                np.array(info, np.int32).reshape(batch))

    result: tuple[Any, Any, Any] = run(Operation("lu_factor", {"a": a}, shape, record, on_cpu, over="a", also=also,
                                                 out=out, precision=precision, stream=stream))
    return result


def lu_solve(factor: Any, pivots: Any, b: Any, *, left: bool = True, trans: bool = False, out: Any = None,
             precision: str = "ieee", stream: Any = None) -> Any:
    """``x`` with ``op(a) x = b``, or without ``left`` ``x op(a) = b``, given `lu_factor` of ``a``: torch's order of
    arguments.

    Args:
        factor, pivots: as `lu_factor` returns them, of square matrices. What other pivots give on a GPU is undefined.
        b: float32, ``(..., N, M)``, or without ``left`` ``(..., M, N)``.
        trans: whether op(a) is the transpose.
        out: written; it may be ``b`` itself.
        precision, stream: as for `peakgemm.matmul`.

    Raises:
        As `trsm`; InvalidType for pivots that are not int32, InvalidValue for those of another shape.
    """
    left, trans = as_bool(left, "left"), as_bool(trans, "trans")
    arrays = {"factor": factor, "b": b}
    shape = one_sided("lu_solve", arrays, left)
    order = shape_of("lu_solve", "factor", factor)[-1]
    if (lengths := tuple(getattr(pivots, "shape", ())))[-1:] != (order,):
        raise InvalidValue(f"lu_solve: pivots have shape {lengths}, and the factor {order} rows; pass the pivots of "
                           "lu_factor")
    turned = trans == left  # of the system that is solved from the left

    def record(program: Program, m: dict[str, Matrix]) -> None:
        right, out = (m["b"], m["out"]) if left else (m["b"].mT, m["out"].mT)
        _solve(program, m["factor"], _permutation(program, m["pivots"], order), right, out, turned)

    def on_cpu(factor: Any, b: Any, out: Any, pivots: Any) -> Any:
        right = b if left else transposed(b)
        if ((pivots < 1) | (pivots > order)).any():
            raise InvalidValue(f"lu_solve: pivots hold {pivots.min()} to {pivots.max()}, and rows number 1 to {order}; "
                               "pass the pivots of lu_factor")
        right = np.broadcast_to(right, (*shape[:-2], *right.shape[-2:]))
        rows = np.broadcast_to(_rows(pivots[..., 0, :]), (*shape[:-2], order))[..., None]
        lower, upper = triangle_of(factor, True, False, True), triangle_of(factor, False, False, False)
        if turned:
            x = substituted(transposed(lower), substituted(transposed(upper), right, True), False)
            x = np.take_along_axis(x, np.argsort(rows, -2), -2)
        else:
            x = substituted(upper, substituted(lower, np.take_along_axis(right, rows, -2), True), False)
        return x if left else transposed(x)

    return run(Operation("lu_solve", arrays, shape, record, on_cpu, (left, trans), over="b", out=out,
                         precision=precision, stream=stream, integers={"pivots": pivots[..., None, :]}))


def solve(a: Any, b: Any, *, assume_a: str = "gen", upper: bool = False, out: Any = None, precision: str = "ieee",
          stream: Any = None) -> Any:
    """``x`` with ``a x = b``: the names are those of ``scipy.linalg.solve``. Waits, to know whether there is one.

    Args:
        a: float32, ``(..., N, N)``.
        b: float32, ``(..., N, M)`` or ``(N,)``.
        assume_a: ``"gen"``, or ``"pos"``: symmetric positive definite, which takes half the time; then one triangle is
            read, the lower one, or with ``upper`` the upper one.
        out: written; it may be ``b`` itself.
        precision, stream: as for `peakgemm.matmul`.

    Raises:
        SingularMatrix: a pivot is 0.
        NotPositiveDefinite: as `cholesky`.
        InvalidValue: another ``assume_a``, or as `trsm`.
    """
    if assume_a not in ("gen", "general", "pos", "positive definite"):
        raise InvalidValue(f"assume_a = {assume_a!r}: peakgemm.linalg solves general and positive definite systems; "
                           "pass assume_a='gen' or 'pos'")
    if getattr(b, "ndim", 2) == 1:
        column = solve(a, b[:, None], assume_a=assume_a, upper=upper, out=None if out is None else out[..., None],
                       precision=precision, stream=stream)
        return column[..., 0] if out is None else out
    if assume_a.startswith("pos"):
        one_sided("solve", {"a": a, "b": b}, left=True)
        factor = cholesky(a, upper=upper, precision=precision, stream=stream)
        return cholesky_solve(b, factor, upper=upper, out=out, precision=precision, stream=stream)
    x, info = solve_ex(a, b, out=out, precision=precision, stream=stream)
    check_pivots(info)
    return x


def solve_ex(a: Any, b: Any, *, out: Any = None, precision: str = "ieee", stream: Any = None) -> tuple[Any, Any]:
    """`solve` of a general system that does not wait: the solution, and LAPACK's ``info`` as of `lu_factor_ex`."""
    shape = one_sided("solve", {"a": a, "b": b}, left=True)
    return _by_factors("solve", {"a": a, "b": b}, shape, np.linalg.solve, "b", out, precision, stream)


def inv(a: Any, *, out: Any = None, precision: str = "ieee", stream: Any = None) -> Any:
    """The inverse, ``(..., N, N)``; ``out`` may be ``a`` itself. Waits, to know whether there is one.

    Raises:
        SingularMatrix: a pivot is 0.
        InvalidType, InvalidValue, OutOfMemory: as `lu_factor_ex`; also InvalidValue for an ``a`` that is not square.
    """
    inverse, info = inv_ex(a, out=out, precision=precision, stream=stream)
    check_pivots(info)
    return inverse


def inv_ex(a: Any, *, out: Any = None, precision: str = "ieee", stream: Any = None) -> tuple[Any, Any]:
    """`inv` that does not wait: the inverse, and LAPACK's ``info`` as of `lu_factor_ex`."""
    shape = shape_of("inv", "a", a, square=True)
    return _by_factors("inv", {"a": a}, shape, np.linalg.inv, "a", out, precision, stream)


def _by_factors(name: str, arrays: dict[str, Any], shape: tuple[int, ...], numpy: Callable[..., Any], over: str,
                out: Any, precision: str, stream: Any) -> tuple[Any, Any]:
    """The solution for ``b``, or without it for the identity, and info."""

    def record(program: Program, m: dict[str, Matrix]) -> None:
        matrix, pivots = program.allocate(*m["a"].shape), program.allocate(m["a"].shape[0], 1, m["a"].rows)
        copy_rows(program, m["a"], matrix)
        factor(program, matrix, pivots, m["info"])
        _solve(program, matrix, _permutation(program, pivots, matrix.rows), m.get("b"), m["out"])

    def on_cpu(out: Any, **arrays: Any) -> Any:
        a = np.broadcast_to(arrays["a"], (*shape[:-2], *arrays["a"].shape[-2:]))
        try:
            return numpy(*arrays.values()), np.zeros(shape[:-2], np.int32)
        except np.linalg.LinAlgError:
            info = [_factor_on_cpu(each)[2] for each in a.reshape(-1, *a.shape[-2:])]
            return np.full(shape, np.nan, np.float32), np.array(info, np.int32).reshape(shape[:-2])

    result: tuple[Any, Any] = run(Operation(name, arrays, shape, record, on_cpu, over=over, out=out,
                                            precision=precision, stream=stream,
                                            also={"info": (shape[:-2], "int32")}))
    return result


class Slogdet(NamedTuple):
    """A determinant is ``sign * exp(logabsdet)``."""

    sign: Any
    logabsdet: Any


def slogdet(a: Any, *, precision: str = "ieee", stream: Any = None) -> Slogdet:
    """The signs of determinants, and the logarithms of their absolute values, of the batch's shape; waits for nothing.
    Of a singular matrix the sign is 0 and the logarithm minus infinity.

    Args, raises:
        As `inv`.
    """
    both = _determinant(a, False, precision, stream)
    return Slogdet(both[..., 0, 0], both[..., 0, 1])


def det(a: Any, *, precision: str = "ieee", stream: Any = None) -> Any:
    """Determinants, of the batch's shape; waits for nothing. Those that float32 does not hold are infinite or 0.

    Args, raises:
        As `inv`.
    """
    return _determinant(a, True, precision, stream)[..., 0, 0]


def _determinant(a: Any, whole: bool, precision: str, stream: Any) -> Any:
    """Sign and logarithm, or the ``whole`` determinant, in one row."""
    shape = shape_of("det" if whole else "slogdet", "a", a, square=True)

    def record(program: Program, m: dict[str, Matrix]) -> None:
        matrix = program.allocate(*m["a"].shape)
        count, n, _ = matrix.shape
        pivots = program.allocate(count, 1, n)
        copy_rows(program, m["a"], matrix)
        factor(program, matrix, pivots, m["info"])
        launch = leaves.determinant(program.arch, n, matrix.layout, count, whole=whole)
        program.kernel(launch, a=matrix, b=pivots, c=m["out"])

    def on_cpu(a: Any, out: Any) -> Any:
        both = np.linalg.det(np.float64(a))[..., None] if whole else np.stack(np.linalg.slogdet(np.float64(a)), -1)
        return both[..., None, :], np.zeros(shape[:-2], np.int32)

    return run(Operation("det" if whole else "slogdet", {"a": a}, (*shape[:-2], 1, 2 - whole), record, on_cpu,
                         also={"info": (shape[:-2], "int32")}, precision=precision, stream=stream))[0]


def check_pivots(info: Any) -> None:
    """Wait for the ``info`` of `lu_factor_ex`, `solve_ex` or `inv_ex`.

    Raises:
        SingularMatrix: it is not 0 everywhere.
    """
    if bad := first_nonzero(info):
        which, pivot = bad
        raise SingularMatrix(f"{which} is singular: its pivot {pivot} is 0; solve a least squares problem (lstsq), or "
                             "use the functions that return info")


def _factor_on_cpu(matrix: Any) -> tuple[Any, Any, int]:
    """L and U, LAPACK's pivots and info, column by column: NumPy has no LU."""
    a, info = np.array(matrix, np.float32), 0
    pivots = np.zeros(min(a.shape), np.int32)
    for i in range(len(pivots)):
        pivot = i + int(np.argmax(abs(a[i:, i])))
        pivots[i] = pivot + 1
        a[[i, pivot]] = a[[pivot, i]]
        if a[i, i] != 0:
            a[i + 1:, i] /= a[i, i]
        elif not info:
            info = i + 1
        a[i + 1:, i + 1:] -= a[i + 1:, i, None] * a[i, i + 1:]
    return a, pivots, info


def _rows(pivots: Any) -> Any:
    """Which row comes where, for NumPy."""
    order = np.broadcast_to(np.arange(pivots.shape[-1]), pivots.shape).copy()
    flat, swaps = order.reshape(-1, order.shape[-1]), pivots.reshape(-1, order.shape[-1])
    for rows, each in zip(flat, swaps, strict=True):
        for i, pivot in enumerate(each):
            rows[[i, pivot - 1]] = rows[[pivot - 1, i]]
    return order


def _permutation(program: Program, pivots: Matrix, rows: int) -> Matrix:
    """Which of so many rows comes where, an int32 each."""
    order = program.allocate(pivots.shape[0], 1, rows)
    program.kernel(leaves.permutation(program.arch, rows, pivots.columns, pivots.layout, pivots.shape[0]), a=pivots,
                   c=order)
    return order


def _solve(program: Program, factors: Matrix, order: Matrix, right: Matrix | None, out: Matrix, turned: bool = False
           ) -> None:
    """``out := a^-1 right``, or where it is ``turned`` with a^T, given L and U of ``a`` and the order of its rows; of
    no ``right``, the inverse."""
    between = out if right is None or right.buffer != out.buffer else program.allocate(*out.shape)
    lower, upper, width = factors, factors.mT, width_for(out.columns)
    inverses = [invert_blocks(program, x, width, unit=x is lower, stable=True) for x in (lower, upper)]
    if turned:
        assert right is not None
        solve_blocks(program, upper, inverses[1], right, between)
        solve_blocks(program, lower, inverses[0], between, between, transposed=True)
        if between is out:  # rows are not exchanged in place
            between = program.allocate(*out.shape)
            copy_rows(program, out, between)
        copy_rows(program, between, out, order, inverse=True)
    else:
        copy_rows(program, right, between, order)
        solve_blocks(program, lower, inverses[0], between, between)
        solve_blocks(program, upper, inverses[1], between, out, transposed=True)


def copy_rows(program: Program, source: Matrix | None, target: Matrix, order: Matrix | None = None, *,
              inverse: bool = False) -> None:
    """``target :=`` the rows of ``source``, or of the identity, in that order or in its inverse."""
    if 0 in target.shape or (order is None and source == target):
        return
    launch = leaves.permute(program.arch, target.rows, target.columns, None if source is None else source.layout,
                            target.layout, target.shape[0], moves=order is not None, inverse=inverse)
    program.kernel(launch, a=source, b=order, c=target)


def factor(program: Program, matrix: Matrix, pivots: Matrix, info: Matrix) -> None:
    """L and U of ``matrix`` in its place, by recursion on the columns: the left half of them is factored, then the
    right half solved, its products subtracted from the rows below, and what is left of it factored.

    `BLOCK` columns are factored by panels, with their products; then rows are exchanged in all other columns.
    """
    count, rows, columns = matrix.shape
    order = min(rows, columns)
    moves = program.allocate(count, 1, 2 * (order + BLOCK))  # of each panel's columns two, all of its columns counted
    subtract = partial(program.product, alpha=-1.0, beta=1.0, sparse=True)

    def solve(first: int, size: int, column: int, width: int) -> None:
        """Of columns right of it, what the rows of a square on the diagonal become."""
        for row in range(first, first + size, BLOCK):
            square, done = min(BLOCK, first + size - row), row - first
            target = matrix.block(row, column, square, width)
            if done:
                above = matrix.block(first, column, done, width)
                subtract(target, matrix.block(row, first, square, done), above, target)
            launch = leaves.substitute(program.arch, square, width, matrix.layout, matrix.layout, matrix.layout, count,
                                       unit=True)
            program.kernel(launch, a=matrix.diagonal(row, square), b=target, c=target)

    def update(first: int, size: int, end: int) -> None:
        """`solve` for the columns up to ``end``, and what is left of the rows below."""
        middle = first + size
        solve(first, size, middle, end - middle)
        rest = matrix.block(middle, middle, rows - middle, end - middle)
        left, above = matrix.block(middle, first, rows - middle, size), matrix.block(first, middle, size, end - middle)
        subtract(rest, left, above, rest)

    def exchange(first: int, panel: int, column: int, width: int, skip: int, pivots: int) -> None:
        """In ``width`` columns from ``column`` on, but for the pivots' own, ``skip`` from there."""
        if width > pivots:
            launch = leaves.exchange(program.arch, width, panel, matrix.layout, moves.strides[0], count, pivots=pivots,
                                     skip=skip, skipped=pivots)
            program.kernel(launch, c=matrix.block(first, column, rows - first, width),
                           workspace=moves.block(0, 2 * first, 1, 2 * panel))

    def block(first: int, width: int) -> None:
        panel, end = leaves.panel_width(rows - first), first + width
        for column in range(first, end, panel):
            size = min(panel, end - column)
            launch = leaves.lu_panel(program.arch, rows - column, size, panel, matrix.layout, pivots.strides[0],
                                     moves.strides[0], count, first=column)
            program.kernel(launch, b=pivots.block(0, column, 1, size), c0=info,
                           c=matrix.block(column, column, rows - column, size),
                           workspace=moves.block(0, 2 * column, 1, 2 * panel))
            exchange(column, panel, first, width, column - first, size)
            if column + size < end:
                update(column, size, end)
        exchange(first, panel, 0, columns, first, width)

    def halves(first: int, width: int) -> None:
        if width <= BLOCK:
            return block(first, width)
        half = largest_half(width)
        halves(first, half)
        update(first, half, first + width)
        halves(first + half, width - half)

    halves(0, order)
    if columns > order:
        solve(0, order, order, columns - order)
