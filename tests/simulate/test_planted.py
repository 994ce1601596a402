"""Planted mistakes, each reported at its line; the kernels without them report nothing."""

import numpy as np
import pytest

from peakgemm.tools.simulator import UnknownInstruction, run
from simulator_cases import FIXTURES, planted_line

SOURCE = FIXTURES / "planted.cu"
PLANTED = {("tiled", 0): "", ("tiled", 1): "shared_race", ("tiled", 2): "shared_race", ("tiled", 3): "out_of_bounds",
           ("tiled", 4): "out_of_bounds", ("tiled", 6): "shared_unwritten", ("tiled", 10): "out_of_bounds",
           ("tiled", 11): "global_race", ("tiled", 12): "overlapping_blocks", ("staged", 0): "",
           ("staged", 7): "cp_async_race", ("staged", 13): "shared_race", ("staged", 14): "shared_race",
           ("vectors", 0): "", ("vectors", 5): "misaligned", ("warps", 0): "", ("warps", 15): "shared_race",
           ("talks", 0): "", ("barriers", 0): "", ("barriers", 8): "divergent_barrier", ("barriers", 9): "deadlock"}


def planted(entry, plant, grid=1, **options):
    """The report, and the arrays: of a product for ``tiled``, else of vectors."""
    if entry == "tiled":
        m, n, k = 40, 36, 50
        a, b = (np.random.default_rng(plant).standard_normal(shape).astype("f4") for shape in ((m, k), (k, n)))
        arrays = a, b, np.zeros((m, n), "f4")
        return run(SOURCE, entry=entry, grid=(3, 3), block=(16, 16), args=[*arrays, m, n, k, k],
                   macros={"PLANT": plant}, **options), *arrays
    arrays = np.arange(128 if entry == "talks" else 520, dtype="f4"), np.zeros(128, "f4")
    return run(SOURCE, entry=entry, grid=grid, block=128, args=[*arrays], macros={"PLANT": plant}, **options), *arrays


@pytest.mark.parametrize(("entry", "plant"), PLANTED)
def test_planted(entry, plant):
    report, a, *others = planted(entry, plant)
    if not plant:
        assert report.clean, str(report)
        if entry == "tiled":
            np.testing.assert_allclose(others[1], a @ others[0], rtol=1e-4, atol=1e-4)
        return
    kind = PLANTED[entry, plant]
    first = next((fault for fault in report.faults if fault.kind == kind), None)
    assert first is not None, str(report)
    assert (first.line, first.kernel) == (planted_line(plant), entry)
    assert first.file.endswith("planted.cu") and first.ptx_line > 0 and first.threads
    assert f"planted.cu:{first.line}" in str(report) and entry in str(first)
    if plant != 8:  # threads that met at two barriers go on to race: reported too, and rightly
        assert {fault.kind for fault in report.faults} == {kind}
    if plant == 3:
        assert f"argument 0 ({a.nbytes} bytes)" in first.message
    if plant == 12:
        assert len({block for block, _ in first.threads}) == 2


@pytest.mark.parametrize("plant", [3, 4])
def test_without_checks_an_access_out_of_bounds_stops_the_run(plant):
    report = planted("tiled", plant, checks=False)[0]
    assert report.faults[0].kind == "out_of_bounds" and "checks=True" in report.stopped


def test_a_call_is_refused_only_where_it_is_reached():
    a, c = np.arange(128, dtype="f4"), np.zeros(128, "f4")
    with pytest.raises(UnknownInstruction, match=r"planted.cu:\d+ \(PTX line \d+\): call.* it calls malloc, which"):
        run(SOURCE, entry="allocates", grid=1, block=128, args=[a, c], macros={"PLANT": 16})
    assert not c.any()
    assert run(SOURCE, entry="allocates", grid=1, block=128, args=[a, c], macros={"PLANT": 0}).clean and (a == c).all()


def test_what_a_kernel_prints():
    report, a, _ = planted("talks", 16)
    assert report.clean and report.printed == "".join(f"too large: {x:f}\n" for x in a[6:])


def test_a_fault_is_counted_once_per_instruction():
    faults = [fault for fault in planted("vectors", 5, grid=4)[0].faults if fault.kind == "misaligned"]
    assert len(faults) == 1 and faults[0].count == 512
