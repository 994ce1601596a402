"""Random operands ``A (M, K)`` and ``B (K, N)`` of many shapes of data, in float32.

No product and no partial sum overflows, in whatever order it is formed: what comes out is the arithmetic's error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil, log2
from typing import Any

from .arrays import Arrays, Draw
from .measure import LARGEST, QUANTUM

Pair = tuple[Any, Any]
Family = Callable[[Arrays, Draw, int, int, int], Pair]
DELTA = 2.0**-12  # what is left of `cancellation`


def normal(arrays: Arrays, draw: Draw, m: int, n: int, k: int) -> Pair:
    """N(0, 1)."""
    return arrays.single(draw.normal((m, k))), arrays.single(draw.normal((k, n)))


def uniform(arrays: Arrays, draw: Draw, m: int, n: int, k: int) -> Pair:
    """U(0, 1): sums that only grow, which show the bias of an accumulation that truncates."""
    return arrays.single(draw.uniform((m, k))), arrays.single(draw.uniform((k, n)))


def spread(arrays: Arrays, draw: Draw, m: int, n: int, k: int, phi: float) -> Pair:
    """(U - 0.5) exp(phi N(0, 1)): the larger phi, the wider the magnitudes."""
    a, b = ((draw.uniform(s) - 0.5) * arrays.xp.exp(phi * draw.normal(s)) for s in ((m, k), (k, n)))
    return arrays.single(a), arrays.single(b)


def log_uniform(arrays: Arrays, draw: Draw, m: int, n: int, k: int) -> Pair:
    """Exponents uniform over all of float32's range, subnormals too; for odd k those of A, for even k those of B stay
    low enough for their products' sum to stay finite."""
    low = -1 - ceil(log2(max(k, 1))) - 1

    def factor(shape: tuple[int, int], highest: int) -> Any:
        exponents = draw.integers(-149, highest, shape)
        return _signs(arrays, draw, shape) * (1 + draw.uniform(shape)) * arrays.power(exponents)

    return _alternate(arrays, k, (factor((m, k), 126), factor((k, n), low)), (factor((m, k), low), factor((k, n), 126)))


def cancellation(arrays: Arrays, draw: Draw, m: int, n: int, k: int) -> Pair:
    """A = [X, X], B = [Y; -Y (1 + 2^-12)], N(0, 1): all but 2^-12 of the sum cancels."""
    half = k // 2
    x, y, rest = draw.normal((m, half)), draw.normal((half, n)), k - 2 * half
    zeros = arrays.double(arrays.full((m, rest), 0.0)), arrays.double(arrays.full((rest, n), 0.0))
    x, y = arrays.double(arrays.single(x)), arrays.double(arrays.single(y))
    a = arrays.xp.concatenate((x, x, zeros[0]), 1)
    b = arrays.xp.concatenate((y, -y * (1 + DELTA), zeros[1]), 0)
    return arrays.single(a), arrays.single(b)


def subnormal(arrays: Arrays, draw: Draw, m: int, n: int, k: int) -> Pair:
    """One factor of each product is subnormal, A's and B's in turn, the other of order one."""

    def tiny(shape: tuple[int, int]) -> Any:
        return _signs(arrays, draw, shape) * arrays.double(draw.integers(1, 2**23 - 1, shape)) * QUANTUM

    def ordinary(shape: tuple[int, int]) -> Any:
        return _signs(arrays, draw, shape) * (0.5 + 0.5 * draw.uniform(shape))

    return _alternate(arrays, k, (tiny((m, k)), ordinary((k, n))), (ordinary((m, k)), tiny((k, n))))


def huge(arrays: Arrays, draw: Draw, m: int, n: int, k: int) -> Pair:
    """One factor of each product within a factor 2 of FLT_MAX, A's and B's in turn; |A||B| at most FLT_MAX / 2."""

    def near(shape: tuple[int, int], top: float) -> Any:
        return _signs(arrays, draw, shape) * (0.5 + 0.5 * draw.uniform(shape)) * top

    small = 0.5 / max(k, 1)
    return _alternate(arrays, k, (near((m, k), LARGEST), near((k, n), small)),
                      (near((m, k), small), near((k, n), LARGEST)))


def _signs(arrays: Arrays, draw: Draw, shape: tuple[int, int]) -> Any:
    return arrays.double(1 - 2 * draw.integers(0, 1, shape))


def _alternate(arrays: Arrays, k: int, even: Pair, odd: Pair) -> Pair:
    """The products of ``even`` for even k, of ``odd`` for odd."""
    which = arrays.range(k) % 2 == 0
    return (arrays.single(arrays.xp.where(which[None, :], even[0], odd[0])),
            arrays.single(arrays.xp.where(which[:, None], even[1], odd[1])))


FAMILIES: dict[str, Family] = {
    "normal": normal, "uniform": uniform,
    **{f"exp{phi:g}": partial(spread, phi=phi) for phi in (0, 0.5, 1, 2, 4)},
    "log-uniform": log_uniform, "cancellation": cancellation, "subnormal": subnormal, "huge": huge,
}
