"""The accuracy suite: it passes sound GEMMs, and catches each kind of bad one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from peakgemm.errors import InvalidType, InvalidValue, MissingComponent
from peakgemm.tools.accuracy import judge
from peakgemm.tools.accuracy.measure import LARGEST
from peakgemm.tools.accuracy.suite import TESTS, Report

Gemm = Callable[..., Any]
SIZES = (32, 48)
KS = (64, 256)
f32, f64 = np.float32, np.float64
pytestmark = pytest.mark.filterwarnings("error")  # the suite's own NaN and overflows are no news


def found(gemm: Gemm, **choice: Any) -> Report:
    return judge(gemm, host=True, **{"sizes": SIZES, "ks": KS, **choice})


def caught(report: Report) -> set[str]:
    """What did not pass: ``test`` or ``test: family``, and its verdict."""
    return {f"{row['test']}: {row['family']}" for row in report.failures}


# Sound ones.

def naive(a: Any, b: Any) -> Any:
    """One product and one addition at a time, each rounded."""
    c = np.zeros((len(a), b.shape[1]), f32)
    for k in range(a.shape[1]):
        c = c + a[:, k, None] * b[None, k]
    return c


def scaled(product: Gemm) -> Gemm:
    """A product as BLAS's gemm: alpha, beta, and what must not be read."""
    def full(a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
        result = f32(alpha) * product(a, b) if alpha else np.zeros(c.shape, f32)
        return result + f32(beta) * c if beta else result
    return full


def test_numpy_passes_all() -> None:
    report = judge("numpy", "peakgemm:ieee", host=True, sizes=(16, 32, 64), ks=KS)
    assert report.failures == []
    assert {row["test"] for row in report.rows} == {*TESTS, "slope"}
    assert {row["contender"] for row in report.judged} == {"numpy", "peakgemm:ieee"}
    assert not any(row["verdict"] == "skipped" for row in report.rows)


def test_exact_sums_beat_any_reference() -> None:
    """The correctly rounded result passes where the reference is exact too, and everywhere else."""
    def correct(a: Any, b: Any) -> Any:
        return (a.astype(f64) @ b.astype(f64)).astype(f32)
    assert found(scaled(correct)).failures == []
    assert found(naive, reference=correct, tests=["random"], families=["normal"]).failures
    assert judge(correct, reference=correct, host=True, tests=["random"], sizes=SIZES).failures == []


# Bad ones: each with what must catch it, and what must not.

def half(a: Any, b: Any) -> Any:
    return a.astype(np.float16).astype(f32) @ b.astype(np.float16).astype(f32)


def truncating(a: Any, b: Any) -> Any:
    """One accumulation that rounds towards zero, as a tensor core's."""
    c = np.zeros((len(a), b.shape[1]), f32)
    for k in range(a.shape[1]):
        exact = c + a[:, k, None].astype(f64) * b[None, k]
        c = exact.astype(f32)
        beyond = abs(c.astype(f64)) > abs(exact)
        c[beyond] = np.nextafter(c[beyond], f32(0))
    return c


def fixed_point(a: Any, b: Any) -> Any:
    """Rows of A and columns of B as 31-bit integers under one scale each: exact products of those."""
    def align(x: Any, axis: int) -> tuple[Any, Any]:
        top = np.maximum(abs(x.astype(f64)).max(axis, keepdims=True, initial=0), 1e-300)
        scale = 2.0 ** (np.ceil(np.log2(top)) - 30)
        return np.rint(x / scale), scale
    (x, rows), (y, columns) = align(a, 1), align(b, 0)
    return ((x @ y) * rows * columns).astype(f32)


def strassen(a: Any, b: Any) -> Any:
    (m, k), n = a.shape, b.shape[1]
    if m % 2 or k % 2 or n % 2 or not m * n * k:
        return a @ b
    a11, a12, a21, a22 = a[:m // 2, :k // 2], a[:m // 2, k // 2:], a[m // 2:, :k // 2], a[m // 2:, k // 2:]
    b11, b12, b21, b22 = b[:k // 2, :n // 2], b[:k // 2, n // 2:], b[k // 2:, :n // 2], b[k // 2:, n // 2:]
    p = [(a11 + a22) @ (b11 + b22), (a21 + a22) @ b11, a11 @ (b12 - b22), a22 @ (b21 - b11), (a11 + a12) @ b22,
         (a21 - a11) @ (b11 + b12), (a12 - a22) @ (b21 + b22)]
    return np.block([[p[0] + p[3] - p[4] + p[6], p[2] + p[4]], [p[1] + p[3], p[0] - p[1] + p[2] + p[5]]])


def nan_dropped(a: Any, b: Any) -> Any:
    return np.nan_to_num(a, nan=0.0, posinf=np.inf, neginf=-np.inf) @ b


def saturating(a: Any, b: Any) -> Any:
    return np.clip(a @ b, -f32(LARGEST), f32(LARGEST))


def flushing(a: Any, b: Any) -> Any:
    return np.where(abs(a) < 2.0**-126, f32(0), a) @ np.where(abs(b) < 2.0**-126, f32(0), b)


def all_nan(a: Any, b: Any) -> Any:
    return np.full((len(a), b.shape[1]), np.nan, f32)


calls = itertools.count()


def restless(a: Any, b: Any) -> Any:
    """Another order of the sum in each call."""
    order = np.random.default_rng(next(calls)).permutation(a.shape[1])
    return naive(a[:, order], b[order])


def reads_c(a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
    result = f32(alpha) * (a @ b) if alpha else np.zeros(c.shape, f32)
    return result + f32(beta) * c


def reads_a(a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
    result = f32(alpha) * (a @ b)
    return result + f32(beta) * c if beta else result


def wrong_sign_of_beta(a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
    return scaled(np.matmul)(a, b, c, alpha, -beta)


BAD = {
    half: {"random: normal", "long-k: normal", "exact: wide-integers", "exact: identity", "special: largest"},
    truncating: {"random: uniform", "long-k: uniform"},
    fixed_point: {"structure: fixed-point", "structure: scaled-blocks", "random: log-uniform"},
    strassen: {"structure: strassen"},
    nan_dropped: {"special: nan-in-a"},
    saturating: {"special: overflow", "special: infinity-in-a"},
    flushing: {"random: subnormal", "exact: identity"},
    restless: {"repeat: repeat", "exact: powers"},
    reads_c: {"special: beta-zero", "special: both-zero"},
    reads_a: {"special: alpha-zero", "special: both-zero"},
    wrong_sign_of_beta: {"scaled: normal", "special: no-depth-scaled"},
}


@pytest.mark.parametrize("gemm", BAD, ids=lambda gemm: gemm.__name__)
def test_bad_gemms_are_caught(gemm: Gemm) -> None:
    if gemm in (nan_dropped, reads_c, reads_a):  # and nothing else is wrong
        assert caught(found(gemm, families=["normal"])) == BAD[gemm]
        return
    tests = sorted({name.partition(":")[0] for name in BAD[gemm]})
    families = ["uniform"] if gemm is truncating else None  # which is slow
    assert BAD[gemm] <= caught(found(gemm, tests=tests, families=families))


def test_worse_than_the_reference_is_told_from_wrong() -> None:
    choice: dict[str, Any] = {"host": True, "sizes": SIZES, "ks": KS, "families": ["uniform"]}
    # Fixed-point arithmetic is more accurate than float32 on data that suit it.
    assert judge(fixed_point, **choice, tests=["random", "long-k"]).failures == []
    assert {row["verdict"] for row in judge(half, **choice, tests=["long-k"]).failures} == {"fail"}
    assert {row["verdict"] for row in judge(truncating, **choice, tests=["long-k"]).failures} == {"worse"}


def test_nan_passes_nothing() -> None:
    report = found(scaled(all_nan), sizes=(16, 32, 64))
    passed = [row for row in report.judged if row["verdict"] == "pass"]
    # Nothing but empty results, alpha = 0, and that NaN repeats itself.
    assert {row["family"] for row in passed} == {"no-rows", "no-columns", "alpha-zero", "both-zero", "repeat"}
    assert {row["max_error"] for row in report.judged if "max_error" in row} == {float("inf")}


def test_how_far_the_scaling_holds() -> None:
    (row,) = found(fixed_point, sizes=[64], tests=["structure"]).failures[:1]
    assert (row["family"], row["limit"], row["unit"]) == ("fixed-point", 10, "n u")
    assert "holds up to 2^+-8 of 2^+-56" in row["note"]
    assert "fails without any scaling" in str(found(half, sizes=[64], tests=["structure"]).failures)


def raises(a: Any, b: Any) -> Any:
    raise OSError("the disk is full\nand more")


@pytest.mark.parametrize(("gemm", "words"), [
    (lambda a, b: a.astype(f64) @ b, "float64"), (lambda a, b: (a @ b).tolist(), "list"),
    (lambda a, b: (a @ b)[1:], "shape (15, 16), not (16, 16)"), (raises, "OSError: the disk is full"),
], ids=["float64", "list", "row too few", "raises"])
def test_results_that_are_none(gemm: Gemm, words: str) -> None:
    report = judge(gemm, host=True, sizes=[16], tests=["random", "structure"], families=["normal"])
    assert {row["verdict"] for row in report.judged} == {"fail"}
    assert all(words in row["note"] and "\n" not in row["note"] for row in report.judged)
    reference = judge("numpy", reference=gemm, host=True, sizes=[16], tests=["random"], families=["normal"])
    assert [(row["verdict"], row["note"]) for row in reference.judged] == [
        ("worse", "the reference failed, there is nothing to compare with")]


def test_operands_cannot_be_spoilt_and_the_seed_decides_them() -> None:
    def spoils(a: Any, b: Any) -> Any:
        c = a @ b
        a[...], b[...] = 0, np.nan
        return c
    assert judge(spoils, "numpy", host=True, sizes=[16], ks=[64]).failures == []
    choice: dict[str, Any] = {"host": True, "sizes": [16], "tests": ["random"]}
    alone = judge("numpy", **choice, families=["exp1"]).rows
    assert [row for row in judge("numpy", **choice).rows if row["family"] == "exp1"] == alone
    assert judge("numpy", **choice, families=["exp1"], seed=1).rows != alone


def test_arguments_of_functions() -> None:
    def two(a: Any, b: Any) -> Any:
        return a @ b

    def four(a: Any, b: Any, c: Any, alpha: float) -> Any:
        return a @ b

    rows = found(two, tests=["scaled", "special"], sizes=[16]).rows
    skipped = {row["family"] for row in rows if row["verdict"] == "skipped"}
    assert skipped == {"normal", "uniform", "no-depth-scaled", "beta-zero", "alpha-zero", "both-zero", "nan-in-c"}
    assert not any(row["verdict"] in ("skipped", "fail") for row in found(scaled(two), sizes=[16]).rows)
    with pytest.raises(InvalidValue, match="cannot be called with two arguments"):
        judge(four, host=True)


@pytest.mark.parametrize(("names", "choice", "error", "words"), [
    (["cublass"], {}, InvalidValue, "unknown contender 'cublass'; valid ones: numpy, torch"),
    (["no_such_module:f"], {}, InvalidValue, "importing 'no_such_module' failed"),
    (["math:no_such"], {}, InvalidValue, "'math' has no 'no_such'"), (["math:pi"], {}, InvalidType, "is a float"),
    (["triton-tf32x3"], {}, MissingComponent, "needs an NVIDIA GPU"), ([], {}, MissingComponent, "name a contender"),
    (["numpy"], {"reference": "cublas"}, MissingComponent, "cublas runs on a GPU"),
    (["numpy"], {"sizes": [1]}, InvalidValue, r"must lie in 2\.\."), (["numpy"], {"ks": [0]}, InvalidValue, r"2\.\."),
    (["numpy"], {"families": ["norml"]}, InvalidValue, "unknown family"),
    (["numpy"], {"tests": ["speed"]}, InvalidValue, "unknown test"),
])
def test_choices_that_are_refused(names: list[str], choice: dict[str, Any], error: type[Exception],
                                  words: str) -> None:
    with pytest.raises(error, match=words):
        judge(*names, host=True, **choice)


def squared(a: Any, b: Any) -> Any:
    """An error that grows with the square of K, from nothing."""
    c = a.astype(f64) @ b.astype(f64)
    return (c + a.shape[1] ** 2 * 2.0**-33 * (abs(a.astype(f64)) @ abs(b.astype(f64)))).astype(f32)


def test_too_steep_an_error() -> None:
    report = judge(squared, host=True, sizes=[32, 64, 128, 256], tests=["random"], families=["normal"])
    (row,) = [row for row in report.failures if row["test"] == "slope"]
    assert row["figure"] == pytest.approx(1.9, abs=0.2)
