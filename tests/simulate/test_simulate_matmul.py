"""``peakgemm simulate matmul``: what is chosen for a shape, its launches on the CPU, the record, mistakes."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import record_schema
from peakgemm import cli
from peakgemm.cli import console
from peakgemm.selection.choose import choose
from peakgemm.tools.bench import simulated
from peakgemm.tools.bench.simulated import simulate_call
from peakgemm.tools.bench.suites import cases

Run = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Run a command line in this process: exit code, what it printed, what it complained of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console.out, "width", 120)
    monkeypatch.setattr(console.err, "width", 1000)

    def call(words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["peakgemm", "simulate", "matmul", *shlex.split(words)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return int(end.value.code or 0), *capsys.readouterr()

    return call


def columns(text: str) -> list[str]:
    """The launches that the table of counters has."""
    lines = text.splitlines()
    return lines[next(i for i, line in enumerate(lines) if line.startswith("Counters")) + 1].split()


@pytest.mark.parametrize(("words", "kernels"), [
    ("--shape 32x24x16*3", ["ffma_small"]), ("--shape 64x48x600:TN", ["ffma_specialised"]),
    ("--shape 64x48x3000:TN", ["ffma_specialised", "ffma_reduce"]),
    ("--shape 1x300x64:NT", ["ffma_skinny"]), ("--shape 40x36x512 --arch sm_75", ["ffma_staged", "ffma_reduce"]),
    ("--shape 256x256x192 --precision fp16x3", ["tensor_streamed", "tensor_reduce"]),
    ("--shape 136x130x134 --precision tf32x3 --alpha -2 --beta 0.5",
     ["tensor_split", "tensor_product", "tensor_reduce"]),
    ("--size 64 --precision emulated", ["ffma_specialised"]),
    ("--shape 192x256x400:TT --sms 1 --beta 1", ["ffma_first_chunk", "ffma_wide"]),
])
def test_the_launches_of_a_call(run: Run, words: str, kernels: list[str]) -> None:
    code, out, err = run(f"{words} --no-source")
    assert (code, "No fault found." in out) == (0, True), err
    assert columns(out) == kernels
    error = re.search(r"Largest error ([\d.]+) eps", out)
    assert error is not None and 0 < float(error[1]) < 6
    assert ("half tiles rerouted" in out) == kernels[-1].startswith("tensor")


def test_the_figures_are_those_of_the_choice(run: Run) -> None:
    """By default on as many SMs as the architecture's GPU has; the listing is that of the kernel chosen."""
    _, out, _ = run("--shape 70x20x33:NT*5 --beta 1")
    case = cases("70x20x33:NT*5")[0]
    choice = choose(case.problem()[0], "sm_90", 132)
    assert f"sm_90 with 132 SMs: {choice.kernel.label}, {choice.config.label()} (heuristic)" in out
    call = simulate_call(case, "ieee", "sm_90", 132, beta=1.0)
    found = re.search(r"^global sectors +([\d,]+) *$", out, re.M)
    assert found is not None and int(found[1].replace(",", "")) == call.product.counters["global_sectors"] > 0
    assert choice.kernel.file in out


def test_a_wrong_result_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = simulated.run_counted

    def spoilt(kernel, config, problem, a, b, c, **how):  # type: ignore[no-untyped-def]
        done = honest(kernel, config, problem, a, b, c, **how)
        c[..., -1, -1] += 1
        return done
    monkeypatch.setattr(simulated, "run_counted", spoilt)
    assert simulate_call(cases("9x9x9")[0], "ieee", "sm_90", 4).max_error > 1e4


def test_the_record(run: Run) -> None:
    code, out, _ = run("--shape 100x90x1500 --json r.json --no-source")
    assert code == 0 and "Report written to r.json" in out
    data = json.loads(Path("r.json").read_text())
    record_schema.validate(data)
    problem = data["problem"]
    assert 0 < problem.pop("max_error") < 5 and problem.pop("config")["bk"] == 32
    assert problem == {"name": "matmul", "shape": [100, 90, 1500], "layout": "NN", "batch": 1, "alpha": 1, "beta": 0,
                       "precision": "ieee", "sms": 132, "kernel": "specialised"}
    assert data["report"]["kernel"] == "ffma_specialised" and list(data["others"]) == ["ffma_reduce"]
    assert data["others"]["ffma_reduce"]["counters"]["global_sectors"] > 0


@pytest.mark.parametrize(("words", "says"), [
    ("--shape 8x8", ["'8x8' is not MxNxK[:layout][*batch]"]), ("--size 8 --shape 8x8x8", ["exclude each other"]),
    ("--shape 8x8x8,9x9x9", ["one shape, not 2"]),
    ("--precision fp64", ["precision = 'fp64' is unknown", "'ieee', 'emulated'"]),
    ("--sms 0", ["--sms 0 must be 1 at least"]), ("--size 100000", ["needs over", "max_memory allows 4,294,967,296"]),
    ("--precision fp16x3 --arch sm_75", ["fp16x3", "sm_75"]), ("--grid 3", ["--grid: for a file only, not for matmul"]),
    ("--arch sm_42", ["unknown architecture 'sm_42'"]),
])
def test_mistakes(run: Run, words: str, says: list[str]) -> None:
    code, out, err = run(words)
    assert (code, out) == (2, "") and err.startswith("peakgemm: ")
    for text in says:
        assert text in err
