"""`lab/programs.py`, tiny and on the CPU: its record, its agreement, packages that are not there."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import record_schema

torch = pytest.importorskip("torch", reason="needs torch")

from lab import programs  # noqa: E402


def test_torchs_own_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    monkeypatch.setattr(sys, "argv", ["programs.py", "--quick", "--only", "K-FAC,matrix_exp,cdist,pca_lowrank",
                                      "--json", str(path)])
    programs.main()
    record = json.loads(path.read_text())
    record_schema.validate(record)
    rows = record["rungs"]
    assert [(row["program"], row["products"]) for row in rows] == [
        (name, products) for name in ("K-FAC", "matrix_exp", "cdist", "pca_lowrank")
        for products in ("torch", "ieee", "emulated")]
    for row in rows:
        assert (row["package"], row["version"]) == ("torch", version("torch"))
        assert row["from_fp32"] == 0 and row["rerouted"] == 0  # the CPU's products are torch's own
        assert row["from_fp64"] is None if row["program"] == "pca_lowrank" else 0 < row["from_fp64"] < 1e-5


def test_a_package_that_is_not_there_leaves_a_row() -> None:
    missing = programs.Program("Mine", "no-such-package", "call", lambda *_: None, {"n": 1}, {"n": 1})
    row, = next(programs.measured([missing], ["ieee"], "cpu", True, 60))
    assert row["error"] == "no-such-package is not installed"
    record_schema.check()
    assert set(row) == {"program", "package", "version", "products", "unit", "error"}


def test_distance_says_what_differs() -> None:
    x = torch.tensor([1.0, -4.0])
    assert programs.distance(x + torch.tensor([0.0, 1.0]), x) == 0.25
    assert programs.distance(torch.tensor([1.0, float("nan")]), x) == float("inf")
