"""QR factorizations and least squares.

Panels of columns are made orthogonal to those before by products (block Gram-Schmidt with reorthogonalisation: Barlow
and Smoktunowicz, "Reorthogonalized block classical Gram-Schmidt", 2013), and among themselves by Cholesky factors of
their Gram matrices, shifted first (Fukaya, Kannan, Nakatsukasa, Yamamoto and Yanagisawa, "Shifted Cholesky QR for
computing the QR factorization of ill-conditioned matrices", 2020). What that asks of the condition is met as follows:

- Columns are scaled by powers of two before each Gram matrix, so that errors are relative to each column.
- A column whose pivot is not far above rounding errors is skipped: what the others leave of it goes to the next round
  as it is, with a norm of its own. Each round finds what lies a factor of some 200 below the last.
- To columns that were skipped random numbers are added, as large as the rounding errors of the columns that they are
  part of. So dependent columns, zeros too, end as directions of their own.

All steps are the same whatever the values: no call waits to know them.
"""

from __future__ import annotations

from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from ..errors import InvalidValue, PeakgemmError
from ..kernels.linalg import qr_steps
from ..kernels.linalg.qr_steps import Mode
from ..problem import Triangle
from .blocked import factor, invert_blocks, subtract_identity
from .blocked import solve as solve_blocks
from .call import Operation, batch_of, run, shape_of
from .positive_definite import first_nonzero
from .program import Matrix, Program
from .symmetric import transposed
from .triangular import substituted, width_for

_UNIT = 2.0**-24
_PANEL = 512           # columns of a panel
_INVERTED = 256        # rows of the diagonal blocks of a panel's factor that are inverted
_SHIFT = 4 * _UNIT     # of a Gram matrix, over the root of its order, beyond its and its factor's rounding errors
_LEAST = 256           # of that order: narrow panels may be as ill-conditioned
_SKIPPED = 4           # shifts; columns of smaller pivots are skipped
_FLOOR = 64 * _UNIT    # of pivots in rounds without a shift
_NOISE = 4 * _UNIT     # norm of the random numbers
_LARGEST = 2.0**100    # power of two that columns are scaled by
_RESCUED = 2.0**9      # the same in the first round: of less than its inverse the panels before leave rounding errors


class QR(NamedTuple):
    """A matrix is ``Q R``, with orthonormal columns of Q and an upper triangular R."""

    Q: Any
    R: Any


class RankedQR(NamedTuple):
    """`QR`, and how many columns are not dependent on those before."""

    Q: Any
    R: Any
    rank: Any


class LeastSquares(NamedTuple):
    """A solution, its sums of squared residuals, and the rank that was seen."""

    solution: Any
    residuals: Any
    rank: Any


class RankDeficient(PeakgemmError, np.linalg.LinAlgError):
    """Columns of a least squares problem are dependent; the message says of which matrix, and the rank."""


def qr(a: Any, *, mode: str = "reduced", precision: str = "ieee", stream: Any = None) -> Any:
    """The QR factorization: ``Q`` with orthonormal columns and an upper triangular ``R`` with ``Q R = a``.

    R's diagonal is not negative. Columns that depend on those before them leave numbers of rounding errors' size there,
    and Q is orthonormal all the same: `qr_ex` tells the rank.

    Args:
        a: float32, ``(..., M, N)``.
        mode: ``"reduced"``: Q is ``(..., M, K)`` and R ``(..., K, N)``, K being the lesser of M and N. ``"complete"``:
            they are ``(..., M, M)`` and ``(..., M, N)``. ``"r"``: R alone, ``(..., K, N)``.
        precision, stream: as for `peakgemm.matmul`.

    Returns:
        A named tuple of Q and R, or R. Matrices with NaN or infinities give NaN.

    Raises:
        InvalidType, InvalidValue, OutOfMemory: as `peakgemm.gemm`; also InvalidValue for another mode.
    """
    q, r, _ = qr_ex(a, mode=mode, precision=precision, stream=stream)
    return r if mode == "r" else QR(q, r)


def qr_ex(a: Any, *, mode: str = "reduced", rcond: float | None = None, out: Any = None, precision: str = "ieee",
          stream: Any = None) -> RankedQR:
    """`qr` that tells the rank too, without waiting for it.

    Args:
        a, mode, precision, stream: as for `qr`.
        rcond: from which share of its column's norm on an element on R's diagonal counts; None: float32's epsilon
            times four roots of the larger size.
        out: written, Q, or by mode ``"r"`` R; it shares no memory with ``a``.

    Returns:
        A named tuple of Q, which is None by mode ``"r"``, R, and the rank of the first K columns, int32 of the batch's
        shape: how many elements on R's diagonal count.
    """
    *batch, rows, columns = shape_of("qr", "a", a)
    least = min(rows, columns)
    if mode not in ("reduced", "complete", "r"):
        raise InvalidValue(f"mode = {mode!r}; pass mode='reduced', 'complete' or 'r'")
    size = rows if mode == "complete" else least
    tolerance, alone = _tolerance(rcond, rows, columns), mode == "r"
    of_q, of_r = (*batch, rows, size), (*batch, size, columns)

    def record(program: Program, m: dict[str, Matrix]) -> None:
        a, out = m["a"], m["out"]
        q, r = (program.allocate(a.shape[0], rows, size), out) if alone else (out, m["r"])
        _record(program, a, q, r, m["rank"], tolerance)

    def on_cpu(a: Any, out: Any) -> Any:
        return _on_cpu(a, mode, tolerance)[1 if alone else 0:]

    rank = {"rank": (tuple(batch), "int32")}
    results = run(Operation("qr", {"a": a}, of_r if alone else of_q, record, on_cpu, (mode, tolerance),
                            also=rank if alone else {"r": (of_r, "float32")} | rank, out=out, precision=precision,
                            stream=stream))
    return RankedQR(None, *results) if alone else RankedQR(*results)


def lstsq(a: Any, b: Any, *, rcond: float | None = None, precision: str = "ieee", stream: Any = None) -> LeastSquares:
    """``x`` for which ``|a x - b|`` is least, of ``a`` of full rank; of several the one of least norm, for fewer rows
    than columns.

    By a QR factorization of ``a``, or of its transpose. Waits for the rank; `lstsq_ex` does not.

    Args:
        a: float32, ``(..., M, N)``.
        b: float32, ``(..., M, K)`` or ``(M,)``.
        rcond: as for `qr_ex`.
        precision, stream: as for `peakgemm.matmul`.

    Returns:
        A named tuple: the solution, ``(..., N, K)`` or ``(N,)``; sums of the squared residuals, ``(..., K)``, or of no
        elements where M is not greater than N; the rank, int32 of the batch's shape.

    Raises:
        RankDeficient: the rank is less than M and N, as that of matrices with NaN is.
        InvalidType, InvalidValue, OutOfMemory: as `peakgemm.gemm`; also InvalidValue for a ``b`` of other rows.
    """
    result = lstsq_ex(a, b, rcond=rcond, precision=precision, stream=stream)
    full = min(a.shape[-2:])
    if bad := first_nonzero(full - result.rank):
        which, missing = bad
        lines = "columns" if a.shape[-1] == full else "rows"
        raise RankDeficient(f"{which} has rank {full - missing} of {full}: its {lines} are dependent within rounding "
                            "errors, or no numbers; leave some out, pass a smaller rcond, or use lstsq_ex and read "
                            "rank")
    return result


def lstsq_ex(a: Any, b: Any, *, rcond: float | None = None, out: Any = None, precision: str = "ieee",
             stream: Any = None) -> LeastSquares:
    """`lstsq` that does not wait, and raises nothing for an ``a`` that is not of full rank: its solution is of no use.

    ``out``: the solution is written there, ``(..., N, K)``; it shares no memory with ``a`` or ``b``.
    """
    vector = getattr(b, "ndim", 2) == 1
    right = b[:, None] if vector else b
    rows, columns = shape_of("lstsq", "a", a)[-2:]
    least, sides = min(rows, columns), shape_of("lstsq", "b", right)[-1]
    if right.shape[-2] != rows:
        raise InvalidValue(f"lstsq: b has shape {tuple(b.shape)}, and its rows must be the {rows} of a")
    batch, tolerance = batch_of("lstsq", a=a, b=right), _tolerance(rcond, rows, columns)
    has_residuals = rows > columns > 0
    also = {"rank": (batch, "int32"), "residuals": ((*batch, int(has_residuals), sides), "float32")}

    def record(program: Program, m: dict[str, Matrix]) -> None:
        a, b, x = m["a"], m["b"], m["out"]
        count = b.shape[0]
        tall = a if rows >= columns else a.mT
        q, r = program.allocate(count, tall.rows, least), program.allocate(count, least, least)
        _record(program, tall, q, r, m["rank"], tolerance)
        if least == 0:
            program.product(x, q, r.block(0, 0, 0, sides))
            return
        coefficients, lower = program.allocate(count, least, sides), r.mT
        inverses = invert_blocks(program, lower, width_for(sides), stable=True)
        if rows < columns:
            solve_blocks(program, lower, inverses, b, coefficients)
            program.product(x, q, coefficients)
            return
        program.product(coefficients, q.mT, b)
        solve_blocks(program, lower, inverses, coefficients, x, transposed=True)
        if has_residuals:
            _sums_of_squares(program, a, b, x, m["residuals"])

    def on_cpu(a: Any, b: Any, out: Any) -> Any:
        a, b = (np.float64(np.broadcast_to(x, (*batch, *x.shape[-2:]))) for x in (a, b))
        q, r, rank = _on_cpu(a if rows >= columns else transposed(a), "reduced", tolerance)
        if least == 0:
            x = np.zeros((*batch, columns, sides))
        elif rows < columns:
            x = q @ substituted(transposed(r), b, True)
        else:
            x = substituted(r, transposed(q) @ b, False)
        squares = ((b - a @ x) ** 2).sum(-2, keepdims=True)[..., :int(has_residuals), :]
        return x, rank, np.float32(squares)

    solution, rank, residuals = run(Operation("lstsq", {"a": a, "b": right}, (*batch, columns, sides), record, on_cpu,
                                              (tolerance,), also=also, out=out, precision=precision, stream=stream))
    sums = residuals[..., 0, :] if has_residuals else residuals.reshape((*batch, 0))
    return LeastSquares(solution[..., 0] if vector else solution, sums, rank)


def _tolerance(rcond: float | None, rows: int, columns: int) -> float:
    if rcond is None:
        return 8 * _UNIT * sqrt(max(rows, columns))
    if not isinstance(rcond, (int, float, np.floating)) or not rcond >= 0:
        raise InvalidValue(f"rcond = {rcond!r}; pass a number that is not negative, or None")
    return float(rcond)


def _on_cpu(a: Any, mode: str, tolerance: float) -> tuple[Any, Any, Any]:
    """NumPy's factorization, with the signs of ours, and the rank."""
    q, r = np.linalg.qr(a, "complete" if mode == "complete" else "reduced")
    least = min(a.shape[-2:])
    diagonal = np.diagonal(r, axis1=-2, axis2=-1)
    signs = np.ones(r.shape[:-1], r.dtype)
    signs[..., :least] = np.where(diagonal < 0, -1, 1)
    norms = np.linalg.norm(np.float64(a[..., :least]), axis=-2)
    rank = (abs(diagonal) > tolerance * norms).sum(-1).astype(np.int32)
    return q * signs[..., None, :], r * signs[..., None], np.array(rank, np.int32)


# ---- recorded steps ---------------------------------------------------------------------------------------------


def _record(program: Program, a: Matrix, q: Matrix, r: Matrix, rank: Matrix, tolerance: float) -> None:
    """``q r := a``, and the rank added to ``rank``. Columns of ``q`` behind those of ``a`` are orthonormal to it."""
    count, rows, size = q.shape
    if size == 0:
        return
    given = min(a.columns, size)
    facts = program.allocate(count, 3, size)
    triangle = r.block(0, 0, size, size) if given == size else program.allocate(count, size, size)
    with program.temporary():
        _orthogonalise(program, a, q, triangle, facts)
    source, target = triangle.block(0, 0, size, given).mT, r.block(0, 0, size, given).mT
    program.kernel(qr_steps.scaled_triangle(program.arch, Mode.RESULT, given, size, source.layout, target.layout, count,
                                            threshold=tolerance, line=size), a=source, b=facts, c0=rank, c=target)
    rest = a.columns - given
    program.product(r.block(0, given, size, rest), q.mT, a.block(0, given, rows, rest))


def _orthogonalise(program: Program, a: Matrix, q: Matrix, r: Matrix, facts: Matrix) -> None:
    """``q r :=`` the scaled columns of ``a``, and zeros behind them, as many as ``q`` has; of ``r`` the upper triangle
    is written. ``facts``: of `qr_steps.scale_columns`."""
    count, rows, size = q.shape
    most = min(_PANEL, size)
    spare = program.allocate(count, rows, most)
    for first in range(0, size, most):
        width = min(most, size - first)
        # Where a panel fills nearly all that is left of the space, the rest of dependent columns is nearly dependent,
        # and most of it in the space of the columns before.
        tight = rows - first < 2 * width
        shifted = 3 if tight else 2
        rounds = shifted + 2
        buffers = [q.block(0, first, rows, width), spare.block(0, 0, rows, width)]
        if rounds % 2:
            buffers.reverse()
        done, above = q.block(0, 0, rows, first), r.block(0, first, first, width)
        with program.temporary():
            _scale(program, a, buffers[0], facts, first)
            lowers, totals = ([program.allocate(count, width, width) for _ in range(2)] for _ in range(2))
            total = lowers[0].mT
            for turn in range(rounds):
                panel, out = buffers[turn % 2], buffers[1 - turn % 2]
                with program.temporary():
                    if first and (tight or turn < rounds - 1):
                        share = program.allocate(count, first, width) if turn else above
                        program.product(share, done.mT, panel)
                        if turn:
                            program.product(above, share, total, above, beta=1.0, sparse=True)
                        program.product(panel, done, share, panel, alpha=-1.0, beta=1.0)
                    skipped = program.allocate(count, 1, width)
                    lower = lowers[min(turn, 1)]
                    _round(program, panel, out, lower, skipped, turn < shifted, _LARGEST if turn else _RESCUED)
                    if turn:
                        into = r.diagonal(first, width) if turn == rounds - 1 else totals[turn % 2]
                        program.product(into, lower.mT, total, sparse=True)
                        total = into
                    if turn < shifted:
                        launch = qr_steps.perturb_columns(program.arch, rows, width, total.layout, out.layout, count,
                                                          amount=_NOISE, seed=first + turn * size)
                        program.kernel(launch, a=total, c0=skipped, c=out)


def _scale(program: Program, a: Matrix, panel: Matrix, facts: Matrix, first: int) -> None:
    """``panel`` := the columns of ``a`` from ``first`` on, scaled, and zeros."""
    count, rows, width = panel.shape
    given = min(max(a.columns - first, 0), width)
    source = a.block(0, first if given else 0, rows, given)
    with program.temporary():
        sums = program.allocate(count, qr_steps.strips(rows, width, count), 2 * width)
        for launch in qr_steps.scale_columns(program.arch, rows, given, width, source.layout, panel.layout, count,
                                             line=facts.columns):
            program.kernel(launch, a=source, c0=facts.block(0, first, 3, width), c=panel, workspace=sums)


def _round(program: Program, panel: Matrix, out: Matrix, lower: Matrix, skipped: Matrix, shifted: bool,
           largest: float) -> None:
    """``out lower^T :=`` the panel, whose columns come nearer to orthonormal ones, and which of them were ``skipped``.
    Columns are scaled by ``largest`` at most."""
    count, _, width = panel.shape
    gram, powers = program.allocate(count, width, width), program.allocate(count, 1, width)
    shift = _SHIFT * sqrt(max(width, _LEAST)) if shifted else 0.0

    def scaled(mode: Mode, source: Matrix, target: Matrix) -> None:
        launch = qr_steps.scaled_triangle(program.arch, mode, width, width, source.layout, target.layout, count,
                                          shift=shift, threshold=largest)
        program.kernel(launch, a=source, c0=skipped, c=target, workspace=powers)

    program.product(gram, panel.mT, panel, triangle=Triangle.LOWER)
    scaled(Mode.GRAM, gram, lower)
    factor(program, lower, gram, None, floor=_SKIPPED * shift if shifted else _FLOOR)
    scaled(Mode.FACTOR, gram, lower)
    inverses = invert_blocks(program, lower, _INVERTED, stable=True)
    if program.precision != "ieee":
        inverses = subtract_identity(program, lower, inverses)
    solve_blocks(program, lower, inverses, panel.mT, out.mT)


def _sums_of_squares(program: Program, a: Matrix, b: Matrix, x: Matrix, sums: Matrix) -> None:
    """Of the columns of ``b - a x``."""
    count, rows, columns = b.shape
    rest, facts = program.allocate(count, rows, columns), program.allocate(count, 3, columns)
    program.product(rest, a, x, b, alpha=-1.0, beta=1.0)
    _scale(program, rest, rest, facts, 0)
    nothing = x.block(0, 0, 1, 0)
    program.product(sums, nothing, nothing.block(0, 0, 0, columns), facts.block(2, 0, 1, columns), beta=1.0)  # a copy
