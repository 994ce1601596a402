"""Words in memory that streams of several devices write and wait for: no kernel, so no SM, and no host.

A barrier that is a kernel waits until a persistent kernel leaves it an SM; these are the stream's own.
"""

from __future__ import annotations

from ctypes import c_size_t, c_uint, c_uint64, c_void_p

from . import driver


def write(address: int, value: int, stream: int) -> None:
    """Store ``value`` (32 bits) at a device address, of any reachable device, after what ``stream`` holds by now.

    Raises:
        LaunchFailed: the driver refused.
    """
    driver.demand("a signal", "cuStreamWriteValue32_v2", c_void_p(stream), c_uint64(address), c_uint(value), 0)


def wait(address: int, value: int, stream: int) -> None:
    """What is enqueued on ``stream`` from now on waits until the word at ``address`` is ``value`` or more.

    Raises:
        LaunchFailed: the driver refused.
    """
    driver.demand("waiting for a signal", "cuStreamWaitValue32_v2", c_void_p(stream), c_uint64(address), c_uint(value),
                  0)  # CU_STREAM_WAIT_VALUE_GEQ


def copy(to: int, source: int, size: int, stream: int) -> None:
    """Enqueue a copy of ``size`` bytes between device addresses, of any reachable devices.

    Raises:
        LaunchFailed: the driver refused.
    """
    driver.demand(f"copy of {size:,} bytes between devices", "cuMemcpyAsync", c_uint64(to), c_uint64(source),
                  c_size_t(size), c_void_p(stream))
