"""Complex products of torch tensors by the way of a GPU's: CPU tensors stand for those of GPU 0, simulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import peakgemm  # noqa: E402
from linalg_torch import stand_for_gpu  # noqa: E402
from peakgemm.errors import InvalidValue  # noqa: E402


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_for_gpu(monkeypatch)


def drawn(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed))


A, B, C = drawn(5, 6), drawn(6, 7, seed=1), drawn(5, 7, seed=2)


@pytest.mark.parametrize("of", [
    lambda m: m(A, B), lambda m: m(A.mH.contiguous().mH, B.conj()), lambda m: m(C.conj().mT, A.conj()),
    lambda m: m(torch._neg_view(A), B), lambda m: m(A.expand(2, -1, -1), B), lambda m: m(A[0].conj(), B),
], ids=["plain", "lazy conjugates", "of a transposed view", "lazy negation", "expanded", "vector"])
@pytest.mark.parametrize("precision", ["ieee", "emulated-3m"])
def test_views(of: Callable[[Any], Any], precision: str) -> None:
    result = of(lambda a, b: peakgemm.matmul(a, b, precision=precision))
    want = of(torch.matmul)
    assert result.dtype is torch.complex64 and result.shape == want.shape and not result.is_conj()
    torch.testing.assert_close(result, want, rtol=0, atol=2e-5)


@pytest.mark.parametrize("precision", ["ieee", "emulated-3m"])
def test_a_lazy_conjugate_is_added(precision: str) -> None:
    result = peakgemm.gemm(A, B, C.conj(), beta=2j, trans_a="N", precision=precision)
    torch.testing.assert_close(result, A @ B + 2j * C.conj(), rtol=0, atol=2e-5)


def test_out() -> None:
    """Its version is counted; it is no lazy conjugate; it records no derivative."""
    large = torch.empty(10, 14, dtype=C.dtype)
    for out in (torch.empty_like(C), torch.empty_like(C.mT.contiguous()).mT, large[::2, ::2]):
        before = out._version
        assert peakgemm.matmul(A, B, out=out) is out and out._version > before
        torch.testing.assert_close(out, A @ B, rtol=0, atol=2e-5)
    with pytest.raises(InvalidValue, match="read-only"):
        peakgemm.matmul(A, B, out=torch.empty_like(C).conj())
    with pytest.raises(InvalidValue, match="a requires a gradient"):
        peakgemm.matmul(A.clone().requires_grad_(), B, out=torch.empty_like(C))
