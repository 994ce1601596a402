"""How other libraries' tests are judged: what passes, what fails, and what says nothing of peakgemm."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from lab.conformance.outcomes import FAILED, NOT_OURS, PASSED, Outcome, Recorder, beside, judged
from peakgemm.tools.bench import records
from record_schema import validate

TESTS = """
import pytest
from peakgemm_tally import calls

def test_good(): calls["mm"] += 1
def test_bad(): calls["mm"] += 1; assert 1 == 2
def test_known(): calls["mm"] += 1; assert 1 == 3
def test_silent(): pass
@pytest.mark.skip(reason="slow")
def test_skipped(): pass
@pytest.fixture
def broken(): raise OSError("no file")
def test_setup(broken): pass
"""


def test_outcomes_of_pytest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    excused = {"*test_known": "another library's word", "*test_gone": "no such test", "*test_good": "old"}
    recorder = Recorder("suite", calls, "no calls", excused)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "peakgemm_tally.py").write_text("from collections import Counter\ncalls = Counter()\n")
    (tmp_path / "test_of_another.py").write_text(TESTS)
    import peakgemm_tally

    monkeypatch.setattr(peakgemm_tally, "calls", calls)
    pytest.main([str(tmp_path), "-q", "-p", "no:cacheprovider", "-c", "/dev/null"], plugins=[recorder])
    found = {each.test.split("::")[1]: each for each in recorder.outcomes}
    assert {name: each.outcome for name, each in found.items()} == {
        "test_good": PASSED, "test_bad": FAILED, "test_known": NOT_OURS, "test_silent": NOT_OURS,
        "test_skipped": NOT_OURS, "test_setup": FAILED}
    assert found["test_good"].calls == {"mm": 1} and "assert 1 == 2" in found["test_bad"].reason
    assert found["test_known"].reason.startswith("another library's word (assert 1 == 3")
    assert [each.test for each in recorder.unused()] == ["*test_good"]
    rows = [{key: value for key, value in each._asdict().items() if value} for each in found.values()]
    validate(records.record(None, "sm_90", [{"tests": rows}], simulated=False))


def test_what_the_library_itself_fails_does_not_apply() -> None:
    ours = [judged("s", name, ["wrong"], {"mm": 1}) for name in ("both", "ours")] + [judged("s", "none", [], {"mm": 1})]
    theirs = [Outcome("s", "both", FAILED, "FP64"), Outcome("s", "none", FAILED, "FP64")]
    assert [each.outcome for each in beside(theirs, ours, "so does SciPy")] == [NOT_OURS, FAILED, PASSED]


@pytest.mark.parametrize(("off", "passes"), [(0.0, True), (3e-6, True), (1e-4, False), (float("nan"), False)])
def test_what_is_close_in_fp32(off: float, passes: bool) -> None:
    scipy_linalg = pytest.importorskip("lab.conformance.scipy_linalg", exc_type=ImportError)
    check = scipy_linalg.closer(np.testing.assert_allclose)
    want = np.array([1.0, 1e-3])
    if passes:
        check(want + off, want, atol=1e-15)
    else:
        with pytest.raises(AssertionError):
            check(want + off, want, atol=1e-15)


@pytest.mark.parametrize(("ours", "reason", "compared"), [
    ([1.0], "", True), ([1.0 + 2e-5], "", True), ([1.0 + 1e-3], "off by", True), ([float("nan")], "off by inf", True),
    ([[1.0]], "(1, 1)", True), ([3.0], "", False)])
def test_a_rerouted_result_beside_torchs(ours: object, reason: str, compared: bool) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    opinfo = pytest.importorskip("lab.conformance.torch_opinfo", exc_type=ImportError)
    theirs = torch.tensor([1.0 if compared else 2.0])
    found = opinfo.compare(torch.tensor(ours), theirs, torch.ones(1, dtype=torch.float64))
    assert found.reason.startswith(reason) and bool(found.reason) == bool(reason) and found.compared == compared
