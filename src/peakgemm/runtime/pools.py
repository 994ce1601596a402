"""The pools that device memory comes from, the library's own, and when they give it back.

A pool holds `KEPT_BYTES` for the next call. Within `used`, and for `IDLE_SECONDS` behind it, it holds up to a share
of the device: to map what is new to the process, and to give it back, takes 4 % of large products of host arrays in the
mean, 15 % of some in pinned memory (docs/notebook/23-host-arrays.md), and the next one wants the same. Other libraries
lack what is held, so a thread gives it back once no call has come for so long.

What the driver refuses is a `LaunchFailed`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from ctypes import Structure, byref, c_int, c_size_t, c_ubyte, c_uint64, c_ushort, c_void_p
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic

from ..errors import LaunchFailed
from . import device, driver

# The operands and results of squares up to 8192. The device's own pool gives all back whenever a stream is waited for.
KEPT_BYTES = 1 << 30
IDLE_SECONDS = 1.0
_SHARE = 4  # a quarter of the device is held for that long at most
_PINNED, _DEVICE = 1, 1  # CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE
_THRESHOLD = 4  # CU_MEMPOOL_ATTR_RELEASE_THRESHOLD


class _PoolProps(Structure):
    """CUmemPoolProps of cuda.h, its location written out."""

    _fields_ = [("allocType", c_int), ("handleTypes", c_int), ("locationType", c_int), ("locationId", c_int),
                ("securityAttributes", c_void_p), ("maxSize", c_size_t), ("usage", c_ushort),
                ("reserved", c_ubyte * 54)]


_LOCK = Lock()
_POOLS: dict[int, int] = {}
_users: Counter[int] = Counter()  # calls under way, by device
_rested: SimpleQueue[int] = SimpleQueue()  # devices on which a call has ended
_tidying: Thread | None = None


def pool(index: int) -> int:
    """The pool from which memory of device ``index`` comes."""
    if (handle := _POOLS.get(index)) is not None:  # past the lock: to give memory back takes a while
        return handle
    with _LOCK:  # of two made at a time one would be forgotten, with memory in it that no other device may read
        if index not in _POOLS:
            made = c_void_p()
            driver.demand("a pool of device memory", "cuMemPoolCreate", byref(made),
                          byref(_PoolProps(_PINNED, 0, _DEVICE, index)))
            _hold(made.value or 0, KEPT_BYTES)
            _POOLS[index] = made.value or 0
        return _POOLS[index]


@contextmanager
def under_way(index: int) -> Iterator[None]:
    """A call on device ``index``, with copies and kernels in memory of its pool."""
    with _LOCK:
        _users[index] += 1
    try:
        yield
    finally:
        with _LOCK:
            _users[index] -= 1


@contextmanager
def used(index: int) -> Iterator[None]:
    """A call that allocates much on device ``index``, and is likely to come again."""
    mine, total = pool(index), c_size_t()
    driver.demand(f"the memory of GPU {index}", "cuDeviceTotalMem_v2", byref(total), index)
    try:
        with under_way(index):
            with _LOCK:  # no other one is giving back what it held
                _hold(mine, max(KEPT_BYTES, total.value // _SHARE))
            yield
    finally:
        _rests(index)


@contextmanager
def at_rest(indices: Iterable[int]) -> Iterator[bool]:
    """Whether no call is under way on any of these devices. Within the block none begins, and no pool is made."""
    with _LOCK:
        yield not any(_users[index] for index in indices)


def _rests(index: int) -> None:
    global _tidying
    _rested.put(index)
    with _LOCK:
        if _tidying is None or not _tidying.is_alive():  # the latter in a process that was forked
            _tidying = Thread(target=_tidy, name="peakgemm-memory", daemon=True)
            with suppress(RuntimeError):  # none to be had, as at the interpreter's end: the next call tries again
                _tidying.start()


def _tidy() -> None:
    due: dict[int, float] = {}  # by device, whatever others do
    while True:
        with suppress(Empty):
            index = _rested.get(timeout=max(0.0, min(due.values()) - monotonic()) if due else None)
            due[index] = monotonic() + IDLE_SECONDS
        for index in [index for index, at in due.items() if at <= monotonic()]:
            del due[index]
            with suppress(LaunchFailed, OSError):  # at the process's end there may be no driver left
                give_back(index)


def give_back(index: int) -> None:
    """Let others have what the pool of device ``index`` holds beyond `KEPT_BYTES`, unless a call is under way there."""
    with _LOCK:
        if _users[index] or index not in _POOLS:
            return
        _hold(_POOLS[index], KEPT_BYTES)
        with device.activated(index):
            driver.demand("memory given back", "cuMemPoolTrimTo", c_void_p(_POOLS[index]), c_size_t(KEPT_BYTES))


def _hold(handle: int, size: int) -> None:
    driver.demand("a pool's threshold", "cuMemPoolSetAttribute", c_void_p(handle), _THRESHOLD, byref(c_uint64(size)))
