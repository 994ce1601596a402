"""Accumulators handed on: who computes what and when, bits, and what another block sees."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peakgemm.calls.replay import multiply
from peakgemm.errors import InvalidValue
from peakgemm.kernels.ffma.specialised import SPECIALISED, SpecialisedConfig
from peakgemm.kernels.ffma.tiled import hands_on, schedule
from peakgemm.kernels.ffma.wide import WIDE
from peakgemm.kernels.library import KERNELS
from peakgemm.kernels.registry import Kernel
from peakgemm.kernels.schedule import handing_on
from peakgemm.kernels.validity import require
from peakgemm.problem import Batch, Config, Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.tools.simulator import Report, run
from peakgemm.tools.simulator.library import run_library

pytestmark = pytest.mark.usefixtures("many_lanes")

SEGMENTS = Path(__file__).parents[1] / "support" / "segments.cu"
TILE = SpecialisedConfig(32, 32, 16, 4, 4, stages=4, raster=4, producers=64, split=0, handed=True)
WIDE_TILE = replace(WIDE.default, bm=128, bn=256, tm=8, tn=16, stages=4, split=0, handed=True)


def dealt(problem: Problem, sms: int, config: Config = TILE) -> list[list[tuple[int, ...]]]:
    """(tile, begin, end, slot) of each block, in its order, by the kernels' own code."""
    plan = schedule(config, problem, sms)
    most = 4 + (plan.whole + plan.shared) // plan.blocks
    out = np.full((-(-plan.blocks // 32) * 32, most, 4), -3, np.int32)
    report = run(SEGMENTS, entry="segments", grid=len(out) // 32, block=32,
                 args=[out, most, plan.blocks, plan.arguments], macros=config.macros() | {"HANDED": 1}, checks=False)
    assert report.clean
    found = []
    for row in out[:plan.blocks].tolist():
        end = next(i for i, segment in enumerate(row) if segment[0] == -2)
        found.append([tuple(segment) for segment in row[:end]])
    return found


def drawn(count: int) -> list[tuple[int, int, int, int, int]]:
    """Products of more tiles than SMs, by no whole number: M, N, K, SMs, batch."""
    rng = np.random.default_rng(0)
    found = [(96, 80, 100, 4, 1), (160, 80, 37, 4, 1), (32, 32, 1030, 7, 11), (1536, 1536, 64, 264, 1)]
    while len(found) < count:
        m, n = (int(x) for x in rng.integers(1, 600, 2))
        k, sms, batch = (int(2 ** rng.uniform(*bounds)) for bounds in ((4.1, 11), (0, 8.3), (0, 3)))
        if hands_on(TILE, -(-m // 32) * -(-n // 32) * batch, -(-k // 16), sms):
            found.append((m, n, k, sms, batch))
    return found


@pytest.mark.parametrize(("m", "n", "k", "sms", "batch"), drawn(100))
def test_every_k_step_once_in_its_order(m: int, n: int, k: int, sms: int, batch: int) -> None:
    """Each tile's k-steps by one block, or by two, of which the second goes on where the first ended; what is waited
    for is a block's first segment, so that no block that waits is waited for, and it was done before."""
    of_all = Batch((batch,), (m * k,), (k * n,), (m * n,), (m * n,)) if batch > 1 else Batch()
    problem = Problem(m, n, k, k, n, n, batch=of_all)
    plan = schedule(TILE, problem, sms)
    tiles, steps = -(-m // 32) * -(-n // 32) * batch, -(-k // 16)
    assert plan.parts == plan.blocks == sms and plan.reduce_blocks == 0
    blocks = dealt(problem, sms)
    whole, heads, tails = set(), {}, {}
    for block, segments in enumerate(blocks):
        at = 0  # k-steps that the block has done, at the beginning of a segment
        for number, (tile, begin, end, slot) in enumerate(segments):
            assert 0 <= begin < end <= steps and 0 <= tile < tiles
            if begin == 0 and end == steps:
                assert slot == -1 and tile not in whole
                whole.add(tile)
            elif begin == 0:
                assert number == 0 and slot == block and tile not in heads
                heads[tile] = block, end
            else:
                assert number == len(segments) - 1 and slot == -1 and end == steps and tile not in tails
                tails[tile] = block, begin, at
            at += end - begin
        assert abs(at - tiles * steps / sms) <= 1  # an even share
    assert len(whole) + len(heads) == tiles and not whole & set(heads) and set(heads) == set(tails)
    for tile, (block, begin, at) in tails.items():
        source, end = heads[tile]
        assert source == block - 1 and end == begin  # from the block before, which was launched before
        assert at >= end - 1  # which has done as many k-steps by then as this block, one less where shares differ


def test_where_nothing_is_handed_on() -> None:
    """Fewer tiles than blocks, or as many as whole waves: whole tiles, without a kernel before or a workspace."""
    for m, sms in ((64, 4), (128, 4), (32, 3)):
        plan = schedule(TILE, Problem.contiguous(m, 64, 64), sms)
        assert (plan.parts, plan.repack, plan.workspace_bytes) == (0, None, 0)
        assert sorted(x for block in dealt(Problem.contiguous(m, 64, 64), sms) for x in block) == [
            (tile, 0, 4, -1) for tile in range(plan.whole)]


def product(kernel: Kernel, config: Config, m: int, n: int, k: int, sms: int, layout: str, beta: float = 0.0,
            batch: int = 1, odd: int = 0, checks: bool = True) -> list[Report]:
    """Simulate; the bits are those of the chains."""
    rng = np.random.default_rng(m + n + k)
    ta, tb = (letter == "T" for letter in layout)
    a, b = (rng.standard_normal((batch, *shape), np.float32) * np.float32(2.0**-70 if odd else 1)
            for shape in ((m, k), (k, n)))
    stored = []
    for x, turned in ((a, ta), (b, tb)):
        memory = np.full((batch, x.shape[2 if turned else 1], x.shape[1 if turned else 2] + odd), np.nan, np.float32)
        memory[:, :, :memory.shape[2] - odd] = x.swapaxes(1, 2) if turned else x
        stored.append(memory)
    c = rng.standard_normal((batch, m, n), np.float32)
    strides = [(x[0].size,) for x in (*stored, c, c)]
    of_all = Batch((batch,), *strides) if batch > 1 else Batch()
    problem = Problem(m, n, k, stored[0].shape[2], stored[1].shape[2], n, 1.25, beta,
                      (4, 4, 16) if odd else (16, 16, 16), ta, tb, batch=of_all)
    assert kernel.is_ascending(config, problem)
    plan = kernel.family.schedule(config, problem, sms)
    assert plan.parts == sms * config.min_blocks and plan.reduce_blocks == 0 and plan.repack.first_blocks
    want = np.empty_like(c)
    for one in range(batch):
        multiply(a[one], b[one], c[one], 1.25, beta, want[one])
    reports = run_library(kernel, config, problem, *stored, c, sm_count=sms, checks=checks)
    assert (c.view(np.uint32) == want.view(np.uint32)).all()
    return reports


@pytest.mark.parametrize(("m", "n", "k", "sms", "layout", "beta", "batch", "odd", "blocks"), [
    (96, 80, 100, 4, "NN", 0.0, 1, 0, 1), (90, 75, 37, 8, "TT", -0.5, 1, 1, 1), (160, 80, 33, 4, "NT", -0.5, 1, 0, 1),
    (96, 64, 48, 2, "TN", 0.0, 1, 1, 2), (40, 64, 64, 5, "NN", -0.5, 3, 0, 1),
    (64, 256, 64, 5, "NN", 0.0, 1, 0, 3),
])
def test_specialised_is_one_chain(m: int, n: int, k: int, sms: int, layout: str, beta: float, batch: int, odd: int,
                                  blocks: int) -> None:
    """And no race: what a block left is ordered before another reads it by fence and flag alone."""
    for report in product(SPECIALISED, replace(TILE, min_blocks=blocks), m, n, k, sms, layout, beta, batch, odd):
        assert report.clean, report


@pytest.mark.parametrize(("layout", "odd"), [("TN", 0), ("NT", 1)])
def test_wide_is_one_chain(layout: str, odd: int) -> None:
    """Of operands as they are, and repacked ones, whose counters are beside the flags."""
    for report in product(WIDE, WIDE_TILE, 384, 300, 64, 4, layout, -0.5, 1, odd):
        assert report.clean, report


def test_a_tail_waits_for_all_warps_of_the_head() -> None:
    count, warps = TILE.bm * TILE.bn, TILE.threads // 32
    for there in (warps, warps - 1):
        out, sums, flags = np.zeros(count, np.float32), np.zeros(count, np.float32), np.zeros(4, np.uint32)
        report = run(SEGMENTS, entry="late", grid=2, block=TILE.threads, args=[out, sums, flags, 200, there],
                     macros=TILE.macros() | {"HANDED": 1}, max_steps=20_000)
        assert flags[0] == there and report.clean is (there == warps), report
        assert (out == (2 + np.arange(count) if there == warps else 0)).all()


def test_flags_of_old_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace full of flags that say that all is there."""
    from peakgemm.tools.simulator import library

    there = TILE.threads // 32

    class Stale:
        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

        @staticmethod
        def full(count: int, value: int, kind: Any) -> Any:
            return np.full(count, there, kind)

    monkeypatch.setattr(library, "np", Stale())
    product(SPECIALISED, TILE, 96, 80, 100, 4, "NN")


@pytest.mark.parametrize(("old", "new"), [
    ("ld.acquire.gpu.global.u32", "ld.relaxed.gpu.global.u32"),
    ('  __threadfence();\n  __syncwarp();\n  if (threadIdx.x % 32 == 0) asm volatile("red.release.gpu',
     '  __syncwarp();\n  if (threadIdx.x % 32 == 0) asm volatile("red.relaxed.gpu'),
], ids=["acquire", "release"])
def test_what_the_flags_forget_is_found(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = SPECIALISED.source
    assert text.count(old) == 1
    monkeypatch.setitem(SPECIALISED.__dict__, "source", text.replace(old, new))
    _, report = product(SPECIALISED, TILE, 96, 80, 100, 4, "NN")
    assert any(x.kind == "global_race" and "handed.cuh" in f"{x.file} {x.message}" for x in report.faults)


def test_what_cannot_hand_on() -> None:
    arch = architecture("sm_90")
    require(SPECIALISED, TILE, arch)
    assert handing_on(replace(TILE, split=1, handed=False)) == TILE
    for wrong in ({"split": 1}, {"split": 2}, {"slices": 2}, {"chunked": True}):
        with pytest.raises(InvalidValue, match=r"handed: .* must be 0, 1, 1, False and False"):
            require(SPECIALISED, replace(TILE, **wrong), arch)
    assert [kernel for kernel in KERNELS if kernel.varies("handed")] == [SPECIALISED, WIDE]
