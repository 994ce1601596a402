"""Contractions on the GPU: values, gradients, complex64, results in the caller's memory, CuPy and JAX."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the GPU tests use torch")
pytest.register_assert_rewrite("torch_cases")

import peakgemm as pg  # noqa: E402
from torch_cases import draw  # noqa: E402

CASES = [("bij,bjk->bik", (8, 65, 33), (8, 33, 17)), ("bqhd,bkhd->bhqk", (2, 65, 4, 32), (2, 33, 4, 32)),
         ("mnij,pqij->mnpq", (6, 7, 8, 9), (5, 4, 8, 9)), ("ijm,jin->nm", (8, 9, 33), (9, 8, 17)),
         ("bi,bi->b", (64, 100), (64, 100)), ("aib,cbd->acid", (12, 2, 16), (3, 16, 12))]


@pytest.mark.parametrize(("equation", "first", "second"), CASES)
@pytest.mark.parametrize("precision", ["ieee", "emulated"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_einsum(equation, first, second, precision, dtype):
    a, b = draw(*first), draw(*second, seed=1)
    if dtype is torch.complex64:
        a, b = torch.complex(a, a.flip(0)), torch.complex(b, b.flip(-1))
    want = torch.einsum(equation, a.to(torch.complex128), b.to(torch.complex128))
    got = pg.einsum(equation, a, b, precision=precision)
    out = torch.full_like(got, float("nan"))
    assert pg.einsum(equation, a, b, precision=precision, out=out) is out
    scale = torch.einsum(equation, a.abs().double(), b.abs().double())
    for x in (got, out):
        assert (x.to(torch.complex128) - want).abs().le(1e-5 * scale).all()


def test_gradients():
    operands = [draw(*shape, seed=i).requires_grad_() for i, shape in enumerate([(4, 33, 17), (17, 65), (65, 9)])]
    got, want = (torch.autograd.grad(f("bij,jk,kl->lbi", *operands).square().sum(), operands)
                 for f in (pg.einsum, torch.einsum))
    for x, y in zip(got, want, strict=True):
        assert torch.allclose(x, y, rtol=1e-3, atol=1e-2 * float(y.abs().max()))


def test_cupy():
    cupy = pytest.importorskip("cupy", reason="needs CuPy")
    a, b = (cupy.asarray(draw(*shape)) for shape in ((8, 65, 33), (33, 17)))
    got = pg.einsum("bij,jk->kbi", a, b)
    assert isinstance(got, cupy.ndarray) and cupy.allclose(got, cupy.einsum("bij,jk->kbi", a, b), atol=1e-3)
    chain = pg.linalg.multi_dot([a[0], b, b.T])
    assert cupy.allclose(chain, a[0] @ b @ b.T, atol=1e-2)


def test_jax():
    jax = pytest.importorskip("jax", reason="needs jax")
    a, b = (np.asarray(draw(*shape).cpu()) for shape in ((8, 65, 33), (33, 17)))
    got = jax.jit(lambda a, b: pg.einsum("bij,jk->kbi", a, b))(jax.numpy.asarray(a), jax.numpy.asarray(b))
    assert np.allclose(got, np.einsum("bij,jk->kbi", a, b), atol=1e-3)
