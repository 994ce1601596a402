"""Divisors that the host hands to the kernels, and the ranges of k-steps that they are for."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from struct import unpack_from

import pytest

from peakgemm.errors import InvalidValue
from peakgemm.kernels.divide import MOST_PARTS, divisor, over
from peakgemm.kernels.schedule import schedule
from peakgemm.problem import Batch, Config, Problem

LARGEST = 2**31 - 1
TILE = Config(64, 64, 16, 4, 4, stages=4, fragments=2, raster=8, producers=32)


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


def test_nothing_is_divided_by_nothing() -> None:
    assert divisor(0) == divisor(1)


def test_the_arguments_hold_the_divisors() -> None:
    """struct Gemm of common/gemm.cuh after `parts`: k-steps of a range, the rest, seven pairs."""
    batch = Batch((2, 3, 5), (0, 0, 0), (0, 0, 0), (15 * 10**6, 5 * 10**6, 10**6), (15 * 10**6, 5 * 10**6, 10**6))
    p = Problem(100, 200, 300, 300, 200, 200, batch=batch)  # 2 x 4 tiles of 19 k-steps, 30 times
    plan = schedule(TILE, p, 100)
    assert plan.shared == 0
    assert unpack_from("<2i", plan.arguments, 180) == (0, 0)
    pairs = unpack_from("<14I", plan.arguments, 188)
    assert pairs == tuple(x for d in (8, 32, 2, 1, 1, 3, 5) for x in divisor(d))  # RASTER = 8 of 2 rows: one group
    deep = schedule(replace(TILE, split=0), p, 133)
    total, parts = deep.shared * 19, deep.parts
    assert deep.shared == 240 % 133 and unpack_from("<2i", deep.arguments, 180) == divmod(total, parts)


@pytest.mark.parametrize(("shared", "steps", "parts"), [
    (1, 60, 60), (1, 60, 7), (3, 19, 5), (16, 256, 132), (130, 2, 132), (5, 4, 20), (7, 3, 21), (40, 37, 131),
])
def test_ranges_and_the_tiles_that_they_touch(shared: int, steps: int, parts: int) -> None:
    """What gemm.cuh and shares.cuh compute without a division, against the definition."""
    total = shared * steps
    each, rest = divmod(total, parts)
    by_parts, by_shared = divisor(parts), divisor(shared)

    def begin(part: int) -> int:
        return part * each + over(part * rest, by_parts)

    assert [begin(p) for p in range(parts + 1)] == [p * total // parts for p in range(parts + 1)]
    for part in range(parts):
        assert over(part * shared, by_parts) == begin(part) // steps
    for tile in range(shared):
        first = over(tile * parts, by_shared)
        first += first + 1 < parts and begin(first + 1) <= tile * steps
        last = over((tile + 1) * parts - 1, by_shared)
        held = [p for p in range(parts) if begin(p) < (tile + 1) * steps and begin(p + 1) > tile * steps]
        assert (first, last) == (held[0], held[-1])


def test_more_ranges_than_can_be_counted() -> None:
    p = Problem(64 * 220, 64 * 220, 64, 64, 64 * 220, 64 * 220)
    with pytest.raises(InvalidValue, match=f"split = 2 makes 96800 ranges .* the limit is {MOST_PARTS}; use split = 1"):
        schedule(replace(TILE, split=2), p, 132)
