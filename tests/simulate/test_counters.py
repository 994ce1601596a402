"""Wavefronts and sectors: known patterns, a brute-force count, and what the profiler counts."""

import numpy as np
import pytest

from peakgemm.tools.simulator.core import counters
from peakgemm.tools.simulator.core.lanes import LaneSet

FULL = LaneSet(np.arange(32), 32)
LANE = np.arange(32)


@pytest.mark.parametrize(("size", "address", "load", "want"), [
    (4, LANE * 4, True, 1), (4, LANE * 8, True, 2), (4, LANE * 128, True, 32), (4, LANE * 0, True, 1),
    (4, LANE * 132, True, 1), (8, LANE * 8, True, 2), (8, LANE // 2 * 8, True, 1), (16, LANE * 16, True, 4),
    (16, LANE // 2 * 16, True, 2), (16, (LANE & 1 | LANE >> 2 << 1) * 16, True, 2), (16, LANE * 0, True, 2),
    (16, LANE // 4 * 16, True, 2), (16, LANE // 2 * 16, False, 4), (16, LANE // 8 * 16, True, 2),
    (16, LANE * 32, True, 8), (16, LANE * 64, False, 16), (8, LANE * 16, True, 4), (2, LANE * 2, True, 1),
])
def test_known_wavefronts(size, address, load, want):
    assert counters.wavefronts(address.astype(np.uint32), FULL, size, load)[0] == want


def brute_wavefronts(address, lanes, size, load):
    """The rule, lane by lane."""
    total = 0
    for warp in np.unique(lanes >> 5):
        mine = {int(n & 31): int(a) for n, a in zip(lanes, address, strict=False) if n >> 5 == warp}
        per = {16: 8, 8: 16}.get(size, 32)
        pairs = (all(mine[n] == mine[n ^ flip] for n in mine if n ^ flip in mine) for flip in (1, 2))
        if load and size > 4 and any(pairs):
            per *= 2
        for start in range(0, 32, per):
            banks = {}
            for n in range(start, start + per):
                for word in range(mine[n] >> 2, (mine[n] >> 2) + max(1, size // 4)) if n in mine else ():
                    banks.setdefault(word % 32, set()).add(word)
            total += max(map(len, banks.values()), default=0)
    return total


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("size", [1, 4, 8, 16])
def test_wavefronts_against_brute_force(size, seed):
    rng = np.random.default_rng(seed)
    lanes = np.arange(96) if seed % 2 else np.sort(rng.choice(96, 50, replace=False))
    address = rng.integers(0, 64, len(lanes)) * size
    if seed % 3 == 0:
        address = (lanes >> (1 if seed % 2 else 2) << 1) * size
    for load in (True, False):
        got = counters.wavefronts(address.astype(np.uint32), LaneSet(lanes, 96), size, load)[0]
        assert got == brute_wavefronts(address, lanes, size, load)


@pytest.mark.parametrize(("size", "address", "want", "ideal"), [
    (4, LANE * 4, 4, 4), (8, LANE * 8, 8, 8), (16, LANE * 16, 16, 16), (4, LANE * 0, 1, 1), (4, LANE * 32, 32, 4),
    (4, LANE * 4 + 16, 5, 4), (4, LANE * 128, 32, 4), (1, LANE, 1, 1), (4, LANE[::-1] * 4, 4, 4),
])
def test_known_sectors(size, address, want, ideal):
    assert counters.sectors(address.astype(np.uint64) + np.uint64(1 << 40), FULL, size) == (want, ideal)
