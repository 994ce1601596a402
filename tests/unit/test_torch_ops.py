"""torch without a GPU: the registered op, its gradients, the compiler, and the rerouting on the CPU's key."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.register_assert_rewrite("torch_cases")

from peakgemm.integrations import torch_ops  # noqa: E402
from torch_cases import ProductCases, UseCases, draw  # noqa: E402


class TestProducts(ProductCases):
    device, backend = "cpu", "aot_eager"


class TestUse(UseCases):
    device = "cpu"


def test_backward_copies_nothing(monkeypatch):
    """The operands of the backward products are transposed views of what the caller passed."""
    a, b = draw(4, 5, 7, device="cpu").requires_grad_(), draw(7, 3, device="cpu").requires_grad_()
    seen = []
    plain = torch_ops._run
    monkeypatch.setattr(torch_ops, "_run", lambda x, y, *rest: (seen.append((x, y)), plain(x, y, *rest))[1])
    torch_ops.gemm_with_grad(a, b, None, 1.0, 0.0).backward(draw(4, 5, 3, device="cpu"))
    (_, (_, bt), (at, _)) = seen
    assert (bt.data_ptr(), tuple(bt.shape), bt.stride()) == (b.data_ptr(), (3, 7), (1, 3))
    assert (at.data_ptr(), tuple(at.shape), at.stride()) == (a.data_ptr(), (7, 20), (1, 7))


def test_the_face_needs_no_torch():
    """`peakgemm.torch` can be named, and says what it needs, where torch is not installed."""
    code = ("import sys; sys.modules['torch'] = None\n"
            "from peakgemm.integrations import torch as face\n"
            "try: face.use()\n"
            "except RuntimeError as error: print(type(error).__name__, error)")
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith("MissingComponent peakgemm.torch.use() needs torch 2.9")
