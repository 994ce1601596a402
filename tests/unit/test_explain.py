"""Banks, sectors and sentences of a warp's access: they agree with the counters, and cures are counted again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peakgemm.tools.explore import banks
from peakgemm.tools.explore.explain import global_sentence, padded, padding, shared_sentence, swizzled
from peakgemm.tools.simulator.core import counters
from peakgemm.tools.simulator.core.lanes import LaneSet

SIZES = (1, 2, 4, 8, 16)


def column(pitch: int, size: int = 4) -> list[int]:
    """Each lane at the start of a row of ``pitch`` words."""
    return [4 * pitch * lane for lane in range(32)]


@st.composite
def accesses(draw: st.DrawFn) -> tuple[list[int | None], int]:
    size = draw(st.sampled_from(SIZES))
    active = draw(st.lists(st.booleans(), min_size=32, max_size=32).filter(any))
    far = draw(st.sampled_from((4, 64, 1024)))
    units = draw(st.lists(st.integers(0, far), min_size=32, max_size=32))
    return [unit * size if one else None for one, unit in zip(active, units, strict=True)], size


@settings(max_examples=200, deadline=None)
@given(accesses(), st.booleans())
def test_drawn_and_counted_costs_are_one(access: tuple[list[int | None], int], load: bool) -> None:
    addresses, size = access
    lanes = LaneSet(np.flatnonzero([one is not None for one in addresses]).astype(np.int64), 32)
    at = np.array([one for one in addresses if one is not None], np.uint64)
    drawn = banks.shared(addresses, size, load)
    assert (drawn.count, drawn.ideal) == counters.wavefronts(at, lanes, size, load)
    moved = banks.sectors(addresses, size)
    assert (moved.count, moved.ideal) == counters.sectors(at, lanes, size)
    if size >= 4:
        reads = np.ones(len(at), bool)
        both = max(banks.source_wavefronts(addresses, size), banks.shared(addresses, size, False).count)
        assert both == counters.copy_wavefronts(at, at, reads, lanes, size)
    held = sorted(lane for row in drawn.wavefronts for cell in row for lane in set(cell.lanes))
    assert set(held) == set(lanes.lanes.tolist())  # each lane's words are drawn
    for row in drawn.wavefronts:
        assert len({cell.bank for cell in row}) == len(row)  # a bank gives one word a wavefront


@pytest.mark.parametrize(("pitch", "size", "wavefronts", "pad", "left"), [
    (32, 4, 32, 1, 1), (64, 4, 32, 1, 1), (16, 4, 16, 1, 1), (8, 4, 8, 1, 1), (2, 4, 2, 1, 1),
    (32, 8, 32, 2, 2), (32, 16, 32, 4, 4), (16, 16, 16, 4, 4),
])  # fmt: skip
def test_the_smallest_padding(pitch: int, size: int, wavefronts: int, pad: int, left: int) -> None:
    addresses = column(pitch, size)
    assert banks.shared(addresses, size, True).count == wavefronts
    found = padding(addresses, size, True)
    assert found is not None
    assert (found.pitch, found.words, found.wavefronts) == (pitch, pad, left)
    assert banks.shared(padded(addresses, pitch, pad), size, True).count == left
    for less in range(max(size // 4, 1), pad, max(size // 4, 1)):
        assert banks.shared(padded(addresses, pitch, less), size, True).count > left


def test_rows_of_a_tile_are_found_behind_runs_of_lanes() -> None:
    # Four rows of eight lanes, 128 words apart, as a store of a transposed tile makes them.
    found = padding([512 * (lane // 8) + 4 * (lane % 8) for lane in range(32)], 4, False)
    assert found is not None
    assert (found.pitch, found.words, found.wavefronts) == (128, 8, 1)


def test_a_swizzle_ends_what_it_says_it_ends() -> None:
    assert banks.shared(swizzled(column(32), 4), 4, True).count == 1
    assert "swizzle" in shared_sentence(column(32), 4, True)
    rows = [512 * (lane // 8) + 4 * (lane % 8) for lane in range(32)]
    assert banks.shared(swizzled(rows, 4), 4, False).count > 1
    assert "swizzle" not in shared_sentence(rows, 4, False)


@pytest.mark.parametrize(("addresses", "size", "load", "words"), [
    (column(32), 4, True, ("Lanes 0 to 31 meet in bank 0", "32 different words, 32 words apart",
                           "32 wavefronts where 1 would do",
                           "1 word of padding in each row (33 words in place of 32) would end it")),
    (column(8), 4, True, ("Lanes 0, 4, ... 28 (8 of them) meet in bank 0", "8 wavefronts where 1")),
    (column(33), 4, True, ("No conflict: 1 wavefront",)),
    ([0] * 32, 4, True, ("No conflict: 1 wavefront",)),
    (column(32), 16, False, ("in the fullest of 4 phases", "4 words of padding")),
    ([4, *[None] * 31], 4, True, ("No conflict", "1 lane ")),
    ([None] * 32, 4, True, ("No lane",)),
])  # fmt: skip
def test_sentences_of_shared_memory(addresses: list[int | None], size: int, load: bool, words: tuple[str, ...]) -> None:
    said = shared_sentence(addresses, size, load)
    for word in words:
        assert word in said


@pytest.mark.parametrize(("addresses", "words"), [
    ([4 * lane for lane in range(32)], ("Coalesced", "4 sectors")),
    ([1024 * lane for lane in range(32)], ("32 sectors", "where 4 would do", "1024 bytes from lane to lane", "12 %")),
    ([4 + 4 * lane for lane in range(32)], ("5 sectors", "Align the start")),
    ([None] * 32, ("No lane",)),
])  # fmt: skip
def test_sentences_of_global_memory(addresses: list[int | None], words: tuple[str, ...]) -> None:
    said = global_sentence(addresses, 4)
    for word in words:
        assert word in said
