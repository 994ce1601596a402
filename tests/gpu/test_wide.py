"""Wide thread tiles on the GPU: repacked operands, boxes past the edges, shared K, addresses that change."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import peakgemm as pg  # noqa: E402
from peakgemm.kernels.bound import bind  # noqa: E402
from peakgemm.kernels.ffma.wide import WIDE  # noqa: E402
from peakgemm.problem import Problem  # noqa: E402
from peakgemm.runtime import device  # noqa: E402

SENTINEL = -777.25


def window(rows, columns, pad, offset, around):
    """Small integers, ``pad`` floats from row to row and ``offset`` before the first in memory full of ``around``."""
    flat = torch.full((offset + rows * (columns + pad) + 64,), around, device="cuda")
    inside = torch.as_strided(flat, (rows, columns), (columns + pad, 1), offset)
    inside.copy_(torch.randint(-3, 4, (rows, columns), device="cuda"))
    return flat, inside


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize(("m", "n", "k", "pad", "offset", "split"), [
    (400, 520, 77, 0, 0, 1), (192, 256, 8, 4, 4, 1), (1000, 700, 333, 3, 1, 0), (65, 1, 1030, 0, 2, 4),
    (3000, 2500, 129, 1, 0, 0), (193, 257, 9, 8, 3, 2), (4096, 4096, 512, 0, 0, 0), (4160, 4099, 300, 1, 0, 1),
])
def test_exact_inside_its_window(layout, m, n, k, pad, offset, split):
    ta, tb = (letter == "T" for letter in layout)
    nan = float("nan")
    _, a = window(*((k, m) if ta else (m, k)), pad, offset, nan)
    _, b = window(*((n, k) if tb else (k, n)), pad, offset, nan)
    around, c = window(m, n, pad, offset, SENTINEL)
    want = 2 * (a.mT if ta else a).double() @ (b.mT if tb else b).double() - c
    address = tuple(min(16, x.data_ptr() & -x.data_ptr()) for x in (a, b, c))
    problem = Problem(m, n, k, a.stride(0), b.stride(0), c.stride(0), 2.0, -1.0, address, ta, tb)
    bound = bind(WIDE, replace(WIDE.default, split=split), problem, device.require())
    space = torch.full((bound.workspace_bytes // 4 + 1,), nan, device="cuda")
    bound.launch(a.data_ptr(), b.data_ptr(), c.data_ptr(), c.data_ptr(), space.data_ptr(),
                 torch.cuda.current_stream().cuda_stream)
    assert torch.equal(c.double(), want)
    c.fill_(SENTINEL)
    assert (around == SENTINEL).all()


@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_chosen_for_large_products_and_captured(layout):
    m, n, k = 6145, 6200, 520
    a = torch.randint(-3, 4, (k, m) if layout[0] == "T" else (m, k), device="cuda").float()
    b = torch.randint(-3, 4, (n, k) if layout[1] == "T" else (k, n), device="cuda").float()
    left, right = (a.mT if layout[0] == "T" else a), (b.mT if layout[1] == "T" else b)
    assert pg.plan(left, right).kernel == "wide"
    want = left @ right
    assert torch.equal(pg.matmul(left, right), want)
    # Other addresses, other tensor maps; then both in turn, as graphs.
    others = left.clone(memory_format=torch.preserve_format), right.clone(memory_format=torch.preserve_format)
    others[0].neg_()
    assert torch.equal(pg.matmul(*others), -want)
    outs = [torch.empty_like(want) for _ in range(2)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pg.gemm(left, right, out=outs[0])
        pg.gemm(*others, out=outs[1])
    for out in outs:
        out.fill_(float("nan"))
    graph.replay()
    assert torch.equal(outs[0], want) and torch.equal(outs[1], -want)
    first = pg.matmul(left * 1.1, right)
    assert torch.equal(first, pg.matmul(left * 1.1, right)), "the same bits twice"
