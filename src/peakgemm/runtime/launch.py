"""Load a cubin and launch it: every driver call checked, every failure named."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..errors import LaunchFailed, MissingComponent
from .compile import Compiled
from .device import Gpu


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel on the device, with the dynamic shared memory (bytes) that a block gets."""

    handle: Any
    entry: str
    shared_bytes: int

    def launch(self, stream: Any, blocks: int | tuple[int, ...], threads: int | tuple[int, ...], *args: Any) -> None:
        """Enqueue ``blocks`` of ``threads`` (along x, or tuples) on ``stream``, a ``cuda.core.Stream``, and return.

        Raises:
            LaunchFailed: the driver's refusal, with kernel, grid and shared memory.
        """
        from cuda.core import LaunchConfig, launch

        try:
            launch(stream, LaunchConfig(grid=blocks, block=threads, shmem_size=self.shared_bytes), self.handle, *args)
        except Exception as error:
            raise LaunchFailed(f"{self.entry}: launch of {blocks} blocks of {threads} threads with "
                               f"{self.shared_bytes} bytes of dynamic shared memory failed: {error}") from error


@lru_cache(maxsize=512)
def load(compiled: Compiled, shared_bytes: int, gpu: Gpu) -> Loaded:
    """Put a cubin on ``gpu`` and let its blocks have ``shared_bytes`` of dynamic shared memory.

    Raises:
        MissingComponent: the driver is older than the cubin, or the cubin is for another architecture.
        LaunchFailed: the driver refuses the shared memory.
    """
    from cuda.bindings import driver
    from cuda.core import ObjectCode

    try:
        handle = ObjectCode.from_cubin(compiled.code).get_kernel(compiled.entry)
    except Exception as error:
        raise MissingComponent(
            f"{compiled.entry}: the driver ({gpu.driver}) cannot load a cubin for {compiled.arch} on {gpu.name} "
            f"({error}); update the NVIDIA driver or install peakgemm[cu12], then see: peakgemm doctor"
        ) from error
    if shared_bytes > gpu.limits.static_shared:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (status,) = driver.cuKernelSetAttribute(attribute, shared_bytes, handle.handle, gpu.index)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise LaunchFailed(f"{compiled.entry}: {shared_bytes} bytes of shared memory asked, "
                               f"{gpu.limits.shared_per_block} there: {status.name}")
    return Loaded(handle, compiled.entry, shared_bytes)


def int32(value: int) -> ctypes.c_int32:
    """An ``int`` argument."""
    return ctypes.c_int32(value)


def int64(value: int) -> ctypes.c_int64:
    """A ``long long`` argument."""
    return ctypes.c_int64(value)


def float32(value: float) -> ctypes.c_float:
    """A ``float`` argument."""
    return ctypes.c_float(value)
