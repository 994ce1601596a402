"""Random operands ``A (M, K)`` and ``B (K, N)`` of many shapes of data: drawn in FP64, rounded once to float32.

No product and no partial sum overflows, in whatever order it is formed: what comes out is the arithmetic's error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil, log2
from typing import Any

import numpy as np

from .measure import LARGEST, QUANTUM

Draw = np.random.Generator
Pair = tuple[Any, Any]
Family = Callable[[Draw, int, int, int], Pair]
DELTA = 2.0**-12  # what is left of `cancellation`


def normal(draw: Draw, m: int, n: int, k: int) -> Pair:
    """N(0, 1)."""
    return single(draw.standard_normal((m, k))), single(draw.standard_normal((k, n)))


def uniform(draw: Draw, m: int, n: int, k: int) -> Pair:
    """U(0, 1): sums that only grow, which show the bias of an accumulation that truncates."""
    return single(draw.random((m, k))), single(draw.random((k, n)))


def spread(draw: Draw, m: int, n: int, k: int, phi: float) -> Pair:
    """(U - 0.5) exp(phi N(0, 1)): the larger phi, the wider the magnitudes."""
    a, b = ((draw.random(s) - 0.5) * np.exp(phi * draw.standard_normal(s)) for s in ((m, k), (k, n)))
    return single(a), single(b)


def log_uniform(draw: Draw, m: int, n: int, k: int) -> Pair:
    """Exponents uniform over all of float32's range, subnormals too; for odd k those of A, for even k those of B stay
    low enough for their products' sum to stay finite."""
    low = -1 - ceil(log2(max(k, 1))) - 1

    def factor(shape: tuple[int, int], highest: int) -> Any:
        exponents = draw.integers(-149, highest, shape, endpoint=True)
        return np.ldexp(signs(draw, shape) * (1 + draw.random(shape)), exponents)

    return _alternate(k, (factor((m, k), 126), factor((k, n), low)), (factor((m, k), low), factor((k, n), 126)))


def cancellation(draw: Draw, m: int, n: int, k: int) -> Pair:
    """A = [X, X], B = [Y; -Y (1 + 2^-12)], N(0, 1): all but 2^-12 of the sum cancels."""
    half = k // 2
    x, y = normal(draw, m, n, half)
    a, b = np.zeros((m, k), np.float32), np.zeros((k, n), np.float32)
    a[:, :half] = a[:, half:2 * half] = x
    b[:half], b[half:2 * half] = y, -(1 + DELTA) * y.astype(np.float64)
    return a, b


def subnormal(draw: Draw, m: int, n: int, k: int) -> Pair:
    """One factor of each product is subnormal, A's and B's in turn, the other of order one."""

    def tiny(shape: tuple[int, int]) -> Any:
        return signs(draw, shape) * draw.integers(1, 2**23, shape) * QUANTUM

    return _alternate(k, (tiny((m, k)), _near(draw, (k, n), 1.0)), (_near(draw, (m, k), 1.0), tiny((k, n))))


def huge(draw: Draw, m: int, n: int, k: int) -> Pair:
    """One factor of each product within a factor 2 of FLT_MAX, A's and B's in turn; |A||B| at most FLT_MAX / 2."""
    small = 0.5 / max(k, 1)
    return _alternate(k, (_near(draw, (m, k), LARGEST), _near(draw, (k, n), small)),
                      (_near(draw, (m, k), small), _near(draw, (k, n), LARGEST)))


def single(x: Any) -> Any:
    """Rounded to float32, to nearest even; beyond FLT_MAX to an infinity."""
    return x.astype(np.float32)


def signs(draw: Draw, shape: tuple[int, int]) -> Any:
    """1.0 or -1.0, each as likely."""
    return 1.0 - 2 * draw.integers(0, 2, shape)


def _near(draw: Draw, shape: tuple[int, int], top: float) -> Any:
    """Of either sign, from half of ``top`` up to it."""
    return signs(draw, shape) * (0.5 + 0.5 * draw.random(shape)) * top


def _alternate(k: int, even: Pair, odd: Pair) -> Pair:
    """The products of ``even`` for even k, of ``odd`` for odd."""
    which = np.arange(k) % 2 == 0
    return single(np.where(which[None, :], even[0], odd[0])), single(np.where(which[:, None], even[1], odd[1]))


FAMILIES: dict[str, Family] = {
    "normal": normal, "uniform": uniform,
    **{f"exp{phi:g}": partial(spread, phi=phi) for phi in (0, 0.5, 1, 2, 4)},
    "log-uniform": log_uniform, "cancellation": cancellation, "subnormal": subnormal, "huge": huge,
}
