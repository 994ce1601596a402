"""The launch of `all_gather.cu`: this rank's rows to all ranks of a host, the others' here, by one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from struct import Struct
from typing import NamedTuple

from ...runtime import source
from ...runtime.compile import Compiled, compile_source
from ...runtime.device import Gpu
from ...runtime.launch import Launcher, load

RANKS = 8     # the kernel has room for the addresses of so many
THREADS = 512
ALIGNED = 16  # bytes: of addresses, and what sizes are multiples of
MACROS = {"THREADS": THREADS, "RANKS": RANKS}
SOURCE, ENTRY = source.KERNELS / "exchange" / "all_gather.cu", "all_gather"
_GATHER = Struct("<16q3q4i")  # struct Gather
_SHARE = THREADS * ALIGNED    # bytes a block, where there are few: a quad for each thread
_BLOCKS = 32                  # at most


class Places(NamedTuple):
    """Addresses: where this rank's rows go in each rank's memory; the words of the others that it adds to; and here the
    words that others add to, what they are to be, and the one that ends all waiting."""

    to: Sequence[int]
    arrived: Sequence[int]
    words: int
    expected: int
    released: int


@cache
def compiled(arch: str) -> Compiled:
    """The kernel for ``arch``.

    Raises:
        CompileFailed, MissingComponent: see `compile_source`.
    """
    return compile_source(source.assemble(SOURCE), ENTRY, arch, MACROS, name=SOURCE.name)


def blocks(size: int) -> int:
    """For ``size`` bytes of a rank; the same on all ranks, which count each other's."""
    return min(max(-(-size // _SHARE), 1), _BLOCKS)


def argument(size: int, rank: int, places: Places) -> bytes:
    """``struct Gather`` for ``size`` bytes of each rank."""
    none = (0,) * (RANKS - len(places.to))
    return _GATHER.pack(*places.to, *none, *places.arrived, *none, places.words, places.expected, places.released,
                        size // ALIGNED, len(places.to), rank, 0)


def launcher(gpu: Gpu, size: int, rank: int, places: Places) -> Launcher:
    """What is enqueued with the address of this rank's rows, ``size`` bytes, as A; the other addresses are not read.

    Raises:
        CompileFailed, LaunchFailed, MissingComponent: as `load` and `compile_source`.
    """
    return Launcher(load(compiled(gpu.arch), 0, gpu), f"{size} bytes, {len(places.to)} ranks", gpu, blocks(size),
                    THREADS, argument(size, rank, places))
