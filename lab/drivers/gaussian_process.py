"""GPyTorch: exact Gaussian process, marginal likelihood and gradient by Cholesky."""

import argparse
import json
import statistics
import time

import gpytorch
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--points", type=int, default=12000)
parser.add_argument("--steps", type=int, default=8)
args = parser.parse_args()
torch.manual_seed(0)
x = torch.rand(args.points, 8, device="cuda")
y = torch.sin(6 * x).sum(-1)


class Model(gpytorch.models.ExactGP):
    def __init__(self, likelihood):
        super().__init__(x, y, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


likelihood = gpytorch.likelihoods.GaussianLikelihood().cuda()
model = Model(likelihood).cuda().train()
bound = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
optimizer, times, losses = torch.optim.Adam(model.parameters(), lr=0.05), [], []
for _ in range(args.steps):
    torch.cuda.synchronize()
    start = time.perf_counter()
    optimizer.zero_grad()
    with gpytorch.settings.max_cholesky_size(20000), gpytorch.settings.fast_computations(False, False, False):
        loss = -bound(model(x), y)
        loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
    times.append(time.perf_counter() - start)
    losses.append(float(loss))
print(json.dumps({"ms": 1e3 * statistics.median(times[2:]), "numbers": losses[:3]}))
