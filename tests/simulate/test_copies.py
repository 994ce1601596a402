"""cp.async through L1: the banks of the source count as well as those of the target."""

from types import SimpleNamespace

import numpy as np
import pytest

from peakgemm.tools.simulator.core.counters import Counts, copy_wavefronts, wavefronts
from peakgemm.tools.simulator.core.lanes import LaneSet
from peakgemm.tools.simulator.ops.async_copy import _SourceConflicts


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


@pytest.mark.parametrize("size", [4, 8, 16])
def test_against_brute_force(size):
    """Patterns that come again, some of them moved by whole rows of banks: what is remembered of them holds."""
    memo, rng = _SourceConflicts(SimpleNamespace(size=size, counts=Counts())), np.random.default_rng(size)
    patterns = []
    for number in range(80):
        lanes = np.arange(96) if number % 2 else np.sort(rng.choice(96, 60, replace=False))
        to, source = rng.integers(0, 64, (2, len(lanes))) * size
        patterns.append((lanes, to, source, rng.random(len(lanes)) < 0.7))
    for which in [*range(80), *rng.integers(0, 80, 200)]:
        lanes, to, source, reads = patterns[which]
        to = (to + 128 * rng.integers(0, 4)).astype(np.uint32)
        source = (source + 128 * rng.integers(0, 4)).astype(np.uint64)
        want, group = brute(to, source, reads, lanes, size), LaneSet(lanes, 96)
        assert copy_wavefronts(to, source, reads, group, size) == want
        before = memo.site.counts.wavefronts
        memo.count(group, to, source, reads)
        assert memo.site.counts.wavefronts - before == want - wavefronts(to, group, size, load=False)[0]
    assert len(memo.known) <= 65
