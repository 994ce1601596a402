"""torch's linear algebra under `use(linalg=True)` on the GPU: values, gradients, compiled code, graphs, GPyTorch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the GPU tests use torch")
pytest.register_assert_rewrite("torch_cases", "torch_linalg_cases")

from peakgemm.torch import use  # noqa: E402
from torch_linalg_cases import LinalgUseCases  # noqa: E402


class TestLinalgUse(LinalgUseCases):
    device = "cuda"

    @pytest.mark.parametrize("precision", ["ieee", "emulated"])
    def test_blocks_of_several_kernels(self, precision):
        """Beyond a leaf and a block of inverses; the residual is compared with torch's."""
        s, t, b = self.matrices(size=1300, columns=300)
        with use(precision, linalg=True) as ran:
            factor, x = torch.linalg.cholesky(s), torch.linalg.solve_triangular(t, b, upper=False)
            y, inverse, gram = torch.cholesky_solve(b, t), torch.cholesky_inverse(t), s @ s.mT
        assert ran.calls.total() == 5 and not ran.fallbacks
        lower, exact = t.double().tril(), b.double()
        for got, want in ((factor, torch.linalg.cholesky(s.double())), (gram, s.double() @ s.double()),
                          (x, torch.linalg.solve_triangular(lower, exact, upper=False)),
                          (y, torch.cholesky_solve(exact, lower)), (inverse, torch.cholesky_inverse(lower))):
            assert (got - want).norm() <= 1e-5 * want.norm()

    def test_nothing_waits(self):
        s, t, b = self.matrices(size=300, columns=20)

        def calls():
            return (*torch.linalg.cholesky_ex(s), torch.linalg.solve_triangular(t, b, upper=False),
                    torch.cholesky_solve(b, t), torch.cholesky_inverse(t), s @ s.mT)

        with use("emulated", linalg=True) as ran:
            calls()
            torch.cuda.set_sync_debug_mode("error")
            try:
                calls()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                made = calls()
            s.mul_(2), b.mul_(3)
            graph.replay()
            want = calls()
        assert ran.calls.total() == 20 and not ran.fallbacks
        assert all(torch.allclose(x, y, rtol=1e-4, atol=1e-4) for x, y in zip(made, want, strict=True))

    def test_compiled(self):
        torch._dynamo.reset()
        s, _, b = self.matrices(batch=(2,), size=70)

        def likelihood(a, y):
            factor = torch.linalg.cholesky(a)
            whitened = torch.linalg.solve_triangular(factor, y, upper=False)
            return whitened.square().sum() + 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum()

        mine, theirs = (s.clone().requires_grad_() for _ in range(2))
        want = likelihood(theirs, b)
        want.backward()
        with use("emulated", linalg=True) as ran:
            got = torch.compile(likelihood)(mine, b)
            got.backward()
        assert ran.calls["linalg_cholesky_ex"] == 1 and ran.calls["linalg_solve_triangular"] >= 3
        assert torch.allclose(got, want, rtol=1e-4) and torch.allclose(mine.grad, theirs.grad, rtol=1e-2, atol=1e-3)

    def test_gpytorch(self):
        gpytorch = pytest.importorskip("gpytorch", reason="an exact Gaussian process by Cholesky")
        x = torch.linspace(0, 1, 400, device="cuda")[:, None]
        y = (6 * x[:, 0]).sin()

        class Model(gpytorch.models.ExactGP):
            def __init__(self, likelihood):
                super().__init__(x, y, likelihood)
                self.mean = gpytorch.means.ConstantMean()
                self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

            def forward(self, points):
                return gpytorch.distributions.MultivariateNormal(self.mean(points), self.kernel(points))

        def step():
            likelihood = gpytorch.likelihoods.GaussianLikelihood().cuda()
            model = Model(likelihood).cuda().train()
            fast = gpytorch.settings.fast_computations(False, False, False)
            with gpytorch.settings.max_cholesky_size(20000), fast:
                loss = -gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)(model(x), y)
                loss.backward()
            return [loss.detach(), *(p.grad.clone() for p in model.parameters())]

        want = step()
        with use("emulated", linalg=True) as ran:
            got = step()
        assert ran.calls["linalg_cholesky_ex"] == 1 and ran.calls["linalg_solve_triangular"] >= 1
        for mine, theirs in zip(got, want, strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-3, atol=1e-4)


def test_small_sizes_stay_with_torch():
    s = torch.eye(200, device="cuda")
    with use(linalg=True) as ran:
        torch.linalg.solve_triangular(torch.linalg.cholesky(s), s, upper=False)
    assert not ran.calls and ran.fallbacks == {"linalg_cholesky_ex": 1, "linalg_solve_triangular": 1}
