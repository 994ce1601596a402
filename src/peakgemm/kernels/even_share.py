"""Blocks dealt evenly to the SMs, where the blocks of a kernel may start before the kernel ahead of it has ended."""

from __future__ import annotations

from collections.abc import Callable

from ..runtime.compile import Compiled
from ..runtime.device import Gpu
from ..runtime.launch import Launcher, load
from .family import Launch

Enqueue = Callable[[int, int, int, int, int, int], None]  # see `runtime.launch.Launcher.enqueue`


def launches(cubin: Compiled, label: str, gpu: Gpu, launch: Launch) -> Enqueue:
    """What launches a kernel, compiled to ``cubin``; ``label`` names it in errors.

    Raises:
        InvalidValue, MissingComponent, LaunchFailed: see `Launcher` and `load`.
    """
    blocks, threads, shared = launch.blocks, launch.threads, launch.shared_bytes
    asked = shared_bytes(shared, blocks, room(cubin.registers, threads, gpu), gpu) if launch.even else shared
    return Launcher(load(cubin, asked, gpu, launch.cluster), label, gpu, blocks, threads, launch.arguments,
                    launch.boxes, launch.cluster).enqueue


def room(registers: int | None, threads: int, gpu: Gpu) -> int:
    """Blocks of ``threads`` with ``registers`` a thread that an SM has room for, whatever their shared memory.

    ptxas may have left room for more than a tile was made for. None: registers are not known, nor counted.
    """
    return min(gpu.limits.blocks_by_registers(registers or 1, threads), gpu.limits.threads_per_sm // threads)


def shared_bytes(wanted: int, blocks: int, most: int, gpu: Gpu) -> int:
    """Dynamic shared memory in bytes of a launch, ``wanted`` at least; beside it blocks may have half a KB of static.

    With dependent launch (include/ptx/dependents.cuh) blocks gather on the SMs that are free first, as many as there is
    room for, while others get none: 6192 x 110 x 64 took 12.7 us with 3 blocks for each SM and room for 8, and takes
    6.7. So each asks for so much shared memory that one more than an even share of them finds no room.

    Args:
        wanted: what a block needs, in bytes.
        blocks: of the launch.
        most: blocks that an SM has `room` for.
        gpu: where it is launched.
    """
    limits = gpu.limits
    share = -(-blocks // gpu.sm_count)
    fitting = limits.shared_per_sm // (wanted + limits.shared_reserved) if wanted else most
    if not limits.has_dependent_launch or share >= min(most, fitting):
        return wanted
    unit = limits.shared_granularity
    each = (limits.shared_per_sm // (share + 1) // unit + 1) * unit  # one byte less, and one more might fit
    return max(wanted, min(each - limits.shared_reserved, limits.shared_per_block))
