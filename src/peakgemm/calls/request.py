"""One product as the caller asked for it, and the checks of its numbers and flags."""

from __future__ import annotations

import ctypes
import os
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from ..errors import InvalidType, InvalidValue
from ..runtime.float_flags import ieee_flags

REPRODUCIBLE = "reproducible"  # the precision that reproducible=True asks for
ALWAYS_REPRODUCIBLE = os.environ.get("PEAKGEMM_REPRODUCIBLE", "") not in ("", "0")
_INF, _NAN = float("inf"), float("nan")
PRECISIONS = ("ieee", "emulated", "fp16x3", "tf32x3", "bf16x9", REPRODUCIBLE)


class Request(NamedTuple):
    """``alpha op(a) op(b) + beta c`` into ``out``; alpha and beta are float32 numbers."""

    a: Any
    b: Any
    c: Any = None
    out: Any = None
    alpha: float = 1.0
    beta: float = 0.0
    trans_a: bool = False
    trans_b: bool = False
    precision: str = "ieee"
    ready: Any = None  # what `prepare` made of ``b`` for this precision

    def arrays(self) -> dict[str, Any]:
        """The arrays that are there, by name."""
        return {name: x for name, x in zip(("a", "b", "c", "out"), self, strict=False)
                if x is not None or name in ("a", "b")}


def number(value: Any, name: str) -> float:
    """A scale factor, rounded to float32: -0.0 as 0.0, as in BLAS, and every NaN as one object. What is bound for a
    product is remembered by its factors, and in a key -0.0 equals 0.0, and a NaN itself alone.

    Raises:
        InvalidType: no real number. An array with one element is none: to read it would wait for the GPU.
        InvalidValue: finite, and beyond what a float32 holds.
    """
    if type(value) is not float and not isinstance(value, Real):  # of a float the latter alone takes 0.2 us
        given = (f"{name}.real" if isinstance(value, complex) else f"float({name})" if value is not None else
                 f"leave {name} out for its default")
        raise InvalidType(f"{name} is a {type(value).__name__}; pass a real number: {given}")
    try:
        rounded = ctypes.c_float(float(value)).value + 0.0
        if not rounded and value:  # perhaps a subnormal number, in a thread that makes zeros of them
            with ieee_flags():
                rounded = ctypes.c_float(float(value)).value + 0.0
    except OverflowError:
        rounded = _INF
    if rounded - rounded == 0.0:
        return rounded
    if value != value:
        return _NAN
    if abs(value) != _INF:
        given = repr(value) if isinstance(value, float) else f"a {type(value).__name__}"
        raise InvalidValue(f"{name} is {given}, beyond the largest float32 (3.4e38); pass a smaller one, float('inf') "
                           "if infinity is meant")
    return rounded


def flag(value: Any, name: str) -> bool:
    """Whether to transpose: a bool, 0 or 1, or BLAS's letters ``"N"``, ``"T"`` and ``"C"`` (of a real matrix: T).

    Raises:
        InvalidValue: none of these.
    """
    if value is True or value is False:
        return value
    if isinstance(value, str) and value.upper() in ("N", "T", "C"):
        return value.upper() != "N"
    if isinstance(value, (int, np.integer, np.bool_)) and value in (0, 1):
        return bool(value)
    raise InvalidValue(f"{name} = {value!r} is neither a bool, 0 or 1, nor 'N', 'T' or 'C'; pass {name}=True to "
                       "transpose")


def scales(alpha: Any, beta: Any, c: Any) -> tuple[float, float]:
    """alpha and beta; ``beta`` None: 1 where there is a ``c``, else 0.

    Raises:
        InvalidType: not a number.
        InvalidValue: ``beta`` without ``c``.
    """
    first = number(alpha, "alpha")
    second = float(c is not None) if beta is None else number(beta, "beta")
    if second != 0 and c is None:
        raise InvalidValue(f"beta = {beta} without c; pass c, or beta=0")
    return first, second


def check_precision(precision: Any, reproducible: bool | None = None) -> str:
    """The precision that a call has, `REPRODUCIBLE` where its bits are promised. Whether a GPU has a scheme is found
    when a kernel is chosen for it.

    ``reproducible`` None: as ``PEAKGEMM_REPRODUCIBLE`` says, which is read when peakgemm is imported.

    Raises:
        InvalidType: a ``reproducible`` that is no bool.
        InvalidValue: none of `PRECISIONS`, or one whose bits depend on more than a row and a column.
    """
    if precision not in PRECISIONS:
        raise InvalidValue(f"precision = {precision!r} is unknown; valid ones: "
                           + ", ".join(repr(x) for x in PRECISIONS) + "; peakgemm.precisions() says which of them "
                           "stands for a name of torch, JAX or cuBLAS")
    if reproducible is None:
        reproducible = ALWAYS_REPRODUCIBLE
        asked = "PEAKGEMM_REPRODUCIBLE=1"
    else:
        if not isinstance(reproducible, (bool, np.bool_)):  # the truth of "no" is not what was meant
            raise InvalidType(f"reproducible = {reproducible!r} is a {type(reproducible).__name__}; pass True, False, "
                              "or None for what PEAKGEMM_REPRODUCIBLE says")
        asked = "reproducible=True"
    if not reproducible or precision == REPRODUCIBLE:
        return str(precision)
    if precision != "ieee":
        raise InvalidValue(f"precision = {precision!r} with {asked}: its guard looks at whole tiles, so that the bits "
                           "of an element depend on what stands beside it; use precision='ieee', or "
                           "reproducible=False")
    return REPRODUCIBLE
