"""What `peakgemm.linalg` calls by names of other libraries has their meaning: the same calls of both, on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from linalg_case import definite, half, mT, normal, triangular
from peakgemm import linalg
from peakgemm.errors import InvalidType, InvalidValue
from peakgemm.runtime import device

BOTH = (False, True)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find", lambda: None)


def signed(factors: Any) -> Any:
    """Q and R with a positive diagonal of R, which is chance elsewhere; of torch or NumPy."""
    q, r = factors
    diagonal = r[..., range(min(r.shape[-2:])), range(min(r.shape[-2:]))]
    signs = 0 * r[..., 0] + 1
    signs[..., :diagonal.shape[-1]] = 1 - 2 * (diagonal < 0)
    return linalg.QR(q * signs[..., None, :], r * signs[..., None])


def close(got: Any, want: Any) -> None:
    if isinstance(got, tuple):
        for x, y in zip(got, want, strict=True):
            close(x, y)
        return
    assert got.shape == want.shape and got.dtype == want.dtype and type(got) is type(want)
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=2e-5, atol=2e-5)


A, B, T, S = normal(9, 5), normal(9, 5, seed=1), triangular(9, 9), definite(9, 9)
C, R = normal(9, 9, seed=2), normal(5, 9, seed=3)


def of_scipy() -> dict[str, Callable[[Any], tuple[Any, Any]]]:
    """Calls with SciPy's ``linalg`` that give our result and its own."""
    calls: dict[str, Callable[[Any], tuple[Any, Any]]] = {}
    for lower, trans in product(BOTH, BOTH):
        given, c = (A.T if trans else A), half(C, lower)
        calls[f"ssyrk {lower} {trans}"] = lambda sp, x=given, c=c, f=(lower, trans): (
            linalg.syrk(x, c, alpha=1.5, beta=-0.5, lower=f[0], trans=f[1]),
            half(sp.blas.ssyrk(1.5, x, -0.5, c, trans=f[1], lower=f[0]), f[0]))
        z, old = (A + 1j * B).T if trans else A + 1j * B, c + 1j * half(S, lower)
        calls[f"cherk {lower} {trans}"] = lambda sp, x=z, c=old, f=(lower, trans): (
            linalg.herk(x, c, alpha=1.5, beta=-0.5, lower=f[0], trans="NC"[f[1]]),
            half(sp.blas.cherk(1.5, x, -0.5, c, trans=2 * f[1], lower=f[0]), f[0]))
        calls[f"csyrk {lower} {trans}"] = lambda sp, x=z, c=old, f=(lower, trans): (
            linalg.syrk(x, c, alpha=1.5j, beta=1 - 0.5j, lower=f[0], trans="NT"[f[1]]),
            half(sp.blas.csyrk(1.5j, x, 1 - 0.5j, c, trans=f[1], lower=f[0]), f[0]))
        other = B.T if trans else B
        calls[f"ssyr2k {lower} {trans}"] = lambda sp, x=given, y=other, f=(lower, trans): (
            linalg.syr2k(x, y, lower=f[0], trans=f[1]), half(sp.blas.ssyr2k(1.0, x, y, trans=f[1], lower=f[0]), f[0]))
        calls[f"solve_triangular {lower} {trans}"] = lambda sp, f=(lower, trans): (
            linalg.trsm(T, B, lower=f[0], trans=f[1], unit=f[0]),
            sp.solve_triangular(T, B, trans=int(f[1]), lower=f[0], unit_diagonal=f[0]))
    for lower, left in product(BOTH, BOTH):
        right = A if left else R
        old = right + 1
        calls[f"ssymm {lower} {left}"] = lambda sp, b=right, c=old, f=(lower, left): (
            linalg.symm(C, b, c, alpha=2.0, beta=0.5, lower=f[0], left=f[1]),
            sp.blas.ssymm(2.0, C, b, 0.5, c, side=not f[1], lower=f[0]))
        for name, trans in product(("trmm", "trsm"), BOTH):
            calls[f"s{name} {lower} {left} {trans}"] = lambda sp, b=right, f=(lower, left, trans), n=name: (
                getattr(linalg, n)(T, b, alpha=2.0, lower=f[0], left=f[1], trans=f[2], unit=f[2]),
                getattr(sp.blas, f"s{n}")(2.0, T, b, side=not f[1], lower=f[0], trans_a=f[2], diag=f[2]))
    for lower in BOTH:
        calls[f"cholesky {lower}"] = lambda sp, f=lower: (linalg.cholesky(S, upper=not f), sp.cholesky(S, lower=f))
        calls[f"cho_solve {lower}"] = lambda sp, f=lower: (
            linalg.cholesky_solve(B, sp.cholesky(S, lower=f), upper=not f), sp.cho_solve(sp.cho_factor(S, lower=f), B))
        calls[f"spotri {lower}"] = lambda sp, f=lower: (
            half(linalg.cholesky_inverse(sp.cholesky(S, lower=f), upper=not f), f),
            half(sp.lapack.spotri(sp.cholesky(S, lower=f), lower=f)[0], f))
        calls[f"solve {lower}"] = lambda sp, f=lower: (
            linalg.solve(half(S, f), B[:, 0], assume_a="pos", upper=not f), sp.solve(S, B[:, 0], assume_a="pos"))
    return calls


@pytest.mark.parametrize(("name", "call"), of_scipy().items(), ids=lambda x: x if isinstance(x, str) else "")
def test_scipy(name: str, call: Callable[[Any], tuple[Any, Any]]) -> None:
    close(*call(pytest.importorskip("scipy.linalg")))


def test_info_of_lapack() -> None:
    lapack = pytest.importorskip("scipy.linalg.lapack")
    for order in range(1, 10):
        x = S.copy()
        x[order - 1, order - 1] = -1
        assert linalg.cholesky_ex(x)[1] == lapack.spotrf(x, lower=True)[1] == order


# Calls of torch.linalg's names, or torch's own, and of ours with the same arguments.
OF_TORCH: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    **{f"cholesky {upper} {batch}": lambda torch, t, f=upper, b=batch: (
        linalg.cholesky(t(definite(*b, 9, 9)), upper=f), torch.linalg.cholesky(t(definite(*b, 9, 9)), upper=f))
       for upper, batch in product(BOTH, ((), (3,), (2, 0), (2, 3)))},
    **{f"solve_triangular {upper} {left} {unit}": lambda torch, t, f=(upper, left, unit): tuple(
        of.solve_triangular(t(triangular(2, 1, 9, 9)), t(normal(3, *((9, 4) if f[1] else (4, 9)))), upper=f[0],
                            left=f[1], unitriangular=f[2]) for of in (linalg, torch.linalg))
       for upper, left, unit in product(BOTH, BOTH, BOTH)},
    **{f"cholesky_solve {upper} {batch}": lambda torch, t, f=upper, b=batch: tuple(
        of.cholesky_solve(t(normal(*b, 9, 4)), t(half(triangular(*b, 9, 9), not f)), upper=f) for of in (linalg, torch))
       for upper, batch in product(BOTH, ((), (2, 3)))},
    **{f"cholesky_inverse {upper} {batch}": lambda torch, t, f=upper, b=batch: tuple(
        of.cholesky_inverse(t(half(triangular(*b, 9, 9), not f)), upper=f) for of in (linalg, torch))
       for upper, batch in product(BOTH, ((), (2, 3)))},
    **{f"solve {batch}": lambda torch, t, b=batch: (linalg.solve(t(definite(*b, 9, 9)), t(normal(*b, 9, 4))),
                                                    torch.linalg.solve(t(definite(*b, 9, 9)), t(normal(*b, 9, 4))))
       for batch in ((), (2, 3))},
    **{f"lu_factor {shape} {part}": lambda torch, t, s=shape, i=part: tuple(
        of.lu_factor_ex(t(normal(*s)))[i] for of in (linalg, torch.linalg))
       for shape, part in product(((9, 9), (2, 9, 5), (3, 1, 5, 9)), (0, 1, 2))},
    **{f"lu_solve {left} {trans}": lambda torch, t, f=(left, trans): tuple(
        of(*torch.linalg.lu_factor(t(normal(2, 9, 9))), t(normal(3, 1, *((9, 4) if f[0] else (4, 9)))), left=f[0],
           **flag) for of, flag in ((linalg.lu_solve, {"trans": f[1]}), (torch.linalg.lu_solve, {"adjoint": f[1]})))
       for left, trans in product(BOTH, BOTH)},
    "inv": lambda torch, t: tuple(of.inv(t(normal(2, 9, 9))) for of in (linalg, torch.linalg)),
    "det": lambda torch, t: tuple(of.det(t(normal(2, 9, 9))) for of in (linalg, torch.linalg)),
    "slogdet": lambda torch, t: tuple(of.slogdet(t(normal(2, 9, 9))).logabsdet for of in (linalg, torch.linalg)),
    **{f"qr {mode} {shape}": lambda torch, t, m=mode, s=shape: (
        linalg.qr(t(normal(*s)), mode=m), signed(torch.linalg.qr(t(normal(*s)), m)))
       for mode, shape in product(("reduced", "complete"), ((9, 5), (5, 9), (2, 3, 7, 7)))},
    "qr r": lambda torch, t: (linalg.qr(t(A), mode="r"), signed(torch.linalg.qr(t(A))).R),
    **{f"lstsq {shape}": lambda torch, t, s=shape: (
        linalg.lstsq(t(normal(*s)), t(normal(*s[:-1], 2)))[:2],
        torch.linalg.lstsq(t(normal(*s)), t(normal(*s[:-1], 2)), driver="gels")[:2])
       for shape in ((9, 5), (2, 9, 5))},
    "lstsq wide": lambda torch, t: (linalg.lstsq(t(R), t(R[:, :2])).solution,
                                    torch.linalg.lstsq(t(R), t(R[:, :2]), driver="gels").solution),
    "gram": lambda torch, t: (linalg.gram(t(A), trans=True), t(A).mT @ t(A)),
    "complex gram": lambda torch, t: (linalg.gram(t(A + 1j * B), trans=True), t(A + 1j * B).mH @ t(A + 1j * B)),
    "lazy conjugates": lambda torch, t: (linalg.syrk(t(A + 1j * B).conj(), t(S + 1j * C).conj(), beta=1j), (
        t(A + 1j * B) @ t(A + 1j * B).mT - 1j * t(S + 1j * C)).conj().resolve_conj().tril()),
}


@pytest.mark.parametrize("transposed", BOTH)
@pytest.mark.parametrize("name", OF_TORCH)
def test_torch(name: str, transposed: bool) -> None:
    """Row-major tensors, and transposed ones."""
    torch = pytest.importorskip("torch")

    def tensor(x: Any) -> Any:
        return torch.from_numpy(mT(x).copy()).mT if transposed else torch.from_numpy(x)

    close(*OF_TORCH[name](torch, tensor))


def test_torch_tensors_that_are_written_or_need_gradients() -> None:
    torch = pytest.importorskip("torch")
    bad = definite(2, 3, 9, 9)
    bad[1, 2, 4, 4] = -1
    x = torch.from_numpy(bad)
    info = linalg.cholesky_ex(x)[1]
    theirs = torch.linalg.cholesky_ex(x)
    assert torch.equal(info, theirs.info) and info.dtype == theirs.info.dtype
    out = torch.empty(9, 9).mT
    version = out._version
    assert linalg.cholesky(x[0, 0], out=out) is out and out._version > version
    close(out, theirs.L[0, 0])
    y = x[0, 0].clone().requires_grad_()
    with pytest.raises(InvalidValue, match=r"peakgemm.linalg.cholesky does not record; .* or use torch.linalg"):
        linalg.cholesky(y)
    with torch.no_grad():
        close(linalg.cholesky(y), theirs.L[0, 0])
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        dual = forward.make_dual(x[0, 0], torch.ones(9, 9))
        with pytest.raises(InvalidValue, match=r"a carries a forward-mode tangent, .* use torch.linalg, or pass"):
            linalg.cholesky(dual)
        close(linalg.cholesky(forward.unpack_dual(dual).primal), theirs.L[0, 0])


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    with jax.default_device(jax.devices("cpu")[0]):
        s, b = jax.numpy.asarray(definite(3, 9, 9)), jax.numpy.asarray(normal(3, 9, 4))
        factor = linalg.cholesky(s)
        close(factor, jax.numpy.linalg.cholesky(s))
        close(linalg.solve_triangular(factor, b, upper=False), jax.scipy.linalg.solve_triangular(factor, b, lower=True))
        close(linalg.cholesky_solve(b, factor), jax.scipy.linalg.cho_solve((factor, True), b))
        assert isinstance(linalg.cholesky_ex(s)[1], jax.Array)
        z = b + 1j * s[..., :4]
        close(linalg.gram(z, trans=True), z.mT.conj() @ z)
        close(linalg.herk(z, z @ z.mT.conj()), jax.numpy.tril(2 * z @ z.mT.conj()))
        q, r = linalg.qr(b[:, :, :3])
        assert isinstance(q, jax.Array) and np.allclose(q @ r, b[:, :, :3], atol=1e-5)
        close(abs(r), abs(jax.numpy.linalg.qr(b[:, :, :3]).R))
        close(linalg.lstsq(s[0], b[0]).solution, jax.numpy.linalg.lstsq(s[0], b[0])[0])
        with pytest.raises(InvalidType, match="JAX array and b a NumPy array; convert one"):
            linalg.trsm(factor, normal(9, 4))


def test_numpy() -> None:
    for shape, mode in product(((9, 5), (5, 9), (3, 4, 4)), ("reduced", "complete")):
        x = normal(*shape)
        for got, want in zip(linalg.qr(x, mode=mode), signed(np.linalg.qr(x, mode)), strict=True):
            np.testing.assert_allclose(got, want, atol=2e-5)
    for right in (B, B[:, 0]):
        solution, residuals, rank = linalg.lstsq(A, right)
        theirs = np.linalg.lstsq(A, right, rcond=None)
        assert (solution.shape, residuals.shape, rank) == (theirs[0].shape, theirs[1].shape, theirs[2])
        np.testing.assert_allclose(solution, theirs[0], atol=2e-5)
        np.testing.assert_allclose(residuals, theirs[1], rtol=1e-4)


@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.parametrize("m", [0, 1, 4])
@pytest.mark.parametrize("stack", [(), (0,), (2, 3)])
def test_the_array_api_of_qr(stack: tuple[int, ...], m: int, n: int) -> None:
    """Shapes, dtypes, zeros, stacks as of their matrices."""
    x = normal(*stack, m, n)
    for mode, size in (("reduced", min(m, n)), ("complete", m)):
        result = linalg.qr(x, mode=mode)
        assert result.Q.shape == (*stack, m, size) and result.R.shape == (*stack, size, n)
        assert result.Q.dtype == result.R.dtype == x.dtype and not np.tril(result.R, -1).any()
        for index in np.ndindex(stack):
            assert all(np.array_equal(a[index], b) for a, b in zip(result, linalg.qr(x[index], mode=mode), strict=True))


@pytest.mark.parametrize("n", [0, 1, 2, 5])
@pytest.mark.parametrize("stack", [(), (1,), (0,), (3,), (2, 0), (2, 3)])
def test_the_array_api(stack: tuple[int, ...], n: int) -> None:
    """What its test suite asks of ``cholesky`` and ``solve``: shapes, dtypes, zeros, stacks as of their matrices."""
    x = definite(*stack, n, n) if n else np.zeros((*stack, 0, 0), np.float32)
    for upper in BOTH:
        factor = linalg.cholesky(x, upper=upper)
        assert factor.shape == x.shape and factor.dtype == x.dtype
        assert not half(factor, upper, unit=True).any()
        for index in np.ndindex(stack):
            assert np.array_equal(factor[index], linalg.cholesky(x[index], upper=upper))
    for right in (normal(n), normal(*stack, n, 3), normal(n, 2), normal(*stack, n, 0)):
        solution = linalg.solve(x, right)
        column = right.ndim == 1
        assert solution.dtype == x.dtype and solution.shape == (*stack, *right.shape[-1 if column else -2:])
        for index in np.ndindex(stack):
            each = right[index] if right.ndim > 2 or (stack and right.shape[:-2] == stack) else right
            np.testing.assert_allclose(solution[index], linalg.solve(x[index], each), rtol=1e-6, atol=1e-6)
