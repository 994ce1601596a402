"""`peakgemm.torch.use` on the GPU: what it reroutes, what it leaves alone, and that it restores."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the GPU tests use torch")
pytest.register_assert_rewrite("torch_cases")

import peakgemm as pg  # noqa: E402
from peakgemm.integrations.torch import use  # noqa: E402
from torch_cases import UseCases, agrees, draw, reference  # noqa: E402


class TestUse(UseCases):
    device = "cuda"


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


def test_operands_on_two_devices_are_torchs():
    x, y = draw(65, 33), draw(33, 17, seed=1)
    with use() as ran:
        torch.mm(x.cpu(), y.cpu())
        with pytest.raises(RuntimeError, match="same device"):
            torch.mm(x, y.cpu())
    assert not ran.calls
