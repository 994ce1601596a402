"""The published bills: their parts add up, and explain the measured loss."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from lab.bill import bill
from lab.bill.process import settled

RECORD = Path(__file__).parents[2] / "results" / "h100" / "bill.json"


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    if not RECORD.exists():
        pytest.skip("no bill has been measured yet")
    return json.loads(RECORD.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


KERNELS = {11, 12, 13, 14, 15, 16, "wide", "specialised"}
COUNTED = 0.001  # how far the profiler's count of the loop's instructions may be from the prediction


def test_bills_add_up(record: dict[str, Any]) -> None:
    """Within 1 % of the issue slots (`bill.verdict`), each of them."""
    assert [entry["failed"] for entry in record["bills"] if "failed" in entry] == []
    named = {}
    for entry in record["bills"]:
        found = entry["parts"]
        assert list(found) == list(bill.PARTS)
        assert sum(found.values()) == pytest.approx(1, abs=1e-4)
        slots = median(entry["samples_cycles"]["as it is"]) * bill.SUB_PARTITIONS * record["device"]["sm_count"]
        m, n, k = entry["shape"]
        assert found["ffma"] == pytest.approx(m * n * k / bill.LANES / slots, rel=1e-3)
        again = settled(dict(entry), record["device"]["sm_count"])["parts"]
        assert again == pytest.approx(found, abs=1e-3)
        left, good = bill.verdict(found)
        assert good, (entry["label"], left)
        named[entry["kernel"] if entry["number"] is None else entry["number"]] = left
    assert set(named) >= KERNELS


def test_the_profiler_counts_what_the_bills_take_for_granted(record: dict[str, Any]) -> None:
    for entry in record["bills"]:
        seen = entry["profiler"]
        assert seen["cycles_over_measured"] == pytest.approx(1, abs=0.02), entry["label"]
        assert seen["ffma_over_predicted"] == pytest.approx(1, abs=0.005), entry["label"]
        # Warps that copy are no part of the loop.
        copying = "producers" in entry["config"]
        assert seen["executed_over_predicted"] > 1 - COUNTED
        assert copying or seen["executed_over_predicted"] < 1 + COUNTED, entry["label"]
