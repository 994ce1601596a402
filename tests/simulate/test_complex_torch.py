"""Complex products of torch tensors by the way of a GPU's: CPU tensors stand for those of GPU 0, simulated."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import peakgemm  # noqa: E402
import stand_in  # noqa: E402
from linalg_case import interpret  # noqa: E402
from peakgemm.arrays.torch import Torch  # noqa: E402
from peakgemm.errors import InvalidValue  # noqa: E402
from peakgemm.linalg import call  # noqa: E402
from peakgemm.linalg.program import Program  # noqa: E402

_admit, _view, _scratch = Torch.admit, Torch.view, Torch.scratch
_sizes: dict[int, int] = {}  # of the storages that calls have looked at, by address


class Bound:
    """A bound program, interpreted in the tensors' memory."""

    def __init__(self, program: Program, gpu: Any) -> None:
        self.program, self.workspace_bytes = program, program.bytes

    def run(self, workspace: int, buffers: list[int], stream: int) -> None:
        interpret(self.program, [flat(address & -16) for address in buffers])


def flat(address: int) -> Any:
    """The memory from an address to the end of its storage."""
    end = next(start + size for start, size in _sizes.items() if start <= address < start + size)
    return np.ctypeslib.as_array((ctypes.c_float * ((end - address) // 4)).from_address(address))


def seen(self: Torch, x: Any, name: str, stream: int = -1) -> Any:
    storage = x.untyped_storage()
    _sizes[storage.data_ptr()] = storage.nbytes()
    return _view(self, x, name, stream)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Torch, "admit", lambda self, x, name, dtype="float32": (_admit(self, x, name, dtype), 0)[1])
    monkeypatch.setattr(Torch, "view", seen)
    monkeypatch.setattr(Torch, "scope", lambda self, index, stream: nullcontext(stand_in.STREAM))
    monkeypatch.setattr(call.device, "require", lambda index: stand_in.GPU)
    monkeypatch.setattr(call, "BoundProgram", Bound)
    monkeypatch.setattr(call, "calls", {})
    _sizes.clear()


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
