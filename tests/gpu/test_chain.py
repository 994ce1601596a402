"""Few rows and columns by one chain an element on the GPU: bits, batches, graphs, and what stands beside a row."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import peakgemm as pg  # noqa: E402


def operands(m, n, k, layout, pad=0):
    """Random values over 40 powers of two, in a row's gaps NaN."""
    draw = torch.Generator(device="cuda").manual_seed(m + n + k)
    found = []
    for rows, columns in (((k, m) if layout[0] == "T" else (m, k)), ((n, k) if layout[1] == "T" else (k, n))):
        memory = torch.full((rows, columns + pad), float("nan"), device="cuda")
        values = torch.randn(rows, columns, generator=draw, device="cuda")
        memory[:, :columns] = values * 2.0 ** torch.randint(-20, 20, values.shape, generator=draw, device="cuda")
        found.append(memory[:, :columns])
    a, b = found
    return (a.mT if layout[0] == "T" else a), (b.mT if layout[1] == "T" else b)


def same(got, want):
    return (got.cpu().numpy().view(np.uint32) == want.view(np.uint32)).all()


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(("m", "n", "k", "pad"), [
    (1, 4096, 4096, 0), (3, 1000, 777, 1), (8, 11008, 300, 0), (16, 132 * 32 + 1, 515, 3), (31, 4100, 1024, 4),
    (4096, 1, 4096, 0), (2050, 7, 333, 1), (5000, 32, 64, 0), (2, 31, 1, 0),
])
def test_bits(m, n, k, pad, layout):
    a, b = operands(m, n, k, layout, pad)
    assert pg.plan(a, b, reproducible=True).kernel == "chain"
    got = pg.matmul(a, b, reproducible=True)
    rows = torch.arange(m)[:: max(m // 20, 1)]
    columns = torch.arange(n)[:: max(n // 20, 1)]
    want = pg.replay(a[rows].cpu().numpy(), b[:, columns].cpu().numpy())
    assert same(got[rows][:, columns], want)
    assert torch.equal(got, pg.matmul(a, b, reproducible=True)), "twice the same"


def test_a_row_does_not_depend_on_how_many_there_are():
    a, b = operands(100, 4096, 1030, "NT")
    whole = pg.matmul(a, b, reproducible=True)
    for m in (1, 2, 3, 4, 6, 8, 13, 16, 27, 32, 33, 64):
        assert torch.equal(pg.matmul(a[:m], b, reproducible=True), whole[:m]), m
    assert torch.equal(pg.matmul(a, b[:, 5:6], reproducible=True), whole[:, 5:6])


def test_batches_scales_and_graphs():
    a, b = operands(5, 600, 200, "NN")
    several = torch.stack([a, -a, 2 * a])
    c = torch.randn(3, 5, 600, device="cuda")
    got = pg.gemm(several, b, c, alpha=0.5, beta=-2.0, reproducible=True)
    for i in range(3):
        assert same(got[i], pg.replay(several[i].cpu().numpy(), b.cpu().numpy(), c[i].cpu().numpy(), alpha=0.5,
                                      beta=-2.0))
    out = torch.empty(5, 600, device="cuda")
    pg.matmul(a, b, out=out, reproducible=True)
    want, graph = out.clone(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):  # one launch beside the end of another
            pg.matmul(a, b, out=out, reproducible=True)
    for _ in range(10):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, want)
