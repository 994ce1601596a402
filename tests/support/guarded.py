"""A product inside guard words: what a kernel reads and writes outside its matrices shows."""

from dataclasses import dataclass

import torch

from peakgemm.calls.rung import run_rung

GUARD = 64  # floats before and after each matrix
SENTINEL = -777.25
EPSILON = 2.0**-24


@dataclass
class Padded:
    """A rows x columns window with leading dimension ``columns + pad`` in a larger flat buffer."""

    flat: torch.Tensor
    window: torch.Tensor

    @classmethod
    def make(cls, rows, columns, pad, fill, offset=0):
        """Random window; ``fill`` in the padding and the guards; ``offset`` floats of misalignment."""
        ld = max(columns, 1) + pad
        flat = torch.full((GUARD + offset + rows * ld + GUARD,), fill, device="cuda", dtype=torch.float32)
        window = torch.as_strided(flat, (rows, columns), (ld, 1), GUARD + offset)
        window.copy_(torch.randn(rows, columns, device="cuda"))
        return cls(flat, window)

    def outside(self):
        """Everything but the window, as bits."""
        copy = self.flat.clone()
        torch.as_strided(copy, self.window.shape, self.window.stride(), self.window.storage_offset()).zero_()
        return copy.view(torch.int32)


def check(kernel, shape, alpha, beta, pads=(0, 0, 0), offset=0, integers=False, config=None):
    """Run one product and assert: right within the FP64 bound, NaN-safe, nothing outside written."""
    m, n, k = shape
    nan = float("nan")
    a = Padded.make(m, k, pads[0], nan, offset)
    b = Padded.make(k, n, pads[1], nan, offset)
    c = Padded.make(m, n, pads[2], SENTINEL, offset)
    if integers:
        for x in (a, b, c):
            x.window.copy_(torch.randint(-8, 9, tuple(x.window.shape), device="cuda").float())
    if beta == 0:
        c.window.fill_(nan)
    if alpha == 0:
        a.window.fill_(nan)
    before, outside = c.window.clone(), c.outside()

    run_rung(kernel.number, a.window, b.window, c.window, alpha=alpha, beta=beta, config=config)

    label = f"{kernel.label} M,N,K={shape} alpha={alpha} beta={beta} pads={pads} offset={offset}"
    assert torch.equal(outside, c.outside()), f"{label}: wrote outside the window of C"
    exact, scale = torch.zeros(m, n, device="cuda", dtype=torch.float64), torch.zeros(m, n, device="cuda").double()
    if alpha != 0 and k > 0:
        exact = alpha * (a.window.double() @ b.window.double())
        scale = abs(alpha) * (a.window.double().abs() @ b.window.double().abs())
    if beta != 0:
        exact = exact + beta * before.double()
        scale = scale + abs(beta) * before.double().abs()
    got = c.window.double()
    assert not torch.isnan(got).any(), f"{label}: NaN"
    # Higham, Accuracy and Stability, 3.1: |error| <= gamma_(K+2) (|alpha||A||B| + |beta||C|).
    exactly = integers and alpha in (0, 1, 2) and beta in (0, 1, 2)
    bound = 0.0 * scale if exactly else (k + 3 + 2 * kernel.rounding) * EPSILON * scale
    worst = (got - exact).abs() - bound
    assert not worst.numel() or float(worst.max()) <= 0, f"{label}: off the FP64 bound by {float(worst.max()):.3g}"

