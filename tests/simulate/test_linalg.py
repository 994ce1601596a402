"""Programs of linear algebra through the door of `peakgemm.linalg`: products by NumPy, small kernels on the simulator.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import linalg_case
from linalg_case import LAYOUTS, NAN, Case, Interpreter, definite, drawn, half, interpret, laid_out, mT, normal
from peakgemm import linalg
from peakgemm.arrays.base import View
from peakgemm.kernels.linalg import leaves
from peakgemm.linalg import blocked, general, orthogonal, positive_definite, triangular
from peakgemm.linalg.program import Program, external
from peakgemm.problem import Triangle

SMALL = [*laid_out(linalg_case.products(33, 20)), *laid_out(linalg_case.complexes(45, 20)),
         *list(laid_out(linalg_case.triangles(37, 5)))[::2],
         *laid_out(linalg_case.definites(37, 5)), *laid_out(linalg_case.generals(37, 5)),
         *list(laid_out(linalg_case.orthogonals(37, 5)))[::3]]
BATCHED = [case for cases in (linalg_case.products, linalg_case.complexes, linalg_case.triangles, linalg_case.definites,
                              linalg_case.generals, linalg_case.orthogonals)
           for case in [*list(laid_out(cases(7, 5, (2, 1), (3,))))[::4], *list(cases(7, 5, (1,), (3,)))[1::7]]]


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> Interpreter:
    return Interpreter(monkeypatch)


@pytest.mark.parametrize("case", SMALL + BATCHED, ids=str)
def test_calls(interpreter: Interpreter, case: Case) -> None:
    before = [x.copy() for x in case.operands]
    case.check(case.run())
    assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip(before, case.operands, strict=True))


@pytest.mark.parametrize("case", [
    *list(linalg_case.products(410, 9))[::7], *list(linalg_case.triangles(410, 9))[::5],
    *list(linalg_case.definites(410, 9))[::3], next(iter(linalg_case.generals(140, 9)))], ids=str)
def test_several_blocks(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    """A block of 256 rows and one of 154: inverses of both are grown."""
    monkeypatch.setattr(triangular, "width_for", lambda columns: 256)
    monkeypatch.setattr(positive_definite, "width_for", lambda columns: 256)
    monkeypatch.setattr(general, "width_for", lambda columns: 256)
    monkeypatch.setattr("peakgemm.linalg.symmetric._BLOCK", 128)
    case.check(case.run())


@pytest.mark.parametrize(("trans", "unit", "in_place"), [
    (False, False, True), (True, True, False), (True, False, True)])
def test_blocks_whose_inverses_grow(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch, trans: bool, unit: bool,
                                    in_place: bool) -> None:
    """They alone are solved by substitution: of one matrix of the batch the second block."""
    monkeypatch.setattr(triangular, "width_for", lambda columns: 128)
    n = 180
    a = half(linalg_case.triangular(2, n, n), True, unit, others=unit * np.eye(n, dtype=np.float32))
    a[1, 128:, 128:] = np.tril(normal(n - 128, n - 128), -1) + np.eye(n - 128)
    exact = np.float64(mT(a) if trans else a)
    b = (exact @ normal(2, n, 3)).astype(np.float32)
    errors = []
    for stable in (True, False):
        right = b.copy()
        x = linalg.trsm(a, right, alpha=2.0, trans=trans, unit=unit, stable=stable, out=right if in_place else None)
        error = abs(exact @ np.float64(x) - 2.0 * b).max((-1, -2)) / (abs(exact) @ abs(x)).max((-1, -2))
        errors.append((error, x))
    assert (errors[0][0] < n * 2.0**-24).all() and errors[1][0][1] > 10 * n * 2.0**-24
    assert np.array_equal(errors[0][1][0], errors[1][1][0]) and errors[1][0][0] < n * 2.0**-24


def test_a_factor_by_blocks_whose_inverses_grow(interpreter: Interpreter) -> None:
    """Kahan's matrix, whose inverse grows by 10^8 in 200 rows: by inverses the residual is a hundred times as large."""
    n = 200
    cosine = np.log(1e8) / n
    triangle = (np.eye(n) - cosine * np.tri(n, k=-1)) * (1 - cosine**2) ** (np.arange(n) / 2)
    a = (triangle @ triangle.T).astype(np.float32)
    scale = np.sqrt(np.outer(a.diagonal(), a.diagonal()))
    factor, info = linalg.cholesky_ex(a, stable=True)
    assert info == 0 and (abs(np.float64(factor) @ factor.T - a) / scale).max() < 8 * 2.0**-23


@pytest.mark.parametrize(("square", "upper", "in_place"), [(1024, False, True), (128, True, True), (128, False, False)])
def test_columns_of_the_factor(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch, square: int, upper: bool,
                               in_place: bool) -> None:
    """Recursion over 128, 256 and more columns; info is of those matrices of the batch that have no factor."""
    monkeypatch.setattr("peakgemm.linalg.blocked._SQUARE", square)
    n = 300
    a = definite(3, n, n)
    a[1, 270, 270] = -1
    a[2, 3, 3] = np.nan
    given = a.copy()
    factor, info = linalg.cholesky_ex(given, upper=upper, out=given if in_place else None)
    assert info.tolist() == [0, 271, 4] and info.dtype == np.int32 and (factor is given) == in_place
    lower = np.float64(mT(factor[0]) if upper else factor[0])
    assert not np.triu(lower, 1).any() and abs(lower @ lower.T - a[0]).max() < 1e-5


def hostile(m: int, n: int) -> dict[str, Any]:
    """Matrices that Cholesky factors of Gram matrices alone cannot make orthonormal, in FP64."""
    def randn(*shape: int) -> Any:
        return np.float64(normal(*shape))

    def conditioned(condition: float) -> Any:
        left, right = np.linalg.qr(randn(m, n))[0], np.linalg.qr(randn(n, n + 1)[:, 1:])[0]
        return left * np.logspace(0, -np.log10(condition), n) @ right

    half, zeros = randn(m, n // 2), randn(m, n)
    zeros[:, 1::3] = 0
    return {"graded": randn(m, n) * np.logspace(0, -8, n), "condition 1e3": conditioned(1e3),
            "condition 1e8": conditioned(1e8), "duplicates": np.repeat(half, 2, 1),
            "half": half @ randn(n // 2, n), "zero columns": zeros, "zero": 0 * zeros, "ones": zeros * 0 + 1,
            "rows": zeros * 2.0 ** (40 * np.sign(randn(m, 1))), "tiny": 1e-30 * randn(m, n), "huge": 1e30 * randn(m, n),
            "small": 1e-15 * zeros, "Hilbert": 1 / (np.arange(m)[:, None] + np.arange(n) + 1)}


@pytest.mark.parametrize(("m", "n", "panel", "precision"), [(90, 60, 512, "ieee"), (70, 70, 32, "emulated")])
@pytest.mark.parametrize("family", hostile(2, 2))
def test_hostile_columns(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch, family: str, m: int, n: int,
                         panel: int, precision: str) -> None:
    """Errors of columns are at most three roundings for each root of a column; Q is as orthonormal as that of well-
    conditioned matrices, and the rank is at most that of singular values beyond rounding errors."""
    monkeypatch.setattr(orthogonal, "_PANEL", panel)
    a = hostile(m, n)[family].astype(np.float32)
    q, r, rank = (np.float64(x) for x in linalg.qr_ex(a, precision=precision))
    norms = np.linalg.norm(np.float64(a), axis=0)
    scaled = np.float64(a) / np.where(norms > 0, norms, 1)
    unit = 2.0**-24
    assert (np.linalg.norm(q @ r - a, axis=0) <= 3 * unit * np.sqrt(n) * norms).all()
    assert abs(q.T @ q - np.eye(n)).max() <= 10 * unit and np.linalg.norm(q.T @ q - np.eye(n)) <= n * unit
    singular = np.linalg.svd(scaled, compute_uv=False)
    assert (singular > 1e-2).sum() <= rank <= (singular > 2 * unit).sum()
    assert not np.tril(r, -1).any() and (np.diagonal(r) >= 0).all()


def test_columns_that_are_skipped() -> None:
    """A factor of several blocks whose inverses grow is that of the columns kept; of the others no more than the floor
    is left."""
    n, unit = 200, 2.0**-24
    steps = np.linspace(0, 1, 1100)[:, None] ** np.arange(n)
    shift = 64 * unit
    steps /= np.linalg.norm(steps, axis=0)
    gram = (steps.T @ steps + shift * np.eye(n)).astype(np.float32)
    program, whole = Program("ieee", "sm_90"), View(0, (1, n, n), (n * n, n, 1))
    blocked.factor(program, external(1, whole), external(2, whole), None, floor=4 * shift)
    factor = np.zeros((n, n), np.float32)
    interpret(program, [gram.copy().reshape(-1), factor.reshape(-1)])
    factor = np.float64(factor)
    skipped = np.diagonal(factor) < 0
    factor[skipped, skipped] = 0
    rest = np.tril(gram - factor @ factor.T)
    assert 100 < skipped.sum() < n and not factor[:, skipped].any()
    assert abs(rest[:, ~skipped]).max() < 8 * unit
    assert (abs(rest[skipped, skipped]) < 4.1 * shift).all()


def test_random_numbers_are_for_skipped_columns_alone(interpreter: Interpreter) -> None:
    """What has an exact factorization gets it, and one matrix of a batch gets nothing of another's."""
    exact = np.zeros((2, 40, 36), np.float32)
    exact[0, :36] = np.eye(36) * np.exp2(np.arange(36))
    exact[1] = normal(40, 36)
    exact[1, :, 7] = exact[1, :, 9] = exact[1, :, 0]
    q, r = linalg.qr(exact)
    assert np.array_equal(q[0], np.eye(40, 36)) and np.array_equal(r[0], exact[0, :36])
    assert np.array_equal(linalg.qr(exact[1]).Q, q[1])


def test_numbers_that_are_none(interpreter: Interpreter) -> None:
    """NaN and infinities give NaN in their column and behind it, and no full rank."""
    a = normal(2, 30, 9)
    a[:, 4, 3] = np.nan, -np.inf
    q, r, rank = linalg.qr_ex(a)
    diagonal = np.diagonal(r, axis1=1, axis2=2)
    assert np.isnan(q[:, :, 3:]).all() and np.isnan(diagonal[:, 3:]).all() and (rank < 9).all()


def test_least_squares(interpreter: Interpreter) -> None:
    """Sums of squares of each column, by columns of any size; ranks that are said, of each matrix of a batch."""
    a = normal(2, 45, 12) * np.logspace(20, -20, 12).astype(np.float32)
    a[1, :, 7] = a[1, :, 3]
    b = normal(45, 3)
    solution, residuals, rank = linalg.lstsq_ex(a, b)
    assert rank.tolist() == [12, 11]
    want = np.linalg.lstsq(np.float64(a[0]) * np.logspace(-20, 20, 12), np.float64(b), rcond=None)
    np.testing.assert_allclose(solution[0] / np.logspace(-20, 20, 12)[:, None], want[0], atol=1e-5)
    np.testing.assert_allclose(residuals[0], want[1], rtol=1e-5)
    with pytest.raises(linalg.RankDeficient, match=r"matrix \(1,\) of the batch has rank 11 of 12"):
        linalg.lstsq(a, b)
    nothing = linalg.lstsq(a[0, :0], b[:0])
    assert nothing.solution.shape == (12, 3) and not nothing.solution.any() and nothing.rank == 0


@pytest.mark.parametrize(("layout", "lower"), [
    ("rows", False), ("columns", True), ("padded", True), ("padded", False), ("strided", False)])
def test_out(interpreter: Interpreter, layout: str, lower: bool) -> None:
    """Its other triangle stays, and what lies beside it; it may be the operand that a call overwrites."""
    a, old = normal(2, 40, 9), normal(2, 40, 40, seed=5)
    gram = np.float64(a) @ mT(a)
    out = LAYOUTS[layout](old.copy())
    assert linalg.syrk(a, out=out, lower=lower) is out
    assert abs(half(out - gram, lower)).max() < 1e-5 and (half(out - old, not lower, unit=True) == 0).all()
    out = LAYOUTS[layout](old.copy())
    assert linalg.syrk(a, out, beta=2.0, out=out, lower=lower) is out
    assert abs(half(out - gram - 2.0 * old, lower)).max() < 1e-5 and (half(out - old, not lower, unit=True) == 0).all()
    if layout == "padded":
        assert np.isnan(out.base[..., 40:]).all()
    for case in [case for case in linalg_case.triangles(40, 9) if case.function != "trmm"][::6]:
        right = LAYOUTS[layout](case.operands[1].copy())
        assert case._replace(operands=(case.operands[0], right)).run(out=right) is right
        case.check(right)
    s = definite(40, 40)
    out = LAYOUTS[layout](s.copy())
    assert linalg.cholesky(out, upper=not lower, out=out) is out
    assert np.array_equal(out, linalg.cholesky(s, upper=not lower))


@pytest.mark.parametrize("precision", ["ieee", "emulated-3m"])
@pytest.mark.parametrize(("layout", "lower"), [
    ("rows", True), ("columns", False), ("padded", False), ("strided", True), ("backwards", False)])
def test_out_of_complex_numbers(interpreter: Interpreter, layout: str, lower: bool, precision: str) -> None:
    """Its other triangle stays, what lies beside it, and where no sum is left."""
    a, old = drawn(2, 40, 9), drawn(2, 40, 40, seed=5)
    x = np.complex128(a)
    c = np.where(np.eye(40, dtype=bool), old.real, old)  # as herk reads it
    for function, beta, want in (("herk", 2.0, x @ mT(x).conj() + 2 * c), ("syrk", 1j, x @ mT(x) + 1j * old)):
        out = LAYOUTS[layout](old.copy())
        assert getattr(linalg, function)(a, out, beta=beta, out=out, lower=lower, precision=precision) is out
        assert abs(half(out - want, lower)).max() < 2e-5 and (half(out - old, not lower, unit=True) == 0).all()
        for nothing, zero in ((a[..., :0], 1), (a * NAN, 0)):
            out = LAYOUTS[layout](old.copy())
            getattr(linalg, function)(nothing, out, alpha=zero, beta=beta, out=out, lower=lower, precision=precision)
            kept = beta * (c if function == "herk" else old)
            assert abs(half(out - kept, lower)).max() < 1e-6 and (half(out - old, not lower, unit=True) == 0).all()
    if layout == "padded":
        assert np.isnan(out.base[..., 40:]).all()


@pytest.mark.parametrize("case", [*list(laid_out(linalg_case.complexes(40, 9)))[::2],
                                  *list(linalg_case.complexes(7, 5, (2, 1), (3,)))[::5]], ids=str)
def test_triangles_by_three_products(interpreter: Interpreter, case: Case) -> None:
    case.check(case.run(precision="emulated-3m"))


@pytest.mark.parametrize("precision", ["ieee", "emulated-3m"])
def test_triangles_alone_are_computed(interpreter: Interpreter, precision: str) -> None:
    """Two real products of 2 k, or three of k, each of half the results; nothing is copied that lies row by row."""
    linalg.herk(drawn(40, 9), precision=precision)
    *packed, product, joined = (step.what for step in interpreter.programs[-1].steps)
    assert len(packed) == (1 if precision == "ieee" else 2)
    assert (product.batch.count, product.k) == ((2, 18) if precision == "ieee" else (3, 9))
    assert product.triangle is Triangle.LOWER and joined.recipe.entry == "linalg_complex_pack"


def test_a_warm_call_runs_what_was_recorded(interpreter: Interpreter) -> None:
    """Programs are kept by all that they depend on: each call has the results of its own flags and layouts."""
    products = linalg_case.products
    cases = [*products(9, 5), *linalg_case.complexes(9, 5), *laid_out(products(9, 5)),
             *list(linalg_case.triangles(9, 5))[::5]]
    for case in cases:
        case.check(case.run())
    recorded = len(interpreter.programs)
    for case in cases:
        case.check(case.run())
    assert len(interpreter.programs) == recorded
    room = normal(20, 30)
    for first in range(9):  # the same strides at other addresses
        a = np.float64(room[1:10, first:first + 5])
        assert abs(linalg.syrk(room[1:10, first:first + 5]) - half(a @ a.T, True)).max() < 1e-5
    assert len(interpreter.programs) == recorded + 4


def test_sizes_of_zero(interpreter: Interpreter) -> None:
    """No kernel runs where there is no result; sums of nothing are zeros."""
    for call, shape in linalg_case.EMPTY:
        assert call(np.zeros).shape == shape
    assert not interpreter.programs
    assert not linalg.syrk(normal(5, 0)).any() and not linalg.gram(normal(0, 3), trans=True).any()
    old = normal(5, 5)
    assert (linalg.syrk(normal(5, 0), old, beta=2.0) == np.tril(2 * old)).all()


@pytest.mark.parametrize(("m", "n", "layout"), [
    (1, 1, "rows"), (33, 33, "columns"), (70, 40, "rows"), (40, 70, "columns"), (140, 135, "rows"),
    (100, 9, "columns")])
def test_lu(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch, m: int, n: int, layout: str) -> None:
    """LAPACK's pivots, and factors as near as theirs; a block of the cluster has one warp, or two."""
    monkeypatch.setattr(leaves, "_LU_ROWS", 64 if m == 100 else 32)
    a = LAYOUTS[layout](normal(2, m, n))
    target = a.copy() if m == 70 else None
    factors, pivots, info = linalg.lu_factor_ex(a if target is None else target, out=target)
    for x, got, swaps in zip(a, factors, pivots, strict=True):
        k = min(m, n)
        assert np.array_equal(swaps, general._factor_on_cpu(x)[1])
        lower, upper = (np.float64(z) for z in (np.tril(got[:, :k], -1) + np.eye(m, k), np.triu(got[:k])))
        left = x[general._rows(np.concatenate([swaps, np.arange(k, m) + 1]))]
        assert (abs(left - lower @ upper) <= (k + 4) * 2.0**-24 * (abs(lower) @ abs(upper))).all()
    assert not info.any()


@pytest.mark.parametrize("each", [2, 4, 8])
def test_several_rows_a_thread(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch, each: int) -> None:
    """As of matrices with more rows than a cluster has threads."""
    monkeypatch.setattr(leaves, "_MOST_ROWS", 50 // each + 1)
    monkeypatch.setattr(leaves, "_LU_ROWS", 32)
    a = normal(50, 21)
    factors, pivots = linalg.lu_factor(a)
    want, order, _ = general._factor_on_cpu(a)
    assert np.array_equal(pivots, order)
    np.testing.assert_allclose(factors, want, rtol=1e-3, atol=1e-4)


def test_singular_and_ties(interpreter: Interpreter) -> None:
    """A column of zeros is passed over, as in LAPACK; of equal elements the uppermost is the pivot."""
    a = normal(3, 40, 40)
    a[1, :, 20] = a[1, :, 7] = 0
    a[2] = np.sign(a[2])
    factors, pivots, info = linalg.lu_factor_ex(a)
    for x, got, swaps, number in zip(a[:2], factors, pivots, info, strict=False):
        want, order, singular = general._factor_on_cpu(x)
        assert np.array_equal(swaps, order) and number == singular
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
    assert pivots[2, 0] == 1 and info.tolist() == [0, 8, 0]
    with pytest.raises(linalg.SingularMatrix, match=r"matrix \(1,\) of the batch is singular: its pivot 8 is 0"):
        linalg.inv(a)


def test_determinants(interpreter: Interpreter) -> None:
    a = normal(4, 20, 20)
    a[3, 5] = 0
    sign, logarithm = linalg.slogdet(a)
    want = np.linalg.slogdet(np.float64(a))
    assert np.array_equal(sign, want[0]) and np.allclose(logarithm, want[1], rtol=1e-5)
    np.testing.assert_allclose(linalg.det(a), np.linalg.det(np.float64(a)), rtol=1e-3)
    large = linalg.det(a * np.float32(1e5))
    assert large[3] == 0 and np.isinf(large[:3]).all()
