"""The suites of linear algebra on a GPU, small: rows beside cuBLAS and cuSOLVER, and hostile matrices."""

from __future__ import annotations

import pytest

from peakgemm.runtime import device
from peakgemm.tools.bench.peers import visiting
from peakgemm.tools.bench.timer import Timer

pytest.importorskip("torch")

from peakgemm.tools.accuracy import linalg as accuracy
from peakgemm.tools.bench import linalg
from peakgemm.tools.bench.linalg import OPERATIONS, Case


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_is_right_and_timed(operation: str) -> None:
    cases = [Case(operation, 200, 300 if operation in ("syrk", "trsm", "covariance") else 200, 1, precision)
             for precision in OPERATIONS[operation].precisions]
    with visiting() as peer:
        for row in linalg.rows(cases, device.require(), Timer(peer, 0.05), lambda step: None):
            assert "error" not in row, row
            assert 0 < row["reference_error"] < 16 and row["ms"] > 0


def test_hostile_matrices() -> None:
    report = accuracy.judge("cuda", [200, 1000], 0, lambda steps: lambda step: None)
    assert {accuracy.CUBLAS, "peakgemm:emulated-3m"} <= {row["contender"] for row in report.rows}
    # The one limit that docs/linalg.md tells: a block's inverse at condition 1e8.
    assert {(row["test"], row["family"]) for row in report.failures} <= {("cholesky", "Kahan 1e8")}
