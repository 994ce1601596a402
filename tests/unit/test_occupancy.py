"""Occupancy against numbers worked out with NVIDIA's own calculator (``cuda_occupancy.h``, CUDA 13.5)."""

from __future__ import annotations

from typing import Any

import pytest

from peakgemm.errors import InvalidValue
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.occupancy import RESOURCES, occupancy

# arch, threads, registers, dynamic and static shared bytes; blocks per SM, what limits them,
# registers and shared bytes allocated to a block.
PUBLISHED = [
    ("sm_70", 256, 32, 0, 0, 8, "registers", 8192, 0), ("sm_70", 256, 128, 16384, 0, 2, "registers", 32768, 16384),
    ("sm_70", 64, 16, 0, 0, 32, "threads", 1024, 0), ("sm_70", 192, 40, 0, 12288, 8, "registers", 7680, 12288),
    ("sm_70", 256, 32, 0, 49152, 2, "shared memory", 8192, 49152),
    ("sm_70", 256, 64, 98304, 0, 1, "shared memory", 16384, 98304), ("sm_75", 256, 32, 0, 0, 4, "threads", 8192, 0),
    ("sm_75", 256, 64, 0, 0, 4, "registers", 16384, 0), ("sm_75", 128, 128, 0, 16384, 4, "registers", 16384, 16384),
    ("sm_75", 256, 96, 65536, 0, 1, "shared memory", 24576, 65536),
    ("sm_80", 256, 128, 16384, 0, 2, "registers", 32768, 17408), ("sm_80", 256, 32, 0, 0, 8, "registers", 8192, 1024),
    ("sm_80", 32, 32, 0, 0, 32, "blocks", 1024, 1024), ("sm_80", 256, 64, 0, 32768, 4, "registers", 16384, 33792),
    ("sm_80", 256, 128, 166912, 0, 1, "shared memory", 32768, 167936),
    ("sm_86", 256, 32, 0, 0, 6, "threads", 8192, 1024), ("sm_86", 256, 128, 16384, 0, 2, "registers", 32768, 17408),
    ("sm_86", 32, 32, 0, 0, 16, "blocks", 1024, 1024), ("sm_86", 768, 40, 0, 0, 2, "registers", 30720, 1024),
    ("sm_86", 128, 64, 0, 24576, 4, "shared memory", 8192, 25600),
    ("sm_86", 128, 32, 101376, 0, 1, "shared memory", 4096, 102400),
    ("sm_89", 256, 40, 0, 0, 6, "registers", 10240, 1024), ("sm_89", 64, 32, 0, 0, 24, "threads", 2048, 1024),
    ("sm_89", 512, 64, 49152, 0, 2, "registers", 32768, 50176), ("sm_89", 48, 32, 2048, 0, 24, "threads", 2048, 3072),
    ("sm_90", 256, 255, 0, 0, 1, "registers", 65536, 1024), ("sm_90", 256, 96, 65536, 0, 2, "registers", 24576, 66560),
    ("sm_90", 128, 64, 0, 8192, 8, "registers", 8192, 9216),
    ("sm_90", 256, 32, 232448, 0, 1, "shared memory", 8192, 233472),
    ("sm_100", 256, 128, 32768, 0, 2, "registers", 32768, 33792),
    ("sm_100", 512, 128, 0, 0, 1, "registers", 65536, 1024), ("sm_120", 256, 40, 0, 0, 6, "registers", 10240, 1024),
    ("sm_120", 128, 80, 16384, 0, 5, "shared memory", 10240, 17408), ("sm_120", 32, 16, 1, 0, 24, "blocks", 512, 1152),
]


@pytest.mark.parametrize("published", PUBLISHED)
def test_published(published: tuple[Any, ...]) -> None:
    arch, threads, registers, dynamic, static, blocks, limited_by, block_registers, block_shared = published
    limits = architecture(arch)
    got = occupancy(limits, threads, registers, dynamic, static)
    warps = -(-threads // 32)
    assert (got.blocks_per_sm, got.limited_by) == (blocks, limited_by)
    assert (got.registers_per_block, got.shared_per_block) == (block_registers, block_shared)
    assert got.warps_per_sm == blocks * warps and got.fraction == blocks * warps * 32 / limits.threads_per_sm
    assert tuple(got.limits) == RESOURCES and min(got.limits.values()) == blocks


@pytest.mark.parametrize(("arch", "threads", "registers", "dynamic", "static", "says"), [
    ("sm_90", 1025, 32, 0, 0, ("1025 threads", "1024")),
    ("sm_90", 0, 32, 0, 0, ("0 threads", "1024")),
    ("sm_90", 256, 256, 0, 0, ("256 registers", "255")),
    ("sm_90", 256, 0, 0, 0, ("0 registers", "255")),
    ("sm_90", 1024, 65, 0, 0, ("73728 registers", "65536")),
    # Nine warps would fit (57600), but the hardware's check counts twelve.
    ("sm_90", 288, 200, 0, 0, ("76800 registers", "65536")),
    ("sm_90", 256, 32, 232449, 0, ("232449 bytes", "232448")),
    ("sm_86", 256, 32, 53248, 49152, ("102400 bytes", "101376")),
    ("sm_75", 256, 32, 65537, 0, ("65537 bytes", "65536")),
    ("sm_80", 256, 32, 0, 49153, ("49153 bytes", "49152")),
    ("sm_80", 256, 32, -1, 0, ("-1 bytes",)),
])
def test_cannot_launch(arch: str, threads: int, registers: int, dynamic: int, static: int,
                       says: tuple[str, ...]) -> None:
    with pytest.raises(InvalidValue) as error:
        occupancy(architecture(arch), threads, registers, dynamic, static)
    for text in says:
        assert text in str(error.value)
