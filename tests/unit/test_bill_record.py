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


# The bar is 1 % of the issue slots (`bill.verdict`). These miss it in the record: 15 and wide, whose waits for the
# copying warps could not be taken out, and 12 and 14 by a little.
MISSED = {12: 0.0123, 14: 0.0119, 15: 0.0496, "wide": 0.0499}


def test_bills_add_up(record: dict[str, Any]) -> None:
    named = {}
    for entry in record["bills"]:
        if "parts" not in entry:
            continue
        found = entry["parts"]
        assert list(found) == list(bill.PARTS)
        assert sum(found.values()) == pytest.approx(1, abs=1e-4)
        cycles = median(entry["samples_ms"]["as it is"]) * 1e3 * entry["clock_mhz"]
        slots = cycles * bill.SUB_PARTITIONS * record["device"]["sm_count"]
        m, n, k = entry["shape"]
        assert found["ffma"] == pytest.approx(m * n * k / bill.LANES / slots, rel=1e-3)
        again = settled(dict(entry), record["device"]["sm_count"])["parts"]
        assert again == pytest.approx(found, abs=1e-3)
        named[entry["kernel"] if entry["number"] is None else entry["number"]] = found["unexplained"]
    assert {"wide", 12, 14, 15} <= set(named)
    for name, unexplained in named.items():
        assert unexplained == pytest.approx(MISSED.get(name, 0), abs=0.0101 if name not in MISSED else 1e-3), name
