"""A neural ODE in torch: a multilayer perceptron as the right-hand side, fixed steps of Runge and Kutta, gradients."""

import argparse
import json
import statistics
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=2048)
parser.add_argument("--batch", type=int, default=4096)
parser.add_argument("--steps", type=int, default=10)
args = parser.parse_args()
torch.manual_seed(0)
field = torch.nn.Sequential(torch.nn.Linear(64, args.width), torch.nn.Tanh(), torch.nn.Linear(args.width, args.width),
                            torch.nn.Tanh(), torch.nn.Linear(args.width, 64)).cuda()
start_at, goal = torch.randn(args.batch, 64, device="cuda"), torch.randn(args.batch, 64, device="cuda")


def solve(y, h=0.25):
    for _ in range(4):
        k1 = field(y)
        k2 = field(y + h / 2 * k1)
        k3 = field(y + h / 2 * k2)
        k4 = field(y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return y


optimizer, times, losses = torch.optim.Adam(field.parameters(), lr=1e-4), [], []
for _ in range(args.steps):
    torch.cuda.synchronize()
    start = time.perf_counter()
    optimizer.zero_grad()
    loss = (solve(start_at) - goal).square().mean()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
    times.append(time.perf_counter() - start)
    losses.append(float(loss))
print(json.dumps({"ms": 1e3 * statistics.median(times[3:]), "numbers": losses[:4]}))
