"""`use(linalg=True)`: tests that run on CPU tensors and on a GPU's. A subclass names the device."""

from __future__ import annotations

import warnings

import pytest
import torch

from peakgemm.errors import InvalidValue, OutOfMemory
from peakgemm.integrations import torch_linalg, torch_use
from peakgemm.integrations.linalg_sizes import Sizes
from torch_cases import Subclass, draw

linalg = torch.linalg


def symmetrised(a):
    """What is factored: gradients of both triangles are comparable."""
    return (a + a.mT) / 2


def signed(factors):
    """Q and R with a positive diagonal of R, which torch leaves to chance."""
    q, r = factors
    signs = r.diagonal(dim1=-2, dim2=-1).sign()
    return q * signs[..., None, :], r * signs[..., None]


# Functions of a positive definite matrix, a triangular one and right-hand sides -> the calls that peakgemm runs, with
# those of a backward pass.
CASES = {
    "cholesky": (lambda s, t, b: linalg.cholesky(symmetrised(s)), {"linalg_cholesky_ex": 1}),
    "cholesky-upper": (lambda s, t, b: linalg.cholesky(symmetrised(s), upper=True), {"linalg_cholesky_ex": 1}),
    "cholesky_ex": (lambda s, t, b: linalg.cholesky_ex(symmetrised(s), check_errors=True), {"linalg_cholesky_ex": 1}),
    "cholesky-old": (lambda s, t, b: torch.cholesky(symmetrised(s), upper=True), {"cholesky": 1}),
    "cholesky_solve": (lambda s, t, b: torch.cholesky_solve(b, t.tril()), {"_cholesky_solve_helper": 1}),
    "cholesky_solve-upper": (lambda s, t, b: torch.cholesky_solve(b, t.mT.triu(), upper=True),
                             {"_cholesky_solve_helper": 1}),
    "cholesky_inverse": (lambda s, t, b: torch.cholesky_inverse(t.tril()), {"cholesky_inverse.out": 1}),
    "solve": (lambda s, t, b: linalg.solve_triangular(t, b, upper=False), {"linalg_solve_triangular": 1}),
    "solve-upper": (lambda s, t, b: linalg.solve_triangular(t.mT, b, upper=True), {"linalg_solve_triangular": 1}),
    "solve-right": (lambda s, t, b: linalg.solve_triangular(t, b.mT, upper=False, left=False),
                    {"linalg_solve_triangular": 1}),
    "solve-unit": (lambda s, t, b: linalg.solve_triangular(t / 8, b, upper=False, unitriangular=True),
                   {"linalg_solve_triangular": 1}),
    "lu": (lambda s, t, b: linalg.lu_factor_ex(s), {"linalg_lu_factor_ex": 1}),
    "lu_solve": (lambda s, t, b: linalg.lu_solve(*linalg.lu_factor(s), b.mT, left=False, adjoint=True),
                 {"linalg_lu_factor_ex": 1, "linalg_lu_solve": 1}),
    "solve-general": (lambda s, t, b: linalg.solve(s + t, b), {"linalg_lu_factor_ex.out": 1, "linalg_lu_solve.out": 1}),
    "inverse": (lambda s, t, b: linalg.inv(s), {"linalg_lu_factor_ex.out": 1, "linalg_lu_solve.out": 1}),
    "determinant": (lambda s, t, b: linalg.slogdet(s)[1][..., None], {"linalg_lu_factor_ex.out": 1}),
    "qr": (lambda s, t, b: signed(linalg.qr(b)), {"linalg_qr": 1}),
    "qr-wide": (lambda s, t, b: signed(linalg.qr(b.mT, mode="complete")), {"linalg_qr": 1}),
    "lstsq": (lambda s, t, b: linalg.lstsq(b, b.detach()[..., :2].flip(-1).cos(), driver="gels")[:2],
              {"linalg_lstsq": 1}),
    "lstsq-wide": (lambda s, t, b: linalg.lstsq(b.mT, b.detach()[..., :5, :2].cos(), driver="gels")[:2],
                   {"linalg_lstsq": 1}),
    "solve-old": (lambda s, t, b: torch.triangular_solve(b, t, upper=False, transpose=True), {"triangular_solve": 1}),
}
BATCHES = [  # of the matrices, and of right-hand sides
    ((), ()), ((3,), (3,)), ((2, 1), (3,)), ((), (2,)),
]


def as_tuple(result):
    """The tensors that an operator returns."""
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.filterwarnings("ignore:torch.cholesky is deprecated", "ignore:torch.triangular_solve is deprecated")
class LinalgUseCases:
    """The rerouting of torch's linear algebra, at all sizes; on the CPU's key NumPy does what the GPU would."""

    device: str

    @pytest.fixture(autouse=True)
    def at_all_sizes(self, monkeypatch):
        monkeypatch.setattr(torch_linalg, "FASTER", dict.fromkeys(torch_linalg.FASTER, Sizes(1, 1, 1, 1, 1)))

    def use(self, precision="ieee", linalg=True):
        return torch_use.Use(precision, key="CPU" if self.device == "cpu" else "CUDA", linalg=linalg)

    def matrices(self, batch=(), right_batch=(), size=37, columns=5):
        """A positive definite matrix, a lower triangular one with values above that are not read, right-hand sides."""
        x = draw(*batch, size, size, device=self.device)
        positive = x @ x.mT / size + torch.eye(size, device=self.device)
        triangle = linalg.cholesky(positive) + draw(size, size, seed=1, device=self.device).triu(1)
        return positive, triangle, draw(*right_batch, size, columns, seed=2, device=self.device)

    @pytest.mark.parametrize(("batch", "right_batch"), BATCHES, ids=str)
    @pytest.mark.parametrize("name", CASES)
    def test_results_strides_and_gradients(self, name, batch, right_batch):
        function, calls = CASES[name]
        mine, theirs = ([x.clone().requires_grad_() for x in self.matrices(batch, right_batch)] for _ in range(2))
        want = as_tuple(function(*theirs))
        with self.use("emulated") as ran:
            got = as_tuple(function(*mine))
            assert ran.calls == calls and not ran.fallbacks
            weights = draw(*got[0].shape, seed=3, device=self.device)
            (got[0] * weights).sum().backward()
        (want[0] * weights).sum().backward()
        for x, y in zip(got, want, strict=True):
            assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())
            assert torch.allclose(x, y, rtol=1e-3, atol=1e-4)
        for x, y in zip(mine, theirs, strict=True):
            assert (x.grad is None) == (y.grad is None)
            assert x.grad is None or torch.allclose(x.grad, y.grad, rtol=1e-2, atol=1e-3 * float(y.grad.abs().max()))

    @pytest.mark.parametrize("shape", [(9, 4), (4, 9), (2, 7, 7)], ids=str)
    def test_orthogonal(self, shape):
        """Modes, strides, and what torch's driver leaves empty."""
        a, b = draw(*shape, device=self.device), draw(*shape[:-1], 2, seed=1, device=self.device)
        for mode in ("reduced", "complete", "r"):
            with self.use() as ran:
                got = linalg.qr(a, mode=mode)
            assert ran.calls == {"linalg_qr": 1}
            for x, y in zip(got, linalg.qr(a, mode=mode), strict=True):
                assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())
        with self.use() as ran:
            got = linalg.lstsq(a, b, driver="gels")
        assert ran.calls == {"linalg_lstsq": 1}
        for x, y in zip(got, linalg.lstsq(a, b, driver="gels"), strict=True):
            assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())
            assert torch.allclose(x, y, rtol=1e-4, atol=1e-4)

    def test_orthogonal_that_is_torchs(self):
        a, b = draw(9, 4, device=self.device), draw(9, 2, seed=1, device=self.device)
        with self.use() as ran:
            linalg.qr(a.double())
            linalg.qr(a.to(torch.complex64))
            linalg.qr(a[:0])
            linalg.lstsq(a.double(), b.double())
            linalg.lstsq(a, b[:, :0])
            linalg.lstsq(a, b[:, 0])
            linalg.lstsq(a.expand(2, 9, 4), b[:, 0].expand(2, 9))
            with pytest.raises(RuntimeError, match="mode"):
                linalg.qr(a, mode="full")
        assert not ran.calls and ran.fallbacks["linalg_qr"] == 4

    def test_forward_mode(self):
        """Tangents are torch's affair: what runs beneath does not ask for them."""
        s, _, b = self.matrices()
        tangent = draw(37, 37, seed=4, device=self.device)
        got = []
        for block in (self.use(linalg=False), self.use()):
            with block as ran, torch.autograd.forward_ad.dual_level():
                factor = linalg.cholesky(torch.autograd.forward_ad.make_dual(s, tangent + tangent.mT))
                got.append(torch.autograd.forward_ad.unpack_dual(torch.cholesky_solve(b, factor)))
        assert ran.calls["linalg_cholesky_ex"] == ran.calls["_cholesky_solve_helper"] / 2 == 1
        for x, y in zip(*got, strict=True):
            assert torch.allclose(x, y, rtol=1e-3, atol=1e-3)

    def test_out(self):
        s, t, b = self.matrices()
        for like in (torch.empty(0, device=self.device), torch.empty_like(s), torch.empty_like(s).mT):
            outs = [like.clone() for _ in range(3)]
            solution = like.clone() if not like.numel() else torch.empty_like(b)
            versions = [x._version for x in outs]
            with self.use() as ran, warnings.catch_warnings():
                warnings.simplefilter("error")
                results = (linalg.cholesky(s, out=outs[0]), torch.cholesky_inverse(t, out=outs[1]),
                           torch.mm(s, s.mT, out=outs[2]), linalg.solve_triangular(t, b, upper=False, out=solution))
            want = (linalg.cholesky(s), torch.cholesky_inverse(t), s @ s.mT,
                    linalg.solve_triangular(t, b, upper=False))
            assert all(x is y for x, y in zip(results, (*outs, solution), strict=True))
            assert all(torch.allclose(x, y, rtol=1e-4, atol=1e-4) for x, y in zip(results, want, strict=True))
            assert all(x._version > version for x, version in zip(outs, versions, strict=True))
            assert ran.calls["cholesky_inverse.out"] == 1
            assert ran.calls["linalg_cholesky_ex.L"] == ran.calls["mm.out"] == bool(like.numel())
        shared = b.clone()
        with self.use() as ran:
            linalg.solve_triangular(t, shared, upper=False, out=shared)
        assert torch.allclose(shared, want[3], atol=1e-4) and ran.calls == {"linalg_solve_triangular.out": 1}

    def test_not_positive_definite(self):
        bad = torch.eye(40, device=self.device).repeat(3, 1, 1)
        bad[1, 20, 20] = -1
        calls = {"cholesky_ex": lambda: linalg.cholesky_ex(bad, check_errors=True), "old": lambda: torch.cholesky(bad),
                 "new": lambda: linalg.cholesky(bad), "one": lambda: linalg.cholesky(bad[1])}
        with self.use() as ran:
            factor, info = linalg.cholesky_ex(bad)
        assert info.tolist() == [0, 21, 0] and info.dtype is torch.int32 and ran.calls.total() == 1
        assert torch.equal(factor[0], bad[0])
        for call in calls.values():
            with pytest.raises(linalg.LinAlgError) as theirs:
                call()
            with self.use(), pytest.raises(linalg.LinAlgError) as mine:
                call()
            assert str(mine.value) == str(theirs.value)

    def test_a_matrix_by_its_own_transpose(self, monkeypatch):
        grams = []
        plain = torch_linalg.linalg.gram
        monkeypatch.setattr(torch_linalg.linalg, "gram", lambda a, **o: (grams.append(a), plain(a, **o))[1])
        x = draw(33, 65, device=self.device).requires_grad_()
        y = x.detach().clone().requires_grad_()
        with self.use("emulated") as ran:
            got = x @ x.T + x[:, :20] @ x[:, :20].T
            (x.T @ x).sum().backward()
        (y.T @ y).sum().backward()
        assert len(grams) == 3 and ran.calls == {"mm": 5} and not ran.fallbacks
        assert torch.allclose(got, y @ y.T + y[:, :20] @ y[:, :20].T, atol=1e-3)
        assert torch.allclose(x.grad, y.grad, rtol=1e-3, atol=1e-3)
        square = draw(20, 20, device=self.device)
        with self.use() as ran:
            for a, b in ((square, square), (square, square.clone().T), (x.detach()[:, :20], x.detach()[:, 20:40].T)):
                assert torch.allclose(a @ b, a.double().matmul(b.double()).float(), atol=1e-4)
        assert len(grams) == 3 and ran.calls == {"mm": 3}

    def test_the_rest_is_torchs(self):
        s, t, b = self.matrices()
        with self.use() as ran:
            assert linalg.cholesky(s.double()).dtype is torch.float64
            linalg.cholesky(s.as_subclass(Subclass))
            assert linalg.cholesky(s[:0, :0]).shape == (0, 0)
            assert linalg.solve_triangular(t, b[:, :0], upper=False).shape == (37, 0)
            for says, call in (("square", lambda: linalg.cholesky(b)), ("2 dim", lambda: linalg.cholesky(b[0])),
                               ("Incompatible", lambda: linalg.solve_triangular(t, b[:5], upper=False)),
                               ("must match", lambda: linalg.solve_triangular(
                                   t.expand(2, 37, 37), b.expand(3, 37, 5), upper=False))):
                with pytest.raises(RuntimeError, match=says):
                    call()
            assert not ran.calls and ran.fallbacks.total() >= 6
            linalg.solve_triangular(s, s, upper=False, out=s)  # an overlap: whatever torch does with it

    def test_without_room_it_is_torchs(self, monkeypatch):
        def has_no_room(*args, **kwargs):
            raise OutOfMemory("a workspace of 2 bytes")

        for name in ("cholesky_ex", "cholesky_inverse", "gram"):
            monkeypatch.setattr(torch_linalg.linalg, name, has_no_room)
        s, t, _ = self.matrices()
        with self.use() as ran:
            got = linalg.cholesky(s), torch.cholesky_inverse(t), s @ s.mT
        want = linalg.cholesky(s), torch.cholesky_inverse(t), s @ s.mT
        assert all(torch.allclose(x, y, rtol=1e-5, atol=1e-5) for x, y in zip(got, want, strict=True))
        assert ran.calls == {"mm": 1} and ran.fallbacks == {"linalg_cholesky_ex": 1, "cholesky_inverse.out": 1}

    def test_blocks_nest(self):
        s, *_ = self.matrices()
        with self.use(linalg=False) as ran:
            linalg.cholesky(s)
            assert not ran.calls and not ran.fallbacks
            with self.use("emulated"):
                linalg.cholesky(s)
                with self.use(linalg=False):
                    linalg.cholesky(s)
                assert "'emulated', linalg=True): peakgemm ran 1 linalg_cholesky_ex" in str(ran)
            linalg.cholesky(s)
        linalg.cholesky(s)
        assert ran.calls == {"linalg_cholesky_ex": 1} and not ran.fallbacks and not torch_use.use.active
        with pytest.raises(InvalidValue, match="leave out one"):
            self.use("reproducible")
