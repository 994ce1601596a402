"""`peakgemm inspect bill` on the GPU: every variant ends, and the parts add up."""

from __future__ import annotations

from itertools import pairwise

import pytest

from lab.bill import bill
from lab.bill import process as bill_process
from peakgemm.runtime import device

pytestmark = pytest.mark.gpu


def test_every_variant_ends_and_a_bill_adds_up() -> None:
    if device.reason_without_gpu() is not None:
        pytest.skip("needs a GPU")
    gpu = device.require()
    if gpu.arch != "sm_90":
        pytest.skip("needs sm_90")
    jobs = [(kernel, "4096x4096x4096") for kernel in ("12", "14", "15", "wide")]
    found, _ = bill_process.bills(jobs, gpu, 5, 30, lambda what: None)
    assert [entry.get("failed") for entry in found] == [None] * len(jobs)
    for entry in found:
        assert sum(entry["parts"].values()) == pytest.approx(1)
        assert entry["parts"]["ffma"] < 1
        # A step takes something away: it may save nothing, but costs no more than the times are sure to.
        steps = [entry["relative"][one["name"]] for one in entry["steps"] if one["name"] in entry["relative"]]
        assert entry["clock_mhz"] == pytest.approx(gpu.clock_mhz, rel=0.25)  # which only full load holds down
        assert all(after < before + bill.TOLERANCE for before, after in pairwise(steps))
