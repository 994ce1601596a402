"""`peakgemm bench`: suites, contenders, rows, summaries, plots and the command; the GPU is NumPy's."""
# ruff: noqa: F401, F811  (fixtures of tests/support)

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from commands import fits, here, run, valid
from fake_peer import peer
from host_peer import GPU, HostBound, HostPeer, HostTimer
from peakgemm.errors import InvalidValue
from peakgemm.kernels.rung import RungConfig
from peakgemm.tools.bench import bench, contenders, operands, products, roofline, suites, summary
from peakgemm.tools.bench.suites import Case
from peakgemm.tools.bench.variants import IEEE, Variant


class Rival:
    """A contender of which the test says what it does."""

    def __init__(self, name: str, act: Callable[[Any, Any, Any], Any], capture: bool = True) -> None:
        self.name, self.capture, self._act = name, capture, act
        self.versions = {name: "1.0"}

    def work(self, a: Any, b: Any, out: Any) -> Callable[[], Any]:
        return lambda: self._act(a, b, out)


def into(a: Any, b: Any, out: Any) -> None:
    np.matmul(a, b, out=out)


def broken(a: Any, b: Any, out: Any) -> None:
    raise RuntimeError("no kernel\nand more")


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What is added to every product; 0 at first."""
    say = {"off": 0.0}
    monkeypatch.setattr(products, "bound_for", lambda problem, gpu, choice: HostBound(
        choice.kernel, choice.config, problem, gpu, off=say["off"]))
    monkeypatch.setattr(products, "api", Calls(say))
    return say


class Calls:
    """The public calls, by NumPy: B prepared is a tuple, and every product is off as the test says."""

    def __init__(self, say: dict[str, float]) -> None:
        self.say, self.seen = say, []

    def prepare(self, b: Any, *, precision: str) -> Any:
        self.seen.append(("prepare", precision))
        return precision, b

    def matmul(self, a: Any, b: Any, *, out: Any, precision: str) -> Any:
        self.seen.append(("matmul", precision))
        assert b[0] == precision
        np.matmul(a, b[1], out=out)
        out += np.float32(self.say["off"])
        return out

    def plan(self, a: Any, b: Any, *, out: Any, precision: str) -> Any:
        def execute(first: Any, second: Any, out: Any) -> None:
            self.seen.append(("execute", precision))
            assert first is a and second is b

        return SimpleNamespace(execute=execute, last_path=lambda: f"{precision}, 1 of 2 half tiles by ieee")


@pytest.fixture
def on_host(here: Path, bound: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command, with NumPy as its GPU."""
    monkeypatch.setattr("peakgemm.runtime.device.find", lambda: GPU)
    monkeypatch.setattr("peakgemm.cli.measuring.find_peer", HostPeer)
    monkeypatch.setattr("peakgemm.cli.bench.Timer", lambda peer, seconds: HostTimer(
        lambda work: 12.3456 if hasattr(work, "func") else 9.87654))
    monkeypatch.setattr("peakgemm.cli.bench.copy_gbs", lambda peer, timer: 2987.65)
    monkeypatch.setitem(contenders.CONTENDERS, "triton", lambda peer: Rival("triton", into))
    monkeypatch.setitem(contenders.CONTENDERS, "cupy", lambda peer: Rival("cupy", broken))
    return here


def test_the_drawn_suite_is_the_same_everywhere_and_holds_every_kind() -> None:
    """Its results are compared over time: the same seed must draw the same products."""
    cases = suites.suites("drawn")["drawn"]
    assert [case.name for case in cases[:3]] == ["28956x160x24:NT", "48x4204x3008:TT", "80x71192x157:NT"]
    assert len(cases) == len(set(cases)) == 200
    for count in (sum(case.batch > 1 for case in cases), sum(min(case.m, case.n) <= 16 for case in cases),
                  sum(case.k <= 64 for case in cases), sum(case.k >= 2048 for case in cases),
                  sum(case.layout == "NN" for case in cases), sum(case.n % 4 > 0 for case in cases)):
        assert 20 <= count <= 100
    assert max(case.flops for case in cases) <= 2.4e10 and max(case.bytes for case in cases) <= 6e8


def test_case() -> None:
    (case,) = suites.cases("64x32x16:NT*10")
    assert case == Case("64x32x16:NT*10", 64, 32, 16, False, True, 10)
    assert (case.flops, case.bytes) == (2 * 64 * 32 * 16 * 10, 4 * 10 * (64 * 16 + 16 * 32 + 64 * 32))
    assert [c.name for c in suites.cases("1x2x3, 4x5x6:TT")] == ["1x2x3", "4x5x6:TT"]


@pytest.mark.parametrize("text", ["1x2", "1x2x3:XX", "1x2x3*", "", "1x2x3,", "²x2x2", "0x2x2", "2x2x2147483648",
                                  "2x2x2*0"])
def test_shapes_that_are_none(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"is not MxNxK|must lie in 1\.\.2147482624"):
        suites.cases(text)


def test_a_case_is_posed_as_matmul_poses_it() -> None:
    problem, swapped = Case("x", 4096, 1, 64).problem()
    assert swapped and (problem.m, problem.n, problem.layout) == (1, 4096, "NT")  # C^T = B^T A^T
    problem, swapped = Case("x", 8, 16, 32, True, False, 3).problem()
    assert not swapped
    assert (problem.layout, problem.lda, problem.batch.sizes, problem.batch.a) == ("TN", 8, (3,), (256,))


@pytest.mark.parametrize("case", suites.cases("40x24x56,40x24x56:NT*3,40x24x56:TN,40x24x56:TT*3,1x30x20,30x1x20:TN"),
                         ids=lambda case: case.name)
def test_kernels_find_the_operands(case: Case) -> None:
    peer = HostPeer()
    arrays = operands.Arrays(case, GPU, peer)
    assert len(arrays.a) == operands.set_count(case.bytes, GPU) > 1
    config = bench.choice_for(case, "sm_90", 132, "").config
    for work in operands.launches(HostBound(None, config, arrays.problem, GPU), arrays.addresses(), peer):
        work()
    lead = (case.batch,) if case.batch > 1 else ()
    for a, b, c in zip(arrays.a, arrays.b, arrays.c, strict=True):
        assert (a.shape, b.shape) == ((*lead, case.m, case.k), (*lead, case.k, case.n))
        assert np.allclose(c, np.matmul(a, b), atol=1e-4)
    assert not np.array_equal(arrays.a[0], arrays.a[1])


def measured(case: Case, rivals: list[Rival], peer: HostPeer | None = None,
             variant: Variant = IEEE) -> tuple[dict[str, Any], HostTimer]:
    timer = HostTimer()
    found = bench.Bench(GPU, peer or HostPeer(), timer, rivals, 2500.0, 0.6)
    choice = bench.choice_for(case, "sm_90", 132, "", variant.precision)
    row = {**bench.static_row("suite", case, choice, variant), **found.measure(case, choice, variant)}
    return row, timer


def test_a_row(bound: dict[str, float]) -> None:
    case = Case("x", 64, 32, 48)
    row, timer = measured(case, [Rival("torch", lambda a, b, out: np.matmul(a, b)),
                                        Rival("cupy", into, capture=False)])
    assert 0 < row["max_error"] < 10 and 0 < row["reference_error"] < 10
    assert row["tflops"] == row["cublas_tflops"] == pytest.approx(case.flops / 1e9)
    assert (row["ratio_to_cublas"], row["mode"], row["operand_sets"]) == (1.0, "graph", timer.compared[0]["sets"])
    assert row["pj_per_flop"] == row["cublas_pj_per_flop"] == pytest.approx(1e-3 / case.flops * 1e12)
    assert [each["capture"] for each in timer.compared] == [True, True, False]
    assert {name: peer["mode"] for name, peer in row["peers"].items()} == {"torch": "graph", "cupy": "eager"}
    assert set(row["peers"]["torch"]["samples_ms"]) == {"theirs", "cublas"}


def test_a_prepared_operand_is_made_before_the_clock_runs(bound: dict[str, float]) -> None:
    row, timer = measured(Case("x", 64, 32, 48, True), [], variant=Variant("fp16x3", prepared=True))
    sets = row["operand_sets"]
    assert (row["precision"], row["prepared"], sets) == ("fp16x3", True, timer.compared[0]["sets"])
    # The path, the product that is checked, B of every set, and the timed products.
    calls = ["execute", "prepare", "matmul"] + ["prepare"] * sets + ["matmul"] * sets
    assert products.api.seen == [(call, "fp16x3") for call in calls]
    assert "workspace_bytes" not in row and row["max_error"] < 10
    products.api.seen.clear()
    row, _ = measured(Case("x", 64, 32, 48), [], variant=Variant("tf32x3"))
    assert (row["kernel"], row["precision"], row["path"]) == ("tf32x3", "tf32x3", "tf32x3, 1 of 2 half tiles by ieee")
    assert products.api.seen == [("execute", "tf32x3")]  # the timed work is the kernels': only the path was asked for


def test_bandwidth_where_the_memory_bounds(bound: dict[str, float]) -> None:
    assert [roofline.is_memory_bound(Case("x", *shape), GPU) for shape in (
        (8, 4096, 4096), (64, 4096, 4096), (4096, 4096, 8))] == [True, False, True]
    assert roofline.copy_gbs(HostPeer(), HostTimer(), 1 << 16) == pytest.approx(8 * (1 << 16) / 1e6)  # both ways
    row, _ = measured(Case("x", 1, 256, 256), [])
    assert row["gbs"] == pytest.approx(Case("x", 1, 256, 256).bytes / 1e6)  # 1 ms a call
    assert row["share_of_copy"] == pytest.approx(row["gbs"] / 2500)
    row, _ = measured(Case("x", 256, 256, 256), [])
    assert row["gbs"] is row["share_of_copy"] is None


@pytest.mark.parametrize(("config", "expected"), [
    (RungConfig(64, 64, 1, 4, 4, stages=0), 1.0),  # nothing staged: the thread's tile counts, whatever the block's
    (RungConfig(128, 128, 1, 8, 8, stages=0), 0.5),
    (RungConfig(32, 32, 32, 1, 1), 0.125),  # staged: the block's tile, however deep the pipeline
    (RungConfig(128, 256, 8, 8, 16, stages=4), 0.0234375),
])
def test_the_roofline(config: RungConfig, expected: float) -> None:
    assert roofline.bytes_per_flop(config) == expected
    # 3352 GB/s over 4 bytes a FLOP is 838 GFLOPS.
    assert roofline.bound_tflops(66.9, 3352, expected) == pytest.approx(min(66.9, 3.352 / expected))
    for figures in ((0, 3352, 1.0), (66.9, -1, 1.0), (66.9, 3352, 0.0), (float("nan"), 3352, 1.0)):
        with pytest.raises(InvalidValue, match="must be positive"):
            roofline.bound_tflops(*figures)


@pytest.mark.parametrize("off", [1.0, float("nan")])
def test_a_wrong_product_is_not_timed(bound: dict[str, float], off: float) -> None:
    bound["off"] = off
    row, timer = measured(Case("x", 16, 16, 16), [Rival("torch", into)])
    assert "wrong product" in row["error"]
    assert row["max_error"] > 1000 and row["reference_error"] < 10
    assert not timer.compared and "tflops" not in row


def test_a_contender_that_fails_or_errs_spoils_nothing(bound: dict[str, float]) -> None:
    def wrong(a: Any, b: Any, out: Any) -> None:
        out[...] = 0

    row, _ = measured(Case("x", 16, 16, 16), [Rival("triton", broken), Rival("cupy", wrong),
                                                     Rival("torch", lambda a, b, out: None), Rival("good", into)])
    assert row["ratio_to_cublas"] == 1.0
    assert row["peers"]["triton"] == {"error": "RuntimeError: no kernel"}
    assert "wrong product" in row["peers"]["cupy"]["error"]
    assert row["peers"]["torch"]["max_error"] == float("inf")  # it wrote nothing: the NaN are still there
    assert row["peers"]["good"]["ratio_to_cublas"] == 1.0


def entry(suite: str, name: str, ratio: float | None, **peers: float) -> dict[str, Any]:
    if ratio is None:
        return {"suite": suite, "name": name, "error": "failed"}
    return {"suite": suite, "name": name, "ratio_to_cublas": ratio, "ratio_spread": [ratio - 0.01, ratio + 0.02],
            "peers": {peer: {"ratio_to_cublas": r} if r else {"error": "no"} for peer, r in peers.items()}}


def test_summaries() -> None:
    rows = [entry("square", "a", 2.0, triton=0.5), entry("square", "b", 0.5, triton=2.0), entry("square", "c", None),
            entry("odd", "d", 1.0, triton=1.0), entry("odd", "e", 1.21, triton=0)]
    square, odd, both = summary.summaries(rows)
    assert (square["rows"], square["failed"], square["geomean"]) == (3, 1, 1.0)
    assert (square["worst"], square["worst_name"], square["wins"]) == (0.5, "b", 0.5)
    assert square["peers"] == {"triton": {"geomean": 1.0, "not_slower": 0.5}}
    assert odd["geomean"] == pytest.approx(1.1) and odd["wins"] == 0.5  # exactly 1 is no win
    assert odd["peers"]["triton"] == {"geomean": 1.0, "not_slower": 1.0}
    assert both["suite"] == "all" and both["geomean"] == pytest.approx(sqrt(sqrt(1.21)))
    assert [s["suite"] for s in summary.summaries(rows[:2])] == ["square"]
    assert summary.summarise("x", IEEE, rows[2:3])["worst"] is None


def test_command(on_host: Path, run: Any) -> None:
    code, out, err = run("bench", "--shape", "1x48x64,64x64x64:NT,8x8x8*5", "--peers", "cublas,triton,cupy", "--json",
                         "bench.json", "--svg", "bench.svg")
    assert (code, err) == (0, "") and fits(out)
    for text in ("1x48x64", "64x64x64:NT", "8x8x8*5", "skinny", "graph", "cupy: RuntimeError", "1.250", "2988 GB/s"):
        assert text in " ".join(out.split()), text
    data = valid(on_host / "bench.json")
    assert [row["shape"] for row in data["rungs"]] == [[1, 48, 64], [64, 64, 64], [8, 8, 8]]
    assert (data["device"]["name"], data["environment"]["triton"], data["copy_gbs"]) == (GPU.name, "1.0", 2987.65)
    assert data["suites"][0]["geomean"] == pytest.approx(1.25, rel=1e-4)
    drawn = (on_host / "bench.svg").read_text()
    assert drawn.startswith("<svg") and drawn.count(">1x48x64</text>") == 1


def test_command_in_several_precisions(on_host: Path, run: Any) -> None:
    code, out, err = run("bench", "--shape", "64x64x64,300x300x300", "--precision", "ieee,fp16x3", "--precision",
                         "emulated", "--prepared", "--json", "bench.json")
    assert (code, err) == (0, "") and fits(out)
    assert "1 of 2 half tiles by ieee" in out and "emulated, B prepared" in " ".join(out.split())
    data = valid(on_host / "bench.json")
    variants = [("ieee", False), ("fp16x3", False), ("fp16x3", True), ("emulated", False), ("emulated", True)]
    assert [(row["precision"], row["prepared"]) for row in data["rungs"]] == variants * 2
    assert [row["shape"][0] for row in data["rungs"]] == [64] * 5 + [300] * 5
    assert [(e["precision"], e["prepared"]) for e in data["suites"]] == variants
    # What the clock of this test says of a prepared call is what it says of our kernels.
    assert {round(e["geomean"], 3) for e in data["suites"]} == {1.25}


def test_a_wrong_row_fails_the_command_and_is_recorded(on_host: Path, bound: dict[str, float], run: Any) -> None:
    bound["off"] = float("nan")
    code, out, err = run("bench", "--shape", "16x16x16,32x32x32", "--json", "bench.json")
    assert code == 1 and err.count("wrong product") == 2 and "failed" in out
    data = valid(on_host / "bench.json")
    assert data["suites"][0]["failed"] == 2 and data["rungs"][0]["max_error"] == "inf"


def test_rows_are_written_as_they_come(on_host: Path, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(self: Any, case: Case, *rest: Any) -> dict[str, Any]:
        if case.m == 32:
            raise KeyboardInterrupt
        return measure(self, case, *rest)

    measure = bench.Bench.measure
    monkeypatch.setattr(bench.Bench, "measure", killed)
    run("bench", "--shape", "16x16x16,32x32x32", "--json", "bench.json")
    assert [row["name"] for row in valid(on_host / "bench.json")["rungs"]] == ["16x16x16"]


