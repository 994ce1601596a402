"""The scale suite: predictions, the processes that measure, and what is said without a GPU."""
# ruff: noqa: F401, F811  (fixtures of tests/support)

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import record_schema
from commands import fits, here, run
from lab.scale import host as scale_host
from lab.scale import lost as scale_lost
from lab.scale import scale
from lab.scale.host_model import Bus, host_us
from lab.scale.predict import Case, alone, cases, pays_from, predicted, shapes
from lazy_driver import Devices, present
from peakgemm.integrations.overlap import Link

LINK, BUS = Link(10, 400, 20, 300, 6, 250, 1000), Bus(50, 50, 150)


def fifty(m: int, n: int, k: int, precision: str) -> float:
    """50 TFLOPS, 50 us at least."""
    return max(50.0, 2 * m * n * k / 50e6)


def test_cases_for_any_number_of_gpus() -> None:
    for world in (2, 3, 4, 8, 64):
        found = list(cases(world, ["ieee"]))
        assert all(case.m % world == 0 for case in found)
        strong = [case for case in found if case.scaling == "strong" and case.call == "all_gather_matmul"]
        assert [(case.m, case.n * world, case.k) for case in strong] == [
            (size,) * 3 for size in (4096, 8192, 16384) if size % world == 0]
        wanted = set(shapes(found, world))
        for case in found:  # no product is asked for whose time is not measured
            row = predicted(case, world, lambda *key, wanted=wanted: fifty(*key) if key in wanted else None, LINK)
            assert row["predicted_ms"] > 0 and 0 < row["predicted_efficiency"] < 1.01
            assert alone(case, world) in wanted


def test_efficiencies() -> None:
    case = Case("all_gather_matmul", "strong", 8192, 4096, 8192, "ieee")
    row = predicted(case, 2, fifty, LINK)
    assert row["one_gpu_ms"] == pytest.approx(2 * 8192**3 / 50e9) and row["chosen"] == "head/512"
    assert 0.99 < row["predicted_efficiency"] == pytest.approx(row["one_gpu_ms"] / 2 / row["predicted_ms"])
    assert predicted(case, 2, fifty, Link(10, 5, 20, 5, 6, 5, 1000))["predicted_efficiency"] < 0.5
    rows = [predicted(case, 2, fifty, LINK) for case in cases(2, ["ieee"]) if case.scaling == "rows"]
    first = pays_from(rows, "ieee")
    assert first is not None and all(row["chosen"] != "plain" for row in rows if row["m"] >= first)
    assert pays_from([row | {"chosen": "plain"} for row in rows], "ieee") is None


def test_host_arrays() -> None:
    size, us = 30000, fifty(30000, 30000, 30000, "ieee")
    assert us < host_us(size, 1, us, BUS) < 1.05 * us               # the products hide the copies
    assert host_us(size, 2, us, BUS) == pytest.approx(host_us(size, 1, us, BUS) / 2, rel=0.05)
    assert host_us(size, 1, us / 20, BUS) > 2 * 4 * size**2 / 50e3  # the bus is what there is
    assert host_us(256, 1, 5, BUS) > BUS.call_us


def test_the_rates_of_the_run() -> None:
    rows = {"rows": [{"size": 16384, "precision": "ieee", "gpus": 1, "in_core_ms": 150.0}]}
    for bus in (BUS, BUS._replace(in_gbs=8)):  # the rates of the run
        row, = scale.probed(rows | {"bus": bus._asdict()}, BUS)
        assert row["predicted_ms"] == host_us(16384, 1, 150e3, bus) / 1e3


@pytest.mark.parametrize("count", [1, 2])
def test_rates(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Of devices at a time, and of small calls: operands one after the other and by two threads, and a result."""
    monkeypatch.setattr(scale_host, "_PROBE_BYTES", 1 << 22)
    with present(monkeypatch, Devices(count, eager=1.0)) as devices:
        assert min(scale_host.rates([*range(count)])) > 0
        assert devices.copied == {"in": count * 4 << 22, "out": count * 4 << 22, "peer": 0} and not any(devices.used)
        bus = scale_host.bus(1)
        shapes = {(p.m, p.n, p.k) for _, p in devices.problems}
    assert {(1, 1, 1 << 18), (1, 1, 1 << 21), (1024, 2048, 1), (1, 1, 1)} <= shapes
    assert min(bus.small_in_gbs, bus.shared_in_gbs, bus.small_out_gbs, bus.call_us) > 0
    assert host_us(256, 1, 5, bus) > bus.call_us


@pytest.mark.parametrize(("codes", "seconds", "says"), [
    (["pass", "import os; assert os.environ['RANK'] == '1'"], 30, None),
    (["import time; time.sleep(60)", "raise SystemExit('it broke')"], 30, "process 1 ended with 1: it broke"),
    (["import time; time.sleep(60)"], 0.5, "not done after 0 s: ended")])
def test_processes_that_fail_or_hang_end_the_others(codes: list[str], seconds: float, says: str | None) -> None:
    said = scale.run([[sys.executable, "-c", code] for code in codes],
                     [{"RANK": str(rank)} for rank in range(len(codes))], seconds)
    assert len(said) == (says is not None) and (says is None or said[0].startswith(says))


@pytest.mark.parametrize(("does", "hung"), [("print('call 5: an error'); sys.exit(3)", False),
                                            ("time.sleep(60)", True)])
def test_a_lost_rank_is_watched(does: str, hung: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_lost, "_PATIENCE_S", 1.0 if hung else 20.0)
    code = f"import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(7)\n{does}"
    found = scale_lost.watched("plain", scale.ranks_of(2), (sys.executable, "-c", code))
    assert found["hung"] is hung and found["exits"][1] == 7
    assert hung or (found["exits"][0] == 3 and found["said"][0] == "call 5: an error\n" and found["after_s"] < 20)


def test_the_host_process_checks_itself() -> None:
    a, b = scale_host.drawn(70, 1), scale_host.drawn(70, 2)
    assert scale_host.error_of(a, b, a @ b) < 5
    wrong = a @ b
    wrong[-1, -1] = np.nan
    assert scale_host.error_of(a, b, wrong) == np.inf


def test_the_command(run: Any, here: Path) -> None:
    code, said, complaint = run("lab.scale", "--gpus", "8", "--quick", "--json", "scale.json")
    assert (code, complaint) == (0, "") and fits(said), said
    assert "8 x NVIDIA H100" in said and "Overlap pays" in said and "Not timed: " in said
    record = json.loads(Path("scale.json").read_text())
    record_schema.validate(record)
    assert record["scale"]["gpus"] == 8 and len(record["scale"]["prediction"]["products"]) > 20
    assert {row["gpus"] for row in record["scale"]["prediction"]["host"]} == {1, 8}
    Path("links.json").write_text("{}")
    for name in ("links.json", "gone"):
        code, _, complaint = run("lab.scale", "--links", name)
        assert code == 2 and "is no file of links" in complaint
