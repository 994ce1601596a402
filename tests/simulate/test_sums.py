"""In which order kernels add up what is no single chain: chunks, pairs, ranges of K, blocks of a cluster; bit for bit.

Where a kernel sums by one chain, `library_case.multiply` compares the bits of each product.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from library_case import SMALL as TILE
from library_case import Case, multiply
from peakgemm.calls import replay
from peakgemm.kernels.ffma import small
from peakgemm.kernels.ffma.small import SMALL
from peakgemm.kernels.ffma.specialised import SPECIALISED, SpecialisedConfig
from peakgemm.kernels.ffma.tiled import schedule
from peakgemm.kernels.ffma.wide import WIDE
from peakgemm.kernels.registry import Kernel
from peakgemm.problem import Batch, Config, Problem
from peakgemm.selection.choose import choose
from peakgemm.tools.simulator.library import run_library

SLICED = SpecialisedConfig(32, 32, 8, 4, 4, stages=8, raster=4, producers=128, slices=4, copy_groups=4, one_tile=True)


def normal(m: int, n: int, k: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(k)
    return rng.standard_normal((m, k)).astype("f4"), rng.standard_normal((k, n)).astype("f4")


def simulated(kernel: Kernel, config: Config, a: Any, b: Any, sms: int = 4) -> Any:
    problem = Problem.contiguous(len(a), b.shape[1], len(b))
    c = np.full((problem.m, problem.n), np.nan, "f4")
    reports = run_library(kernel, config, problem, a, b, c, sm_count=sms)
    assert all(report.clean for report in reports), "\n".join(map(str, reports))
    return c


def in_order(a: Any, b: Any, steps: int, pairs: bool = False) -> Any:
    """Chains of so many k-steps, added up one after the other, or the sums of two by two."""
    sums = [np.zeros((len(a), b.shape[1]), "f4") for _ in range(0, len(b), steps)]
    for start, into in zip(range(0, len(b), steps), sums, strict=True):
        replay.multiply(a[:, start:start + steps], b[start:start + steps], None, 1.0, 0.0, into)
    if pairs:
        sums = [x + y for x, y in zip(sums[::2], sums[1::2], strict=True)]
    return sum(sums[1:], start=sums[0])


@pytest.mark.parametrize("split", [2, 9, 18])
@pytest.mark.parametrize("size", [20, 130])
def test_ranges_of_k(split: int, size: int) -> None:
    """By single words where there are few results, else by quads."""
    (a, b), config, sms = normal(size, 40, 8 * split), replace(TILE, split=split), 40 if size > 100 else 132
    plan = schedule(config, Problem.contiguous(size, 40, 8 * split), sms)
    assert (plan.reduce_blocks == plan.shared * config.tm * config.tn) == (size < 100)
    assert simulated(SPECIALISED, config, a, b, sms).tobytes() == in_order(a, b, TILE.bk).tobytes()


@pytest.mark.parametrize("bk", [16, 32])
def test_chunks(bk: int) -> None:
    a, b = normal(32, 32, 64)
    config = SpecialisedConfig(32, 32, bk, 4, 8, stages=2, raster=4, producers=32, chunked=True)
    assert simulated(SPECIALISED, config, a, b).tobytes() == in_order(a, b, bk).tobytes()


@pytest.mark.parametrize(("k", "pairs"), [(12, False), (16, True), (20, False), (30, True), (100, False), (104, True)])
def test_the_smallest_tiles_add_sums_of_four_two_by_two(k: int, pairs: bool) -> None:
    """Where they are an even number, more than three: else one after the other."""
    a, b = normal(8, 8, k)
    tile = next(replace(c, min_blocks=1) for c in small.tiles(k) if c.tm * c.tn == 4)
    np.testing.assert_array_equal(simulated(SMALL, tile, a, b), in_order(a, b, 4, pairs))


@pytest.mark.parametrize("blocks", [2, 16])
def test_what_blocks_of_a_cluster_give_each_other(blocks: int) -> None:
    """The bits of each block's range by a block alone, one after the other."""
    m, n, each = 20, 40, 4 * SLICED.bk
    a, b = normal(m, n, each * blocks)
    alone = np.full((blocks, m, n), np.nan, "f4")
    parts = Problem(m, n, each, each * blocks, n, n, batch=Batch((blocks,), (each,), (each * n,), (m * n,), (m * n,)))
    run_library(SPECIALISED, SLICED, parts, a, b, alone, sm_count=132)
    got = simulated(SPECIALISED, replace(SLICED, cluster=blocks), a, b)
    assert got.tobytes() == sum(alone[1:], start=alone[0]).tobytes()


def test_what_is_no_chain_is_not_one() -> None:
    """The predicate excludes nothing for nothing: slices, chunks, shared K and zeros at the end give other bits."""
    a, b = normal(32, 32, 128)
    config = SpecialisedConfig(32, 32, 16, 4, 4, stages=4, raster=4, producers=64)
    chain, problem = in_order(a, b, 128), Problem.contiguous(32, 32, 128)
    for changes in ({}, {"chunked": True}, {"slices": 2}, {"split": 2}):
        other = replace(config, **changes)
        assert (not changes) == SPECIALISED.is_ascending(other, problem) == (
            simulated(SPECIALISED, other, a, b).tobytes() == chain.tobytes())
    assert not WIDE.is_ascending(replace(WIDE.default, split=0), problem)
    assert not WIDE.is_ascending(WIDE.default, Problem.contiguous(32, 32, 12))
    tile = small.SmallConfig(32, 32, 16, 4, 4, slices=1)
    assert not SMALL.is_ascending(tile, Problem.contiguous(32, 32, 14))
    with pytest.raises(AssertionError, match="other bits"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(SMALL), "is_ascending", lambda *_: True)
        multiply(Case(32, 32, 14, beta=0.0, values="tiny", kernel=SMALL, config=tile))


def test_a_row_alone_has_the_same_bits() -> None:
    a, b = normal(33, 35, 29)
    whole = in_order(a, b, 29)
    for row, column in ((0, 0), (32, 34), (7, 20)):
        alone = Problem(1, 1, 29, 29, 35, 1, alignment=(4, 4, 4))
        choice = choose(alone, "sm_90", 132, "NVIDIA H100 80GB HBM3", "reproducible")
        c = np.zeros((1, 1), np.float32)
        run_library(choice.kernel, choice.config, alone, a[row:], b[:, column:], c, checks=False)
        assert c.view("u4")[0, 0] == whole.view("u4")[row, column]
