"""Pinned memory, and streams for products of host arrays: kept for the next call, one user at a time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from ctypes import byref, c_size_t, c_void_p
from math import prod
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import LaunchFailed
from . import device, driver, pools

if TYPE_CHECKING:
    from .transfer import Copiers

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


class Lane:
    """What one call uses: streams for copies in, computation and copies out, and the threads that copy.

    ``beside`` is a second stream for computation: the next panel's blocks fill the SMs that the last wave of the one
    before leaves idle.
    """

    def __init__(self, index: int) -> None:
        self.inward, self.compute, self.outward, self.beside = (new_stream() for _ in range(4))
        self._index = index
        self._copiers: tuple[tuple[int, int], Copiers] | None = None

    def copiers(self, inward: int, outward: int) -> Copiers:
        """Copies by so many threads each way, kept for the next call that asks for as many."""
        from .transfer import Copiers

        if self._copiers is None or self._copiers[0] != (inward, outward):
            if self._copiers is not None:
                self._copiers[1].close()
            self._copiers = (inward, outward), Copiers(self._index, self.inward, self.outward, inward, outward)
        return self._copiers[1]

    def wait(self) -> None:
        """For everything enqueued on the streams.

        Raises:
            LaunchFailed: something of it failed.
        """
        with ExitStack() as each:  # whatever one of them says
            for stream in (self.inward, self.compute, self.outward, self.beside):
                each.callback(synchronize, stream, f"the product on GPU {self._index}")


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


_LANES: dict[int, list[Lane]] = {}
_LANES_LOCK = Lock()


@contextmanager
def lane(index: int) -> Iterator[Lane]:
    """A lane on device ``index``, made current; everything enqueued on it has ended when the block has."""
    with ExitStack() as stack:
        stack.enter_context(device.activated(index))
        stack.enter_context(pools.used(index))
        with _LANES_LOCK:
            free = _LANES.setdefault(index, [])
            mine = free.pop() if free else None
        mine = mine or Lane(index)
        try:
            try:
                yield mine
            except BaseException:
                with suppress(LaunchFailed):  # nothing may still use what is given back, but the first error is told
                    mine.wait()
                raise
            mine.wait()
        finally:
            with _LANES_LOCK:
                free.append(mine)


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
