"""Facts of the GPUs at hand, or the reason why there is none; and whose context is current.

A device's facts are read without making it current. `find` with no index is the exception: a
thread that has no context yet gets device 0's primary context, the one that torch, CuPy and
the CUDA runtime use; a context that is there already stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from threading import local
from typing import Any

from ..errors import LaunchFailed, MissingComponent
from .architectures import Architecture, architecture

_thread = local()


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
    from cuda.bindings import driver

    status, index = driver.cuCtxGetDevice()
    return int(index) if status == driver.CUresult.CUDA_SUCCESS else None


def make_current(index: int) -> None:
    """Make the primary context of device ``index`` current in this thread, and leave it so.

    Raises:
        LaunchFailed: the driver cannot create the context.
    """
    from cuda.core import Device

    try:
        Device(index).set_current()
    except Exception as error:
        raise LaunchFailed(f"GPU {index}: its context cannot be made current ({error}); see: nvidia-smi") from error
    _known().add(index)


@contextmanager
def activated(index: int) -> Iterator[None]:
    """Within the block a context of device ``index`` is current; afterwards the caller's own is again.

    Raises:
        LaunchFailed: the driver cannot create the context.
    """
    from cuda.bindings import driver

    if current() == index:
        yield
        return
    (status,) = driver.cuCtxPushCurrent(_primary_context(index))
    if status != driver.CUresult.CUDA_SUCCESS:
        raise LaunchFailed(f"GPU {index}: its context cannot be made current ({status.name}); see: nvidia-smi")
    try:
        _introduce(index)
        yield
    finally:
        driver.cuCtxPopCurrent()


@cache
def _primary_context(index: int) -> Any:
    """Retained once and never released: kernels stay loaded in it until the process ends."""
    from cuda.bindings import driver

    status, context = driver.cuDevicePrimaryCtxRetain(index)
    if status != driver.CUresult.CUDA_SUCCESS:
        _primary_context.cache_clear()
        raise LaunchFailed(f"GPU {index}: the driver cannot create its context ({status.name}); see: nvidia-smi")
    return context


def _known() -> set[int]:
    """The devices that cuda.core has been told of in this thread."""
    if not hasattr(_thread, "known"):
        _thread.known = set()
    known: set[int] = _thread.known
    return known


def _introduce(index: int) -> None:
    """Tell cuda.core of a primary context that somebody else made current in this thread.

    Its ``Device`` objects belong to one thread each and allocate nothing until they have set
    the context themselves. A context that is not the primary one is the caller's business.
    """
    from cuda.bindings import driver

    _known().add(index)
    _, _, active = driver.cuDevicePrimaryCtxGetState(index)
    if active and int(driver.cuCtxGetCurrent()[1]) == int(_primary_context(index)):
        make_current(index)


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
    elif index not in _known():
        _introduce(index)
    return _probe(index)


@cache
def _count() -> tuple[int, str | None]:
    try:
        import cuda.core  # noqa: F401
        from cuda.bindings import driver
    except ImportError as error:
        return 0, f"cuda.core cannot be imported ({error}); run: pip install 'cuda-core[cu13]'"
    try:
        (status,) = driver.cuInit(0)
        devices = int(driver.cuDeviceGetCount()[1]) if status == driver.CUresult.CUDA_SUCCESS else 0
        text = status.name if int(status) else "the driver shows no device"
    except Exception as error:
        devices, text = 0, str(error).partition(".")[0] or type(error).__name__
        if type(error).__name__ == "DynamicLibNotFoundError":  # says no more than that in more words
            text = "its library libcuda is not found"
    if devices:
        return devices, None
    return 0, f"no NVIDIA driver or GPU here ({text}); install the driver, then see: peakgemm doctor"


@cache
def _probe(index: int) -> tuple[Gpu | None, str | None]:
    devices, reason = _count()
    if not devices:
        return None, reason
    if not 0 <= index < devices:
        return None, f"no GPU {index}: this process sees {devices} (0 to {devices - 1}); see CUDA_VISIBLE_DEVICES"
    from cuda.bindings import driver
    from cuda.core import Device

    try:
        device = Device(index)
        p = device.properties
        major, minor = device.compute_capability
        version = driver.cuDriverGetVersion()[1]
    except Exception as error:
        text = str(error).partition(".")[0] or type(error).__name__
        return None, f"GPU {index} does not answer ({text}); see: nvidia-smi"
    arch = f"sm_{major}{minor}"
    try:
        architecture(arch)
    except ValueError as error:
        return None, f"{device.name}: {error}"
    return Gpu(
        index=index, name=device.name, arch=arch, sm_count=p.multiprocessor_count,
        clock_mhz=p.clock_rate // 1000,
        bandwidth_gbs=round(p.memory_clock_rate * 1e3 * 2 * p.global_memory_bus_width / 8 / 1e9, 1),
        l2_bytes=p.l2_cache_size, driver=f"{version // 1000}.{version % 1000 // 10}",
    ), None
