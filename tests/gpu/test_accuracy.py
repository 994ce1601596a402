"""The accuracy suite on a GPU: data there, cuBLAS as the reference, our precisions beside it."""

from __future__ import annotations

from typing import Any

import pytest

from peakgemm.tools.accuracy import judge
from peakgemm.tools.accuracy.suite import Report

torch = pytest.importorskip("torch")
SIZES, KS = (16, 64, 256, 1024), (64, 4096)
FIXED = {"structure", "exact", "special", "repeat"}


@pytest.fixture(scope="module")
def report() -> Report:
    return judge("cublas", "cublas-tf32", "peakgemm:ieee", sizes=SIZES, ks=KS)


def of(report: Report, name: str) -> list[dict[str, Any]]:
    return [row for row in report.judged if row["contender"] == name]


def test_our_ieee_is_sound(report: Report) -> None:
    assert [row for row in of(report, "peakgemm:ieee") if row["verdict"] == "fail"] == []
    assert {row["test"] for row in of(report, "peakgemm:ieee") if row["verdict"] == "pass"} >= {*FIXED, "slope"}


def test_cublas_is_sound(report: Report) -> None:
    """What cuBLAS promises; it may read a NaN with alpha = 0, and promises bits on one stream only."""
    rows = [row for row in of(report, "cublas") if row["test"] in ("random", "long-k", "scaled", "structure", "exact")]
    assert rows and [row for row in rows if row["verdict"] != "pass"] == []


def test_tf32_is_caught(report: Report) -> None:
    failed = {(row["test"], row["family"]) for row in of(report, "cublas-tf32") if row["verdict"] == "fail"}
    assert {("random", "normal"), ("exact", "identity"), ("exact", "wide-integers")} <= failed
    assert not torch.backends.cuda.matmul.allow_tf32


@pytest.mark.parametrize("precision", ["emulated", "fp16x3", "tf32x3", "bf16x9"])
def test_precisions_that_this_version_has(precision: str) -> None:
    from peakgemm.errors import MissingComponent

    try:
        report = judge(f"peakgemm:{precision}", sizes=SIZES, ks=KS)
    except MissingComponent as error:
        pytest.skip(str(error))
    assert {row["test"] for row in report.judged} >= FIXED
    if precision == "emulated":  # the promise
        assert [row for row in report.failures if row["test"] in FIXED] == []


def test_a_function_of_torch_tensors_is_repeated_under_load() -> None:
    calls = []

    def changes(a: Any, b: Any) -> Any:
        calls.append(torch.cuda.current_stream().cuda_stream)
        return torch.mm(a, b) + (1e-3 if len(set(calls)) > 1 else 0.0)

    report = judge(changes, sizes=[64], tests=["repeat"])
    (row,) = report.failures
    assert row["note"].endswith("another stream, under load")
    assert len(set(calls)) > 1


