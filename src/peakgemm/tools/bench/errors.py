"""How far products are from FP64's, and how far they may be."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, isnan
from typing import Any

EPSILON = 2.0**-23  # of float32


def bound(k: int) -> float:
    """The largest componentwise error that any order of K multiply-adds in float32 can make.

    K + 3 roundings (three for alpha and beta), each of at most eps / 2 relatively, or of half the smallest subnormal
    absolutely: (K + 3) / 2 of eps |A||B| + 2^-149. Source: Higham, Accuracy and Stability of Numerical Algorithms,
    2nd edition, section 3.1.
    """
    return (k + 3) / 2


def errors(a: Any, b: Any, products: Iterable[Any], alpha: float = 1.0, beta: float = 0.0, before: Any = None
           ) -> list[float]:
    """Largest componentwise error of each product against ``alpha a b + beta before`` in FP64, in eps |A||B|; NaN
    counts as infinite. For arrays of NumPy, CuPy and torch."""

    def double(x: Any) -> Any:
        return x.double() if hasattr(x, "double") else x.astype("float64")

    a, b = double(a), double(b)
    exact, scale = alpha * (a @ b), abs(alpha) * (abs(a) @ abs(b))
    if beta:
        exact, scale = exact + beta * double(before), scale + abs(beta * double(before))
    scale = EPSILON * scale + 1e-300
    largest = [float((abs(double(c) - exact) / scale).max()) if 0 not in c.shape else 0.0 for c in products]
    return [inf if isnan(error) else error for error in largest]
