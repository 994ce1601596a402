"""Certificates on the GPU: beside NumPy's, of other libraries' products, in CUDA graphs, under `peakgemm.torch.use`."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the GPU tests use torch")

import peakgemm as pg  # noqa: E402


def draw(*shape, seed=0):
    return torch.randn(*shape, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))


@pytest.mark.parametrize(("shape", "columns"), [
    ((300, 200, 500), False), ((1000, 130, 70), True), ((3, 64, 65, 66), False), ((1, 4000, 33), True)])
def test_checksums_are_those_of_numpy(shape, columns):
    *batch, m, n, k = shape
    a, b = draw(*batch, m, k), draw(k, n, seed=1)
    c = a @ b
    if columns:
        a, c = a.mT.contiguous().mT, c.mT.contiguous().mT
    wrong = c.clone()
    wrong[..., m // 2, n // 2] += 1e3  # so that both sides are looked at
    for each in (c, wrong):
        here = pg.certify(a, b, each, seed=5)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("peakgemm.runtime.device.find", lambda *args: None)
            there = pg.certify(a.cpu(), b.cpu(), each.cpu(), seed=5)
        assert here.ok == there.ok == (each is c) and here.seed == 5
        for x, y, threshold in zip(here.residuals, there.residuals, there.thresholds, strict=True):
            assert (np.isnan(x) == np.isnan(y)).all() and np.isnan(x).any() == (each is c and x.shape[-1] != max(m, n))
            assert (np.isnan(y) | (abs(x - y) <= 1e-6 * threshold + 1e-12 * y)).all()
        for x, y in zip(here.bounds(), there.bounds(), strict=True):
            assert np.allclose(x, y, rtol=1e-10)


@pytest.mark.parametrize("precision", ["ieee", "emulated", "fp16x3", "tf32x3", "bf16x9"])
@pytest.mark.parametrize("k", [64, 1024, 8192])
def test_products_of_all_precisions_keep_their_bounds(precision, k):
    a, b = draw(256, k).abs(), draw(k, 256, seed=1).abs()  # sums that only grow, on which truncation shows
    c, certificate = pg.matmul(a, b, precision=precision, certify=True)
    assert certificate.ok
    off = abs(c.double() - a.double() @ b.double()).cpu().numpy()
    for failure in (None, 1e-9):
        rows, columns = certificate.bounds(failure)
        assert (off <= rows[:, None] * columns).all()
    c[3, 200] *= 1.5
    found = pg.certify(a, b, c, precision=precision)
    assert not found.ok and set(found.rows) <= {3} and set(found.columns) <= {200}


def test_tf32_is_found_out():
    a, b = draw(1024, 1024), draw(1024, 1024, seed=1)
    assert pg.certify(a, b, a @ b).ok
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        assert not pg.certify(a, b, a @ b).ok
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_a_cuda_graph_draws_anew():
    a, b = draw(200, 100), draw(100, 300, seed=1)
    pg.matmul(a, b, certify=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product, certificate = pg.matmul(a, b, certify=True)
    kept, seeds = certificate._kept, set()
    for _ in range(3):
        graph.replay()
        seeds.add(kept.cpu().numpy().ravel()[:2].tobytes())
    assert len(seeds) == 3 and certificate.ok and torch.allclose(product, a @ b, atol=1e-3)


def test_streams_and_use():
    a, b = draw(200, 100), draw(100, 300, seed=1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    assert pg.matmul(a, b, stream=stream, certify=True).certificate.ok
    with pg.torch.use(certify=1, on_fault="raise") as ran:
        a @ b, torch.addmm(draw(300), a, b), torch.zeros(200, 300, device="cuda").addmm_(a, b, beta=2)
    assert ran.checked == 3 and not ran.faults
