"""SM clock, power, temperature and energy through NVML; only ever read, never set."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the GPU: MHz, watts, degrees Celsius (None: this sensor cannot be read)."""

    sm_clock_mhz: int | None
    power_w: float | None
    temperature_c: int | None


class Sensors:
    """NVML of one device; every reading is None where NVML is not to be had."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        try:
            from cuda.bindings import nvml
            from cuda.core import Device

            nvml.init_v2()
            self._handle = nvml.device_get_handle_by_pci_bus_id_v2(Device().pci_bus_id)
            self._nvml = nvml
        except Exception:  # no NVML is a state to report (None in every row), not an error
            self._nvml = None

    def read(self) -> Reading:
        """The current state."""
        if self._nvml is None:
            return Reading(None, None, None)
        clock = self._try("device_get_clock_info", 1)  # NVML_CLOCK_SM
        power = self._try("device_get_power_usage")
        return Reading(clock, None if power is None else power / 1000, self._temperature())

    def energy_j(self) -> float | None:
        """Joules since the driver was loaded; None without such a counter."""
        used = None if self._nvml is None else self._try("device_get_total_energy_consumption")
        return None if used is None else float(used) / 1000

    def _temperature(self) -> int | None:
        reading = self._try("device_get_temperature_v", 0)
        return reading if reading is None or isinstance(reading, int) else int(reading.temperature)

    def _try(self, call: str, *args: int) -> Any:
        try:
            return getattr(self._nvml, call)(self._handle, *args)
        except Exception:  # a sensor that this GPU or NVML does not have
            return None


def summary(readings: list[Reading]) -> dict[str, float | None]:
    """Medians of clock and power, the largest temperature."""

    def of(name: str, reduce: Any) -> float | None:
        values = [getattr(r, name) for r in readings if getattr(r, name) is not None]
        return reduce(values) if values else None

    return {"sm_clock_mhz": of("sm_clock_mhz", median), "power_w": of("power_w", median),
            "temperature_c": of("temperature_c", max)}
