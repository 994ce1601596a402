"""A GPU as the cost models see it, and which profile it gets: the one that the user has made for GPUs of that name,
else the one of the package, whose numbers are in units of the device's clock, bandwidth and SMs."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

from ..errors import InvalidValue
from ..kernels.profile import Machine, Profile
from ..runtime import device
from ..runtime.architectures import architecture
from .profile_file import read
from .tuned import cache_invalidators, folder, slug

log = logging.getLogger("peakgemm")
GENERIC = Path(__file__).parent / "profiles" / "generic.json"


def machine_with(profile: Profile, arch: str, sm_count: int, device_name: str = "") -> Machine:
    """A GPU of ``arch`` with ``sm_count`` SMs and the numbers of ``profile``.

    Its clock, bandwidth and L2 are what the GPU called ``device_name`` says of itself, if it is here, else those of the
    architecture's reference GPU.

    Raises:
        InvalidValue: an architecture that the table does not hold.
    """
    limits = architecture(arch)
    mhz, gbs, l2_bytes = _device(device_name) or (limits.gpu_mhz, limits.gpu_bandwidth_gbs, limits.gpu_l2)
    return Machine(limits, sm_count, mhz, gbs * 1e3, l2_bytes, profile)


@cache
def machine(arch: str, sm_count: int, device_name: str = "") -> Machine:
    """A GPU with the profile that it gets.

    Raises:
        InvalidValue: an architecture that the table does not hold.
    """
    return machine_with(profile_of(architecture(arch).name, device_name), arch, sm_count, device_name)


def profile_of(arch: str, device_name: str = "", own: bool = True) -> Profile:
    """The profile that a GPU of that name gets; see the module. ``own``: whether the user's is asked for."""
    users = kept(device_name) if own else None
    return users if users is not None and users.architecture == arch else shipped()


@cache
def shipped() -> Profile:
    """The profile of the package."""
    return read(GENERIC)


def kept_path(device_name: str) -> Path:
    """Where the user's profile for GPUs of a name lies: among their tuning entries."""
    return folder(device_name) / "profile.json"


def kept(device_name: str) -> Profile | None:
    """The user's profile for GPUs of that name; None without one, or with one that cannot be read, which is said."""
    if not slug(device_name):
        return None
    path = kept_path(device_name)
    if not path.is_file():
        return None
    try:
        return read(path)
    except InvalidValue as error:
        log.warning("peakgemm: a profile is ignored: %s", error)
        return None


def _device(name: str) -> tuple[float, float, int] | None:
    """Clock, bandwidth and L2 of the GPU of that name, if this process sees one that says all three."""
    if not name:
        return None
    for index in range(device.count()):
        gpu = device.find(index)
        if gpu is not None and gpu.name == name and min(gpu.clock_mhz, gpu.bandwidth_gbs, gpu.l2_bytes) > 0:
            return gpu.clock_mhz, gpu.bandwidth_gbs, gpu.l2_bytes
    return None


cache_invalidators.add(machine.cache_clear)
