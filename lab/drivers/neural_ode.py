"""torchdiffeq: training steps of a neural ordinary differential equation, by Runge and Kutta's fourth order."""

import torch
from steps import options
from torchdiffeq import odeint
from training import finish, setup, train

args = options(width=2048, batch=4096)
dtype = setup(args)
with torch.device(args.device):
    field = torch.nn.Sequential(torch.nn.Linear(64, args.width), torch.nn.Tanh(),
                                torch.nn.Linear(args.width, args.width), torch.nn.Tanh(),
                                torch.nn.Linear(args.width, 64))
    start, goal = (torch.randn(args.batch, 64).to(dtype) for _ in range(2))
    times = torch.linspace(0, 1, 5).to(dtype)
finish(args, field)
train(args, field, lambda: (odeint(lambda t, y: field(y), start, times, method="rk4")[-1] - goal).square().mean())
