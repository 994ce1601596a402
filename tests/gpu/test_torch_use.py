"""`peakgemm.torch.use` on the GPU: what it reroutes, what it leaves alone, and that it restores."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the GPU tests use torch")

import peakgemm as pg  # noqa: E402
from peakgemm.integrations.torch_use import _OPS  # noqa: E402
from peakgemm.torch import use  # noqa: E402
from torch_cases import agrees, draw, operands, reference  # noqa: E402


def test_ieee_whatever_tf32_says():
    before = torch.backends.cuda.matmul.allow_tf32
    a, b = draw(256, 256), draw(256, 256, seed=1)
    try:
        torch.backends.cuda.matmul.allow_tf32 = True
        with use() as ran:
            got = [pg.matmul(a, b), a @ b]
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert ran.calls == {"mm": 1}
    assert all(agrees(x, a, b) for x in got)


class Model(torch.nn.Module):
    """Linear layers, attention written out, einsum."""

    def __init__(self):
        super().__init__()
        self.inward, self.outward = torch.nn.Linear(48, 3 * 48), torch.nn.Linear(48, 48, bias=False)
        self.mix = torch.nn.Parameter(torch.eye(48))

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, 12)).transpose(1, 2) for t in self.inward(x).chunk(3, -1))
        seen = torch.softmax(q @ k.mT / 12**0.5, -1) @ v
        return torch.einsum("bsd,de->bse", self.outward(seen.transpose(1, 2).flatten(2)), self.mix)


def test_use_runs_a_model_forward_and_backward():
    torch.manual_seed(0)
    model = Model().cuda()
    x = draw(2, 33, 48)

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters())]

    want = step()
    with use() as ran:
        got = step()
    again = step()
    for mine, theirs in zip(got, want, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-3, atol=1e-5)
    assert {"addmm", "mm", "bmm"} <= set(ran.calls)
    assert not ran.fallbacks
    total = ran.calls.total()
    assert total >= 12
    assert all(torch.equal(x, y) for x, y in zip(again, want, strict=True))
    assert ran.calls.total() == total


def test_use_reroutes_each_op():
    x, y, bias = operands(((65, 33), (33, 17), (17,)))
    x3, y3 = draw(4, 65, 33), draw(4, 33, 17, seed=1)
    out, out3 = torch.empty(65, 17, device="cuda"), torch.empty(4, 65, 17, device="cuda")
    into, into3 = draw(65, 17, seed=3), draw(4, 65, 17, seed=4)
    before, before3 = into.clone(), into3.clone()
    with use() as ran:
        results = [
            (x @ y, (x, y)), (torch.mm(x, y, out=out), (x, y)),
            (torch.addmm(bias, x, y, beta=0.5, alpha=2), (x, y, bias, 2.0, 0.5)),
            (torch.addmm(bias[:1], x, y), (x, y, bias[:1], 1.0, 1.0)),
            (into.addmm_(x, y, beta=0.5), (x, y, before, 1.0, 0.5)),
            (x3 @ y3, (x3, y3)), (torch.bmm(x3, y3, out=out3), (x3, y3)),
            (torch.baddbmm(bias, x3, y3), (x3, y3, bias, 1.0, 1.0)),
            (into3.baddbmm_(x3, y3), (x3, y3, before3, 1.0, 1.0)),
            (torch.nn.functional.linear(x, y.T, bias), (x, y, bias, 1.0, 1.0)),
            (torch.einsum("bij,bjk->bik", x3, y3), (x3, y3)),
            (torch.addmm(bias, x, y, out=torch.empty(65, 17, device="cuda")), (x, y, bias, 1.0, 1.0)),
            (torch.baddbmm(bias, x3, y3, out=torch.empty(4, 65, 17, device="cuda")), (x3, y3, bias, 1.0, 1.0)),
        ]
    for got, product in results:
        assert agrees(got, *product)
    assert set(ran.calls) == set(_OPS)
    assert not ran.fallbacks


def test_use_leaves_the_rest_to_torch():
    x, y = draw(65, 33), draw(33, 17, seed=1)
    same = [(x.to(t), y.to(t)) for t in (torch.float64, torch.float16, torch.bfloat16, torch.complex64)]
    want = [torch.mm(a, b) for a, b in same]
    square = draw(33, 33)
    with use() as ran:
        for (a, b), expected in zip(same, want, strict=True):
            assert torch.equal(torch.mm(a, b), expected)
        torch.mm(x.cpu(), y.cpu())
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            x @ x
        with pytest.raises(RuntimeError, match="same device"):
            torch.mm(x, y.cpu())
        with pytest.raises(RuntimeError, match="grad"):
            torch.mm(x.clone().requires_grad_(), y, out=torch.empty(65, 17, device="cuda"))
        torch.mm(square, square, out=square)  # an overlap: whatever torch does with it, no error of ours
        sparse = torch.eye(65, device="cuda").to_sparse()
        assert torch.allclose(torch.sparse.mm(sparse, x), x)
    assert not ran.calls
    assert ran.fallbacks["mm"] >= 5
    assert ran.fallbacks["mm.out"] == 1


def test_use_restores_after_an_exception():
    kernels = {op: repr(torch.library.get_kernel(f"aten::{op}", "CUDA")) for op in _OPS}
    x = draw(65, 65)
    with pytest.raises(KeyError), use() as ran, use():
        x @ x
        raise KeyError
    assert ran.calls == {"mm": 1}
    assert kernels == {op: repr(torch.library.get_kernel(f"aten::{op}", "CUDA")) for op in _OPS}
    x @ x
    assert ran.calls == {"mm": 1}


def test_use_in_graphs_and_compiled_code():
    torch._dynamo.reset()
    a, b = draw(65, 33), draw(33, 129, seed=1)
    with use() as ran:
        a @ b
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = a @ b
        a.copy_(draw(65, 33, seed=5))
        graph.replay()
        assert agrees(made, a, b)
        before = ran.calls.total()
        assert torch.allclose(torch.compile(lambda x, y: torch.relu(x @ y))(a, b), torch.relu(reference(a, b)).float(),
                              atol=1e-4)
        assert ran.calls.total() > before
