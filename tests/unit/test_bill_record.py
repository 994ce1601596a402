"""The published bills: their parts add up, and explain the measured loss."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from peakgemm.views import bill
from peakgemm.views.bill_process import settled

RECORD = Path(__file__).parents[2] / "results" / "h100" / "bill.json"


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    if not RECORD.exists():
        pytest.skip("no bill has been measured yet")
    return json.loads(RECORD.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def test_bills_add_up(record: dict[str, Any]) -> None:
    named = set()
    for entry in record["bills"]:
        found = entry["parts"]
        assert list(found) == list(bill.PARTS)
        assert sum(found.values()) == pytest.approx(1, abs=1e-4)
        cycles = median(entry["samples_ms"]["as it is"]) * 1e3 * entry["clock_mhz"]
        slots = cycles * bill.SUB_PARTITIONS * record["device"]["sm_count"]
        m, n, k = entry["shape"]
        assert found["ffma"] == pytest.approx(m * n * k / bill.LANES / slots, rel=1e-3)
        again = settled(dict(entry), record["device"]["sm_count"])["parts"]
        assert again == pytest.approx(found, abs=1e-3)
        if bill.verdict(found)[1]:
            named.add(entry["kernel"] if entry["number"] is None else entry["number"])
    assert {"wide", 12, 14, 15} <= named
