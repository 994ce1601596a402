"""The GPU and the simulator, bit against bit: rungs on drawn problems, and kernels that are not ours."""

import ctypes
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import peakgemm
from peakgemm.calls.rung import run_rung
from peakgemm.kernels.emulated.schemes import SCHEMES
from peakgemm.kernels.registry import LADDER
from peakgemm.problem import Problem
from peakgemm.runtime import device, driver, source
from peakgemm.runtime.compile import compile_source
from peakgemm.runtime.launch import load
from peakgemm.runtime.memory import DeviceMemory, copy_in, copy_out, synchronize
from peakgemm.selection.choose import choose
from peakgemm.tools import simulator
from peakgemm.tools.simulator.library import run_counted

FIXTURES = Path(__file__).parents[1] / "support" / "fixtures"
SIZES = [1, 2, 3, 7, 31, 33, 64, 65, 127, 129, 130]


@pytest.mark.parametrize("kernel", [kernel for kernel in LADDER if kernel.wgmma], ids=lambda k: k.label)
def test_rungs_by_tensor_cores(kernel):
    """Those by FFMAs have the bits of one chain on both: test_families.py."""
    if device.find() and kernel.lacks(device.require().limits):
        pytest.skip("for another architecture")
    draw = random.Random(kernel.number)
    for _ in range(8):
        m, n, k = (draw.choice(SIZES) for _ in range(3))
        alpha, beta = draw.choice([1.0, -0.5, 3.0]), draw.choice([0.0, 1.0, 0.3])
        numbers = np.random.RandomState(m * n + k)
        a, b, c = ((numbers.standard_normal(s) * 2.0 ** numbers.randint(-40, 40, s)).astype("f4")
                   for s in ((m, k), (k, n), (m, n)))
        twin = c.copy()
        run_rung(kernel.number, a, b, c, alpha=alpha, beta=beta)
        simulator.run_rung(kernel, a, b, twin, alpha=alpha, beta=beta)
        assert (c.view("u4") == twin.view("u4")).all(), (m, n, k, alpha, beta)


@pytest.mark.skipif(device.find() is None or device.find().arch != "sm_90", reason="tensor-core kernels are for sm_90")
@pytest.mark.parametrize("precision", SCHEMES)
def test_emulated(precision):
    """Tensor cores add as the simulator says, to the last bit."""
    numbers = np.random.default_rng(5)
    for m, n, k in ((130, 131, 200), (64, 40, 800)):
        for draw in (numbers.standard_normal, numbers.random):
            a, b = draw((m, k), dtype=np.float32), draw((k, n), dtype=np.float32)
            chosen = choose(Problem.contiguous(m, n, k), "sm_90", 132, "", precision)
            twin = np.full((m, n), np.nan, np.float32)
            _, rerouted = run_counted(chosen.kernel, replace(chosen.config, cluster=1),
                                       Problem.contiguous(m, n, k), a, b, twin, sm_count=132, checks=False)
            got = peakgemm.matmul(a, b, precision=precision)
            assert not rerouted.any() and (got.view("u4") == twin.view("u4")).all(), (m, n, k, (got != twin).mean())


def on_gpu(entry, grid, block, args, shared_bytes=0):
    """Launch a kernel of foreign.cu; arrays come back as the GPU left them."""
    gpu, stream = device.require(), 0
    text = source.assemble(FIXTURES / "foreign.cu")
    kernel = load(compile_source(text, entry, gpu.arch, name="foreign.cu"), shared_bytes, gpu).kernel
    copies = [(x, DeviceMemory(x.nbytes, stream)) for x in args if isinstance(x, np.ndarray)]
    for x, memory in copies:
        copy_in(memory.pointer, x.ctypes.data, x.nbytes, stream, pageable=True)
    pointers = iter(memory.pointer for _, memory in copies)
    values = [ctypes.c_int64(next(pointers)) if isinstance(x, np.ndarray) else ctypes.c_int32(x) for x in args]
    sizes = [size for of in (grid, block) for size in (*np.atleast_1d(of), 1, 1)[:3]]
    driver.demand("a launch", "cuLaunchKernel", ctypes.c_void_p(kernel.handle), *map(ctypes.c_uint, sizes),
                  ctypes.c_uint(shared_bytes), ctypes.c_void_p(stream),
                  (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values)), None)
    results = [np.empty_like(x) for x, _ in copies]
    for x, (_, memory) in zip(results, copies, strict=True):
        copy_out(x.ctypes.data, memory.pointer, x.nbytes, stream, pageable=True)
    synchronize(stream)
    return results


def both(entry, grid, block, args, shared_bytes=0):
    """What each of the two makes of the arrays among ``args``."""
    real = on_gpu(entry, grid, block, args, shared_bytes)
    report = simulator.run(FIXTURES / "foreign.cu", entry=entry, grid=grid, block=block, args=args,
                           shared_bytes=shared_bytes)
    assert report.clean, str(report)
    return real, [x for x in args if isinstance(x, np.ndarray)]


@pytest.fixture
def numbers():
    return np.random.RandomState(5)


@pytest.mark.parametrize("entry", ["reduce", "transpose", "stencil", "histogram"])
def test_foreign_kernels(numbers, entry):
    x = numbers.standard_normal((70, 45)).astype("f4")
    grid, block, args = {
        "reduce": (1, 96, [x.reshape(-1), np.zeros(1, "f4"), x.size]),  # one block: the order of atomics is fixed
        "transpose": ((2, 3), (32, 8), [x, np.zeros((45, 70), "f4"), 70, 45]),
        "stencil": ((3, 5), (16, 16), [x, np.zeros_like(x), 45, 70]),
        "histogram": (4, 128, [numbers.randint(0, 256, 5000).astype("u1"), 5000, np.zeros(256, "u4")]),
    }[entry]
    real, simulated = both(entry, grid, block, args)
    for ours, theirs in zip(simulated, real, strict=True):
        assert ours.tobytes() == theirs.tobytes()


def test_softmax_is_near(numbers):
    x = numbers.standard_normal((9, 77)).astype("f4")
    real, simulated = both("softmax", 9, 32, [x, np.zeros_like(x), 77], shared_bytes=77 * 4)
    np.testing.assert_allclose(simulated[1], real[1], rtol=2e-6)  # ex2.approx is rounded correctly in the simulator


@pytest.mark.parametrize("scale", [1.0, 2.0**-8, 2.0**6])
@pytest.mark.parametrize("k", [16, 64, 256])
def test_mma(numbers, k, scale):
    m, n = 64, 64
    a, b = (numbers.standard_normal((64, k)) * scale).astype("f2"), numbers.standard_normal((64, k)).astype("f2")
    real, simulated = both("mma_gemm", (n // 8, m // 16), 32, [a, b, np.zeros((m, n), "f4"), m, n, k])
    assert simulated[2].tobytes() == real[2].tobytes()
