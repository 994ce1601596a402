"""Divisors that the host hands to the kernels, and the ranges of k-steps that they are for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace
from random import Random
from struct import unpack_from

import pytest

from peakgemm.errors import InvalidValue
from peakgemm.kernels.divide import MOST_PARTS, divisor
from peakgemm.kernels.emulated.schemes import PRODUCTS, emulation
from peakgemm.kernels.ffma import skinny
from peakgemm.kernels.schedule import schedule
from peakgemm.problem import Batch, Config, Problem

LARGEST = 2**31 - 1
TILE = Config(64, 64, 16, 4, 4, stages=4, fragments=2, raster=8, producers=32)


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


def test_nothing_is_divided_by_nothing() -> None:
    assert divisor(0) == divisor(1)


def test_the_arguments_hold_the_divisors() -> None:
    """struct Gemm of include/scheduler/gemm.cuh after `parts`: k-steps of a range, the rest, seven pairs."""
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
    (1, MOST_PARTS + 5, MOST_PARTS), (2, MOST_PARTS - 1, MOST_PARTS), (MOST_PARTS // 2, 3, MOST_PARTS),
    (MOST_PARTS - 1, 2, MOST_PARTS), (1, 2**26, MOST_PARTS),
])
def test_ranges_and_the_tiles_that_they_touch(shared: int, steps: int, parts: int) -> None:
    """What gemm.cuh and shares.cuh compute without a division, against the definition."""
    total = shared * steps
    each, rest = divmod(total, parts)
    by_parts, by_shared = divisor(parts), divisor(shared)

    def begin(part: int) -> int:
        return part * each + over(part * rest, by_parts)

    begins = [begin(part) for part in range(parts + 1)]
    assert begins == [part * total // parts for part in range(parts + 1)]
    for part in range(parts):
        assert over(part * shared, by_parts) == begins[part] // steps
    for tile in range(shared):
        first = over(tile * parts, by_shared)
        first += first + 1 < parts and begins[first + 1] <= tile * steps
        last = over((tile + 1) * parts - 1, by_shared)
        # The first range that ends within the tile or later, the last one that begins in it.
        assert (first, last) == (bisect_right(begins, tile * steps) - 1, bisect_left(begins, (tile + 1) * steps) - 1)


@pytest.mark.parametrize("cluster", [1, 2])
def test_every_tile_is_placed_once(cluster: int) -> None:
    """place_of of gemm.cuh with the divisors of a launch on tensor cores, whose clusters are two tiles high."""
    config = replace(PRODUCTS["fp16x3"].default, cluster=cluster, raster=4)
    for m, n, count in ((129, 128, 1), (1280, 500, 3), (1300, 129, 2), (4000, 1000, 1)):
        problem = Problem(m, n, 64, 64, n, n, batch=Batch((count,), (0,), (0,), (m * n,), (m * n,)))
        pairs = unpack_from("<14I", emulation(PRODUCTS["fp16x3"], config, problem, 132).arguments, 188)
        matrix, group, last = pairs[0:2], pairs[2:4], pairs[4:6]
        rows = config.bm * cluster
        across, down = -(-n // config.bn), -(-m // rows)
        found = set()
        for tile in range(across * down * count):
            batch = over(tile, matrix)
            inside = tile - batch * across * down
            above = over(inside, group)
            inside -= above * 4 * across
            height = min(4, down - above * 4)
            column = inside // 4 if height == 4 else over(inside, last)
            found.add((batch, (above * 4 + inside - column * height) * rows, column * config.bn))
        assert found == {(i, y * rows, x * config.bn) for i in range(count) for y in range(down) for x in range(across)}


def test_a_skinny_product_is_not_cut_too_often() -> None:
    deep = Problem.contiguous(64, 1, 2**24 + 999)
    config = Config(32, 1, 64, 4, 1, slices=8, split=100_000)
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
