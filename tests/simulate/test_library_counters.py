"""The counters of the library's kernels that docs/simulator.md shows are those of today's kernels."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab import library_counters as tool
from seldom import exhaustive

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "results" / "sm_90" / "library-counters.json").read_text(encoding="utf-8"))
# NVRTC does not make the same PTX of a source every time (test_rungs): a few narrow accesses more or less,
# for instance one load more in each warp of 1024 x 16 x 512, of 40 loads and 1896 instructions, in one process of six.
SLACK = 0.02  # of a counter
ACCESSES = 0.001  # of the launch's instructions
JOBS = [(precision, sms, text) for precision, sms, texts in tool.CASES for text in texts.split(",")]
ROWS = {(row["name"], row.get("precision", "ieee")): row for row in RECORD["rungs"]}


def elsewhere(job: tuple[str, int, str]) -> Any:
    """The row by a new process."""
    code = f"import json; from lab.library_counters import row; print(json.dumps(row(*{job!r})))"
    return json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                                     cwd=ROOT).stdout)


def differing(found: Any, kept: Any) -> dict[str, Any]:
    """The launches whose counters are not those that were kept."""
    return {kernel: counters for kernel, counters in found["launches"].items()
            if counters != pytest.approx(kept["launches"][kernel], rel=SLACK,
                                         abs=ACCESSES * counters["warp_instructions"])}


@pytest.mark.parametrize("job", [JOBS[6], JOBS[9], JOBS[11], JOBS[12], exhaustive(JOBS[-5])],
                         ids=lambda job: f"{job[2]} {job[0]}")
def test_the_record_is_of_todays_kernels(job: tuple[str, int, str], cold: Path,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """Of programs compiled by themselves: beside others, in threads, NVRTC 13.4 makes other loops once in a while, by
    itself seldom (once two loads more in a warp), so there are three tries."""
    found, kept = tool.row(*job), ROWS[job[2], job[0]]
    assert (found["kernel"], found["config"]) == (kept["kernel"], kept["config"])
    for attempt in range(2):
        if differing(found, kept):
            monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(cold / str(attempt)))
            found = elsewhere(job)
    assert not differing(found, kept), kept["launches"]
