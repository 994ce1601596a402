"""The floating-point flags of the calling thread: how it rounds, and whether it keeps subnormal numbers.

A thread has the flags of its owner. XLA's threads set FTZ and DAZ, which make zeros of subnormal numbers, and a handler
or a callback that XLA calls runs in one of them; `torch.set_flush_denormal` sets them in the caller's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple

_ROOM = 64  # bytes for a fenv_t, of which the largest, glibc's on x86-64, has 32


class _Libm(NamedTuple):
    get: Any
    set: Any
    default: Any  # FE_DFL_ENV


@cache
def _libm() -> _Libm | None:
    """C's functions, and its name for the flags that a program starts with; None: a system without them, such as
    Windows, where threads keep their flags."""
    for name in ("libm.so.6", None):
        with suppress(OSError, AttributeError, TypeError):
            library = ctypes.PyDLL(name)
            get, put = library.fegetenv, library.fesetenv
            try:
                default = ctypes.addressof(ctypes.c_char.in_dll(library, "_FE_DFL_ENV"))  # macOS
            except ValueError:
                default = -1  # Linux, glibc and musl
            return _Libm(get, put, ctypes.c_void_p(default))
    return None


@contextmanager
def ieee_flags() -> Iterator[None]:
    """Within it, the calling thread rounds to nearest and keeps subnormal numbers; then its flags are what they were.

    It takes 2 us. What computes on the CPU in whatever thread a caller has stands in it.
    """
    libm = _libm()
    if libm is None:
        yield
        return
    kept = ctypes.create_string_buffer(_ROOM)
    libm.get(kept)
    libm.set(libm.default)
    try:
        yield
    finally:
        libm.set(kept)
