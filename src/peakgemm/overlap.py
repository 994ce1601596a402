"""Whether two arrays share memory: the exact answer, for layouts that interleave as blocked solvers make them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .runtime.adapters.base import FLOAT, View

_MOST_WORK: Any = 100_000  # candidate solutions that NumPy tries


def span(view: View) -> tuple[int, int]:
    """First byte and the byte past the last one, relative to the address; (0, 0) for an empty array."""
    if 0 in view.shape:
        return 0, 0
    if view.strides is None:
        return -(2**62), 2**62  # unknown: meets everything
    steps = [step * (size - 1) for step, size in zip(view.strides, view.shape, strict=True)]
    return FLOAT * sum(x for x in steps if x < 0), FLOAT * (sum(x for x in steps if x > 0) + 1)


def overlaps(x: View, y: View) -> bool:
    """Whether an element of ``x`` lies where one of ``y`` does; True also where that is too hard to tell."""
    (x_low, x_high), (y_low, y_high) = span(x), span(y)
    if x.pointer + x_low >= y.pointer + y_high or y.pointer + y_low >= x.pointer + x_high:
        return False
    if x.strides is None or y.strides is None or x_low == x_high or y_low == y_high:
        return x_low != x_high and y_low != y_high
    try:  # addresses and strides alone are looked at, so device memory may be described
        return bool(np.shares_memory(np.asarray(_Described(x)), np.asarray(_Described(y)), max_work=_MOST_WORK))
    except Exception:  # NumPy's TooHardError moved between modules
        return True


class _Described:
    def __init__(self, view: View) -> None:
        steps = tuple(FLOAT * step for step in view.strides or ())
        self.__array_interface__ = {"data": (view.pointer, True), "shape": view.shape, "strides": steps,
                                    "typestr": "<f4", "version": 3}
