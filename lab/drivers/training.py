"""Steps in torch: training by AdamW, or inference."""

import contextlib

import steps
import torch

COUNT = 48  # numbers of a tensor that are compared
KEPT = 3  # losses that are


def setup(args):
    """The dtype, and what draws the data; the model is drawn in FP32."""
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # convolutions in FP32, as the products
    return torch.float64 if args.double else torch.float32


def finish(args, model):
    """The model in its dtype. Norms and losses, which transformers casts to FP32 in any dtype, are FP64, too."""
    if args.double:
        model.double()
        torch.set_default_dtype(torch.float64)
        torch.float32 = torch.float = torch.float64
        torch.Tensor.float = torch.Tensor.double
    return model


def sample(tensor):
    flat = tensor.detach().flatten()
    return flat[::max(1, len(flat) // COUNT)][:COUNT].tolist()


def wait(args):
    return torch.cuda.synchronize if args.device == "cuda" else contextlib.nullcontext


def train(args, model, loss, optimizer=None):
    """The losses of the first steps are compared, and the gradients of the first, parameter by parameter."""
    optimizer, losses, gradients = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-4), [], []

    def step():
        if len(losses) == 1:
            gradients.extend(sample(p.grad) for p in model.parameters() if p.grad is not None)
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        losses.append(value.detach())

    steps.run(step, args.steps, wait(args), lambda: [[float(x) for x in losses[:KEPT]], *gradients])


def infer(args, model, output):
    """What ``output()`` returns is compared, a row of it each."""
    model.eval()
    found = []

    def step():
        with torch.no_grad():
            found[:] = [output()]

    steps.run(step, args.steps, wait(args), lambda: [sample(row) for row in found[0].flatten(0, -2)[:COUNT]])
