"""A run's result against what it should be: an array in a file, or the product of the run's operands."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidValue
from .front.arguments import argument

MATMUL = "matmul"
_ALLOWED = 1e-4  # of the largest element that is expected, for sums in another order
_ALLOWED_HALF = 1e-2


def reference(expect: str) -> NDArray[Any] | None:
    """The array in a ``.npy`` file; None: `MATMUL`.

    Raises:
        InvalidValue: it is neither, or the file cannot be read.
    """
    if expect != MATMUL and not expect.endswith(".npy"):
        raise InvalidValue(f"--expect {expect} is neither {MATMUL} nor a .npy file")
    return None if expect == MATMUL else np.asarray(argument(expect, 0), np.float64)


def compare(wanted: NDArray[Any] | None, before: Sequence[Any], after: Sequence[Any]) -> tuple[bool, str]:
    """Whether the array that a run has written is as expected, and that in words.

    Args:
        wanted: the array; None: the product of the first two arrays that the run leaves as they are, stored by rows or
            by columns.
        before, after: the run's arguments.

    Raises:
        InvalidValue: none of the arrays that it has written can be meant, or several.
    """
    arrays = [(number, old, new) for number, (old, new) in enumerate(zip(before, after, strict=True))
              if isinstance(new, np.ndarray)]
    written = [(number, new) for number, old, new in arrays if old.tobytes() != new.tobytes()]
    read = [old for number, old, _ in arrays if number not in dict(written)]
    meant = [(number, new, expected) for number, new in written if (expected := (
        _products(read, new) if wanted is None else [_within(new, wanted)] if new.size == wanted.size else []))]
    if len(meant) != 1:
        sizes = ", ".join(f"argument {number} of {new.size} elements" for number, new in written) or "none"
        raise InvalidValue(f"--expect fits {'several' if meant else 'none'} of the arrays that the run has written "
                           f"({sizes}); pass a .npy file with as many elements as the result")
    (number, new, expected), = meant
    wrong, words = min((_difference(new, *one) for one in expected), key=lambda one: one[0])
    return not wrong, f"Argument {number} {words}"


def _products(read: Sequence[NDArray[Any]], c: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """The product of two arrays by rows and by columns, each with the error that is allowed; none: no shapes fit."""
    if len(read) < 2:
        return []
    x, y = (one.astype(np.float64).ravel() for one in read[:2])
    m = isqrt(x.size * c.size // y.size)
    if not m or x.size % m or c.size % m or (x.size // m) * (c.size // m) != y.size:
        return []
    k, n = x.size // m, c.size // m
    eps = k * float(np.finfo(c.dtype if c.dtype.kind == "f" else np.float32).eps)

    def product(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        return a @ b, eps * (np.abs(a) @ np.abs(b))

    by_columns = product(y.reshape(n, k), x.reshape(k, m))
    return [product(x.reshape(m, k), y.reshape(k, n)), by_columns]


def _within(found: NDArray[Any], wanted: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    share = _ALLOWED_HALF if found.dtype.itemsize == 2 else _ALLOWED
    return wanted, np.full(wanted.shape, share * np.nanmax(np.abs(wanted), initial=0))


def _difference(found: NDArray[Any], wanted: NDArray[Any], allowed: NDArray[Any]) -> tuple[int, str]:
    """How many elements differ, and that in words."""
    got, should = found.ravel().astype(np.float64), wanted.ravel()
    error = np.abs(got - should)
    same = (error <= allowed.ravel()) | (got == should) | (np.isnan(got) & np.isnan(should))
    if same.all():
        return 0, f"is as expected: the largest error is {np.nanmax(error, initial=0):.2g}"
    at = int(np.argmin(same))
    where = ", ".join(map(str, np.unravel_index(at, found.shape)))
    wrong = int((~same).sum())
    return wrong, (f"is not as expected in {wrong:,} of {same.size:,} elements, the first at [{where}]: {got[at]:.6g} "
                   f"instead of {should[at]:.6g}, {allowed.ravel()[at]:.2g} being allowed")
