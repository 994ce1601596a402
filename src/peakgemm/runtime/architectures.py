"""What each architecture gives one SM, and the GPU it is best known by.

Limits: CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability".
The reference GPU (datasheet figures) serves the roofline where there is no device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import InvalidValue

KIB = 1024
# Blocks of a cluster, on every GPU that has clusters, and on one with as large a group of SMs whose driver was asked.
PORTABLE_CLUSTER, LARGEST_CLUSTER = 8, 16


class Feature(NamedTuple):
    """Which architectures have something: from the number ``first`` on, up to ``last``."""

    first: int
    last: int | None = None

    @property
    def text(self) -> str:
        """In words, for messages."""
        return f"sm_{self.first}" + (" or later" if self.last is None else "")


# What kernels use and not every architecture has. wgmma and setmaxnreg are in the instruction set of ``sm_90a`` alone;
# clusters were measured there alone.
FEATURES = {"cp.async": Feature(80), "dependent launch": Feature(90), "wgmma": Feature(90, 90),
            "setmaxnreg": Feature(90, 90), "clusters": Feature(90, 90)}


@dataclass(frozen=True, slots=True)
class Architecture:
    """Limits of one SM (bytes, threads, registers), a reference GPU (MHz, GB/s, bytes of L2), and which of `FEATURES`
    there are."""

    number: int
    shared_per_sm: int
    shared_per_block: int
    threads_per_sm: int
    blocks_per_sm: int
    shared_granularity: int
    shared_reserved: int
    fp32_lanes_per_sm: int
    gpu: str
    gpu_sms: int
    gpu_mhz: int
    gpu_bandwidth_gbs: float
    gpu_l2: int
    features: frozenset[str]
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    register_granularity: int = 256
    threads_per_block: int = 1024
    warp_size: int = 32
    sub_partitions: int = 4
    static_shared: int = 48 * KIB

    @property
    def name(self) -> str:
        """``sm_NN``."""
        return f"sm_{self.number}"

    def target(self, own: bool) -> str:
        """What to compile for; code with instructions of its ``own`` needs the family's suffix where there are any."""
        return f"{self.name}a" if own and "setmaxnreg" in self.features else self.name

    @property
    def warps_per_sm(self) -> int:
        """Resident warps, at most."""
        return self.threads_per_sm // self.warp_size

    def blocks_by_registers(self, registers: int, threads: int) -> int:
        """Blocks of ``threads`` with ``registers`` a thread for which an SM has the registers.

        They are given to warps, in granules, and each warp lives in one of the SM's sub-partitions.
        """
        per_warp = -(-registers * self.warp_size // self.register_granularity) * self.register_granularity
        each = self.registers_per_sm // self.sub_partitions // per_warp
        return each * self.sub_partitions // -(-threads // self.warp_size)

    @property
    def has_cp_async(self) -> bool:
        """Asynchronous copies from global to shared memory (sm_80 and later)."""
        return "cp.async" in self.features

    @property
    def has_dependent_launch(self) -> bool:
        """Whether a kernel's blocks may start before the kernel ahead of it has ended (sm_90 and later)."""
        return "dependent launch" in self.features

    def launches_overlap(self, blocks: int, sm_count: int) -> bool:
        """Whether the next launch of as many ``blocks`` finds SMs of its own: it is there when this one ends, half a
        microsecond sooner than one whose blocks wait for this one's to make room."""
        return self.has_dependent_launch and 2 * blocks <= sm_count

    @property
    def peak_tflops(self) -> float:
        """FP32 peak of the reference GPU: SMs x lanes x 2 x clock."""
        return self.gpu_sms * self.fp32_lanes_per_sm * 2 * self.gpu_mhz * 1e6 / 1e12


def _row(number: int, sm_kib: int, block_kib: int, threads: int, blocks: int, granularity: int,
         reserved: int, lanes: int, gpu: str, sms: int, mhz: int, gbs: float, l2_mib: int) -> Architecture:
    features = frozenset(name for name, (first, last) in FEATURES.items() if first <= number <= (last or number))
    return Architecture(number, sm_kib * KIB, block_kib * KIB, threads, blocks, granularity, reserved,
                        lanes, gpu, sms, mhz, gbs, l2_mib * KIB**2, features)


ARCHITECTURES: dict[str, Architecture] = {
    row.name: row
    for row in (
        _row(70, 96, 96, 2048, 32, 256, 0, 64, "V100 SXM2", 80, 1530, 900, 6),
        _row(75, 64, 64, 1024, 16, 256, 0, 64, "T4", 40, 1590, 320, 4),
        _row(80, 164, 163, 2048, 32, 128, 1024, 64, "A100 SXM4 80GB", 108, 1410, 2039, 40),
        _row(86, 100, 99, 1536, 16, 128, 1024, 128, "RTX 3090", 82, 1695, 936, 6),
        _row(89, 100, 99, 1536, 24, 128, 1024, 128, "RTX 4090", 128, 2520, 1008, 72),
        _row(90, 228, 227, 2048, 32, 128, 1024, 128, "H100 SXM5 80GB", 132, 1980, 3352, 50),
        _row(100, 228, 227, 2048, 32, 128, 1024, 128, "B200", 148, 1965, 8000, 126),
        _row(120, 100, 99, 1536, 24, 128, 1024, 128, "RTX 5090", 170, 2407, 1792, 96),
    )
}


def number_of(name: str) -> int:
    """The number in ``sm_NN``, ``sm_90a``: of any architecture, in the table or not.

    Raises:
        InvalidValue: not the name of an architecture.
    """
    match = re.fullmatch(r"sm_(\d{2,3})[af]?", name)
    if match is None:
        raise InvalidValue(f"{name!r} is not the name of an architecture; write sm_90, or sm_90a")
    return int(match[1])


def architecture(name: str) -> Architecture:
    """The limits of ``sm_NN``; a family suffix (``sm_90a``) is accepted and ignored.

    Raises:
        InvalidValue: an architecture that the table does not hold.
    """
    match = re.fullmatch(r"sm_(\d+)[af]?", name)
    if match is None or f"sm_{match[1]}" not in ARCHITECTURES:
        raise InvalidValue(f"unknown architecture {name!r}; valid ones: {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[f"sm_{match[1]}"]
