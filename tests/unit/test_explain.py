"""Banks, sectors and sentences of a warp's access: they agree with the counters, and cures are counted again."""

from __future__ import annotations

import re

import numpy as np
import pytest

from peakgemm.tools.explore import banks
from peakgemm.tools.explore.explain import global_sentence, padded, padding, shared_sentence, swizzled
from peakgemm.tools.explore.page import WEB
from peakgemm.tools.simulator.core import counters
from peakgemm.tools.simulator.core.lanes import LaneSet

SIZES = (1, 2, 4, 8, 16)


def column(pitch: int, size: int = 4) -> list[int]:
    """Each lane at the start of a row of ``pitch`` words."""
    return [4 * pitch * lane for lane in range(32)]


def drawn_access(rng: np.random.Generator) -> tuple[list[int | None], int]:
    size, far = int(rng.choice(SIZES)), rng.choice((4, 64, 1024))
    active = rng.random(32) < rng.choice((0.1, 0.5, 1.0))
    active[rng.integers(32)] = True
    return [int(unit) * size if on else None for on, unit in zip(active, rng.integers(0, far, 32), strict=True)], size


def check_costs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    (addresses, size), load = drawn_access(rng), bool(rng.integers(2))
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


def test_drawn_and_counted_costs_are_one() -> None:
    for seed in range(300):
        check_costs(seed)


# Four rows of eight lanes, 128 words apart, as a store of a transposed tile makes them.
ROWS = [512 * (lane // 8) + 4 * (lane % 8) for lane in range(32)]


@pytest.mark.parametrize(("addresses", "pitch", "size", "wavefronts", "pad"), [
    *((column(pitch), pitch, 4, min(pitch, 32), 1) for pitch in (2, 8, 16, 32, 64)),
    (column(32, 8), 32, 8, 32, 2), (column(32, 16), 32, 16, 32, 4), (column(16, 16), 16, 16, 16, 4),
    (ROWS, 128, 4, 4, 8),
])  # fmt: skip
def test_the_smallest_padding(addresses: list[int], pitch: int, size: int, wavefronts: int, pad: int) -> None:
    load, left = addresses is not ROWS, size // 4
    assert banks.shared(addresses, size, load).count == wavefronts
    cure = padding(addresses, size, load)
    assert cure is not None and (cure.pitch, cure.words, cure.wavefronts) == (pitch, pad, left)
    assert banks.shared(padded(addresses, pitch, pad), size, load).count == left
    for less in range(max(size // 4, 1), pad, max(size // 4, 1)):
        assert banks.shared(padded(addresses, pitch, less), size, load).count > left


def test_a_swizzle_ends_what_it_says_it_ends() -> None:
    assert banks.shared(swizzled(column(32), 4), 4, True).count == 1
    assert "swizzle" in shared_sentence(column(32), 4, True)
    assert banks.shared(swizzled(ROWS, 4), 4, False).count > 1
    assert "swizzle" not in shared_sentence(ROWS, 4, False)


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


@pytest.mark.parametrize("scheme", [0, 1])
def test_colours_of_drawings_can_be_told_apart(scheme: int) -> None:
    """WCAG's contrast, 4.5 of text and 3 of what is drawn: axe does not look into SVG."""
    text = (WEB / "drawing.css").read_text(encoding="utf-8")
    colours = {name: both[scheme] for name, *both in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", text)}

    def luminance(name: str) -> float:
        parts = [int(colours[name][at:at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    def contrast(one: str, other: str) -> float:
        low, high = sorted((luminance(one), luminance(other)))
        return (high + 0.05) / (low + 0.05)

    pairs = [("first-ink", "first"), ("again-ink", "again"), ("ground", "accent"), ("ink", "mark")]
    pairs += [(ink, ground) for ink in ("ink", "soft", "accent", "costly") for ground in ("panel", "ground")]
    drawn = ("first", "again", "copy", "stage", "load", "compute", "barrier", "store", "other", "flight")
    assert [pair for pair in pairs if contrast(*pair) < 4.5] == []
    assert [name for name in drawn if contrast(name, "panel") < 3] == []
