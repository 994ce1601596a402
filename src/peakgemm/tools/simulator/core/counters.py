"""What an access costs: shared-memory wavefronts and global sectors, from the addresses of a warp.

Shared memory, compute capability 7.0 and later: 32 banks of 4 bytes; lanes that read one
word share it. A 4-byte access is one phase of 32 lanes, an 8-byte access two half-warps, a
16-byte access four quarter-warps; each phase takes as many wavefronts as the fullest bank
has distinct words. Loads of 8 and 16 bytes need half the phases where every pair of active lanes
(n, n^1), or every pair (n, n^2), reads one address. Global memory: distinct 32-byte sectors.
Rules as measured with Nsight Compute; "ideal" is the count for the same bytes of the same
active lanes without a conflict, or perfectly coalesced, and never more than the count itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .lanes import LaneSet, index

SECTOR = 32
BANKS = 32


@dataclass(slots=True)
class Counts:
    """Counts of one instruction, summed over warps."""

    executions: int = 0
    threads: int = 0
    requests: int = 0
    wavefronts: int = 0
    wavefronts_ideal: int = 0
    sectors: int = 0
    sectors_ideal: int = 0
    bytes: int = 0
    divergent: int = 0
    copies: int = 0  # cp.async by warps with an active lane, those that only write zeros included; bulk copies by lanes

    @property
    def counted(self) -> bool:
        """Whether anything was."""
        return bool(self.executions or self.threads or self.requests or self.bytes or self.divergent or self.copies)

    def add(self, other: Counts) -> None:
        """Add another instruction's counts."""
        for name in Counts.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def sectors(address: NDArray[Any], lanes: LaneSet, size: int) -> tuple[int, int]:
    """Sectors of one request per warp and their ideal; ``address (lanes.n,)`` in bytes, aligned to ``size``."""
    segment = address.astype(np.uint64) >> np.uint64(5)
    if lanes.full:
        table = np.sort(segment.reshape(-1, 32), axis=1)
    else:
        table = np.repeat(segment[lanes.firsts], 32)  # absent lanes repeat a sector that is there
        table[lanes.place] = segment
        table = np.sort(table.reshape(-1, 32), axis=1)
    per_warp = 1 + np.count_nonzero(table[:, 1:] != table[:, :-1], axis=1)
    ideal = -(-lanes.active.sum(axis=1) * size // SECTOR)
    return int(per_warp.sum()), int(np.minimum(per_warp, ideal).sum())


def _distinct_per_bank(words: NDArray[Any], active: NDArray[np.bool_]) -> NDArray[Any]:
    """``(phases, k)`` words: for each phase the largest number of distinct words in one bank."""
    phases = words.shape[0]
    words = np.where(active, words, -1)
    words = np.sort(words, axis=1)
    first = words >= 0
    first[:, 1:] &= words[:, 1:] != words[:, :-1]
    where = np.broadcast_to(np.arange(phases)[:, None] * BANKS, words.shape) + (words & (BANKS - 1))
    table = np.bincount(index(where[first]), minlength=phases * BANKS).reshape(phases, BANKS)
    return np.asarray(table.max(axis=1))


def wavefronts(address: NDArray[Any], lanes: LaneSet, size: int, load: bool) -> tuple[int, int]:
    """Wavefronts of one shared-memory request per warp and their ideal; ``address (lanes.n,)`` in bytes."""
    total = per_warp(address, lanes, size, load)
    ideal = np.maximum(1, -(-lanes.active.sum(axis=1) * size // (4 * BANKS)))
    return int(total.sum()), int(np.minimum(total, ideal).sum())


def copy_wavefronts(to: NDArray[Any], source: NDArray[Any], reads: NDArray[np.bool_], lanes: LaneSet,
                    size: int) -> int:
    """Wavefronts of a cp.async through L1 (``.ca``): the banks of its source count as well as those of its target.

    A line of L1 has a word in each bank, and here no two lanes share a word. Lanes that read nothing (zeros are
    written) take part in the target only. Measured on an H100: 4 wavefronts where four lanes read from one bank, 32
    where all lanes read one word, 1 where nothing is read.

    ``to``, ``source (lanes.n,)`` in bytes; ``reads`` says which lanes read.
    """
    return int(copy_per_warp(to, source, reads, lanes, size).sum())


def copy_per_warp(to: NDArray[Any], source: NDArray[Any], reads: NDArray[np.bool_], lanes: LaneSet,
                  size: int) -> NDArray[np.int64]:
    """`copy_wavefronts` of each warp."""
    target = per_warp(to, lanes, size, load=False)
    per_phase = {8: 16, 16: 8}.get(size, 32)
    words = lanes.table(source.astype(np.int64) >> 2, 0).reshape(-1, per_phase)
    active = lanes.table(reads, False).reshape(-1, per_phase)
    steps = np.arange(size // 4)
    banks = ((words[:, :, None] + steps) & (BANKS - 1)).reshape(len(words), -1)
    where = np.arange(len(words))[:, None] * BANKS + banks
    counted = np.bincount(index(where[np.repeat(active, len(steps), axis=1)]), minlength=len(words) * BANKS)
    fullest = counted.reshape(-1, BANKS).max(axis=1).reshape(-1, 32 // per_phase).sum(axis=1)
    return np.asarray(np.maximum(target, fullest))


def per_warp(address: NDArray[Any], lanes: LaneSet, size: int, load: bool) -> NDArray[np.int64]:
    """`wavefronts` of each warp."""
    table = lanes.table(address.astype(np.int64), 0)
    active = lanes.active
    warps = len(table)
    per_phase = {8: 16, 16: 8}.get(size, 32)
    total = np.zeros(warps, np.int64)
    paired = _paired(table, active) if load and size in (8, 16) else np.zeros(warps, bool)
    for pair, lanes_per_phase in ((False, per_phase), (True, 2 * per_phase)):
        rows = paired == pair
        if rows.any():
            words = table[rows] >> 2
            phases = words.reshape(-1, lanes_per_phase)
            present = active[rows].reshape(-1, lanes_per_phase)
            if size > 4:
                steps = np.arange(size // 4)
                phases = (phases[:, :, None] + steps).reshape(len(phases), -1)
                present = np.repeat(present, size // 4, axis=1)
            total[rows] = _distinct_per_bank(phases, present).reshape(-1, 32 // lanes_per_phase).sum(axis=1)
    return total


def _paired(table: NDArray[Any], active: NDArray[np.bool_]) -> NDArray[np.bool_]:
    lane = np.arange(32)
    out = np.zeros(len(table), bool)
    for flip in (1, 2):
        other = lane ^ flip
        agree = (table == table[:, other]) | ~active | ~active[:, other]
        out |= agree.all(axis=1)
    return out
