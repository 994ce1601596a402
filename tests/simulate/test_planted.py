"""Twelve planted mistakes, each reported at its line; the kernels without them report nothing."""

import numpy as np
import pytest

from peakgemm.tools.simulator import UnknownInstruction, run
from simulator_cases import FIXTURES, planted_line

SOURCE = FIXTURES / "planted.cu"
TILED = {0: "", 1: "shared_race", 2: "shared_race", 3: "out_of_bounds", 4: "out_of_bounds", 6: "shared_unwritten",
         10: "out_of_bounds", 11: "global_race", 12: "overlapping_blocks"}  # fmt: skip
SMALL = {("staged", 0): "", ("staged", 7): "cp_async_race", ("staged", 13): "shared_race",
         ("staged", 14): "shared_race", ("vectors", 0): "", ("vectors", 5): "misaligned", ("warps", 0): "",
         ("warps", 15): "shared_race", ("talks", 0): "", ("barriers", 0): "", ("barriers", 8): "divergent_barrier",
         ("barriers", 9): "deadlock"}  # fmt: skip


def check(report, kind, plant, kernel):
    if not plant:
        assert report.clean, str(report)
        return
    first = next((fault for fault in report.faults if fault.kind == kind), None)
    assert first is not None, str(report)
    assert (first.line, first.kernel) == (planted_line(plant), kernel)
    assert first.file.endswith("planted.cu") and first.ptx_line > 0 and first.threads
    assert f"planted.cu:{first.line}" in str(report) and kernel in str(first)
    if plant != 8:  # threads that met at two barriers go on to race: reported too, and rightly
        assert {fault.kind for fault in report.faults} == {kind}


@pytest.mark.parametrize("plant", TILED)
def test_tiled(plant):
    m, n, k = 40, 36, 50
    rng = np.random.default_rng(plant)
    a, b = rng.standard_normal((m, k)).astype("f4"), rng.standard_normal((k, n)).astype("f4")
    c = np.zeros((m, n), "f4")
    report = run(SOURCE, entry="tiled", grid=(3, 3), block=(16, 16), args=[a, b, c, m, n, k, k],
                 macros={"PLANT": plant})
    check(report, TILED[plant], plant, "tiled")
    if not plant:
        np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)
    if plant == 3:
        assert f"argument 0 ({m * k * 4} bytes)" in report.faults[0].message
    if plant == 12:
        blocks = {block for block, _ in report.faults[0].threads}
        assert len(blocks) == 2


@pytest.mark.parametrize(("entry", "plant"), SMALL)
def test_small(entry, plant):
    a, c = np.arange(520, dtype="f4"), np.zeros(128, "f4")
    report = run(SOURCE, entry=entry, grid=1, block=128, args=[a, c], macros={"PLANT": plant})
    check(report, SMALL[entry, plant], plant, entry)


@pytest.mark.parametrize("plant", [3, 4])
def test_without_checks_an_access_out_of_bounds_stops_the_run(plant):
    a, b, c = np.ones((40, 50), "f4"), np.ones((50, 36), "f4"), np.zeros((40, 36), "f4")
    report = run(SOURCE, entry="tiled", grid=(3, 3), block=(16, 16), args=[a, b, c, 40, 36, 50, 50],
                 macros={"PLANT": plant}, checks=False)
    assert report.faults[0].kind == "out_of_bounds" and "checks=True" in report.stopped


def test_a_call_is_refused_only_where_it_is_reached():
    a, c = np.arange(128, dtype="f4"), np.zeros(128, "f4")
    with pytest.raises(UnknownInstruction, match=r"planted.cu:\d+ \(PTX line \d+\): call.* it calls malloc, which"):
        run(SOURCE, entry="allocates", grid=1, block=128, args=[a, c], macros={"PLANT": 16})
    assert not c.any()
    assert run(SOURCE, entry="allocates", grid=1, block=128, args=[a, c], macros={"PLANT": 0}).clean and (a == c).all()


def test_what_a_kernel_prints():
    a, c = np.arange(128, dtype="f4"), np.zeros(128, "f4")
    report = run(SOURCE, entry="talks", grid=1, block=128, args=[a, c], macros={"PLANT": 16})
    assert report.clean and report.printed == "".join(f"too large: {x:f}\n" for x in a[6:])


def test_a_fault_is_counted_once_per_instruction():
    a, c = np.arange(520, dtype="f4"), np.zeros(128, "f4")
    report = run(SOURCE, entry="vectors", grid=4, block=128, args=[a, c], macros={"PLANT": 5})
    found = [fault for fault in report.faults if fault.kind == "misaligned"]
    assert len(found) == 1 and found[0].count == 512
