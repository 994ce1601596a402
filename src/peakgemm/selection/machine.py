"""A GPU as the cost models see it, and which profile it gets.

The first of these: the profile that the user has made for GPUs of that name; a shipped one whose names it matches;
without a name, the shipped one of the architecture; the generic one, whose shares are of what the device says of
itself.
"""

from __future__ import annotations

import json
import logging
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import InvalidValue
from ..kernels.profile import Device, Machine, Profile
from ..runtime import device
from ..runtime.architectures import architecture
from .profile_file import read
from .tuned import cache_invalidators, folder, slug

log = logging.getLogger("peakgemm")
SHIPPED = Path(__file__).parent / "profiles"
GENERIC = "generic"


def machine_with(profile: Profile, arch: str, sm_count: int, device_name: str = "") -> Machine:
    """A GPU of ``arch`` with ``sm_count`` SMs and the numbers of ``profile``.

    Shares are of the clock, bandwidth and L2 that the profile was fitted with; of a profile that names none, of those
    of the GPU called ``device_name``, if it is here, else of the architecture's reference GPU.

    Raises:
        InvalidValue: an architecture that the table does not hold.
    """
    limits = architecture(arch)
    known = profile.device or _device(device_name) or Device(limits.gpu_mhz, limits.gpu_bandwidth_gbs, limits.gpu_l2)
    return Machine(limits, sm_count, known.mhz, known.bandwidth_gbs * 1e3, known.l2_bytes, profile)


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
    if users is not None and users.architecture in (None, arch):
        return users
    for name, head in shipped_heads().items():
        gpus = head["gpus"] if device_name else ["*"]
        if head["architecture"] == arch and any(fnmatchcase(device_name, gpu) for gpu in gpus):
            return shipped(name)
    return shipped(GENERIC)


@cache
def shipped_heads() -> dict[str, Any]:
    """The JSON of the package's profiles by name. One is checked when it is asked for: a first product waits for that.
    """
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(SHIPPED.glob("*.json"))}


@cache
def shipped(name: str) -> Profile:
    """A profile of the package.

    Raises:
        InvalidValue: there is none of that name; the message lists those there are.
    """
    if name not in shipped_heads():
        raise InvalidValue(f"no profile {name!r} is shipped; there are: {', '.join(shipped_heads())}")
    return read(SHIPPED / f"{name}.json")


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


def _device(name: str) -> Device | None:
    """Clock, bandwidth and L2 of the GPU of that name, if this process sees one that says all three."""
    if not name:
        return None
    for index in range(device.count()):
        gpu = device.find(index)
        if gpu is not None and gpu.name == name and min(gpu.clock_mhz, gpu.bandwidth_gbs, gpu.l2_bytes) > 0:
            return Device(gpu.clock_mhz, gpu.bandwidth_gbs, gpu.l2_bytes)
    return None


cache_invalidators.add(machine.cache_clear)
