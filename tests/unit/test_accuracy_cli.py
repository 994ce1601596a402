"""`peakgemm accuracy`: tables, records, plots, refusals; and the suite over torch tensors."""
# ruff: noqa: F401, F811  (fixtures of tests/support)

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import fits, here, run, valid
from peakgemm.tools.accuracy import arrays, judge
from peakgemm.tools.accuracy.cases import rows_of
from peakgemm.tools.accuracy.families import FAMILIES
from peakgemm.tools.accuracy.measure import Exact
from peakgemm.tools.bench.errors import bound

QUICK = ("--host", "--sizes", "16,32,64", "--ks", "64,128")
HALF = "import numpy as np\ndef half(a, b):\n    return a.astype(np.float16).astype(np.float32) @ b\n"


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module path is put back."""
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which the folder of somebody's own GEMM is added


def test_everything(here: Path, run: Any) -> None:
    code, said, complained = run("accuracy", *QUICK, "--json", "a.json", "--plot", "a.svg")
    assert (code, complained) == (0, "") and fits(said)
    assert re.search(r"^special values +ok 36 of 36 +ok 36 of 36", said, re.MULTILINE)
    assert re.search(r"All \d+ verdicts: pass\.", said)
    data = valid(here / "a.json")
    assert (data["against"], data["seed"], data["arrays"], data["device"]) == ("numpy", 0, "numpy", None)
    rows = [row for row in rows_of(data) if row["test"] == "random" and row["family"] == "normal"]
    assert [(row["shape"][0], row["contender"], row["draws"]) for row in rows] == [
        (n, name, 2**14 // n**2) for n in (16, 32, 64) for name in ("numpy", "peakgemm:ieee")]
    assert all(0 < row["mean_error"] < row["max_error"] < row["bound"] for row in rows)
    assert (here / "a.svg").read_text().count(">peakgemm:ieee</text>") == 1


def test_somebodys_own_gemm(here: Path, run: Any) -> None:
    (here / "mine_of_cli_test.py").write_text(f"{HALF}def none(a, b):\n    return a @ b * float('nan')\n")
    words = ("--host", "--sizes", "16,32,64,128", "--of", "mine_of_cli_test:half", "--of", "numpy", "--tests",
             "random,exact,special", "--families", "normal,exp4", "--json", "a.json")
    code, said, complained = run("accuracy", *words)
    assert (code, complained) == (0, "")
    assert re.search(r"^random: normal +ok \S+ +FAIL \S+", said, re.MULTILINE)
    for test, families in (("random", "normal, exp4"), ("exact", "wide-integers, identity, powers")):
        assert re.search(rf"^mine_of_cli_test:half, {test}: fail on {families}\. ", said, re.MULTILINE)
    assert {row["verdict"] for row in rows_of(valid(here / "a.json")) if row["contender"] == "numpy"} == {"pass"}
    assert run("accuracy", *words, "--strict")[0] == 1
    assert run("accuracy", *QUICK, "--tests", "repeat", "--strict")[0] == 0
    code, _, _ = run("accuracy", *QUICK, "--of", "mine_of_cli_test:none", "--json", "a.json", "--plot", "a.svg")
    assert code == 0
    assert {row["max_error"] for row in rows_of(valid(here / "a.json")) if row["contender"] == "mine_of_cli_test:none"
            and "max_error" in row} == {float("inf")}


def test_a_contender_that_is_not_here(here: Path, run: Any) -> None:
    code, _, complained = run("accuracy", *QUICK, "--tests", "repeat", "--of", "numpy", "--of", "cublas", "--json",
                                 "a.json")
    assert code == 0 and "Left out: cublas: cublas runs on a GPU" in complained
    assert list(valid(here / "a.json")["unavailable"]) == ["cublas"]


def test_torch_answers_as_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    place = arrays.Torch("cpu")
    monkeypatch.setattr("peakgemm.tools.accuracy.suite.find", lambda host: place)

    def half(a: Any, b: Any) -> Any:
        return a.half().float() @ b

    def ieee(a: Any, b: Any, c: Any, alpha: float, beta: float) -> Any:
        return torch.addmm(c, a, b, alpha=alpha, beta=beta)

    report = judge(half, ieee, "numpy", "peakgemm:ieee", reference="numpy", sizes=[16, 32], ks=[64])
    assert {row["contender"] for row in report.judged if row["verdict"] == "fail"} == {report.contenders[0]}
    assert {row["test"] for row in report.failures if row["contender"] == report.contenders[0]} == {
        "random", "long-k", "exact", "special", "structure", "slope"} - {"slope"}
    for family in FAMILIES:  # the same measure as NumPy's, on the same operands
        a, b = map(place.take, FAMILIES[family](np.random.default_rng(3), 24, 20, 33))
        got = a @ b
        with np.errstate(all="ignore"):
            theirs = Exact(arrays.Numpy(), a.numpy(), b.numpy()).errors(got.numpy())
        errors = Exact(place, a, b).errors(got)
        assert np.allclose(errors.numpy(), theirs, rtol=1e-6, atol=33 * 2.0**-30)
        assert 0 < float(errors.max()) <= bound(33)
