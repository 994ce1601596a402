"""The calls of `peakgemm.linalg` on the CPU: results, what they refuse, and what they say of it."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import linalg_case
import peakgemm
from linalg_case import Case, definite, drawn, half, laid_out, normal, triangular
from peakgemm import linalg
from peakgemm.errors import InvalidType, InvalidValue, PeakgemmError
from peakgemm.runtime import device

TABLES = (linalg_case.products, linalg_case.complexes, linalg_case.triangles, linalg_case.definites,
          linalg_case.generals, linalg_case.orthogonals)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find", lambda: None)


@pytest.mark.parametrize("case", [case for table in TABLES for case in (
    *laid_out(table(37, 20)), *list(laid_out(table(7, 5, (2, 1), (3,))))[::3], *list(table(1, 1))[::5])], ids=str)
def test_calls(case: Case) -> None:
    before = [x.copy() for x in case.operands]
    case.check(case.run())
    assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip(before, case.operands, strict=True))


def test_many_calls_at_once() -> None:
    cases = [case for table in TABLES for case in table(20, 5)]
    with ThreadPoolExecutor(4) as pool:
        for case, result in zip(cases, pool.map(Case.run, cases), strict=True):
            case.check(result)


@pytest.mark.parametrize("lower", [True, False])
def test_out(lower: bool) -> None:
    """The other triangle stays, and what it holds in the wanted one is not read; some operands may be overwritten."""
    a, old = normal(30, 9), normal(30, 30)
    want = half(np.float64(a) @ a.T, lower)
    out = half(old, not lower, unit=True, others=np.float32(np.nan))
    assert linalg.syrk(a, lower=lower, out=out) is out
    assert abs(half(out, lower) - want).max() < 1e-5 and (half(out - old, not lower, unit=True) == 0).all()
    for case in linalg_case.triangles(30, 9):
        if case.function == "trsm":
            right = np.asfortranarray(case.operands[1])
            assert linalg.trsm(case.operands[0], right, out=right, **case.options) is right
            case.check(right)
    s = definite(2, 30, 30)
    out = s.copy()
    factor, info = linalg.cholesky_ex(out, upper=not lower, out=out)
    assert factor is out and np.array_equal(out, linalg.cholesky(s, upper=not lower)) and info.tolist() == [0, 0]
    b = normal(30, 1)
    column = b[:, 0].copy()
    assert linalg.solve(s[0], column, out=column) is column
    assert np.array_equal(column, linalg.solve(s[0], b)[:, 0]) and linalg.solve(s[0], b[:, 0]).shape == (30,)


@pytest.mark.parametrize("lower", [True, False])
def test_out_of_complex_numbers(lower: bool) -> None:
    """The other triangle stays; a real `herk` is `syrk`."""
    a, old = drawn(2, 30, 9), drawn(2, 30, 30, seed=1)
    out = np.repeat(old, 2, -1)[..., ::2]
    assert linalg.herk(a, old, beta=2.0, lower=lower, out=out) is out and out.dtype == np.complex64
    fresh = linalg.herk(a, old, beta=2.0, lower=lower)
    assert np.array_equal(out, half(fresh, lower, others=old)) and np.array_equal(fresh, half(fresh, lower))
    assert np.array_equal(linalg.herk(a.real, lower=lower), linalg.syrk(a.real, lower=lower))
    assert np.array_equal(half(linalg.gram(a), True), linalg.herk(a))


@pytest.mark.parametrize(("call", "shape"), linalg_case.EMPTY)
def test_sizes_of_zero(call: Callable[..., Any], shape: tuple[int, ...]) -> None:
    result = call(np.zeros)
    assert result.shape == shape


def test_sums_of_nothing() -> None:
    old = normal(5, 5)
    assert (linalg.syrk(normal(5, 0), old, beta=2.0) == np.tril(2 * old)).all()
    assert not linalg.gram(normal(0, 3), trans=True).any()


def test_scales_of_zero() -> None:
    """As in BLAS what a zero would multiply is not read."""
    nothing, b = np.full((4, 4), np.nan, np.float32), normal(4, 4)
    assert not linalg.syrk(nothing, alpha=0).any() and not linalg.trmm(nothing, b, alpha=0).any()
    assert not linalg.symm(nothing, b, alpha=0).any()
    assert not linalg.herk(nothing + 1j, alpha=0).any() and not linalg.syrk(nothing + 1j, alpha=0).any()
    assert np.isfinite(linalg.herk(b + 1j, nothing, beta=0)).all()
    assert np.isfinite(linalg.syrk(b, nothing, beta=0)).all() and np.isfinite(linalg.symm(b, b, nothing, beta=0)).all()


@pytest.mark.parametrize(("row", "value", "order"), [
    (40, -1.0, 41), (3, np.nan, 4), (69, 0.0, 70), (0, 0.0, 1), (0, -np.inf, 1)])
def test_what_is_not_positive_definite(row: int, value: float, order: int) -> None:
    """Info is the order of the first leading minor that is not, as LAPACK's; of a batch for each matrix."""
    batch = definite(2, 2, 70, 70)
    batch[1, 0, row, row] = value
    info = linalg.cholesky_ex(batch)[1]
    assert info.dtype == np.int32 and info.tolist() == [[0, 0], [order, 0]]
    with pytest.raises(linalg.NotPositiveDefinite,
                       match=rf"matrix \(1, 0\) of the batch .* order {order} .* add to its diagonal") as caught:
        linalg.cholesky(batch)
    with pytest.raises(np.linalg.LinAlgError, match=rf"the matrix .* order {order} "):
        linalg.solve(batch[1, 0], normal(70), assume_a="pos")
    assert isinstance(caught.value, PeakgemmError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("columns", [1, 30])
def test_singular_matrices(columns: int) -> None:
    """Info is the first pivot that is 0, as LAPACK's; the determinant is 0, and nothing is raised for it."""
    batch = normal(2, 2, 30, 30)
    batch[1, 0, :, columns - 1] = 0
    assert linalg.lu_factor_ex(batch)[2].tolist() == linalg.inv_ex(batch)[1].tolist() == [[0, 0], [columns, 0]]
    x, info = linalg.solve_ex(batch, normal(30, 3))
    assert info.tolist() == [[0, 0], [columns, 0]] and x.shape == (2, 2, 30, 3)
    with pytest.raises(linalg.SingularMatrix,
                       match=rf"matrix \(1, 0\) of the batch is singular: its pivot {columns} is 0"):
        linalg.solve(batch, normal(30, 3))
    with pytest.raises(np.linalg.LinAlgError, match="the matrix is singular"):
        linalg.inv(batch[1, 0])
    assert linalg.det(batch)[1, 0] == 0 and (linalg.det(batch) != 0).sum() == 3
    sign, logarithm = linalg.slogdet(batch)
    assert sign[1, 0] == 0 and logarithm[1, 0] == -np.inf and (abs(sign) == 1).sum() == 3


@pytest.mark.parametrize("lower", [True, False])
def test_singular_triangles(lower: bool) -> None:
    """A zero on the diagonal gives no finite solution and no error, as in BLAS; what is solved before it is right."""
    a, b = half(triangular(6, 6), lower), normal(6, 2)
    a[3, 3] = 0
    x = linalg.trsm(a, b, lower=lower)
    assert np.isfinite(x[:3] if lower else x[4:]).all() and not np.isfinite(x[3]).any()


@pytest.mark.parametrize("shape", [(9, 4), (4, 9), (2, 1, 7, 7)])
def test_qr(shape: tuple[int, ...]) -> None:
    """Named tuples, signs and the rank; by every mode the same R."""
    a = normal(*shape)
    q, r = linalg.qr(a)
    assert (np.diagonal(r, axis1=-2, axis2=-1) >= 0).all()
    complete = linalg.qr(a, mode="complete")
    assert type(complete) is linalg.QR and complete.Q.shape == (*shape[:-1], shape[-2]) and complete.R.shape == shape
    assert np.allclose(complete.R[..., :r.shape[-2], :], r, atol=1e-5) and not complete.R[..., r.shape[-2]:, :].any()
    assert np.allclose(complete.Q[..., :q.shape[-1]], q, atol=1e-5)
    assert np.array_equal(linalg.qr(a, mode="r"), r)
    nothing, alone, rank = linalg.qr_ex(a, mode="r")
    assert nothing is None and np.array_equal(alone, r)
    assert rank.dtype == np.int32 and rank.shape == shape[:-2] and (rank == min(shape[-2:])).all()
    out = np.empty_like(q)
    assert linalg.qr_ex(a, out=out).Q is out and np.array_equal(out, q)


def test_ranks_that_are_said() -> None:
    a = normal(2, 30, 6)
    a[1, :, 4] = a[1, :, 0] - 2 * a[1, :, 3]
    assert linalg.qr_ex(a).rank.tolist() == [6, 5]
    assert linalg.qr_ex(a[0], rcond=1.0).rank == 0 and linalg.qr_ex(0 * a).rank.tolist() == [0, 0]
    b = normal(30, 2)
    assert linalg.lstsq(a[0], b).rank == 6
    with pytest.raises(linalg.RankDeficient,
                       match=r"matrix \(1,\) of the batch has rank 5 of 6: its columns .* lstsq_ex") as caught:
        linalg.lstsq(a, b)
    assert isinstance(caught.value, PeakgemmError) and isinstance(caught.value, np.linalg.LinAlgError)
    with pytest.raises(np.linalg.LinAlgError, match=r"^the matrix has rank 5 of 6: its rows are dependent"):
        linalg.lstsq(np.swapaxes(a, 1, 2)[1], b[:6])
    a[0, 3, 2] = np.nan
    with pytest.raises(linalg.RankDeficient, match="or no numbers"):
        linalg.lstsq(a, b)
    assert linalg.lstsq_ex(a, b).rank.tolist()[1] == 5 and np.isnan(linalg.qr(a[0]).R).any()


def test_residuals() -> None:
    """Sums of squares where there are more rows than columns; a vector on the right gives one."""
    a, b = normal(3, 12, 5), normal(12, 2)
    solution, residuals, rank = linalg.lstsq(a, b)
    assert residuals.shape == (3, 2) and rank.tolist() == [5, 5, 5]
    assert np.allclose(residuals, ((a @ solution - b) ** 2).sum(1), rtol=1e-4)
    one = linalg.lstsq(a[0], b[:, 0])
    assert one.solution.shape == (5,) and np.allclose(one.solution, solution[0, :, 0], atol=1e-6)
    assert one.residuals.shape == (1,) and linalg.lstsq(a[0, :5], b[:5]).residuals.shape == (0,)
    out = np.empty((5, 2), np.float32)
    assert linalg.lstsq_ex(a[0], b, out=out).solution is out and np.array_equal(out, solution[0])


A, B, S = normal(4, 3), normal(4, 3, seed=1), definite(4, 4)
P = np.arange(1, 5, dtype=np.int32)
Z = drawn(4, 3)
REFUSED: dict[str, tuple[Callable[[], Any], type, str]] = {
    # Shapes.
    "no matrix": (lambda: linalg.syrk(A[0]), InvalidValue, r"a has shape \(3,\).*add a dimension"),
    "not square": (lambda: linalg.cholesky(A), InvalidValue, r"a has shape \(4, 3\).*square"),
    "not square, trsm": (lambda: linalg.trsm(A, B), InvalidValue, r"a has shape \(4, 3\); trsm takes square"),
    "not square, factor": (lambda: linalg.cholesky_solve(B, A), InvalidValue, r"factor has shape \(4, 3\).*square"),
    "not square, inverse": (lambda: linalg.cholesky_inverse(A), InvalidValue, r"factor has shape \(4, 3\).*square"),
    "rows": (lambda: linalg.trsm(S, normal(3, 4)), InvalidValue, r"b has shape \(3, 4\), and its rows must be the 4 "),
    "columns": (lambda: linalg.trmm(S, B, left=False), InvalidValue, r"b has shape \(4, 3\), and its columns .* 4 "),
    "rows, symm": (lambda: linalg.symm(S, B.T), InvalidValue, "its rows must be the 4 "),
    "rows, factor": (lambda: linalg.cholesky_solve(B.T, S), InvalidValue, "its rows must be the 4 rows of factor"),
    "rows, solve": (lambda: linalg.solve(S, A[0]), InvalidValue, r"solve: b has shape \(3, 1\).* 4 rows of a"),
    "unlike a": (lambda: linalg.syr2k(A, B.T), InvalidValue, r"a has shape \(4, 3\) and b \(3, 4\); they must be eq"),
    "c": (lambda: linalg.syrk(A, A), InvalidValue, r"c has shape \(4, 3\), the result has \(4, 4\); pass"),
    "c, symm": (lambda: linalg.symm(S, B, S), InvalidValue, r"c has shape \(4, 4\), the result has \(4, 3\); pass"),
    "batches": (lambda: linalg.trsm(definite(2, 4, 4), normal(3, 4, 1)), InvalidValue,
                r"batches \(2,\) of a, \(3,\) of b do not broadcast; their dimensions must be equal or 1"),
    "no matrix, qr": (lambda: linalg.qr(A[0]), InvalidValue, r"a has shape \(3,\).*add a dimension"),
    "rows, lstsq": (lambda: linalg.lstsq(A, S[:3]), InvalidValue, r"b has shape \(3, 4\), and its rows must be the 4 "),
    "vector, lstsq": (lambda: linalg.lstsq(A, A[0]), InvalidValue, r"b has shape \(3,\), and its rows must be the 4 "),
    "batches, lstsq": (lambda: linalg.lstsq(normal(2, 4, 3), normal(3, 4, 1)), InvalidValue, "do not broadcast"),
    # Complex numbers.
    "herk, T": (lambda: linalg.herk(Z, trans="T"), InvalidValue, "trans = 'T' of complex64; pass trans=True .* syrk"),
    "syrk, C": (lambda: linalg.syrk(Z, trans="c"), InvalidValue, "trans = 'c' of complex64; pass trans=True .* herk"),
    "gram, T": (lambda: linalg.gram(Z, trans="T"), InvalidValue, "gram: trans = 'T' .* call syrk"),
    "herk, alpha": (lambda: linalg.herk(Z, alpha=1j), InvalidType, r"alpha is a complex; pass a real number"),
    "herk, beta": (lambda: linalg.herk(Z, beta=1.0), InvalidValue, "beta = 1.0 without c; pass c"),
    "syrk, beta": (lambda: linalg.syrk(Z, beta=1j), InvalidValue, "beta = 1j without c; pass c"),
    "large imaginary part": (lambda: linalg.syrk(Z, alpha=1e300j), InvalidValue, "alpha is 1e.300, beyond"),
    "a real c": (lambda: linalg.herk(Z, S), InvalidType, r"c is float32, and a is complex; .* convert it"),
    "a real out": (lambda: linalg.gram(Z, out=S.copy()), InvalidType, "out is float32.*make one of that shape"),
    "a complex c": (lambda: linalg.syrk(A, S + 0j), InvalidType, "c is complex64.*convert the others"),
    "complex128": (lambda: linalg.herk(np.complex128(Z)), InvalidType, r"a is complex128;.*a.astype\('complex64'\)"),
    "syr2k": (lambda: linalg.syr2k(Z, Z), InvalidType, "a is complex64; .* linalg's syrk, herk and gram"),
    "herk, c": (lambda: linalg.herk(Z, Z), InvalidValue, r"c has shape \(4, 3\), the result has \(4, 4\); pass"),
    "herk, out": (lambda: linalg.herk(Z, out=Z.copy()), InvalidValue, r"out has shape \(4, 3\), .* herk has \(4, 4\)"),
    "gram, out": (lambda: linalg.gram((z := drawn(4, 4)), out=z.T), InvalidValue, "out overlaps a in memory"),
    "herk, vector": (lambda: linalg.herk(Z[0]), InvalidValue, r"a has shape \(3,\).*add a dimension"),
    "herk, reproducible": (lambda: linalg.herk(Z, precision="reproducible"), InvalidValue, "herk does not keep"),
    "real 3m": (lambda: linalg.herk(A, precision="emulated-3m"), InvalidValue, "'emulated-3m' is unknown"),
    # Flags and numbers.
    "mode": (lambda: linalg.qr(A, mode="full"), InvalidValue, "mode = 'full'; pass mode='reduced', 'complete' or 'r'"),
    "rcond": (lambda: linalg.lstsq(A, B, rcond=-1.0), InvalidValue, r"rcond = -1.0; pass a number"),
    "rcond, text": (lambda: linalg.qr_ex(A, rcond="warn"), InvalidValue, "rcond = 'warn'; pass a number"),
    "lower": (lambda: linalg.syrk(A, lower="L"), InvalidValue, r"lower = 'L' is no bool; pass lower=True"),
    "unit": (lambda: linalg.trmm(S, B, unit=2), InvalidValue, "unit = 2 is no bool; pass unit=True"),
    "left": (lambda: linalg.symm(S, B, left=None), InvalidValue, "left = None is no bool"),
    "upper": (lambda: linalg.cholesky(S, upper="U"), InvalidValue, "upper = 'U' is no bool"),
    "upper, solve": (lambda: linalg.solve_triangular(S, B, upper=-1), InvalidValue, "upper = -1 is no bool"),
    "flags": (lambda: linalg.syrk(A, lower=np.ones(2, bool)), InvalidValue, "is no bool; pass lower=True"),
    "trans": (lambda: linalg.trsm(S, B, trans="X"), InvalidValue, "trans = 'X' is neither"),
    "alpha": (lambda: linalg.trsm(S, B, alpha=np.ones(1)), InvalidType, r"alpha is a ndarray; .*float\(alpha\)"),
    "complex alpha": (lambda: linalg.syrk(A, alpha=1j), InvalidType, "alpha is a complex"),
    "large alpha": (lambda: linalg.trmm(S, B, alpha=1e300), InvalidValue, "beyond the largest float32"),
    "beta alone": (lambda: linalg.symm(S, B, beta=1.0), InvalidValue, "beta = 1.0 without c; pass c"),
    "precision": (lambda: linalg.gram(A, precision="fp8"), InvalidValue, "precision = 'fp8' is unknown; valid ones"),
    "reproducible": (lambda: linalg.cholesky(S, precision="reproducible"), InvalidValue,
                     "cholesky does not keep.*precision='ieee'"),
    "assume_a": (lambda: linalg.solve(S, B, assume_a="sym"), InvalidValue, "assume_a = 'sym'.*'gen' or 'pos'"),
    "not square, inv": (lambda: linalg.inv(A), InvalidValue, r"a has shape \(4, 3\).*square"),
    "not square, det": (lambda: linalg.slogdet(A), InvalidValue, r"slogdet takes square"),
    "not square, lu": (lambda: linalg.lu_solve(A, P, B), InvalidValue, r"factor has shape \(4, 3\).*square"),
    "pivots": (lambda: linalg.lu_solve(S, P[:3], B), InvalidValue, r"pivots have shape \(3,\), and the factor 4 rows"),
    "no pivots": (lambda: linalg.lu_solve(S, None, B), InvalidValue, r"pivots have shape \(\), and the factor 4 rows"),
    "pivots of no row": (lambda: linalg.lu_solve(S, P - 1, B), InvalidValue, "pivots hold 0 to 3, .* 1 to 4; pass"),
    "floats": (lambda: linalg.lu_solve(S, np.float32(P), B), InvalidType, "pivots is float32; it is int32"),
    "no trans": (lambda: linalg.lu_solve(S, P, B, trans="T"), InvalidValue, "trans = 'T' is no bool"),
    "stream": (lambda: linalg.cholesky(S, stream=0), InvalidValue, "leave stream out"),
    # Arrays.
    "a list": (lambda: linalg.syrk([[1.0]]), InvalidType, "a is a list; syrk takes torch, CuPy, JAX or NumPy arrays"),
    "prepared": (lambda: linalg.trsm(S, peakgemm.prepare(S)), InvalidType, "b is a Prepared"),
    "none": (lambda: linalg.trsm(S, None), InvalidType, "b is a NoneType"),
    "float64": (lambda: linalg.cholesky(np.float64(S)), InvalidType, r"a is float64.*a.astype\('float32'\)"),
    "complex64": (lambda: linalg.trsm(S, B * 1j), InvalidType, "b is complex64"),
    "integers": (lambda: linalg.cholesky_solve(np.ones((4, 1), int), S), InvalidType, "b is int64"),
    "masked": (lambda: linalg.gram(np.ma.masked_array(A)), InvalidType, "masked"),
    "a list, qr": (lambda: linalg.qr([[1.0]]), InvalidType, "a is a list; qr takes torch, CuPy, JAX or NumPy arrays"),
    "float64, qr": (lambda: linalg.qr(np.float64(A)), InvalidType, r"a is float64.*a.astype\('float32'\)"),
    "float64, lstsq": (lambda: linalg.lstsq(A, np.float64(B)), InvalidType, "b is float64"),
    # out
    "out of qr is a": (lambda: linalg.qr_ex(A, out=A), InvalidValue, "out overlaps a in memory"),
    "shape of Q": (lambda: linalg.qr_ex(A, mode="complete", out=np.empty((4, 3), "f4")), InvalidValue,
                   r"out has shape \(4, 3\), the result of qr has \(4, 4\)"),
    "out of lstsq is b": (lambda: linalg.lstsq_ex(S, (b := B.copy()), out=b), InvalidValue, "out overlaps b in memory"),
    "shape of out": (lambda: linalg.syrk(A, out=np.empty((3, 3), "f4")), InvalidValue,
                     r"out has shape \(3, 3\), the result of syrk has \(4, 4\); pass"),
    "dtype of out": (lambda: linalg.syrk(A, out=np.empty((4, 4))), InvalidType, "out is float64"),
    "out for reading": (lambda: linalg.cholesky(S, out=_read_only(S)), InvalidValue, "read-only NumPy array; .*leave"),
    "out is a": (lambda: linalg.symm(S, S, out=S), InvalidValue, "out overlaps a in memory.*an out of its own, or c"),
    "out is b": (lambda: linalg.trmm(S, (b := B.copy()), out=b), InvalidValue, "out overlaps b in memory.*of its own$"),
    "out is a part of b": (lambda: linalg.trsm(S, (b := normal(5, 3))[:4], out=b[1:]), InvalidValue,
                           "out overlaps b in memory.*or b itself as out"),
    "out is a's transpose": (lambda: linalg.cholesky(S, out=S.T), InvalidValue, "out overlaps a.*or a itself as out"),
    "out is a factor": (lambda: linalg.cholesky_inverse(S, out=S), InvalidValue, "out overlaps factor"),
    "out lies on itself": (lambda: linalg.cholesky(definite(2, 4, 4), out=np.lib.stride_tricks.as_strided(
        S.copy(), (2, 4, 4), (0, 16, 4))), InvalidValue, "its elements overlap"),
}


def _read_only(x: Any) -> Any:
    x = x.copy()
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    """An error of the package that is Python's, too, and names the value, the limit and the remedy; nothing is written.
    """
    call, kind, message = REFUSED[what]
    before = A.copy(), B.copy(), S.copy()
    with pytest.raises(kind, match=message) as caught:
        call()
    assert isinstance(caught.value, (ValueError, TypeError)) and re.search("; |pass|takes|must", str(caught.value))
    assert all(np.array_equal(x, y) for x, y in zip(before, (A, B, S), strict=True))
