"""The suites of linear algebra, on torch's CPU tensors: what is timed, how errors are measured, what is judged."""
# ruff: noqa: F401, F811  (fixtures of tests/support)

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from commands import fits, here, run, valid
from docs.generate.markdown import linalg_table
from host_peer import GPU, HostTimer

torch = pytest.importorskip("torch", reason="needs torch")

from peakgemm.tools.accuracy import linalg as accuracy  # noqa: E402
from peakgemm.tools.bench import linalg  # noqa: E402
from peakgemm.tools.bench.linalg import OPERATIONS, Case  # noqa: E402
from peakgemm.tools.bench.peers import TorchPeer  # noqa: E402

SMALL = [Case(operation, 24, 40 if operation in ("syrk", "herk", "trsm", "covariance") else 24, batch, "ieee")
         for operation in OPERATIONS for batch in ((1, 3) if operation in ("trsm", "cholesky") else (1,))]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other take seconds where the matrices are this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class CpuPeer(TorchPeer):
    """Its arrays lie in the host's memory."""

    def __init__(self) -> None:
        pass

    def versions(self) -> dict[str, str]:
        return {"torch": torch.__version__}


@pytest.fixture
def on_host(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command, with torch's CPU as its GPU."""
    monkeypatch.setattr(linalg, "torch", SimpleNamespace(**{
        name: getattr(torch, name) for name in ("linalg", "mm", "float64", "complex128", "eye", "cat", "where",
                                                 "ones_like", "lu_unpack")},
        Generator=lambda device: torch.Generator(), cuda=SimpleNamespace(empty_cache=lambda: None),
        randn=lambda *shape, generator, device: torch.randn(*shape, generator=generator), complex=torch.complex))
    monkeypatch.setattr("peakgemm.cli.bench.device", SimpleNamespace(find=lambda: GPU))
    monkeypatch.setattr("peakgemm.cli.measuring.find_peer", CpuPeer)
    monkeypatch.setattr("peakgemm.cli.bench.Timer", lambda peer, seconds: HostTimer())
    monkeypatch.setattr("peakgemm.tools.bench.linalg.set_count", lambda size, gpu: 2)
    monkeypatch.setattr("peakgemm.tools.bench.linalg.cases", lambda operations: SMALL)
    return here


@pytest.mark.parametrize("name", OPERATIONS)
def test_errors_are_those_of_rounding_and_grow_with_a_fault(name: str) -> None:
    operation = OPERATIONS[name]
    draw = torch.Generator().manual_seed(3)
    operands = operation.draw(lambda *shape: torch.randn(*shape, generator=draw), 32, 48)
    result = operation.theirs(*operands)
    assert 0 < operation.error(operands, result) < 8 < operation.limit(32, 48)
    value = result[0] if isinstance(result, tuple) else result
    value[7, 3] += 1e-2 * value.abs().max()
    assert operation.error(operands, result) > operation.limit(32, 48)
    value[7, 3] = float("nan")
    assert operation.error(operands, result) == float("inf")


def test_bench(on_host: Path, run: Any) -> None:
    code, said, complained = run("bench", "--suite", "linalg", "--json", "a.json")
    assert (code, complained) == (0, "") and fits(said)
    record = valid(on_host / "a.json")
    rows = record["rungs"]
    assert [row["name"] for row in rows] == [case.name for case in SMALL]
    assert linalg_table(record).count("| 1.00 |") == len(SMALL)
    assert all(row["ratio"] == 1 and row["max_error"] < 8 and row["operand_sets"] == 2 for row in rows)
    assert {row["operation"] for row in rows if "share_of_product" in row} == {"syrk", "herk"}


def test_a_wrong_result_is_not_timed(on_host: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linalg, "cases", lambda operations: [Case("trsm", 24, 24, 1, "ieee")])
    monkeypatch.setitem(OPERATIONS, "trsm", OPERATIONS["trsm"]._replace(ours=lambda a, b, precision: b))
    code, _, complained = run("bench", "--suite", "linalg", "--json", "a.json")
    assert code == 1 and "trsm 24, ieee: wrong result" in complained
    assert "ms" not in valid(on_host / "a.json")["rungs"][0]


def test_what_the_suite_does_not_take(here: Path, run: Any) -> None:
    assert "--shape, --svg: for products only, not for suite linalg" in run(
        "bench", "--suite", "linalg", "--shape", "8x8x8", "--svg", "a.svg")[2]
    code, said, _ = run("bench", "--suite", "linalg")
    assert code == 0 and said.startswith("Not timed: ")


def test_accuracy(here: Path, run: Any) -> None:
    """Each kind of matrix is what its operation takes: LAPACK's errors are within the textbook's bound."""
    code, said, complained = run("accuracy", "--suite", "linalg", "--host", "--sizes", "24,60", "--json", "a.json")
    assert (code, complained) == (0, "") and fits(said)
    cases = valid(here / "a.json")["rungs"]
    assert len(cases) == 2 * len(accuracy.FAMILIES) * 8
    for case in cases:
        theirs = case["results"]["lapack"]
        assert theirs["verdict"] == "skipped" or 0 < theirs["figure"] <= case["limit"], case
    skipped = {(case["test"], case["family"]) for case in cases if case["results"]["lapack"]["verdict"] == "skipped"}
    # LAPACK is above the bound where elements grow, as in Wilkinson's matrix.
    assert skipped <= {("solve", "Kahan 1e8"), *(("cholesky", family) for family in accuracy.INDEFINITE)}
    assert run("accuracy", "--suite", "linalg")[1].startswith("Not judged: ")
    assert "unknown suite 'qr'" in run("accuracy", "--suite", "qr")[2]


@pytest.mark.parametrize(("figure", "references", "verdict"), [
    (1.2, (1.0, 0.1), "pass"), (1.3, (1.0, 0.1), "pass"), (13.0, (1.0, 0.1), "worse"), (130.0, (1.0,), "fail"),
    (float("inf"), (1.0,), "fail"), (9.0, (), "pass"), (11.0, (), "worse"), (20.0, (18.0, 1.0), "pass")])
def test_what_is_demanded(figure: float, references: tuple[float, ...], verdict: str) -> None:
    assert accuracy.against(figure, references, 100.0)[0] == verdict
