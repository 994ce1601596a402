"""Matrix products bit for bit: our fixtures and every rung of the ladder."""

from dataclasses import replace

import numpy as np
import pytest

from peakgemm.kernels.registry import LADDER
from peakgemm.problem import Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.tools.simulator import run
from peakgemm.tools.simulator.core import floats
from peakgemm.tools.simulator.library import run_library
from simulator_cases import FIXTURES


def expected(a, b):
    """Sequential fused multiply-adds over k."""
    acc = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        acc = floats.fma32(*np.broadcast_arrays(a[:, k, None], b[k][None]), acc)
    return acc


# Tensor cores round otherwise: test_tensor_rung; a patched rung has the PTX of another.
FMA_RUNGS = [kernel for kernel in LADDER if not kernel.wgmma and not kernel.patched]


def operands(m, n, k, seed=0):
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((m, k)).astype("f4"), rng.standard_normal((k, n)).astype("f4")
    return a, b, np.full((m, n), np.nan, "f4")


def test_naive_counts():
    a, b, c = operands(32, 64, 16)
    report = run(FIXTURES / "gemm.cu", entry="naive", grid=(2, 4), block=(32, 8), args=[a, b, c, 32, 64, 16],
                 macros={"STAGES": 2, "WIDTH": 16})
    assert report.clean and (c == expected(a, b)).all()
    warps, counters = 32 * 64 // 32, report.counters
    assert counters["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"] == 2 * 16 * warps
    assert counters["l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"] == (1 + 4) * 16 * warps
    assert counters["l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"] == 4 * warps
    assert counters["fma_lane_instructions"] == 32 * 64 * 16
    assert counters["global_bytes"] == (2 * 16 + 1) * 32 * 64 * 4
    loads = report.by_line()[next(key for key in report.by_line() if key[0].endswith("gemm.cu") and key[1] == 7)]
    assert loads.requests == 2 * 16 * warps


@pytest.mark.parametrize("width", [4, 16])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_cp_async_stages(width, stages):
    a, b, c = operands(100, 68, 24)
    report = run(FIXTURES / "gemm.cu", entry="staged", grid=(2, 2), block=256, args=[a, b, c, 100, 68, 24],
                 macros={"STAGES": stages, "WIDTH": width})
    assert report.clean, str(report)
    assert (c == expected(a, b)).all()


def rung(kernel, shape, aligned, arch="sm_90", checks=True, **strides):
    m, n, k = shape
    config = replace(kernel.config_for(arch), aligned=aligned)
    a, b, c = operands(m, n, k, seed=kernel.number)
    report, = run_library(kernel, config, Problem.contiguous(m, n, k), a, b, c, arch=arch, checks=checks)
    return report, c, expected(a, b)


@pytest.mark.parametrize("kernel", FMA_RUNGS, ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("shape", [(131, 67, 45), (1, 1, 1), (5, 130, 3)])
def test_rungs_at_awkward_shapes(kernel, shape):
    report, c, want = rung(kernel, shape, aligned=False)
    assert report.clean, str(report)
    assert (c.view("u4") == want.view("u4")).all()


@pytest.mark.parametrize("kernel", FMA_RUNGS, ids=lambda kernel: kernel.name)
def test_rungs_aligned(kernel):
    report, c, want = rung(kernel, (256, 256, 64), aligned=True)
    assert report.clean, str(report)
    assert (c.view("u4") == want.view("u4")).all()
    assert report.counters["shared_wavefronts"] >= report.counters["shared_wavefronts_ideal"]


@pytest.mark.parametrize("arch", ["sm_80", "sm_100", "sm_120"])
def test_other_architectures(arch):
    for kernel in FMA_RUNGS[9::2]:
        limits = architecture(arch)
        if not kernel.lacks(limits) and kernel.shared_bytes(kernel.config_for(arch)) <= limits.shared_per_block:
            report, c, want = rung(kernel, (131, 67, 45), aligned=False, arch=arch)
            assert report.clean, str(report)
            assert (c.view("u4") == want.view("u4")).all()
