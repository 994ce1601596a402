"""What `peakgemm inspect` counts in a main loop is what Nsight Compute counts when it runs.

A kernel is profiled with two lengths of K: what the counters gain from one to the other is what the main loop's further
turns executed, whatever surrounds the loop.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from peakgemm.kernels.registry import rung
from peakgemm.runtime import device
from peakgemm.tools.inspect.facts import PROFILED
from peakgemm.tools.inspect.named import named
from peakgemm.tools.inspect.view import view

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
#: Block-wide loops without a branch past part of them. Rung 14's tile is 128 x 256.
RUNGS = (8, 9, 10, 11, 12, 13, 14)
SIDE, SHORT, LONG = 256, 1024, 2048
FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
ALL = "smsp__inst_executed.sum"
WARP = 32


@pytest.fixture(scope="module")
def gained() -> dict[str, dict[str, float]]:
    """By kernel, what each counter gains from K = SHORT to K = LONG; one run of the profiler for all rungs."""
    ncu = shutil.which("ncu")
    if device.reason_without_gpu() is not None or ncu is None:
        pytest.skip("needs a GPU and ncu")
    metrics = [ALL, FFMA, *PROFILED]
    command = [ncu, "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base", "--metrics",
               ",".join(metrics), sys.executable, "-m", "lab.launch_rungs", f"{SIDE}x{SIDE}x{SHORT}",
               f"{SIDE}x{SIDE}x{LONG}", "--rungs", ",".join(map(str, RUNGS))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(["src", os.environ.get("PYTHONPATH", "")])})
    lines = done.stdout.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        pytest.skip(f"ncu gave no table: {done.stderr[-500:]}")
    seen: dict[str, list[dict[str, float]]] = {}
    for row in list(csv.DictReader(io.StringIO("\n".join(lines[start:]))))[1:]:  # the second line holds units
        name = row["Kernel Name"].split("(")[0]
        counts = {metric: float((row.get(metric) or "0").replace(",", "") or 0) for metric in metrics}
        seen.setdefault(name, []).append(counts)
    # The named configurations of a rung are launched in turn: the first is its default.
    return {name: {metric: counts[len(counts) // 2][metric] - counts[0][metric] for metric in metrics}
            for name, counts in seen.items()}


@pytest.mark.parametrize("number", RUNGS)
def test_counts_equal_the_profilers(number: int, gained: dict[str, dict[str, float]]) -> None:
    kernel = rung(number)
    gpu = device.require()
    seen = view(named(str(number), gpu.arch, shape=f"{SIDE}x{SIDE}x{LONG}"))
    loop, config, counts = seen.facts["loop"], seen.subject.config, gained[kernel.entry]
    assert config is not None
    # FFMAs say how often the loop ran: a k-step is tm x tn of them in each thread.
    assert counts[FFMA] == SIDE * SIDE * (LONG - SHORT)
    warps = SIDE * SIDE // (config.bm * config.bn) * config.threads // WARP
    turns = (LONG - SHORT) * config.tm * config.tn / loop["ffma"]
    assert turns == int(turns)
    for metric, each in loop["profiler"].items():
        assert counts[metric] == warps * turns * each, (metric, each, counts[metric] / warps / turns)
    for metric in PROFILED:
        if metric not in loop["profiler"]:
            assert counts[metric] == 0, metric
