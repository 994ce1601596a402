"""GPyTorch: exact Gaussian process, marginal likelihood and gradient by Cholesky; then predictions."""

import gpytorch
import steps
import torch
from training import COUNT, KEPT, finish, setup, wait

args = steps.options(steps=8, points=12000)
dtype = setup(args)
x = torch.rand(args.points, 8, device=args.device).to(dtype)
y, unseen = torch.sin(6 * x).sum(-1), torch.rand(COUNT, 8, device=args.device).to(dtype)


class Model(gpytorch.models.ExactGP):
    def __init__(self, likelihood):
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


likelihood = gpytorch.likelihoods.GaussianLikelihood()
model = finish(args, Model(likelihood).to(args.device)).train()
bound = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.05), []


def step():
    optimizer.zero_grad()
    loss = -bound(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())


def numbers():
    model.eval()
    with torch.no_grad():
        return [[float(x) for x in losses[:KEPT]], model(unseen).mean.tolist()]


with gpytorch.settings.max_cholesky_size(20000), gpytorch.settings.fast_computations(False, False, False):
    steps.run(step, args.steps, wait(args), numbers, warm_up=2)
