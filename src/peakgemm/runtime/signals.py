"""Words in memory that streams of several devices write and wait for: no kernel, so no SM, and no host.

A barrier that is a kernel waits until a persistent kernel leaves it an SM; these are the stream's own. Their arguments'
types are declared once, since to wrap them at each call takes as long as the driver does. What the driver refuses is a
`LaunchFailed`.
"""

from __future__ import annotations

from ctypes import c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any

from ..errors import LaunchFailed
from . import driver

_TYPES: dict[str, tuple[Any, ...]] = {
    "cuStreamWriteValue32_v2": (c_void_p, c_uint64, c_uint, c_uint),
    "cuStreamWaitValue32_v2": (c_void_p, c_uint64, c_uint, c_uint),
    "cuMemcpyAsync": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
}


@cache
def _call(name: str) -> Any:
    try:
        function = driver.library()[name]  # another object than others use
    except AttributeError:
        raise LaunchFailed(f"the driver is older than CUDA 12: it has no {name}; update it") from None
    function.argtypes, function.restype = _TYPES[name], c_int
    return function


def _demand(what: str, name: str, *args: Any) -> None:
    status = _call(name)(*args)
    if status:
        raise LaunchFailed(f"{what}: {driver.text(status)}; see: peakgemm doctor")


def write(address: int, value: int, stream: int) -> None:
    """Store ``value`` (32 bits) at a device address, of any reachable device, after what ``stream`` holds by now."""
    _demand("a signal", "cuStreamWriteValue32_v2", stream, address, value, 0)


def wait(address: int, value: int, stream: int) -> None:
    """What is enqueued on ``stream`` from now on waits until the word at ``address`` is ``value`` or more."""
    _demand("waiting for a signal", "cuStreamWaitValue32_v2", stream, address, value, 0)  # CU_STREAM_WAIT_VALUE_GEQ


def copy(to: int, source: int, size: int, stream: int) -> None:
    """Enqueue a copy of ``size`` bytes between device addresses, of any reachable devices."""
    _demand("a copy between devices", "cuMemcpyAsync", to, source, size, stream)


def order(first: int, second: int, by: Any) -> None:
    """What is enqueued on stream ``second`` from now on waits for what ``first`` holds by now; ``by``: an event of
    `memory.event`, which each call records anew."""
    _demand("recording an event", "cuEventRecord", by, first)
    _demand("one stream waiting for another", "cuStreamWaitEvent", second, by, 0)
