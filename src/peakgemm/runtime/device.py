"""Facts of the GPU at hand, or the reason why there is none."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from ..errors import MissingComponent
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
    return _probe()[1]


def find() -> Gpu | None:
    """The current device's facts, or None without one."""
    return _probe()[0]


def require() -> Gpu:
    """The current device's facts.

    Raises:
        MissingComponent: no driver, no GPU, or an architecture that the table does not hold.
    """
    gpu, reason = _probe()
    if gpu is None:
        raise MissingComponent(str(reason))
    return gpu


@cache
def _probe() -> tuple[Gpu | None, str | None]:
    try:
        from cuda.core import Device
    except ImportError as error:
        return None, f"cuda.core cannot be imported ({error}); run: pip install 'cuda-core[cu13]'"
    try:
        device = Device()
        device.set_current()
        p = device.properties
        major, minor = device.compute_capability
        from cuda.bindings import driver

        version = driver.cuDriverGetVersion()[1]
    except Exception as error:
        text = str(error).partition(".")[0] or type(error).__name__
        return None, f"no NVIDIA driver or GPU here ({text}); install the driver, then see: peakgemm doctor"
    arch = f"sm_{major}{minor}"
    try:
        architecture(arch)
    except ValueError as error:
        return None, f"{device.name}: {error}"
    return Gpu(
        index=device.device_id, name=device.name, arch=arch, sm_count=p.multiprocessor_count,
        clock_mhz=p.clock_rate // 1000,
        bandwidth_gbs=round(p.memory_clock_rate * 1e3 * 2 * p.global_memory_bus_width / 8 / 1e9, 1),
        l2_bytes=p.l2_cache_size, driver=f"{version // 1000}.{version % 1000 // 10}",
    ), None
