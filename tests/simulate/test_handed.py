"""Accumulators handed on: who computes what and when, bits, and what another block sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from family_cases import HANDED
from family_cases import HANDING as TILE
from library_case import multiply
from peakgemm.kernels.ffma.tiled import hands_on, schedule
from peakgemm.problem import Batch, Problem
from peakgemm.tools.simulator import library, run
from seldom import exhaustive

pytestmark = pytest.mark.usefixtures("many_lanes")

SEGMENTS = Path(__file__).parents[1] / "support" / "segments.cu"


def segments(problem: Problem, sms: int) -> list[list[tuple[int, ...]]]:
    """(tile, begin, end, slot) of each block, in its order, by the kernels' own code."""
    plan = schedule(TILE, problem, sms)
    most = 4 + (plan.whole + plan.shared) // plan.blocks
    out = np.full((-(-plan.blocks // 32) * 32, most, 4), -3, np.int32)
    assert run(SEGMENTS, entry="segments", grid=len(out) // 32, block=32, checks=False,
               args=[out, most, plan.blocks, plan.arguments], macros=TILE.macros() | {"HANDED": 1}).clean
    rows = out[:plan.blocks].tolist()
    return [[tuple(each) for each in row[:[segment[0] for segment in row].index(-2)]] for row in rows]


def shapes(count: int) -> list[tuple[int, int, int, int, int]]:
    """Products of more tiles than SMs, by no whole number: M, N, K, SMs, batch."""
    rng = np.random.default_rng(0)
    rows = [(96, 80, 100, 4, 1), (160, 80, 37, 4, 1), (32, 32, 1030, 7, 11), (1536, 1536, 64, 264, 1)]
    while len(rows) < count:
        m, n = (int(x) for x in rng.integers(1, 600, 2))
        k, sms, batch = (int(2 ** rng.uniform(*bounds)) for bounds in ((4.1, 11), (0, 8.3), (0, 3)))
        if hands_on(TILE, -(-m // 32) * -(-n // 32) * batch, -(-k // 16), sms):
            rows.append((m, n, k, sms, batch))
    return rows


@pytest.mark.parametrize(("m", "n", "k", "sms", "batch"), [
    shape if i < 16 else exhaustive(*shape) for i, shape in enumerate(shapes(100))])
def test_every_k_step_once_in_its_order(m: int, n: int, k: int, sms: int, batch: int) -> None:
    """Each tile's k-steps by one block, or by two, of which the second goes on where the first ended; what is waited
    for is a block's first segment, so that no block that waits is waited for, and it was done before."""
    of_all = Batch((batch,), (m * k,), (k * n,), (m * n,), (m * n,)) if batch > 1 else Batch()
    problem = Problem(m, n, k, k, n, n, batch=of_all)
    plan = schedule(TILE, problem, sms)
    tiles, steps = -(-m // 32) * -(-n // 32) * batch, -(-k // 16)
    assert plan.parts == plan.blocks == sms and plan.reduce_blocks == 0
    whole, heads, tails = set(), {}, {}
    for block, row in enumerate(segments(problem, sms)):
        done = 0  # k-steps of the block, at the beginning of a segment
        for number, (tile, begin, end, slot) in enumerate(row):
            assert 0 <= begin < end <= steps and 0 <= tile < tiles
            if begin == 0 and end == steps:
                assert slot == -1 and tile not in whole
                whole.add(tile)
            elif begin == 0:
                assert number == 0 and slot == block and tile not in heads
                heads[tile] = block, end
            else:
                assert number == len(row) - 1 and slot == -1 and end == steps and tile not in tails
                tails[tile] = block, begin, done
            done += end - begin
        assert abs(done - tiles * steps / sms) <= 1  # an even share
    assert len(whole) + len(heads) == tiles and not whole & set(heads) and set(heads) == set(tails)
    for tile, (block, begin, done) in tails.items():
        source, end = heads[tile]
        assert source == block - 1 and end == begin  # from the block before, which was launched before
        assert done >= end - 1  # which has done as many k-steps by then as this block, one less where shares differ


@pytest.mark.parametrize(("m", "sms"), [(64, 4), (128, 4), (32, 3)])
def test_where_nothing_is_handed_on(m: int, sms: int) -> None:
    """Fewer tiles than blocks, or as many as whole waves: whole tiles, without a kernel before or a workspace."""
    plan = schedule(TILE, Problem.contiguous(m, 64, 64), sms)
    assert (plan.parts, plan.repack, plan.workspace_bytes) == (0, None, 0)
    assert sorted(x for block in segments(Problem.contiguous(m, 64, 64), sms) for x in block) == [
        (tile, 0, 4, -1) for tile in range(plan.whole)]


def test_flags_of_old_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace full of flags that say that all warps have stored."""
    class Stale:
        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

        @staticmethod
        def full(count: int, value: int, kind: Any) -> Any:
            return np.full(count, TILE.threads // 32, kind)

    monkeypatch.setattr(library, "np", Stale())
    multiply(HANDED[0])


def test_a_tail_waits_for_all_warps_of_the_head() -> None:
    count, warps = TILE.bm * TILE.bn, TILE.threads // 32
    for arrived in (warps, warps - 1):
        out, sums, flags = np.zeros(count, np.float32), np.zeros(count, np.float32), np.zeros(4, np.uint32)
        report = run(SEGMENTS, entry="late", grid=2, block=TILE.threads, args=[out, sums, flags, 200, arrived],
                     macros=TILE.macros() | {"HANDED": 1}, max_steps=20_000)
        assert flags[0] == arrived and report.clean is (arrived == warps), report
        assert (out == (2 + np.arange(count) if arrived == warps else 0)).all()
