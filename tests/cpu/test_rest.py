"""The last rows of C by narrower tiles: both products simulated, the launches by their addresses, what is chosen."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import stand_in
from library_case import SENTINEL, Case, multiply
from peakgemm import dispatch, tuned
from peakgemm.errors import InvalidValue
from peakgemm.kernels import bound, even_share, rest
from peakgemm.kernels.library import FAMILIES, SPECIALISED, parts, recipe, workspace_bytes
from peakgemm.kernels.registry import Kernel
from peakgemm.kernels.validity import violations
from peakgemm.kernels.wide import WIDE
from peakgemm.problem import Config, Problem
from peakgemm.request import Request
from peakgemm.runtime.architectures import architecture
from peakgemm.select import Choice, candidates
from peakgemm.simulator.library import run_library
from peakgemm.simulator.report import Report
from peakgemm.tile_model import configurations
from peakgemm.tune import space

BM = WIDE.default.bm
H100 = architecture("sm_90")


def wide(rows: int, split: int = 1) -> Config:
    return replace(WIDE.default, rest=rows, split=split)


def below_a_band(rows: int, n: int, k: int, layout: str = "NN", split: int = 1, **more: Any) -> list[Report]:
    """The launches of a product with ``rows`` below a band of whole tiles."""
    return multiply(Case(BM + rows, n, k, layout, kernel=WIDE, config=wide(rows, split), sms=3, **more))[1]


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(("rows", "pad", "shift"), [(40, 0, 0), (7, 3, 1)])
def test_both_products_in_any_layout(layout: str, rows: int, pad: int, shift: int) -> None:
    reports = below_a_band(rows, 256 + 20, 24, layout, pad=pad, shift=shift)
    product = next(i for i, report in enumerate(reports) if report.kernel == WIDE.entry)
    assert all(report.kernel == "ffma_first_chunk" for report in reports[:product])
    assert reports[product + 1].kernel == SPECIALISED.entry


@pytest.mark.parametrize("rows", [1, 33, 80, 128])
def test_each_tile_of_the_last_rows(rows: int) -> None:
    below_a_band(rows, 20, 40, "TN", beta=0.0, pad=4, poison="c")


@pytest.mark.parametrize("c0", ["mn", "n", "m", ""])
def test_what_beta_scales(c0: str) -> None:
    below_a_band(36, 44, 20, "TT", c0=c0, pad=1, beta=-0.75)


@pytest.mark.parametrize(("split", "k"), [(0, 100), (3, 70)])
def test_both_share_their_k(split: int, k: int) -> None:
    """In the same memory, one after the other."""
    kernels = [report.kernel for report in below_a_band(40, 200, k, "TT", split, pad=3)]
    assert kernels == ["ffma_first_chunk", WIDE.entry, "ffma_reduce", SPECIALISED.entry, "ffma_reduce"]


def test_operands_of_two_dimensions() -> None:
    """Not only memory from the first element on: rows and columns of whatever lies behind the last whole band."""
    rng, m, n, k = np.random.default_rng(1), BM + 9, 20, 12
    for ta in (False, True):
        a, b = (rng.integers(-3, 4, shape).astype("f4") for shape in ((k, m + 3) if ta else (m, k + 4), (k, n)))
        a = a[:, :-3] if ta else a[:, :-4]
        c = np.full((m, n + 5), SENTINEL, "f4")
        run_library(WIDE, wide(9), Problem(m, n, k, m + 3 if ta else k + 4, n, n + 5, trans_a=ta), a, b, c[:, :n])
        np.testing.assert_array_equal(c[:, :n], (a.T if ta else a) @ b)
        assert (c[:, n:] == SENTINEL).all()


# ---- the launches ---------------------------------------------------------------------------------


def test_where_the_last_rows_begin() -> None:
    p = Problem(BM + 40, 276, 24, 30, 280, 281, beta=1.0, c0=(300, 1))
    main, last = parts(WIDE, wide(40), p)
    assert main.config == WIDE.default and (main.problem, last.problem) == (replace(p, m=BM), replace(p, m=40))
    assert (main.a, main.c, main.c0) == (0, 0, 0)
    assert (last.kernel, last.a, last.c, last.c0) == (SPECIALISED, BM * 30, BM * 281, BM * 300)
    turned = replace(p, trans_a=True, lda=240, trans_c=True, ldc=240, c0=None)
    assert rest.offsets(wide(40), turned) == (BM, BM, BM)
    assert rest.offsets(wide(40), replace(p, c0=(0, 1)))[2] == 0
    assert rest.offsets(wide(40), replace(p, c0=None))[2] == BM * 281
    (whole,) = parts(WIDE, WIDE.default, p)
    assert (whole.kernel, whole.config, whole.problem) == (WIDE, WIDE.default, p)


def test_the_launches_by_their_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last rows are read as the caller has them, and their partial sums lie where all workspace begins."""
    launched: list[tuple[str, tuple[int, ...]]] = []

    def launcher(entry: str, *rest: Any) -> Any:
        return SimpleNamespace(enqueue=lambda *addresses: launched.append((entry, addresses)))

    monkeypatch.setattr(even_share, "load", lambda compiled, shared, gpu, cluster: compiled.entry)
    monkeypatch.setattr(even_share, "Launcher", launcher)
    m, n, k, config = 2 * BM + 64, 512, 4096, wide(64, split=0)
    p = Problem(m, n, k, k, k, n + 8, beta=1.0, c0=(600, 1), trans_b=True)
    made = bound.Bound(WIDE, config, p, stand_in.GPU)
    assert (made.kernel, made.config, made.problem) == (WIDE, config, p)
    assert made.workspace_bytes == dispatch.workspace_bytes(Choice(WIDE, config, "", ""), p, stand_in.GPU)
    a, b, c, c0, space = (x << 32 for x in range(1, 6))
    made.launch(a, b, c, c0, space, 9)
    sums, rows = 4 * (68 + k * 2 * BM + k * n), 2 * BM  # counters, A and B as laid out
    first, reduced = (a, b, c0, c, space, 9), (a, b, c0, c, space + sums, 9)
    last = (a + 4 * rows * k, b, c0 + 4 * rows * 600, c + 4 * rows * (n + 8), space, 9)
    assert launched == [("ffma_first_chunk", first), (WIDE.entry, first), ("ffma_reduce", reduced),
                        (SPECIALISED.entry, last), ("ffma_reduce", last)]
    launched.clear()
    bound.Bound(WIDE, config, replace(p, n=0), stand_in.GPU).launch(a, b, c, c0, space, 9)
    assert not launched


def test_one_workspace_for_both() -> None:
    aligned = Problem(BM + 64, 512, 4096, BM + 64, 512, 512, trans_a=True)  # nothing is laid out anew
    each = [FAMILIES[part.kernel].schedule(part.config, part.problem, 132).workspace_bytes
            for part in parts(WIDE, wide(64, 0), aligned)]
    assert all(each) and workspace_bytes(WIDE, wide(64, 0), aligned, 132) == max(each)
    few = workspace_bytes(WIDE, wide(64), aligned, 132)
    assert few == each[1], "the last rows' alone"


# ---- what may be, and what is chosen --------------------------------------------------------------


@pytest.mark.parametrize(("kernel", "config", "m", "says"), [
    (WIDE, wide(129), BM + 129, "rest = 129 rows: the tiles that compute them have 128 at most"),
    (WIDE, wide(64), 64, "rest = 64 must be less than M = 64"),
    (WIDE, wide(64), BM + 65, f"rest = 64 leaves {BM + 1} rows of {BM + 65}, no multiple of BM = {BM}"),
    (SPECIALISED, replace(SPECIALISED.default, rest=64), BM + 64, "rest = 64: this kernel has it fixed at 0"),
])
def test_which_rows_may_be_computed_apart(kernel: Kernel, config: Config, m: int, says: str) -> None:
    p = Problem.contiguous(m, 300, 200)
    assert violations(kernel, config, H100, p) == [says]
    assert not violations(WIDE, wide(64), H100, Problem.contiguous(BM + 64, 300, 200))
    with pytest.raises(InvalidValue, match="rest = "):
        run_library(kernel, config, p, *(np.zeros((1, 1), "f4"),) * 3)


def test_narrower_tiles_are_the_models() -> None:
    """So their cubins are shipped, and the model knows their rates; any number of rows has one."""
    known = {config for kernel, config in configurations("sm_90") if kernel is SPECIALISED}
    assert {replace(config, split=1) for config in rest._TILES} <= known
    assert [rest.tile(wide(rows)).bm for rows in (1, 32, 33, 64, 65, 96, 97, 128)] == [32, 32, 64, 64, 96, 96, 128, 128]


@pytest.mark.parametrize("layout", ["NN", "TN", "TT"])
def test_chosen_where_a_band_would_be_mostly_empty(layout: str) -> None:
    for size, rows in ((4096, 64), (16384, 64), (8192, 128), (6144, 0), (6144 + 160, 0)):
        p = Problem(size, size, size, size, size, size, trans_a=layout[0] == "T", trans_b=layout[1] == "T")
        ranked = candidates(p, "sm_90", 132)
        kernel, config, _ = ranked[0]
        assert (kernel, config.rest) == (WIDE, rows), size
        assert {config.rest for kernel, config, _ in ranked if kernel is WIDE} == {0, rows}


def test_the_wide_kernel_is_the_same_for_any_rest() -> None:
    p = Problem.contiguous(4096, 4096, 4096)
    assert recipe(WIDE, wide(64), p, "sm_90") == recipe(WIDE, WIDE.default, p, "sm_90")
    ways = [space.Candidate(WIDE, config, 1.0) for config in (WIDE.default, wide(64), wide(64, 0))]
    found = space.compilations(p, ways)
    assert {name for name, *_ in found} == {WIDE.name, SPECIALISED.name} and len(found) == 2


def test_a_plan_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = importlib.import_module("peakgemm.plan")  # the package's attribute is the function
    monkeypatch.setattr(plan, "locate", lambda request: (stand_in.StandIn(), 0))
    monkeypatch.setattr(plan.device, "require", lambda index: stand_in.GPU)
    a = np.lib.stride_tricks.as_strided(np.zeros(4096 * 4096, "f4"), (4096, 4096), (4 * 4096, 4))
    made = plan.Plan(Request(a, a), explain_only=True)
    said = made.explain()
    assert made.config.rest == 64 and said.tile == made.config.label()
    assert said.reason.endswith("; the last 64 rows by specialised 64x128x32/8x8 6st db 2sl stream-K")
    assert said.workspace_bytes == made.workspace_bytes


def test_records_and_entries_carry_it() -> None:
    schema = json.loads((Path(__file__).parents[2] / "docs" / "record.schema.json").read_text())
    there = schema | {"$ref": "#/$defs/config"}
    for part in ("type", "required", "properties", "additionalProperties", "oneOf", "allOf", "anyOf", "if", "then"):
        there.pop(part, None)
    check = pytest.importorskip("jsonschema_rs", reason="needs jsonschema-rs").validator_for(there)
    for config in (WIDE.default, wide(64, 0)):
        check.validate(config.to_json())
        assert tuned.checked({"kernel": WIDE.name, "config": config.to_json()})["config"] == config
    assert wide(64).to_json()["rest"] == 64 and "rest" not in WIDE.default.to_json()
