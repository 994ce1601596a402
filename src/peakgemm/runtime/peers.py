"""Copies from one device to another, where they can reach each other's memory."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_int, c_size_t, c_void_p
from itertools import permutations

from . import device, driver, pools

_DEVICE, _READ_WRITE = 1, 3  # CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE


_known: dict[tuple[int, int], bool] = {}  # pairs that have been asked


def connect(indices: Sequence[int]) -> bool:
    """Let each of these devices copy from the others as far as they can, before a call enqueues anything there.

    Returns:
        Whether `reachable` knows of each pair. Else other calls are under way on these devices: to give access maps the
        whole of a pool anew, CUDA does not say what that means for copies and kernels in it, and access that changed
        under copies has made them fail (llama.cpp, pull requests 4538 and 4602).
    """
    pairs = list(permutations(indices, 2))
    if all(pair in _known for pair in pairs):
        return True
    for index in indices:
        pools.pool(index)
    with pools.at_rest(indices) as resting:
        if resting:
            _known.update({pair: _give_access(*pair) for pair in pairs if pair not in _known})
        return resting


def reachable(to: int, source: int) -> bool:
    """Whether device ``to`` may copy from ``source`` past the host; `connect` has asked."""
    return _known.get((to, source), False)


def _give_access(to: int, source: int) -> bool:
    """Memory allocated in a stream's order another device does not see by itself."""
    can = c_int()
    try:
        driver.check("cuDeviceCanAccessPeer", byref(can), to, source)
        if not can.value:
            return False
        access = (c_int * 3)(_DEVICE, to, _READ_WRITE)  # CUmemAccessDesc: of what kind and which, and its rights
        driver.check("cuMemPoolSetAccess", c_void_p(pools.pool(source)), byref(access), c_size_t(1))
    except RuntimeError:
        return False
    return True


def copy(to: int, to_index: int, source: int, source_index: int, size: int, stream: int) -> None:
    """Enqueue a copy of ``size`` bytes between two devices on ``stream``, of the current one.

    Raises:
        LaunchFailed: the driver refused.
    """
    driver.demand(f"copy of {size:,} bytes from GPU {source_index} to GPU {to_index}", "cuMemcpyPeerAsync",
                  c_void_p(to), c_void_p(device.primary_context(to_index)), c_void_p(source),
                  c_void_p(device.primary_context(source_index)), c_size_t(size), c_void_p(stream))
