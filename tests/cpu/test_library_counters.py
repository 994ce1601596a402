"""The counters of the library's kernels that docs/simulator.md shows are those of today's kernels."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "results" / "sm_90" / "library-counters.json").read_text(encoding="utf-8"))
# NVRTC does not make the same PTX of a source every time (test_profiler_agreement): a few narrow accesses more or less,
# for instance one load more in each warp of 1024 x 16 x 512, of 40 loads and 1896 instructions, in one process of six,
# and once two.
SLACK = 0.02  # of a counter
ACCESSES = 0.0011  # of the launch's instructions: two in 1896


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("library_counters_tool", ROOT / "tools" / "library_counters.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load()
JOBS = [(precision, sms, text) for precision, sms, texts in tool.CASES for text in texts.split(",")]


def recorded(text: str, precision: str) -> dict[str, Any]:
    return next(row for row in RECORD["rungs"] if row["name"] == text and row.get("precision", "ieee") == precision)


def test_every_case_has_a_row() -> None:
    assert [(row["name"], row.get("precision", "ieee")) for row in RECORD["rungs"]] == [(t, p) for p, _, t in JOBS]
    assert all(row["max_error"] < 5 for row in RECORD["rungs"])


@pytest.mark.parametrize("job", [JOBS[i] for i in (6, 9, 11, 12, -5)], ids=lambda job: f"{job[2]} {job[0]}")
def test_the_record_is_of_todays_kernels(job: tuple[str, int, str], cold: Path) -> None:
    """Of programs compiled by themselves: beside others, in threads, NVRTC 13.4 makes other loops once in a while."""
    found, kept = tool.row(*job), recorded(job[2], job[0])
    assert (found["kernel"], found["config"]) == (kept["kernel"], kept["config"])
    for kernel, counters in found["launches"].items():
        accesses = ACCESSES * counters["warp_instructions"]
        assert counters == pytest.approx(kept["launches"][kernel], rel=SLACK, abs=accesses), kernel
