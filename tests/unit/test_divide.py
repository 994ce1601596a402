"""Divisors that the host hands to the kernels, and the ranges of k-steps that they are for."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from struct import unpack_from

import pytest

from peakgemm.errors import InvalidValue
from peakgemm.kernels.ffma import skinny
from peakgemm.kernels.ffma.skinny import SkinnyConfig
from peakgemm.kernels.ffma.specialised import SpecialisedConfig
from peakgemm.kernels.ffma.tiled import schedule
from peakgemm.kernels.schedule import MOST_PARTS, divisor
from peakgemm.problem import Problem

LARGEST = 2**31 - 1
TILE = SpecialisedConfig(64, 64, 16, 4, 4, stages=4, raster=8, producers=32)


def over(x: int, d: tuple[int, int]) -> int:
    """As gemm.cuh's, and only where that is exact."""
    assert 0 <= x <= LARGEST, x
    multiplier, shift = d
    return (2 * x * multiplier >> 32) >> shift


def drawn() -> list[int]:
    """Divisors of every magnitude, powers of two and what lies beside them among them."""
    draw = Random(3)
    near = [2**i + j for i in range(1, 31) for j in (-1, 0, 1)]
    return [1, *near, LARGEST, *(int(2 ** (31 * draw.random())) or 1 for _ in range(500))]


def test_quotients_are_exact() -> None:
    draw = Random(4)
    for d in drawn():
        multiplier, shift = divisor(d)
        assert 0 < multiplier < 2**32 and 0 <= shift < 32
        for x in (0, 1, d - 1, d, d + 1, 2 * d - 1, 2 * d, LARGEST // d * d - 1, LARGEST // d * d, LARGEST,
                  *(draw.randrange(LARGEST + 1) for _ in range(20))):
            if 0 <= x <= LARGEST:
                assert over(x, (multiplier, shift)) == x // d, (x, d)


def test_a_skinny_product_is_not_cut_too_often() -> None:
    deep = Problem.contiguous(64, 1, 2**24 + 999)
    config = SkinnyConfig(32, 1, 64, 4, 1, slices=8, split=100_000)
    plan = skinny.schedule(config, deep, 132)
    assert plan.parts == MOST_PARTS and plan.blocks == 2 * MOST_PARTS
    steps = -(-deep.k // config.bk)
    assert unpack_from("<2i", plan.arguments, 180) == divmod(steps, MOST_PARTS)


def test_more_ranges_than_can_be_counted() -> None:
    p = Problem(64 * 220, 64 * 220, 64, 64, 64 * 220, 64 * 220)
    with pytest.raises(InvalidValue, match=f"split = 2 makes 96800 .* is {MOST_PARTS}; use split = 1, the tiles"):
        schedule(replace(TILE, split=2), p, 132)
    with pytest.raises(InvalidValue, match=f"split = 50000 makes 50000 .* use split = {MOST_PARTS} or less"):
        schedule(replace(TILE, split=50_000), Problem.contiguous(64, 64, 2**21), 132)
