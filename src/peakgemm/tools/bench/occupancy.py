"""How many blocks of a kernel one SM holds, and which resource decides it."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import InvalidValue
from ...runtime.architectures import Architecture

#: The order in which a tie is named: first what a kernel's author can change.
RESOURCES = ("registers", "shared memory", "threads", "blocks")


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Residency of one kernel on one SM.

    ``fraction`` is of the SM's warps. ``limits`` holds the blocks that each resource alone would
    allow; ``limited_by`` is the scarcest, the first of `RESOURCES` on a tie. ``registers_per_block``
    and ``shared_per_block`` (bytes) are as allocated: rounded up, and with what the driver reserves.
    """

    blocks_per_sm: int
    warps_per_sm: int
    fraction: float
    limited_by: str
    limits: dict[str, int]
    registers_per_block: int
    shared_per_block: int


def occupancy(arch: Architecture, threads: int, registers: int, shared_bytes: int,
              static_shared: int = 0) -> Occupancy:
    """Residency of blocks of ``threads`` with ``registers`` a thread and ``shared_bytes`` dynamic shared memory.

    Blocks per SM are the least of ::

        registers      4 floor(16384 / R) // W     R = roundup(32 registers, 256), W = ceil(threads / 32)
        shared memory  shared per SM // roundup(static + dynamic + reserved, granularity)
        threads        warps per SM // W
        blocks         blocks per SM

    Registers are given to warps, and each warp lives in one of the SM's four sub-partitions, hence the
    floor. A launch is refused when R x roundup(W, 4) exceeds the register file: the hardware's check
    assumes that a block spreads evenly over the sub-partitions. From sm_80 on the driver keeps 1 KiB of
    shared memory in every block.

    Source: ``cuda_occupancy.h`` of the CUDA Toolkit, with the limits of the CUDA C++ Programming Guide's
    table "Technical Specifications per Compute Capability". Shared memory is taken to be carved out at its
    largest, and named barriers (at most 16 a block) never to limit.

    Raises:
        InvalidValue: no block of this kind can be launched at all; the message says what was asked for
            and what there is.
    """
    if not 1 <= threads <= arch.threads_per_block:
        raise InvalidValue(f"{threads} threads a block asked, 1 to {arch.threads_per_block} possible on {arch.name}")
    if not 1 <= registers <= arch.registers_per_thread:
        raise InvalidValue(
            f"{registers} registers a thread asked, 1 to {arch.registers_per_thread} possible on {arch.name}")
    _check_shared(arch, shared_bytes, static_shared)

    warps = -(-threads // arch.warp_size)
    per_warp = _round_up(registers * arch.warp_size, arch.register_granularity)
    launch = per_warp * _round_up(warps, arch.sub_partitions)
    if launch > arch.registers_per_sm:
        raise InvalidValue(
            f"{launch} registers a block asked ({threads} threads of {registers}, allocated by the warp), "
            f"{arch.registers_per_sm} available on {arch.name}; use fewer threads or __launch_bounds__({threads})")
    shared = _round_up(static_shared + shared_bytes + arch.shared_reserved, arch.shared_granularity)
    limits = {
        "registers": arch.blocks_by_registers(registers, threads),
        # A block without shared memory counts as one granule, so that the limit is a number that never binds.
        "shared memory": arch.shared_per_sm // max(shared, arch.shared_granularity),
        "threads": arch.warps_per_sm // warps,
        "blocks": arch.blocks_per_sm,
    }
    limited_by = min(RESOURCES, key=limits.__getitem__)
    blocks = limits[limited_by]
    return Occupancy(blocks, blocks * warps, blocks * warps / arch.warps_per_sm, limited_by, limits,
                     per_warp * warps, shared)


def _check_shared(arch: Architecture, dynamic: int, static: int) -> None:
    if dynamic < 0 or static < 0:
        raise InvalidValue(f"shared memory of {min(dynamic, static)} bytes asked; it cannot be negative")
    if static > arch.static_shared:
        raise InvalidValue(f"{static} bytes of static shared memory asked, {arch.static_shared} available on "
                           f"{arch.name}; declare it extern and pass its size at launch to use {arch.shared_per_block}")
    if static + dynamic > arch.shared_per_block:
        raise InvalidValue(f"{static + dynamic} bytes of shared memory a block asked, "
                           f"{arch.shared_per_block} available on {arch.name}; use a smaller tile or fewer stages")


def _round_up(value: int, granularity: int) -> int:
    return -(-value // granularity) * granularity
