"""Operands on the GPU, and what their product must be."""

import torch


def draw(*shape, seed=0):
    return torch.randn(*shape, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))


def operands(shapes, grad=False):
    return [None if s is None else draw(*s, seed=i).requires_grad_(grad) for i, s in enumerate(shapes)]


def reference(a, b, c=None, alpha=1.0, beta=0.0):
    out = alpha * (a.double() @ b.double())
    return out if c is None or beta == 0 else out + beta * c.double()


def agrees(got, a, b, c=None, alpha=1.0, beta=0.0):
    """Within the componentwise bound (k + 3) 2^-24 (|alpha||A||B| + |beta||C|); NaN never passes."""
    a, b = a.detach(), b.detach()
    c = None if c is None else c.detach()
    want = reference(a, b, c, alpha, beta)
    limit = (a.shape[-1] + 3) * 2.0**-24 * reference(a.abs(), b.abs(), None if c is None else c.abs(), abs(alpha),
                                                     abs(beta))
    assert got.shape == want.shape
    return bool(((got.detach().double() - want).abs() <= limit).all())


def close(got, want, terms):
    """Within what ``terms`` FP32 additions of standard normal products may lose, generously."""
    return torch.allclose(got.double(), want.double(), rtol=1e-4, atol=1e-6 * (terms + 10))
