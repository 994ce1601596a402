"""cp.async through L1: the banks of the source count as well as those of the target."""

from types import SimpleNamespace

import numpy as np
import pytest

from peakgemm.tools.simulator.core.counters import Counts, copy_wavefronts, wavefronts
from peakgemm.tools.simulator.core.lanes import LaneSet
from peakgemm.tools.simulator.ops.async_copy import _SourceConflicts

FULL = LaneSet(np.arange(32), 32)
LANE = np.arange(32)
ALL = np.ones(32, bool)


def cost(to, source, reads=ALL, size=4, lanes=FULL):
    return copy_wavefronts(np.asarray(to, np.uint32), np.asarray(source, np.uint64), reads, lanes, size)


def brute(to, source, reads, lanes, size):
    """The rule, lane by lane, for one warp at a time."""
    total = 0
    for warp in np.unique(lanes >> 5):
        target, banks = 0, 0
        per = {8: 16, 16: 8}.get(size, 32)
        for start in range(0, 32, per):
            words, counts = {}, [0] * 32
            for i, lane in enumerate(lanes):
                if lane >> 5 == warp and start <= (lane & 31) < start + per:
                    for step in range(size // 4):
                        word = (int(to[i]) >> 2) + step
                        words.setdefault(word % 32, set()).add(word)
                        counts[((int(source[i]) >> 2) + step) % 32] += int(reads[i])
            target += max(map(len, words.values()), default=0)
            banks += max(counts)
        total += max(target, banks)
    return total


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("size", [4, 8, 16])
def test_against_brute_force(size, seed):
    rng = np.random.default_rng(seed)
    lanes = np.arange(96) if seed % 2 else np.sort(rng.choice(96, 60, replace=False))
    to, source = rng.integers(0, 64, (2, len(lanes))) * size
    reads = rng.random(len(lanes)) < 0.7
    assert cost(to, source, reads, size, LaneSet(lanes, 96)) == brute(to, source, reads, lanes, size)


# ---- the memo --------------------------------------------------------------------------------


def conflicts(size=4):
    """A memo beside an empty count."""
    return _SourceConflicts(SimpleNamespace(size=size, counts=Counts()))


def added(memo, to, source, reads=ALL, lanes=FULL):
    """What one execution adds; checked against a count without a memo."""
    before = memo.site.counts.wavefronts
    memo.count(lanes, np.asarray(to, np.uint32), np.asarray(source, np.uint64), reads)
    found = memo.site.counts.wavefronts - before
    size = memo.site.size
    assert found == cost(to, source, reads, size, lanes) - wavefronts(np.asarray(to), lanes, size, load=False)[0]
    return found


@pytest.mark.parametrize("size", [4, 8, 16])
def test_many_random_patterns(size):
    memo, rng = conflicts(size), np.random.default_rng(size)
    patterns = [(rng.integers(0, 64, 32) * size, rng.integers(0, 64, 32) * size, rng.random(32) < 0.5)
                for _ in range(100)]
    for which in rng.integers(0, 100, 300):
        to, source, reads = patterns[which]
        added(memo, to + 128 * rng.integers(0, 4), source + 128 * rng.integers(0, 4), reads)
    assert len(memo.known) <= 65
