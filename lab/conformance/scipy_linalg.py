"""SciPy's tests of Cholesky factors, triangular and positive definite solves and BLAS 3, with peakgemm in their place.

Real operands are rounded to FP32, and a result is handed back in the dtype that SciPy's would have; complex ones stay
SciPy's. Numbers count as close where the test says so, or where they differ by at most `UNITS` times FP32's epsilon
times the largest that is expected: most of these tests expect FP64. Each is run by SciPy's own functions on operands
rounded the same way, too: what fails there, does not apply.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any

import numpy as np
import pytest
import scipy.linalg

import peakgemm as pg
from peakgemm import linalg

from .outcomes import Around, Outcome, Recorder, beside

UNITS, EPS = 64, float(np.finfo(np.float32).eps)
MODULES = {  # of scipy.linalg.tests, and which of their tests
    "test_decomp_cholesky": "not anded",
    "test_basic": "TestSolve or TestSolveTriangular or TestOverwrite",
    "test_batch": "cho or solve",
    "test_blas": "gemm or symm or syrk or syr2k or TRMM or trsm",
    "test_lapack": "TestDpotr",
}
_WORDS = "asks for SciPy's words: the errors say it in ours"
EXCUSED = {
    "test_decomp_cholesky::*.test_invalid_shape*": _WORDS,
    "test_decomp_cholesky::*.test_non_posdef*": _WORDS,
    "test_batch::test_shapes_solve_like*solve_triangular*": _WORDS,
    "test_basic::TestSolve.test_exactly_singular*": _WORDS,
    "test_blas::TestTRMM.test_side*": "BLAS takes a triangular matrix larger than it needs, of which a corner is meant",
    "test_blas::TestTRMM.test_b_overwrites*": "overwrite_b: the out of peakgemm.linalg.trmm must not be b",
}
calls: Counter[str] = Counter()
_theirs = [False]  # whether SciPy's functions run


# ---- SciPy's signatures -------------------------------------------------------------------------------------------


def cholesky(a: Any, lower: Any = False, overwrite_a: Any = False, check_finite: Any = True) -> Any:
    return linalg.cholesky(np.atleast_2d(a), upper=not lower)


def cho_factor(a: Any, lower: Any = False, overwrite_a: Any = False, check_finite: Any = True) -> Any:
    factor = cholesky(a, lower)
    return factor, lower if factor.ndim == 2 else np.full(factor.shape[:-2], lower)


def cho_solve(c_and_lower: Any, b: Any, overwrite_b: Any = False, check_finite: Any = True) -> Any:
    factor, lower = c_and_lower
    return _as_columns(lambda x: linalg.cholesky_solve(x, factor, upper=not np.all(lower)), b)


def solve_triangular(a: Any, b: Any, trans: Any = 0, lower: Any = False, unit_diagonal: Any = False,
                     overwrite_b: Any = False, check_finite: Any = True) -> Any:
    return _as_columns(lambda x: linalg.trsm(a, x, trans=trans in (1, 2, "T", "C"), lower=lower, unit=unit_diagonal), b)


def solve(a: Any, b: Any, lower: Any = False, overwrite_a: Any = False, overwrite_b: Any = False,
          check_finite: Any = True, assume_a: Any = None, transposed: Any = False) -> Any:
    if assume_a not in ("pos", "positive definite"):
        return NotImplemented
    return linalg.solve(a, b, assume_a=assume_a, upper=not lower)


def syrk(alpha: Any, a: Any, beta: Any = 0.0, c: Any = None, trans: Any = 0, lower: Any = 0,
         overwrite_c: Any = 0) -> Any:
    c = None if c is None else c.copy()
    return linalg.syrk(a, c, alpha=alpha, beta=beta, trans=bool(trans), lower=lower, out=c)


def syr2k(alpha: Any, a: Any, b: Any, beta: Any = 0.0, c: Any = None, trans: Any = 0, lower: Any = 0,
          overwrite_c: Any = 0) -> Any:
    c = None if c is None else c.copy()
    return linalg.syr2k(a, b, c, alpha=alpha, beta=beta, trans=bool(trans), lower=lower, out=c)


def symm(alpha: Any, a: Any, b: Any, beta: Any = 0.0, c: Any = None, side: Any = 0, lower: Any = 0,
         overwrite_c: Any = 0) -> Any:
    return linalg.symm(a, b, c, alpha=alpha, beta=beta, left=not side, lower=lower)


def trmm(alpha: Any, a: Any, b: Any, side: Any = 0, lower: Any = 0, trans_a: Any = 0, diag: Any = 0,
         overwrite_b: Any = 0) -> Any:
    return linalg.trmm(a, b, alpha=alpha, left=not side, lower=lower, trans=bool(trans_a), unit=diag)


def trsm(alpha: Any, a: Any, b: Any, side: Any = 0, lower: Any = 0, trans_a: Any = 0, diag: Any = 0,
         overwrite_b: Any = 0) -> Any:
    return linalg.trsm(a, b, alpha=alpha, left=not side, lower=lower, trans=bool(trans_a), unit=diag)


def potrf(a: Any, lower: Any = 0, clean: Any = 1, overwrite_a: Any = 0) -> Any:
    factor, info = linalg.cholesky_ex(a, upper=not lower)
    return factor, int(info)


def potri(c: Any, lower: Any = 0, overwrite_c: Any = 0) -> Any:
    return linalg.cholesky_inverse(c, upper=not lower), 0


def _as_columns(f: Callable[[Any], Any], b: Any) -> Any:
    return f(b[:, None])[..., 0] if b.ndim == 1 else f(b)


HIGH = (cholesky, cho_factor, cho_solve, solve_triangular, solve)
BLAS = {"gemm": pg.sgemm, "syrk": syrk, "syr2k": syr2k, "symm": symm, "trmm": trmm, "trsm": trsm}
LAPACK = {"potrf": potrf, "potri": potri}


# ---- in SciPy's place ---------------------------------------------------------------------------------------------


def in_fp32(ours: Callable[..., Any], theirs: Any, name: str, rank: int = 0) -> Any:
    """``theirs`` with real operands rounded to FP32, run by ``ours``, unless that is NotImplemented or SciPy's turn is
    it. ``rank``: of the arrays, as f2py makes them of lists."""
    def call(*args: Any, **kwargs: Any) -> Any:
        given: list[Any] = []

        def rounded(x: Any) -> Any:
            if isinstance(x, tuple):
                return (rounded(x[0]), *x[1:])
            if x is None or isinstance(x, (str, bool, int, float, complex, np.generic)):
                return x
            given.append(x := np.asarray(x))
            x = x if np.iscomplexobj(x) else x.astype(np.float32, copy=False)
            return x[:, None] if rank == 2 and x.ndim == 1 else x

        new, named = [rounded(x) for x in args], {key: rounded(x) for key, x in kwargs.items()}
        if any(map(np.iscomplexobj, given)) or any(isinstance(x, (complex, np.complexfloating)) for x in args):
            return theirs(*args, **kwargs)
        result = theirs(*new, **named) if _theirs[0] else ours(*new, **named)
        if result is NotImplemented:
            return theirs(*args, **kwargs)
        calls[name] += 1
        dtype = np.float32 if name.startswith("s") and rank else np.result_type(np.float32, *given)

        def returned(x: Any) -> Any:
            return x.astype(dtype, copy=False) if isinstance(x, np.ndarray) and x.dtype != bool else x

        return tuple(map(returned, result)) if isinstance(result, (tuple, list)) else returned(result)

    return call if rank else wraps(theirs)(call)


def closer(check: Callable[..., None]) -> Callable[..., None]:
    """An assertion of numpy.testing that takes FP32 for close, too."""
    @wraps(check)
    def assertion(actual: Any, desired: Any, *args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        try:
            check(actual, desired, *args, **kwargs)
        except AssertionError:
            if not np.abs(np.subtract(actual, desired)).max() <= UNITS * EPS * np.abs(desired).max():
                raise
    return assertion


def patch() -> None:
    """For the rest of the process."""
    for ours in HIGH:
        setattr(scipy.linalg, ours.__name__, in_fp32(ours, getattr(scipy.linalg, ours.__name__), ours.__name__))
    for module, functions in ((scipy.linalg._fblas, BLAS), (scipy.linalg._flapack, LAPACK)):
        for name, ours in functions.items():
            for letter in "sd":
                setattr(module, letter + name, in_fp32(ours, getattr(module, letter + name), letter + name, 2))
    for name in ("assert_allclose", "assert_array_almost_equal", "assert_almost_equal"):
        setattr(np.testing, name, closer(getattr(np.testing, name)))


def run(around: Around = nullcontext) -> list[Outcome]:
    """Every test, after SciPy's own run of it."""
    patch()
    found = []
    for _theirs[0] in (True, False):
        recorder = Recorder("scipy.linalg", calls, "complex, or a function or an assume_a that peakgemm does not have",
                            {} if _theirs[0] else EXCUSED, nullcontext if _theirs[0] else around)
        for module, which in MODULES.items():
            pytest.main(["--pyargs", f"scipy.linalg.tests.{module}", "-k", which, "-q", "-p", "no:cacheprovider",
                         "-W", "ignore"], plugins=[recorder])
        found.append(recorder)
    return beside(found[0].outcomes, found[1].outcomes, "SciPy's own functions fail it in FP32") + found[1].unused()
