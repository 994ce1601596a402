"""`peakgemm simulate matmul` and `peakgemm ladder` without a GPU: launches, counters, errors, records, mistakes."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import here, run, valid
from peakgemm.cli import console
from peakgemm.kernels.registry import rung
from peakgemm.runtime.device import Gpu
from peakgemm.selection.choose import choose
from peakgemm.tools.bench import ladder as bench
from peakgemm.tools.bench import simulated
from peakgemm.tools.bench.ladder import ladder, wrong
from peakgemm.tools.bench.simulated import COUNTERS, LARGEST, matrices, simulate_call, simulated_row
from peakgemm.tools.bench.suites import cases
from peakgemm.tools.simulator import Report
from seldom import exhaustive

__all__ = ["here", "run"]

# ---- a call ------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console.err, "width", 1000)


@pytest.fixture
def simulate(here: Path, run: Any) -> Any:
    return lambda words: run("simulate", "matmul", *words.split())


@pytest.mark.parametrize(("words", "kernels"), [
    ("--shape 32x24x16*3", ["ffma_small"]), ("--shape 64x48x600:TN", ["ffma_specialised"]),
    ("--shape 100x48x3000:TN", ["ffma_specialised", "ffma_reduce"]),
    ("--shape 1x300x64:NT", ["ffma_skinny"]), ("--shape 40x36x512 --arch sm_75", ["ffma_staged", "ffma_reduce"]),
    exhaustive("--shape 256x256x192 --precision fp16x3", ["tensor_streamed", "tensor_reduce"]),
    exhaustive("--shape 136x130x134 --precision tf32x3 --alpha -2 --beta 0.5",
               ["tensor_split", "tensor_product", "tensor_reduce"]),
    ("--shape 40x30x70 --precision tf32x3 --alpha -2 --beta 0.5", ["tensor_split", "tensor_product", "tensor_reduce"]),
    ("--size 64 --precision emulated", ["ffma_specialised"]),
    exhaustive("--shape 192x256x400:TT --sms 1 --beta 1", ["ffma_first_chunk", "ffma_wide"])])
def test_the_launches_of_a_call(simulate: Any, words: str, kernels: list[str]) -> None:
    code, out, err = simulate(f"{words} --no-source")
    assert (code, "No fault found." in out) == (0, True), err
    lines = out.splitlines()
    table = next(i for i, line in enumerate(lines) if line.startswith("Counters"))
    assert lines[table + 1].split() == kernels
    assert 0 < float(re.search(r"Largest error ([\d.]+) eps", out)[1]) < 6
    assert ("half tiles rerouted" in out) == kernels[-1].startswith("tensor")


def test_the_figures_are_those_of_the_choice(simulate: Any) -> None:
    """By default on as many SMs as the architecture's GPU has; the listing is that of the kernel chosen."""
    _, out, _ = simulate("--shape 70x20x33:NT*5 --beta 1 --json r.json")
    case, = cases("70x20x33:NT*5")
    choice = choose(case.problem()[0], "sm_90", 132)
    assert f"sm_90 with 132 SMs: {choice.kernel.label}, {choice.config.label()} (heuristic)" in out
    sectors = simulate_call(case, "ieee", "sm_90", 132, beta=1.0).product.counters["global_sectors"]
    assert re.search(rf"^global sectors +{sectors:,} *$", out, re.M) and sectors > 0
    assert choice.kernel.file in out
    data = valid(Path("r.json"))
    assert 0 < data["problem"].pop("max_error") < 5 and data["problem"].pop("config")["bk"] == choice.config.bk
    assert data["problem"] == {"name": "matmul", "shape": [70, 20, 33], "layout": "NT", "batch": 5, "alpha": 1,
                               "beta": 1, "precision": "ieee", "sms": 132, "kernel": choice.kernel.name}
    assert data["report"]["counters"]["global_sectors"] == sectors


@pytest.mark.parametrize(("words", "says"), [
    ("--shape 8x8", ["'8x8' is not MxNxK[:layout][*batch]"]), ("--size 8 --shape 8x8x8", ["exclude each other"]),
    ("--shape 8x8x8,9x9x9", ["one shape, not 2"]), ("--precision fp64", ["'fp64' is unknown", "'ieee', 'emulated'"]),
    ("--sms 0", ["--sms 0 must be 1 at least"]), ("--size 100000", ["needs over", "max_memory allows 4,294,967,296"]),
    ("--precision fp16x3 --arch sm_75", ["fp16x3", "sm_75"]), ("--grid 3", ["--grid: for a file only, not for matmul"]),
    ("--arch sm_42", ["unknown architecture 'sm_42'"])])
def test_mistakes(simulate: Any, words: str, says: list[str]) -> None:
    code, out, err = simulate(words)
    assert (code, out) == (2, "") and err.startswith("peakgemm: ") and all(text in err for text in says)


# ---- rows of the ladder --------------------------------------------------------------------------------------

def test_rows_of_rungs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The products themselves are in test_every_family.py."""
    monkeypatch.setattr(bench, "static_facts", lambda code, arch: {})  # which take long
    numbers, shapes = [0, 1, 3, 4, 12, 15, 16, 17], ((96, 80, 33), (64, 128, 32))
    runs = ladder([rung(number) for number in numbers], shapes, "sm_90", None, None)
    assert wrong(runs) == []
    for rows, shape in zip(runs, shapes, strict=True):
        assert rows["shape"] == list(shape) and [row["number"] for row in rows["rungs"]] == numbers
        for row in rows["rungs"]:
            assert (row["backend"], row["faults"]) == ("simulator", 0)
            assert row["tflops"] is None and row["reference_error"] is None
            assert 0 < row["max_error"] <= (shape[2] + 3) / 2 and row["simulated_seconds"] > 0
            assert row["global_sectors"] >= row["global_sectors_ideal"] > 0
            assert row["shared_wavefronts"] >= row["shared_wavefronts_ideal"]
            assert (row["shared_wavefronts"] > 0) == (row["number"] >= 3) == (row["shared_loads"] > 0)
    rows = {row["number"]: row for row in runs[1]["rungs"]}
    assert rows[0]["global_sectors"] > 3 * rows[1]["global_sectors"]  # coalescing
    assert rows[3]["shared_wavefronts"] > 10 * rows[4]["shared_wavefronts"]  # the pad
    assert rows[4]["shared_wavefronts"] == rows[4]["shared_wavefronts_ideal"]


def test_what_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named configurations as well; nothing above the largest, and nothing where there is a GPU."""
    (rows,) = ladder([rung(2), rung(5)], [(64, 64, 32)], "sm_90", None, None, named=True)
    assert [(row["config_name"], row["backend"]) for row in rows["rungs"]] == [
        (name, "simulator") for name in (*rung(2).named, None)]
    shapes, seen = [(1024, 1024, 1024), (1024, 1024, 1025), (1, 1, LARGEST), (4096, 4096, 4096)], []
    monkeypatch.setattr(bench, "simulate", lambda kernel, config, arch, shape: seen.append(shape) or {})
    rows = ladder([rung(0)], shapes, "sm_90", None, None)
    assert seen == [shapes[0], shapes[2]] and all(rows[3]["rungs"][0][name] is None for name in bench.MEASURED)
    gpu = Gpu(0, "NVIDIA H100 80GB HBM3", "sm_90", 132, 1980, 3352.3, 50 << 20, "13.0")
    assert ladder([rung(0)], [(32, 32, 32)], "sm_90", gpu, None)[0]["rungs"][0]["backend"] is None


def test_the_error_is_componentwise_in_eps_and_nan_never_passes() -> None:
    empty = Report("k", [], {}, [])
    a, b, c = (np.array(x, np.float32) for x in ([[1, 2]], [[3, -1], [4, 5]], [[10, 20]]))
    exact = (2 * a @ b - c).astype("f4")
    assert simulated_row(empty, a, b, c, exact, 2.0, -1.0)["max_error"] == 0
    off = exact + np.array([[0, 1]], "f4")
    assert simulated_row(empty, a, b, c, off, 2.0, -1.0)["max_error"] == pytest.approx(2**23 / (2 * 11 + 20))
    a, b, c = matrices((4, 4, 4))
    row = simulated_row(empty, a, b, c, c)
    assert row["max_error"] == float("inf") and not any(row[name] for name in COUNTERS)


@pytest.mark.parametrize(("number", "k", "error", "faults", "passes"), [
    (3, 4, float("inf"), 0, False), (3, 4, 0.5, 2, False), (3, 4, 0.5, 0, True),
    # K = 1: a product, and alpha; a split may be off by what the table says.
    (3, 1, 2.0, 0, True), (3, 1, 2.1, 0, False), (17, 1, 6.0, 0, True), (17, 1, 6.1, 0, False)])
def test_what_is_wrong(number: int, k: int, error: float, faults: int, passes: bool) -> None:
    row = {"number": number, "name": "x", "max_error": error, "faults": faults}
    said = f"{number:02} x at [4, 4, {k}] ({error:.3g} eps, {faults} faults)"
    assert wrong([{"shape": [4, 4, k], "rungs": [row]}]) == ([] if passes else [said])


# ---- the command ladder ----------------------------------------------------------------------------------------


def test_ladder_shows_and_records_the_simulation(here: Path, run: Any) -> None:
    code, out, err = run("ladder", "--rungs", "3,4,12", "--size", "64", "--json", "ladder.json")
    assert (code, err) == (0, "") and "Not timed: " in out and "Not simulated" not in out
    data, table = valid(here / "ladder.json"), out[out.index("Simulated on the CPU"):]
    assert data["device"] is None
    for row in data["rungs"]:
        line = next(line for line in table.splitlines() if line.startswith(f"{row['number']:02} "))
        assert f"{row['shared_wavefronts']:,}" in line and f"{row['global_sectors']:,}" in line
    assert max(len(line.rstrip()) for line in out.splitlines()) <= 100


def test_above_the_largest_ladder_says_so(here: Path, run: Any) -> None:
    code, out, _ = run("ladder", "--rungs", "1", "--size", "1025", "--json", "ladder.json")
    assert code == 0 and "Not simulated: M N K is above 1,073,741,824" in out and "Simulated on the CPU" not in out
    row, = valid(here / "ladder.json")["rungs"]
    assert row["backend"] is None and row["global_sectors"] is None


def test_a_wrong_product_shows(here: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(real: Any, *args: Any, **options: Any) -> Any:
        result = real(*args, **options)
        args[-1][..., 1, 2] += 1
        return result

    for name in ("run_rung", "run_counted"):
        monkeypatch.setattr(simulated, name, partial(spoilt, getattr(simulated, name)))
    assert simulate_call(cases("9x9x9")[0], "ieee", "sm_90", 4).max_error > 1e4
    code, out, err = run("ladder", "--rungs", "1", "--size", "32")
    assert code == 1 and "off the FP64 bound" in err and "01 coalesced at [32, 32, 32] (" in err
    assert "Simulated on the CPU" in out
