"""The simulator computes the bits that the H100 computed (results/h100/hashes.json)."""

import json
from pathlib import Path

import pytest

from docs.generate.publish import Checkout
from lab.bits import CASES, digests
from peakgemm.kernels.registry import LADDER
from peakgemm.tools.simulator import run_rung

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "h100" / "hashes.json"
RECORDED = {row["number"]: row["digests"] for row in json.loads(RECORD.read_text(encoding="utf-8"))["rungs"]}
NUMBERS = {k.number for k in LADDER}
# Those of Hopper alone may be recorded later; a patched one has the PTX of another.
REQUIRED = {k.number for k in Checkout(ROOT).measured_rungs() if not k.sm_90a and not k.patched}


def test_the_record_holds_every_case():
    assert REQUIRED <= set(RECORDED) <= NUMBERS
    assert all(set(digests) == {case.name for case in CASES} for digests in RECORDED.values())


@pytest.mark.parametrize("kernel", [k for k in LADDER if not k.patched], ids=lambda k: k.label)
def test_bits_are_the_h100s(kernel):
    if kernel.number not in RECORDED:
        pytest.skip("no GPU's bits are recorded yet: python -m lab.hashes")

    def simulate(*args, **scalars):
        report = run_rung(*args, **scalars)
        assert report.clean, str(report)

    assert dict(digests(kernel, simulate)) == RECORDED[kernel.number]
