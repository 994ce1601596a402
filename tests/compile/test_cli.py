"""The command line: tables of 100 columns, records that fit their schema, one message for a mistake."""
# ruff: noqa: F401, F811  (fixtures of tests/support)

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import record_schema
from commands import ROOT, fits, here, outside, run, valid
from peakgemm.errors import CompileFailed
from peakgemm.kernels.registry import rungs
from peakgemm.runtime.architectures import ARCHITECTURES
from peakgemm.runtime.device import Gpu
from peakgemm.tools.bench.ladder import path_for, static_row
from peakgemm.tools.bench.records import runs_of
from peakgemm.tools.bench.timer import Comparison

H100 = Gpu(0, "NVIDIA H100 80GB HBM3", "sm_90", 132, 1980, 3352.3, 50 << 20, "13.0")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    """A rung of each kind for sm_90, and the record of them; tests/simulate/test_simulated_ladder.py runs all."""
    path = tmp_path_factory.mktemp("record") / "ladder.json"
    return outside("ladder", "--rungs", "0,3,14,16,17", "--size", "64", "--arch", "sm_90", "--json", str(path)), path


def test_ladder_shows_rungs_and_keeps_a_record(whole) -> None:
    done, path = whole
    assert (done.returncode, done.stderr) == (0, "") and fits(done.stdout) and "\x1b" not in done.stdout  # a pipe
    kernels = rungs("0,3,14,16,17")
    for kernel in kernels:
        # Resources, main loop, simulated; of a patched one, its patch.
        assert done.stdout.count(kernel.label) == 3 + kernel.patched
    data = valid(path)
    assert (data["device"], data["arch"], data["shape"]) == (None, "sm_90", [64, 64, 64])
    assert [row["number"] for row in data["rungs"]] == [kernel.number for kernel in kernels]
    assert {row["number"] for row in data["rungs"] if "patch" in row} == {16}
    assert {row["number"] for row in data["rungs"] if row["spill_bytes"]} == {17}  # in the warps that load
    assert {row["tflops"] for row in data["rungs"]} == {None}


def measured(kernel: Any, shape: tuple[int, int, int]) -> dict[str, Any]:
    """A row as a GPU would fill it, with wide figures."""
    compared = Comparison("graph", [123.456] * 5, [99.9] * 5, 130.0,
                          {"sm_clock_mhz": 1980, "power_w": 699.5, "temperature_c": 61})
    flops = round(1.3e13)
    return {**static_row(kernel, path_for(kernel, kernel.config_for("sm_90"), "sm_90", shape), "sm_90", H100),
            "config_name": None, "max_error": float("inf"), "reference_error": 101.25, "operand_sets": 12,
            **compared.to_json(flops)}


@pytest.fixture
def on_h100(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GPU that measures at once."""
    class Peer:
        def versions(self) -> dict[str, str]:
            return {"torch": "2.9.0", "cublas": "13.1.0"}

    def ladder(kernels: Any, shapes: Any, *rest: Any) -> list[dict[str, Any]]:
        return [{"shape": list(shape), "rungs": [measured(k, shape) for k in kernels]} for shape in shapes]

    monkeypatch.setattr("peakgemm.runtime.device.find", lambda: H100)
    monkeypatch.setattr("peakgemm.cli.measuring.find_peer", Peer)
    monkeypatch.setattr("peakgemm.cli.ladder.ladder", ladder)
    return here


def test_measured_record(on_h100: Path, run) -> None:
    code, out, err = run("ladder", "--rungs", "0,14", "--size", "256,512", "--json", "measured.json")
    assert code == 1  # the fixture's infinite error: a wrong product fails the command, the table is still shown
    assert "Wrong products" in err and "14 large_tile" in err and "105.30" in out and fits(out)
    data = valid(on_h100 / "measured.json")
    assert [run["shape"] for run in data["runs"]] == [[256] * 3, [512] * 3]
    assert (data["device"]["name"], data["environment"]["cublas"]) == (H100.name, "13.1.0")
    assert data["kernels"][1]["name"] == "large_tile" and "name" not in data["runs"][1]["rungs"][1]
    row = runs_of(data)[1]["rungs"][1]
    assert (row["tflops"], row["ratio_to_cublas"], row["mode"]) == (105.301, 0.809195, "graph")
    assert row["max_error"] == "inf"  # JSON has no infinity


def test_the_schema_refuses(whole) -> None:
    data = json.loads(whole[1].read_text())
    row = data["rungs"][0]
    jsonschema_rs = pytest.importorskip("jsonschema_rs", reason="needs jsonschema-rs")
    assert record_schema.check().is_valid(data)
    for broken in ({**data, "schema": 2}, {**data, "runs": []}, {**data, "shape": [1, 2]},
                   {k: v for k, v in data.items() if k != "device"},
                   {**data, "rungs": [{**row, "tflops": "fast"}]}, {**data, "rungs": [{**row, "mode": "eager"}]},
                   {**data, "rungs": [{**row, "backend": "cpu"}]}, {**data, "report": {}},
                   {**data, "rungs": [{**row, "global_sectors": None}]},
                   {k: v for k, v in data.items() if k != "shape"},
                   {**data, "rungs": [{k: v for k, v in row.items() if k != "registers"}]}):
        with pytest.raises(jsonschema_rs.ValidationError):
            record_schema.validate(broken)


def test_published_results_fit_the_schema() -> None:
    for path in sorted((ROOT / "results").rglob("*.json")):
        if "schema" in json.loads(path.read_text()):
            valid(path)


def test_a_tile_that_the_compiler_refuses_is_a_row(here: Path, run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise CompileFailed("11.cu does not compile for sm_90:\nptxas error: too much")

    monkeypatch.setattr("peakgemm.tools.bench.sweep.static_row", refuse)
    code, out, _ = run("sweep", "--tile", "64,16,64,4,4", "--json", "sweep.json")
    assert code == 0
    assert "ptxas error: too much" in out
    assert valid(here / "sweep.json")["rungs"][0]["refused"].endswith("too much")


def test_ladder_for_turing_leaves_out_what_it_has_no_instructions_for(here: Path, run) -> None:
    code, out, err = run("ladder", "--arch", "sm_75", "--size", "64", "--json", "turing.json")
    assert (code, err) == (0, "")
    assert [row["number"] for row in valid(here / "turing.json")["rungs"]] == list(range(13))
    assert "Left out on sm_75, cp.async needs sm_80 or later: 13 cp async, 14 large tile, 16 sass tuned." in out


def test_inspect_occupancy(run) -> None:
    code, out, _ = run("inspect", "occupancy", "--threads", "256", "--registers", "32", "--shared", "70000")
    assert code == 0 and fits(out)
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines() if line.startswith("sm_")}
    assert list(rows) == list(ARCHITECTURES)
    assert "no block fits" in rows["sm_75"]
    assert "70000 bytes of shared memory a block asked, 65536 available on sm_75" in out
    assert rows["sm_90"].startswith("3 24 38 shared memory")


def test_cache(here: Path, run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEAKGEMM_CACHE_DIR", str(here / "cache"))
    assert "0 files" in run("cache", "info")[1]
    assert run("ladder", "--rungs", "0", "--size", "64", "--arch", "sm_90")[0] == 0
    assert "4 files" in run("cache", "info")[1]  # the cubin, the PTX for the simulator, the facts of each
    assert run("cache", "clear")[0] == 0 and "0 files" in run("cache", "info")[1]
    code, out, err = run("ladder", "--explain", "07", "--size", "64")
    assert (code, err) == (0, "")
    assert "07 thread tile 8x8" in out and "\nIdea: " in out and "08 transposed" not in out


