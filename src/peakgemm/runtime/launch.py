"""Load a cubin and launch it: every driver call checked, every failure named."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from ..errors import InvalidValue, LaunchFailed, MissingComponent
from . import device, driver, tensor_map
from .architectures import PORTABLE_CLUSTER
from .compile import Compiled
from .convention import LIBRARY, Convention
from .device import Gpu
from .tensor_map import Box

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_LARGER_CLUSTERS = 14    # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED


class Resident:
    """A kernel whose code is on a device, until the last reference to it goes: ``handle`` is its ``CUkernel``.

    Args:
        compiled: a cubin, loaded into the current context.

    Raises:
        RuntimeError: the driver's refusal.
    """

    __slots__ = ("_library", "_unload", "handle")

    def __init__(self, compiled: Compiled) -> None:
        self._library, self._unload = ctypes.c_void_p(), driver.library().cuLibraryUnload
        kernel = ctypes.c_void_p()
        driver.check("cuLibraryLoadData", ctypes.byref(self._library), compiled.code, None, None, 0, None, None, 0)
        driver.check("cuLibraryGetKernel", ctypes.byref(kernel), self._library, compiled.entry.encode())
        # A library by itself loads at the first launch.
        driver.check("cuKernelGetFunction", ctypes.byref(ctypes.c_void_p()), kernel)
        self.handle = kernel.value or 0

    def __del__(self) -> None:
        if getattr(self, "_library", None):
            try:  # noqa: SIM105  no name of the module: at the interpreter's end they are gone, and maybe the driver
                self._unload(self._library)
            except Exception:
                pass


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel on the device, with the dynamic shared memory (bytes) that a block gets."""

    kernel: Resident
    entry: str
    shared_bytes: int


@lru_cache(maxsize=512)
@driver.hold_gil(False)
def load(compiled: Compiled, shared_bytes: int, gpu: Gpu, cluster: int = 1) -> Loaded:
    """Put a cubin on ``gpu`` and let its blocks have ``shared_bytes`` of dynamic shared memory, in clusters of
    ``cluster``.

    The code is on the device when this returns, so no launch, and no capture of a CUDA graph,
    loads it later. A cubin from the disk cache that the driver refuses is compiled anew, once.
    The caller's current context stays.

    Raises:
        MissingComponent: the driver is older than the cubin, or the cubin is for another architecture.
        LaunchFailed: the driver refuses the shared memory, or so large a cluster.
    """
    with device.activated(gpu.index):
        try:
            try:
                kernel = Resident(compiled)
            except Exception:
                if compiled.remake is None:
                    raise
                kernel = Resident(compiled.remake())
        except Exception as error:
            raise MissingComponent(
                f"{compiled.entry}: the driver ({gpu.driver}) cannot load a cubin for {compiled.arch} on {gpu.name} "
                f"({error}); update the NVIDIA driver or install peakgemm[cu12], then see: peakgemm doctor") from error
    if shared_bytes + (compiled.static_shared or 0) > gpu.limits.static_shared:
        try:
            driver.check("cuKernelSetAttribute", _MAX_DYNAMIC_SHARED, shared_bytes, ctypes.c_void_p(kernel.handle),
                         gpu.index)
        except RuntimeError as error:
            raise LaunchFailed(f"{compiled.entry}: {shared_bytes} bytes of shared memory a block asked, "
                               f"{gpu.limits.shared_per_block} there on {gpu.name}: {error}; use a smaller tile"
                               ) from None
    if cluster > PORTABLE_CLUSTER:
        try:
            driver.check("cuKernelSetAttribute", _LARGER_CLUSTERS, 1, ctypes.c_void_p(kernel.handle), gpu.index)
        except RuntimeError as error:
            raise LaunchFailed(f"{compiled.entry}: a cluster of {cluster} blocks on {gpu.name}: {error}; use "
                               f"{PORTABLE_CLUSTER} at most") from None
    return Loaded(kernel, compiled.entry, shared_bytes)


class Launcher:
    """One kernel, its grid and what it takes by value, ready to be enqueued.

    Everything but the addresses and the stream is laid out beforehand as the driver's
    ``cuLaunchKernelEx`` wants it, so a call
    writes six words and makes one foreign call. Against a driver that does nothing that is
    0.65 us through `enqueue` held as a bound method, and 0.78 where it is looked up for each call;
    ``cuda.bindings`` takes 0.12 more (CPython 3.11).

    Safe in several threads: a call takes a block of arguments for itself from a free list,
    since the interpreter runs other threads during the foreign call.

    Args:
        loaded: the kernel, loaded on ``gpu``.
        label: its configuration, for errors.
        gpu: the device.
        blocks: blocks in the grid, along x.
        threads: threads in a block, along x.
        argument: the bytes of what the kernel takes by value, as ``convention`` lays them out.
        boxes: of operands whose tensor maps the kernel takes at the end; two at most. A map holds an
            address, so a call encodes them, which takes some microseconds where addresses are new.
        cluster: blocks of a cluster, for kernels that leave that to the launch.
        convention: how the kernel takes its parameters: `MOST_PARAMETERS` at most, maps among them.

    Raises:
        InvalidValue: no block, more than 2**31 - 1 of them, or a block of 0 or more than 1024 threads.
        MissingComponent: the driver's library cannot be opened.
    """

    __slots__ = ("_argument", "_attributes", "_boxes", "_cluster", "_convention", "_free", "_kernel", "_launches",
                 "_several", "blocks", "gpu", "label", "loaded", "threads")

    def __init__(self, loaded: Loaded, label: str, gpu: Gpu, blocks: int, threads: int, argument: bytes,
                 boxes: Sequence[Box] = (), cluster: int = 1, convention: Convention = LIBRARY) -> None:
        if not 1 <= blocks <= 2**31 - 1:
            raise InvalidValue(f"{loaded.entry} ({label}): {blocks} blocks, a grid holds 1 to {2**31 - 1}; "
                               "split the product or use a larger tile")
        if not 1 <= threads <= gpu.limits.threads_per_block:
            raise InvalidValue(f"{loaded.entry} ({label}): {threads} threads a block, {gpu.name} allows 1 to "
                               f"{gpu.limits.threads_per_block}; use a smaller tile")
        self.loaded, self.label, self.gpu, self.blocks, self.threads = loaded, label, gpu, blocks, threads
        self._argument, self._boxes, self._convention = argument, boxes, convention
        self._kernel = ctypes.c_void_p(loaded.kernel.handle)
        self._launches = _driver_launch()
        # Clusters came with the same architecture.
        self._attributes, self._cluster = int(gpu.limits.has_dependent_launch) + (cluster > 1), cluster
        self._several = device.count() > 1
        self._free = [self._arguments()]

    def enqueue(self, a: int, b: int, c0: int, c: int, partial: int, stream: int) -> None:
        """Enqueue on ``stream`` (a ``CUstream`` as an integer; 0: the legacy default stream) and return.

        The others are device addresses: A, B, the matrix that beta scales, C, and the partial
        sums. The caller keeps their memory alive.

        Raises:
            LaunchFailed: the driver's refusal, with kernel, configuration, grid and shared memory.
        """
        # A stream of its own tells the driver its device; a default stream means the current one's.
        if self._several and stream <= _LAST_DEFAULT_STREAM and device.current() != self.gpu.index:
            with device.activated(self.gpu.index):
                return self.enqueue(a, b, c0, c, partial, stream)
        try:
            block = self._free.pop()
        except IndexError:  # as many calls under way as there are blocks
            block = self._arguments()
        buffer, config, pointers, attributes = block
        if self._boxes:
            self._encode(buffer, (a, b), partial)
        _pack(buffer, _STREAM, stream, attributes, self._attributes, a, b, c0, c, partial)
        launch = self._launches[bool(driver.gil_holders) and driver.holds_gil()]  # mostly none does
        status = launch(config, self._kernel, pointers, None)
        if status and device.current() is None:  # a thread's first call to CUDA
            device.make_current(self.gpu.index)
            status = launch(config, self._kernel, pointers, None)
        self._free.append(block)
        if status:
            raise self._failed(status)

    def _arguments(self) -> tuple[Any, ctypes.c_void_p, ctypes.c_void_p, int]:
        """One block of arguments: the buffer, pointers to configuration and parameters, address of the attribute."""
        attribute = self._maps + len(self._boxes) * tensor_map.BYTES
        buffer = ctypes.create_string_buffer(attribute + 2 * _ATTRIBUTE_BYTES)
        start = ctypes.addressof(buffer)
        struct.pack_into("=QI", buffer, attribute, _PROGRAMMATIC, self._convention.dependent)
        struct.pack_into("=Q3I", buffer, attribute + _ATTRIBUTE_BYTES, _CLUSTER, self._cluster, 1, 1)
        struct.pack_into("=7I", buffer, 0, self.blocks, 1, 1, self.threads, 1, 1, self.loaded.shared_bytes)
        places = [start + _ADDRESSES + 8 * i for i in self._convention.addresses]
        places += [start + _VALUES + offset for offset in self._convention.offsets]
        places += [start + self._maps + tensor_map.BYTES * i for i in range(len(self._boxes))]
        struct.pack_into(f"={len(places)}Q", buffer, _POINTERS, *places)
        ctypes.memmove(start + _VALUES, self._argument, len(self._argument))
        return buffer, ctypes.c_void_p(start), ctypes.c_void_p(start + _POINTERS), start + attribute

    @property
    def _maps(self) -> int:
        """Where in a block of arguments the tensor maps are."""
        return _VALUES + -(-len(self._argument) // 8) * 8

    def _encode(self, buffer: Any, operands: tuple[int, int], workspace: int) -> None:
        if device.current() is None:  # a thread's first call to CUDA
            device.make_current(self.gpu.index)
        start = ctypes.addressof(buffer) + self._maps
        for i, box in enumerate(self._boxes):
            address = operands[box.operand] if box.within is None else workspace + box.within
            ctypes.memmove(start + tensor_map.BYTES * i, _map(box, address), tensor_map.BYTES)

    def _failed(self, status: int) -> LaunchFailed:
        return LaunchFailed(
            f"{self.loaded.entry} ({self.label}): launch of {self.blocks} blocks of {self.threads} threads with "
            f"{self.loaded.shared_bytes} bytes of dynamic shared memory on {self.gpu.name} failed: "
            f"{driver.text(status)}; {_REMEDIES.get(status, 'see: peakgemm doctor')}")


# CUlaunchConfig (cuda.h): 7 x uint32 for grid, block and shared memory, 4 bytes of padding, the stream at 32,
# the attributes' address and their count. The addresses follow it, so that one `pack` writes all that changes;
# then the array of pointers to the kernel's parameters; then what it takes by value, on a multiple of 16, and the
# tensor maps.
MOST_PARAMETERS = 16
_STREAM, _ADDRESSES, _POINTERS, _VALUES = 32, 56, 96, 96 + 8 * MOST_PARAMETERS
_map = lru_cache(maxsize=512)(tensor_map.encode)  # a factorization has hundreds
_pack = struct.Struct("=QQQ5Q").pack_into
# CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, of sm_90 and later: the blocks of a kernel may start before
# the kernel ahead in its stream has ended, and wait for that themselves (include/ptx/dependents.cuh).
_PROGRAMMATIC, _ATTRIBUTE_BYTES = 6, 72
_CLUSTER = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, behind it
_LAST_DEFAULT_STREAM = 2  # 0 and CU_STREAM_LEGACY (1), CU_STREAM_PER_THREAD (2)

_FAULTED = ("an earlier kernel of this process faulted and its context is lost: restart the process; "
            "compute-sanitizer finds the kernel")
_REMEDIES = {3: "CUDA does not survive fork: start worker processes with spawn",
             **dict.fromkeys((700, 702, 709, 710, *range(714, 720)), _FAULTED)}


@cache
def _driver_launch() -> tuple[Any, Any]:
    """``cuLaunchKernelEx`` of the driver's library, called without conversions: all arguments are ready pointers. The
    second one keeps the interpreter, see `driver.hold_gil`."""
    try:  # found by index they are this caller's own: no conversions are set
        return driver.library()["cuLaunchKernelEx"], driver.gil_library()["cuLaunchKernelEx"]
    except (OSError, AttributeError) as error:
        raise MissingComponent(f"the NVIDIA driver's library cannot be used ({error}); "
                               "install an NVIDIA driver for CUDA 12 or later, then see: peakgemm doctor") from None
