"""One product as the caller asked for it, and the checks that every array library shares."""

from __future__ import annotations

import ctypes
from numbers import Real
from typing import Any, NamedTuple

from .errors import InvalidType, InvalidValue
from .overlap import overlaps
from .runtime.adapters import library_of
from .runtime.adapters.base import View, place

NO_STREAM = ("stream is for arrays on the GPU; a product of arrays in the host's memory is done when the call returns: "
             "leave stream out")
PRECISIONS = ("ieee", "emulated", "fp16x3", "tf32x3", "bf16x9")


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


def locate(request: Request) -> tuple[Any, int]:
    """The library and the device that all arrays share: a `HostLibrary` where that is `HOST`, else a `DeviceLibrary`.

    Raises:
        InvalidType: no array, or arrays of several libraries.
        InvalidValue: arrays on several devices, or an ``out`` that cannot be written.
    """
    arrays = request.arrays()
    libraries = {name: library_of(x, name) for name, x in arrays.items()}
    library = libraries["a"]
    for name, other in libraries.items():
        if other is not library:
            raise InvalidType(f"a is a {library.name} array and {name} a {other.name} array; convert one, so that all "
                              "are of one library")
    places = {name: library.device(x) for name, x in arrays.items()}
    for name, index in places.items():
        if index != places["a"]:
            raise InvalidValue(f"a is on {place(places['a'])} and {name} on {place(index)}; move one, so that all "
                               "are in one place")
    if request.out is not None and library.read_only(request.out):
        raise InvalidValue(f"out is a read-only {library.name} array; pass one that can be written, or leave it out")
    return library, places["a"]


def refuse_overlap(views: dict[str, View], beta: float) -> None:
    """``out`` may be ``c`` itself; it shares no other memory with an input.

    Raises:
        InvalidValue: it does; the message says with which.
    """
    out = views.get("out")
    for name, view in views.items():
        if out is None or name == "out" or (name == "c" and (view == out or beta == 0)):
            continue
        if overlaps(view, out):
            raise InvalidValue(f"out overlaps {name} in memory, which would be overwritten while it is read; pass an "
                               f"out of its own{', or c itself as out' if name == 'c' else ''}")


def number(value: Any, name: str) -> float:
    """A scale factor, rounded to float32.

    Raises:
        InvalidType: no real number. An array with one element is none: to read it would wait for the GPU.
    """
    if not isinstance(value, Real):
        raise InvalidType(f"{name} is a {type(value).__name__}; pass a real number: float({name})")
    return ctypes.c_float(float(value)).value


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


def check_precision(precision: Any) -> None:
    """Refuse what is no precision. Whether a GPU has a scheme is found when a kernel is chosen for it.

    Raises:
        InvalidValue: none of `PRECISIONS`.
    """
    if precision not in PRECISIONS:
        raise InvalidValue(f"precision = {precision!r} is unknown; valid ones: "
                           + ", ".join(repr(x) for x in PRECISIONS))
