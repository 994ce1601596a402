"""The simulator counts what Nsight Compute counted on the H100 (results/h100/counters.json)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docs.generate.publish import Checkout
from lab import counters as tool
from peakgemm.tools.bench.records import runs_of

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "results" / "h100" / "counters.json").read_text(encoding="utf-8"))
SMALL = ((256, 256, 256), (257, 129, 65))
ROWS = [(tuple(run["shape"]), row) for run in runs_of(RECORD) if tuple(run["shape"]) in SMALL for row in run["rungs"]]


def without_strays(reports, counted):
    """The counters without the narrow loads that NVRTC adds to rungs 13 and 14 in some compilations.

    The same source gives different PTX from one compilation to the next: beside the `ld.shared.v4` that fetch every
    fragment there are, in about one of four, one or two `ld.shared.v2` or `ld.shared.f32` of the same words.
    """
    (report,) = reports
    found = dict(counted)
    for item in report.instructions:
        if item.opcode.startswith("ld.shared") and ".v4" not in item.opcode:
            for name, value in (("shared_loads", item.executions), ("shared_wavefronts_ld", item.wavefronts),
                                ("shared_wavefronts", item.wavefronts),
                                ("shared_wavefronts_ideal", item.wavefronts_ideal)):
                found[name] -= value
    return found


def test_the_record_holds_every_rung_and_config():
    # Those of Hopper alone may be recorded later; a patched one has the PTX of another.
    measured = Checkout(ROOT).measured_rungs()  # one that no GPU has run yet has no counters either
    later = {k.number for k in measured if k.sm_90a or k.patched}
    wanted = [(k.number, k.name, name) for k in measured if k.number not in later
              for name in (k.named or {"default": None})]
    for shape in SMALL:
        found = [(r["number"], r["name"], r["config_name"]) for s, r in ROWS if s == shape]
        assert [row for row in found if row[0] not in later] == wanted


@pytest.mark.parametrize(("shape", "row"), ROWS, ids=lambda x: "x".join(map(str, x)) if isinstance(x, tuple)
                         else f"{x['number']:02} {x['config_name']}")
def test_counters_are_the_profilers(shape, row, monkeypatch):
    reports, run_rung = [], tool.run_rung
    monkeypatch.setattr(tool, "run_rung", lambda *a, **k: reports.append(run_rung(*a, **k)) or reports[-1])
    own = tool.simulated(row["number"], row["config_name"], shape, RECORD["arch"])
    assert reports[0].clean
    if row["number"] in (13, 14):
        own = without_strays(reports, own)
    assert set(own) == set(tool.COMPARED)
    differs = [name for name in tool.COMPARED if own[name] != row["ncu"][name]]
    assert not differs or (row["explained"] and tool.explain(row["number"], row["ncu"], own))
    assert (row["simulator"], row["differs"]) == (own, differs)


def test_an_explanation_accounts_for_the_whole_difference():
    for _, row in ROWS:
        own = row["simulator"]
        if row["explained"]:
            for name in row["differs"]:
                assert tool.explain(row["number"], row["ncu"], {**own, name: own[name] + 4}) is None
            other = next(name for name in tool.COMPARED if name not in row["differs"])
            assert tool.explain(row["number"], row["ncu"], {**own, other: own[other] + 4}) is None
        else:
            assert row["differs"] == []
