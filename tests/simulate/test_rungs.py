"""What the H100 recorded of the ladder's rungs, on the simulator: bits, and the profiler's counters. And what rungs 15
and 17 promise alone: bits of special values, an accuracy beyond a chain of FMAs, and maps as the driver takes them."""

from __future__ import annotations

import ctypes
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from docs.generate.publish import Checkout
from lab import bits, counters
from peakgemm.calls import replay
from peakgemm.errors import LaunchFailed
from peakgemm.kernels import validity
from peakgemm.kernels.registry import LADDER, Kernel, rung
from peakgemm.problem import Problem
from peakgemm.runtime import driver
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.tensor_map import Box, encode
from peakgemm.tools.bench.records import runs_of
from peakgemm.tools.simulator import run_rung
from rung_code import launch
from seldom import exhaustive

ROOT = Path(__file__).parents[2]
H100 = ROOT / "results" / "h100"
HASHES = {row["number"]: row["digests"] for row in json.loads((H100 / "hashes.json").read_text())["rungs"]}
COUNTERS = json.loads((H100 / "counters.json").read_text(encoding="utf-8"))
SMALL = ((256, 256, 256), (257, 129, 65))
COUNTED = [(tuple(run["shape"]), row) for run in runs_of(COUNTERS) if tuple(run["shape"]) in SMALL
           for row in run["rungs"]]
# One that no GPU has run yet has no records; those of Hopper may be recorded later; a patched one has another's PTX.
REQUIRED = [k for k in Checkout(ROOT).measured_rungs() if not k.sm_90a and not k.patched]


def test_the_records_hold_every_rung() -> None:
    assert {k.number for k in REQUIRED} <= set(HASHES) <= {k.number for k in LADDER}
    assert all(set(digests) == {case.name for case in bits.CASES} for digests in HASHES.values())
    wanted = {(k.number, name) for k in REQUIRED for name in (k.named or {"default": None})}
    for shape in SMALL:
        assert wanted <= {(row["number"], row["config_name"]) for each, row in COUNTED if each == shape}


@pytest.mark.parametrize("kernel", [k if k.number in (0, 1, 6) or k.number not in HASHES else exhaustive(k)
                                    for k in LADDER if not k.patched], ids=lambda kernel: kernel.label)
def test_bits_are_the_h100s(kernel: Kernel) -> None:
    if kernel.number not in HASHES:
        pytest.skip("no GPU's bits are recorded yet: python -m lab.hashes")

    def simulate(*args: Any, **scalars: Any) -> None:
        report = run_rung(*args, **scalars)
        assert report.clean, str(report)

    assert dict(bits.digests(kernel, simulate)) == HASHES[kernel.number]


def without_strays(report: Any, counted: dict[str, int]) -> dict[str, int]:
    """The counters without the narrow loads that NVRTC adds to rungs 13, 14 and 16 in some compilations.

    The same source gives different PTX from one compilation to the next: beside the `ld.shared.v4` that fetch every
    fragment there are, in about one of four, one or two `ld.shared.v2` or `ld.shared.f32` of the same words.
    """
    counted = dict(counted)
    for item in report.instructions:
        if item.opcode.startswith("ld.shared") and ".v4" not in item.opcode:
            for name, value in (("shared_loads", item.executions), ("shared_wavefronts_ld", item.wavefronts),
                                ("shared_wavefronts", item.wavefronts),
                                ("shared_wavefronts_ideal", item.wavefronts_ideal)):
                counted[name] -= value
    return counted


@pytest.mark.parametrize(("shape", "row"), [
    (shape, row) if shape == SMALL[1] and row["number"] not in (0, 13, 14) else exhaustive(shape, row)
    for shape, row in COUNTED], ids=lambda x: "x".join(map(str, x)) if isinstance(x, tuple)
                         else f"{x['number']:02} {x['config_name']}")
def test_counters_are_the_profilers(shape: tuple[int, ...], row: dict[str, Any],
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    reports, real = list[Any](), counters.run_rung
    monkeypatch.setattr(counters, "run_rung", lambda *a, **k: reports.append(real(*a, **k)) or reports[-1])
    own = counters.simulated(row["number"], row["config_name"], shape, COUNTERS["arch"])
    assert reports[0].clean
    if row["number"] in (13, 14, 16):
        own = without_strays(reports[0], own)
    assert set(own) == set(counters.COMPARED)
    differs = [name for name in counters.COMPARED if own[name] != row["ncu"][name]]
    assert not differs or (row["explained"] and counters.explain(row["number"], row["ncu"], own))
    assert (row["simulator"], row["differs"]) == (own, differs)


def test_an_explanation_accounts_for_the_whole_difference() -> None:
    for _, row in COUNTED:
        own = row["simulator"]
        assert bool(row["explained"]) == bool(row["differs"])
        other = [name for name in counters.COMPARED if name not in row["differs"]][:1]
        for name in (*row["differs"], *other) if row["explained"] else ():
            assert counters.explain(row["number"], row["ncu"], {**own, name: own[name] + 4}) is None


@pytest.mark.parametrize("case", [case for case in bits.CASES if case.kind in ("special", "subnormal")],
                         ids=lambda case: case.name)
def test_bits_of_infinities_nan_and_subnormals(case: Any) -> None:
    """Rung 15's are rung 03's: the zeros beyond K make a zero of a subnormal's -0."""
    results = []
    for number in (15, 3):
        a, b, c = bits.operands(case)
        assert run_rung(number, a, b, c, alpha=case.alpha, beta=case.beta).clean
        results.append(c.view("u4"))
    assert (results[0] == results[1]).all()


@pytest.mark.parametrize("family", ["normal", "uniform", "scaled", "cancelling"])
def test_tensor_cores_are_more_accurate_than_a_chain_of_fmas(family: str) -> None:
    draw = np.random.RandomState(11)
    m, n, k = 40, 60, 768
    a, b = draw.standard_normal((m, k)), draw.standard_normal((k, n))
    if family == "uniform":
        a, b = draw.random_sample((m, k)), draw.random_sample((k, n))
    elif family == "scaled":  # rows and columns far apart: each has its own power of two
        a, b = a * 2.0 ** draw.randint(-55, 56, (m, 1)), b * 2.0 ** draw.randint(-55, 56, (1, n))
    elif family == "cancelling":
        a[:, k // 2:], b[k // 2:] = a[:, :k // 2], -b[:k // 2]
    a, b, chain, ours = a.astype("f4"), b.astype("f4"), np.empty((m, n), "f4"), np.full((m, n), np.nan, "f4")
    replay.multiply(a, b, None, 1.0, 0.0, chain)
    run_rung(17, a, b, ours)
    exact, scale = a.astype(float) @ b, abs(a.astype(float)) @ abs(b)
    our_error, chains_error = (abs(c - exact) / scale for c in (ours, chain))
    assert our_error.max() <= chains_error.max() and our_error.mean() <= chains_error.mean()


def test_the_example_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "emulation.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    exec(compile(example, "emulation.md", "exec"), {})
    (_, chained), (_, ours) = (line.split() for line in capsys.readouterr().out.splitlines())
    assert 0 < float(ours) < float(chained)


def test_maps_as_the_driver_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded = []

    def encode_tiled(place: Any, dtype: int, rank: int, address: Any, sizes: Any, pitches: Any, box: Any, steps: Any,
                     *modes: Any) -> int:
        ctypes.memset(place, 7, 128)
        encoded.append((ctypes.addressof(place._obj) % 64, dtype, rank, address.value, list(sizes), list(pitches),
                        list(box), list(steps), modes))
        return 0

    monkeypatch.setattr(driver, "library", lambda: SimpleNamespace(cuTensorMapEncodeTiled=encode_tiled))
    kernel, problem = rung(15), Problem(1000, 600, 40, 44, 608, 600)
    a, b = launch(kernel, validity.choose(kernel, kernel.default, architecture("sm_90"), problem), problem).boxes
    assert (a.operand, b.operand) == (0, 1)
    assert bytes(encode(a, 4096)) == bytes(encode(b, 8192)) == bytes([7] * 128)
    # FLOAT32; no interleaving, a swizzle of 64 bytes or none, L2 sectors of 128 bytes, zeros outside.
    assert encoded == [(0, 7, 2, 4096, [40, 1000], [176], [16, 128], [1, 1], (0, 2, 2, 0)),
                       (0, 7, 2, 8192, [600, 40], [2432], [256, 16], [1, 1], (0, 0, 2, 0))]
    monkeypatch.setattr(driver, "library", lambda: SimpleNamespace(
        cuTensorMapEncodeTiled=lambda *args: 1, cuGetErrorName=lambda *args: 1))
    with pytest.raises(LaunchFailed, match=r"a tensor map of Box\(operand=0, rows=8.* at 0x10: CUDA error 1; see"):
        encode(Box(0, 8, 8, 8, 8, 8), 16)
