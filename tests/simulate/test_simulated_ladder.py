"""The ladder without a GPU: rows from the simulator, in ``bench`` and on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import record_schema
from peakgemm import cli
from peakgemm.cli import console
from peakgemm.kernels.registry import LADDER, rung
from peakgemm.runtime.device import Gpu
from peakgemm.tools.bench import ladder as bench
from peakgemm.tools.bench import simulated
from peakgemm.tools.bench.ladder import ladder, wrong
from peakgemm.tools.bench.simulated import COUNTERS, LARGEST, matrices, simulated_row
from peakgemm.tools.simulator import Report, run_rung

SHAPES = ((96, 80, 33), (128, 256, 32))


@pytest.fixture(scope="module")
def runs():
    """Rows of every rung, without the facts of the SASS, which take long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "static_facts", lambda code, arch: {})
        return ladder(LADDER, SHAPES, "sm_90", None, None)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run ``peakgemm ladder`` in this process, in an empty folder, as on a machine without a GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("peakgemm.runtime.device.find", lambda: None)
    monkeypatch.setattr(console.out, "width", 100)
    monkeypatch.setattr(console.err, "width", 1000)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["peakgemm", "ladder", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code or 0, *capsys.readouterr()

    return call


def row(found, number):
    return next(r for r in found["rungs"] if r["number"] == number)


# ---- rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", range(len(SHAPES)))
def test_every_rung_is_simulated(runs, place):
    found = runs[place]
    assert found["shape"] == list(SHAPES[place])
    assert [r["number"] for r in found["rungs"]] == [k.number for k in LADDER]
    for r in found["rungs"]:
        assert (r["backend"], r["faults"], r["tflops"], r["reference_error"]) == ("simulator", 0, None, None)
        assert 0 < r["max_error"] <= (SHAPES[place][2] + 3) / 2 and r["simulated_seconds"] > 0
        assert r["global_sectors"] >= r["global_sectors_ideal"] > 0
        assert r["shared_wavefronts"] >= r["shared_wavefronts_ideal"]
        assert (r["shared_wavefronts"] > 0) == (r["number"] >= 3) == (r["shared_loads"] > 0)
    assert wrong([found]) == []


def test_the_ideas_show_in_the_counters(runs):
    at = {k.number: row(runs[1], k.number) for k in LADDER}
    assert at[0]["global_sectors"] > 3 * at[1]["global_sectors"]  # coalescing
    assert at[3]["shared_wavefronts"] > 10 * at[4]["shared_wavefronts"]  # the pad
    assert at[4]["shared_wavefronts"] == at[4]["shared_wavefronts_ideal"]


def test_nothing_above_the_largest_is_simulated(monkeypatch):
    simulated_shapes = []
    monkeypatch.setattr(bench, "simulate", lambda kernel, config, arch, shape: simulated_shapes.append(shape) or {})
    shapes = [(1024, 1024, 1024), (1024, 1024, 1025), (1, 1, LARGEST), (4096, 4096, 4096)]
    found = ladder([rung(0)], shapes, "sm_90", None, None)
    assert simulated_shapes == [shapes[0], shapes[2]]
    assert all(found[3]["rungs"][0][name] is None for name in bench.MEASURED)


def test_a_gpu_without_cublas_simulates_nothing():
    gpu = Gpu(0, "NVIDIA H100 80GB HBM3", "sm_90", 132, 1980, 3352.3, 50 << 20, "13.0")
    (found,) = ladder([rung(0)], [(32, 32, 32)], "sm_90", gpu, None)
    assert found["rungs"][0]["backend"] is None


def test_named_configurations():
    (found,) = ladder([rung(2), rung(5)], [(64, 64, 32)], "sm_90", None, None, named=True)
    assert [r["config_name"] for r in found["rungs"]] == [*rung(2).named, None]
    assert len({str(r["config"]) for r in found["rungs"]}) == 5
    assert [r["backend"] for r in found["rungs"]] == ["simulator"] * 5


# ---- the error -------------------------------------------------------------------------------


def empty():
    return Report("k", [], {}, [])


def test_the_error_is_componentwise_in_eps():
    a, b, c = (np.array(x, np.float32) for x in ([[1, 2]], [[3, -1], [4, 5]], [[10, 20]]))
    exact = (2 * a @ b - c).astype("f4")
    assert simulated_row(empty(), a, b, c, exact, 2.0, -1.0)["max_error"] == 0
    off = exact + np.array([[0, 1]], "f4")
    assert simulated_row(empty(), a, b, c, off, 2.0, -1.0)["max_error"] == pytest.approx(2**23 / (2 * 11 + 20))


def test_nan_never_passes():
    a, b, c = matrices((4, 4, 4))
    found = simulated_row(empty(), a, b, c, c)
    assert found["max_error"] == float("inf") and not any(found[name] for name in COUNTERS)
    bad = {"shape": [4, 4, 4], "rungs": [{"number": 3, "name": "x", **found}]}
    assert wrong([bad]) == ["03 x at [4, 4, 4] (inf eps, 0 faults)"]


def test_faults_never_pass():
    found = {"number": 3, "name": "x", "max_error": 0.5, "faults": 2}
    assert wrong([{"shape": [4, 4, 4], "rungs": [found]}]) == ["03 x at [4, 4, 4] (0.5 eps, 2 faults)"]
    assert wrong([{"shape": [4, 4, 4], "rungs": [{**found, "faults": 0}]}]) == []


def test_a_split_may_be_off_by_what_the_table_says():
    for number, limit in ((3, 2.0), (18, 6.0)):  # K = 1: a product, and alpha
        rows = [{"number": number, "name": "x", "max_error": error, "faults": 0} for error in (limit, limit + 0.1)]
        off = f"{number:02} x at [4, 4, 1] ({limit + 0.1:.3g} eps, 0 faults)"
        assert wrong([{"shape": [4, 4, 1], "rungs": rows}]) == [off]


# ---- the command -----------------------------------------------------------------------------


def test_the_command_shows_and_records_the_simulation(run):
    code, out, err = run("--rungs", "3,4,12", "--size", "64", "--json", "ladder.json")
    assert (code, err) == (0, "")
    assert "Simulated on the CPU" in out and "Not timed: " in out and "Not simulated" not in out
    data = json.loads(Path("ladder.json").read_text())
    record_schema.validate(data)
    assert data["device"] is None
    table = out[out.index("Simulated on the CPU"):]
    for r in data["rungs"]:
        assert set(r) <= set(record_schema.SCHEMA["$defs"]["kernel"]["properties"])
        assert r["backend"] == "simulator" and set(COUNTERS) <= set(r)
        line = next(line for line in table.splitlines() if line.startswith(f"{r['number']:02} "))
        assert f"{r['shared_wavefronts']:,}" in line and f"{r['global_sectors']:,}" in line
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 100


def test_above_the_largest_the_command_says_so(run, monkeypatch):
    monkeypatch.setattr(simulated, "run_rung", lambda *args, **options: pytest.fail("simulated"))
    code, out, _ = run("--rungs", "1", "--size", "1025", "--json", "ladder.json")
    assert code == 0 and "Not simulated: M N K is above 1,073,741,824" in out
    assert "Simulated on the CPU" not in out
    data = json.loads(Path("ladder.json").read_text())
    record_schema.validate(data)
    assert data["rungs"][0]["backend"] is None and data["rungs"][0]["global_sectors"] is None


def test_a_wrong_product_fails_the_command(run, monkeypatch):
    def broken(kernel, a, b, c, **options):
        report = run_rung(kernel, a, b, c, **options)
        c[1, 2] += 1
        return report

    monkeypatch.setattr(simulated, "run_rung", broken)
    code, out, err = run("--rungs", "1", "--size", "32")
    assert code == 1 and "off the FP64 bound" in err and "01 coalesced at [32, 32, 32] (" in err
    assert "Simulated on the CPU" in out
