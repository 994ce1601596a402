"""Facts of the GPUs at hand, or the reason why there is none; and whose context is current.

A device's facts are read without making it current. `find` with no index is the exception: a
thread that has no context yet gets device 0's primary context, the one that torch, CuPy and
the CUDA runtime use; a context that is there already stays. What goes on with cuda.core calls `introduce`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from ..errors import LaunchFailed, MissingComponent
from . import driver
from .architectures import Architecture, architecture


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device: bytes, MHz, GB/s (nominal: memory clock x bus width)."""

    index: int
    name: str
    arch: str
    sm_count: int
    clock_mhz: int
    bandwidth_gbs: float
    l2_bytes: int
    driver: str

    @property
    def limits(self) -> Architecture:
        """What one SM gives."""
        return architecture(self.arch)

    @property
    def peak_tflops(self) -> float:
        """FP32 peak: SMs x lanes x 2 x maximal clock."""
        return self.sm_count * self.limits.fp32_lanes_per_sm * 2 * self.clock_mhz * 1e6 / 1e12

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)


def reason_without_gpu() -> str | None:
    """Why no GPU can be used (one sentence with its remedy), or None when one can."""
    return _current()[1]


def find(index: int | None = None) -> Gpu | None:
    """The facts of device ``index``, or None without it; ``index`` None: of the current device.

    The current device is that of the calling thread's context, device 0 where it has none.
    """
    return (_current() if index is None else _probe(index))[0]


def require(index: int | None = None) -> Gpu:
    """The facts of device ``index``; None: of the current device, as in `find`.

    Raises:
        MissingComponent: no driver, no such GPU, or an architecture that the table does not hold.
    """
    gpu, reason = _current() if index is None else _probe(index)
    if gpu is None:
        raise MissingComponent(str(reason))
    return gpu


def count() -> int:
    """Devices that this process sees; 0 without a driver."""
    return _count()[0]


def current() -> int | None:
    """The index of the device whose context is current in this thread, or None without a context."""
    index = ctypes.c_int()
    return None if driver.library().cuCtxGetDevice(ctypes.byref(index)) else index.value


def make_current(index: int) -> None:
    """Make the primary context of device ``index`` current in this thread, and leave it so.

    Raises:
        LaunchFailed: the driver cannot create the context.
    """
    _switch("cuCtxSetCurrent", index)


@contextmanager
def activated(index: int) -> Iterator[None]:
    """Within the block a context of device ``index`` is current; afterwards the caller's own is again.

    Raises:
        LaunchFailed: the driver cannot create the context.
    """
    if current() == index:
        yield
        return
    _switch("cuCtxPushCurrent_v2", index)
    try:
        yield
    finally:
        driver.library().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def _switch(call: str, index: int) -> None:
    driver.demand(f"GPU {index}: its context made current", call, ctypes.c_void_p(primary_context(index)))


@cache
def primary_context(index: int) -> int:
    """The primary context of a device. Retained once and never released: kernels stay loaded in it until the process
    ends.

    Raises:
        LaunchFailed: the driver cannot create it.
    """
    context = ctypes.c_void_p()
    driver.demand(f"GPU {index}: its context", "cuDevicePrimaryCtxRetain", ctypes.byref(context), index)
    return context.value or 0


def introduce(index: int) -> None:
    """Tell cuda.core of the primary context of device ``index`` that is current in this thread.

    Its ``Device`` objects belong to one thread each and allocate nothing until they have set
    the context themselves. A context that is not the primary one is the caller's business.

    Raises:
        LaunchFailed: cuda.core cannot be imported, or cannot use the context.
    """
    context = ctypes.c_void_p()
    driver.library().cuCtxGetCurrent(ctypes.byref(context))
    if context.value == primary_context(index):
        try:
            from cuda.core import Device

            Device(index).set_current()
        except Exception as error:
            raise LaunchFailed(f"GPU {index}: cuda.core cannot use its context ({error}); see: peakgemm doctor"
                               ) from error


def _current() -> tuple[Gpu | None, str | None]:
    devices, reason = _count()
    if not devices:
        return None, reason
    index = current()
    if index is None:
        index = 0
        try:
            make_current(index)
        except LaunchFailed as error:
            return None, str(error)
    return _probe(index)


@cache
def _count() -> tuple[int, str | None]:
    devices = ctypes.c_int()
    try:
        driver.check("cuInit", 0)
        driver.check("cuDeviceGetCount", ctypes.byref(devices))
        text = "the driver shows no device"
    except OSError:
        text = "its library libcuda is not found"
    except RuntimeError as error:
        text = str(error)
    if devices.value:
        return devices.value, None
    return 0, f"no NVIDIA driver or GPU here ({text}); install the driver, then see: peakgemm doctor"


# CUdevice_attribute (cuda.h): kHz, bits, bytes
_FACTS = {"COMPUTE_CAPABILITY_MAJOR": 75, "COMPUTE_CAPABILITY_MINOR": 76, "MULTIPROCESSOR_COUNT": 16, "CLOCK_RATE": 13,
          "MEMORY_CLOCK_RATE": 36, "GLOBAL_MEMORY_BUS_WIDTH": 37, "L2_CACHE_SIZE": 38}


@cache
def _probe(index: int) -> tuple[Gpu | None, str | None]:
    devices, reason = _count()
    if not devices:
        return None, reason
    if not 0 <= index < devices:
        return None, f"no GPU {index}: this process sees {devices} (0 to {devices - 1}); see CUDA_VISIBLE_DEVICES"

    def asked(call: str, *args: Any) -> int:
        answer = ctypes.c_int()
        driver.check(call, ctypes.byref(answer), *args)
        return answer.value

    text = ctypes.create_string_buffer(128)
    try:
        device, version = asked("cuDeviceGet", index), asked("cuDriverGetVersion")  # 1000 major + 10 minor
        driver.check("cuDeviceGetName", text, len(text), device)
        facts = {what: asked("cuDeviceGetAttribute", number, device) for what, number in _FACTS.items()}
    except RuntimeError as error:
        return None, f"GPU {index} does not answer ({error}); see: nvidia-smi"
    name = text.value.decode()
    arch = f"sm_{facts['COMPUTE_CAPABILITY_MAJOR']}{facts['COMPUTE_CAPABILITY_MINOR']}"
    try:
        architecture(arch)
    except ValueError as error:
        return None, f"{name}: {error}"
    bandwidth = facts["MEMORY_CLOCK_RATE"] * 1e3 * 2 * facts["GLOBAL_MEMORY_BUS_WIDTH"] / 8 / 1e9
    return Gpu(
        index=index, name=name, arch=arch, sm_count=facts["MULTIPROCESSOR_COUNT"],
        clock_mhz=facts["CLOCK_RATE"] // 1000, bandwidth_gbs=round(bandwidth, 1), l2_bytes=facts["L2_CACHE_SIZE"],
        driver=f"{version // 1000}.{version % 1000 // 10}",
    ), None
