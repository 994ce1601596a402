"""The driver's library itself: the calls that a first product makes, without an import that it would wait for.

To import ``cuda.bindings.driver`` takes 30 ms, cuda.core another 60, and in a process with a heap like torch's
the objects that they make set off a garbage collection of 60 ms more.

Arguments are passed as ctypes passes them: an ``int`` has 32 bits, so addresses, streams and events come as
``c_void_p``, sizes as ``c_size_t``.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import get_ident
from typing import Any

from ..errors import LaunchFailed


@cache
def library() -> Any:
    """The library; its calls release the interpreter, for a full queue blocks and others must run meanwhile.

    Raises:
        OSError: it cannot be opened.
    """
    return ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")


@cache
def gil_library() -> Any:
    """The same library; its calls keep the interpreter: for those of microseconds, where many threads want it.

    Raises:
        OSError: it cannot be opened.
    """
    return ctypes.PyDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")


gil_holders: set[int] = set()  # threads within `hold_gil`: empty but for large products of host arrays


def holds_gil() -> bool:
    """Whether this thread is within `hold_gil`."""
    return get_ident() in gil_holders


@contextmanager
def hold_gil(on: bool = True) -> Iterator[None]:
    """Within the block this thread keeps the interpreter through `check`, `demand` and launches, or does not.

    For calls that only enqueue, as for `enqueue`: where others copy, a thread that lets go of the interpreter may wait
    for milliseconds until it has it again, and to launch a tile is a dozen calls. What may wait for the device, and so
    for a callback of a user's stream that wants the interpreter, is not kept: to load code is one such call.
    """
    thread = get_ident()
    before = thread in gil_holders
    _set(thread, on)
    try:
        yield
    finally:
        _set(thread, before)


def _set(thread: int, on: bool) -> None:
    (gil_holders.add if on else gil_holders.discard)(thread)


def check(call: str, *args: Any) -> None:
    """Make a call by the name that the library exports, with its version: ``cuCtxPushCurrent_v2``.

    Raises:
        RuntimeError: the driver's refusal, or a driver too old to have the call.
        OSError: see `library`.
    """
    _made(gil_library() if holds_gil() else library(), call, args)


def _made(calls: Any, call: str, args: tuple[Any, ...]) -> None:
    try:
        function = getattr(calls, call)
    except AttributeError:
        raise RuntimeError(f"the driver is older than CUDA 12: it has no {call}") from None
    status = function(*args)
    if status:
        raise RuntimeError(text(status))


def demand(what: str, call: str, *args: Any) -> None:
    """`check` where there is no more to say than ``what`` was asked.

    Raises:
        LaunchFailed: the driver's refusal.
    """
    try:
        check(call, *args)
    except RuntimeError as error:
        raise LaunchFailed(f"{what}: {error}; see: peakgemm doctor") from None


def enqueue(what: str, call: str, *args: Any) -> None:
    """`demand` of a call that only enqueues something on a stream of the library's own, which keeps the interpreter.
    A user's stream may be full, and wait for a callback that wants the interpreter.

    A thread that lets go of it gets it back when another does: of eight copying threads each waits some 150 us for
    that (docs/notebook/23-host-arrays.md), and a chunk, which takes 1,300, would be four such calls.

    Raises:
        LaunchFailed: the driver's refusal.
    """
    try:
        _made(gil_library(), call, args)
    except RuntimeError as error:
        raise LaunchFailed(f"{what}: {error}; see: peakgemm doctor") from None


def text(status: int) -> str:
    """A CUDA error's name and description."""
    parts = []
    for call in ("cuGetErrorName", "cuGetErrorString"):
        found = ctypes.c_char_p()
        if getattr(library(), call)(status, ctypes.byref(found)) or not found.value:
            return f"CUDA error {status}"
        parts.append(found.value.decode())
    return f"{parts[0]} ({parts[1]})"
