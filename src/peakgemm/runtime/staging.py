"""Pinned memory, streams, and the driver's copies between host and device."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_size_t, c_void_p
from math import prod

import numpy as np
from numpy.typing import NDArray

from . import driver

_PORTABLE, _NON_BLOCKING = 1, 1  # CU_MEMHOSTALLOC_PORTABLE, CU_STREAM_NON_BLOCKING


class Pinned:
    """``size`` bytes of page-locked memory: copies to and from the device run beside everything else.

    Where the system locks no more pages it is ordinary memory, and copies wait.
    """

    def __init__(self, size: int) -> None:
        self.size, place = size, c_void_p()
        self._locked = driver.library().cuMemHostAlloc(byref(place), c_size_t(size), _PORTABLE) == 0
        if self._locked:
            self.address = place.value or 0
        else:
            self._memory = ctypes.create_string_buffer(size)
            self.address = ctypes.addressof(self._memory)

    def array(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Its first bytes as a float32 array."""
        flat = (ctypes.c_float * max(prod(shape), 1)).from_address(self.address)
        return np.ctypeslib.as_array(flat)[:prod(shape)].reshape(shape)

    def free(self) -> None:
        """Give the pages back."""
        if self._locked:
            driver.library().cuMemFreeHost(c_void_p(self.address))


def synchronize(stream: int, what: str = "the product") -> None:
    """Wait for everything enqueued on ``stream``; ``what`` that is, for errors.

    Raises:
        LaunchFailed: something of it failed.
    """
    driver.demand(what, "cuStreamSynchronize", c_void_p(stream))


def new_stream() -> int:
    """A stream of the current device, which waits for no other one.

    Raises:
        LaunchFailed: the driver refused.
    """
    place = c_void_p()
    driver.demand("a stream", "cuStreamCreate", byref(place), _NON_BLOCKING)
    return place.value or 0


def copy(call: str, to: int, source: int, size: int, stream: int) -> None:
    """``cuMemcpyHtoDAsync_v2`` or ``cuMemcpyDtoHAsync_v2`` of ``size`` bytes between addresses, of pinned memory.

    Raises:
        LaunchFailed: the driver refused.
    """
    _copy(driver.enqueue, call, to, source, size, stream)


def copy_pageable(call: str, to: int, source: int, size: int, stream: int) -> None:
    """`copy` of memory that need not be pinned: the driver stages it meanwhile, and other threads have the interpreter.

    Raises:
        LaunchFailed: the driver refused.
    """
    _copy(driver.demand, call, to, source, size, stream)


def _copy(make: Callable[..., None], call: str, to: int, source: int, size: int, stream: int) -> None:
    if size:
        make(f"copy of {size:,} bytes between host and device", call, c_void_p(to), c_void_p(source), c_size_t(size),
             c_void_p(stream))
