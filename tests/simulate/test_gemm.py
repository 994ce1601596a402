"""Matrix products of fixtures: bits, counters, and what a run leaves behind."""

import gc

import numpy as np
import pytest

from peakgemm.calls import replay
from peakgemm.errors import InvalidValue
from peakgemm.tools.simulator import run
from simulator_cases import FIXTURES


def product(entry, grid, block, m, n, k, **macros):
    """The report; C has the bits of chains of fused multiply-adds over k."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k)).astype("f4"), rng.standard_normal((k, n)).astype("f4")
    c, want = np.full((m, n), np.nan, "f4"), np.empty((m, n), "f4")
    report = run(FIXTURES / "gemm.cu", entry=entry, grid=grid, block=block, args=[a, b, c, m, n, k], macros=macros)
    replay.multiply(a, b, None, 1.0, 0.0, want)
    assert report.clean and (c.view("u4") == want.view("u4")).all(), str(report)
    return report


def test_naive_counts():
    report = product("naive", (2, 4), (32, 8), 32, 64, 16, STAGES=2, WIDTH=16)
    warps, counters = 32 * 64 // 32, report.counters
    assert counters["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"] == 2 * 16 * warps
    assert counters["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == (1 + 4) * 16 * warps
    assert counters["l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"] == 4 * warps
    assert counters["fma_lane_instructions"] == 32 * 64 * 16
    assert counters["global_bytes"] == (2 * 16 + 1) * 32 * 64 * 4
    loads = next(counts for (file, line), counts in report.by_line().items() if file.endswith("gemm.cu") and line == 7)
    assert loads.requests == 2 * 16 * warps


@pytest.mark.parametrize(("width", "stages"), [(4, 2), (4, 4), (16, 2), (16, 3)])
def test_cp_async_stages(width, stages):
    product("staged", (2, 2), 256, 100, 68, 24, STAGES=stages, WIDTH=width)


def test_the_cycle_collector_is_left_as_it_was():
    """By a run that ends, and by one that is refused."""
    a, before = np.ones((8, 8), np.float32), gc.get_threshold()
    arguments = (a, a, a.copy(), 8, 8, 8, 8, 8, 8, 1.0, 0.0)
    gc.set_threshold(699, 10, 10)
    try:
        assert run(0, grid=1, block=(32, 32), args=arguments).clean and gc.get_threshold()[0] == 699
        with pytest.raises(InvalidValue):
            run(0, grid=1, block=(32, 32), args=arguments[:-1])
        assert gc.get_threshold()[0] == 699
    finally:
        gc.set_threshold(*before)
