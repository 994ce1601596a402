"""cp.async through L1: the banks of the source count as well as those of the target."""

from types import SimpleNamespace

import numpy as np
import pytest

from peakgemm.simulator.core.counters import Counts, copy_wavefronts, wavefronts
from peakgemm.simulator.core.lanes import LaneSet
from peakgemm.simulator.ops.async_copy import _SourceConflicts

FULL = LaneSet(np.arange(32), 32)
LANE = np.arange(32)
ALL = np.ones(32, bool)


def cost(to, source, reads=ALL, size=4, lanes=FULL):
    return copy_wavefronts(np.asarray(to, np.uint32), np.asarray(source, np.uint64), reads, lanes, size)


@pytest.mark.parametrize(("source", "want"), [
    (LANE * 4, 1), (LANE[::-1] * 4 + 4096, 1), (LANE * 4 + 64, 1),  # a row, wherever it starts
    (LANE // 4 * 4 + LANE % 4 * 128, 4),  # four lanes to a bank, four rows apart
    (LANE // 4 * 4, 4),  # four lanes to a word: a copy shares nothing
    (LANE * 0, 32), (LANE * 128, 32), (LANE * 8, 2), (LANE * 132, 1),
])
def test_a_row_copied_from_known_patterns(source, want):
    assert cost(LANE * 4, source) == want


def test_lanes_that_read_nothing_count_for_the_target_only():
    none, half = np.zeros(32, bool), LANE < 16
    assert cost(LANE * 4, LANE * 128, none) == 1
    assert cost(LANE * 8, LANE * 128, none) == 2
    assert cost(LANE * 4, LANE * 128, half) == 16
    assert cost(LANE * 4, LANE * 128, LANE == 7) == 1


@pytest.mark.parametrize(("to", "source", "want"), [
    (LANE * 8, LANE * 4, 2), (LANE * 128, LANE * 4, 32), (LANE * 8, LANE * 0, 32), (LANE * 16, LANE * 8, 4),
    (LANE * 128, LANE * 128, 32),
])
def test_the_worse_side_decides(to, source, want):
    assert cost(to, source) == want


@pytest.mark.parametrize(("size", "source", "want"), [
    (8, LANE * 8, 2), (16, LANE * 16, 4),  # rows: two and four phases
    (8, LANE * 0, 32), (16, LANE * 0, 32), (8, LANE * 128, 32), (16, LANE * 128, 32),
    (8, LANE * 16, 4), (16, LANE * 32, 8), (16, LANE // 8 * 128 + LANE % 8 * 16, 4),
    (16, LANE // 2 * 16, 8),  # pairs of lanes read one address: each pays
])
def test_eight_and_sixteen_bytes(size, source, want):
    assert cost(LANE * size, source, size=size) == want


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


def test_patterns_are_not_mixed():
    memo, none = conflicts(), np.zeros(32, bool)
    for _ in range(2):
        assert added(memo, LANE * 4, LANE * 4) == 0
        assert added(memo, LANE * 4, LANE * 128) == 31
        assert added(memo, LANE * 4, LANE * 128, none) == 0
        assert added(memo, LANE * 128, LANE * 128) == 0
        assert added(memo, LANE // 2 * 8, LANE * 128) == 31
    assert len(memo.known) == 5


def test_a_pattern_that_moves_is_counted_once():
    memo = conflicts()
    for step in range(5):
        assert added(memo, LANE * 4 + 128 * step, LANE * 8 + 512 * step) == 1
    assert len(memo.known) == 1
    assert added(memo, LANE * 4 + 4, LANE * 8) == 1  # other banks: counted anew
    assert added(memo, LANE * 4, LANE * 8 + 4) == 1
    assert len(memo.known) == 3


def test_sets_of_lanes_are_not_mixed():
    memo, values = conflicts(), np.arange(16)
    low, spread = LaneSet(np.arange(16), 32), LaneSet(np.arange(16) * 2, 32)
    assert added(memo, values * 4, values * 128, np.ones(16, bool), low) == 15
    assert added(memo, values * 4, values * 128, np.ones(16, bool), spread) == 15
    two = LaneSet(np.concatenate((np.arange(8), np.arange(32, 40))), 64)
    assert added(memo, values * 4, values * 128, np.ones(16, bool), two) == 14
    assert len(memo.known) == 3
    assert all(lanes in (low, spread, two) for lanes, _ in memo.known.values())  # kept alive: ids do not recur


def test_sets_of_lanes_that_come_and_go_are_not_mixed():
    memo, rng = conflicts(), np.random.default_rng(0)
    for _ in range(40):  # a freed set's id is soon another's
        lanes = LaneSet(np.sort(rng.choice(64, 16, replace=False)), 64)
        added(memo, np.arange(16) * 4, np.arange(16) * 128, np.ones(16, bool), lanes)


@pytest.mark.parametrize("size", [4, 8, 16])
def test_many_random_patterns(size):
    memo, rng = conflicts(size), np.random.default_rng(size)
    patterns = [(rng.integers(0, 64, 32) * size, rng.integers(0, 64, 32) * size, rng.random(32) < 0.5)
                for _ in range(100)]
    for which in rng.integers(0, 100, 300):
        to, source, reads = patterns[which]
        added(memo, to + 128 * rng.integers(0, 4), source + 128 * rng.integers(0, 4), reads)
    assert len(memo.known) <= 65
