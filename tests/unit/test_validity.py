"""The one predicate: what is valid compiles, and what is not is refused with value and limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peakgemm.errors import InvalidValue
from peakgemm.kernels.registry import LADDER, Kernel, rung, rungs
from peakgemm.kernels.rung import RungConfig
from peakgemm.kernels.validity import choose, is_valid, require, violations
from peakgemm.problem import Config, Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.tools.bench.sweep import published
from rung_code import build

HOPPER = architecture("sm_90")
TILE = RungConfig(128, 128, 8, 8, 8, stages=2, fragments=2)  # rung 11's


@pytest.mark.parametrize("config", published(), ids=Config.label)
def test_published_tiles_are_valid(config: Config) -> None:
    assert violations(rung(11), config, HOPPER) == []


@pytest.mark.parametrize("kernel", LADDER, ids=lambda k: k.name)
def test_defaults_are_valid(kernel: Kernel) -> None:
    arch = HOPPER if kernel.sm_90a else architecture("sm_80")
    for config in (kernel.default, *kernel.named.values()):
        for aligned in (True, False):
            assert violations(kernel, replace(config, aligned=aligned), arch) == []


def large(**changes: int) -> Config:
    return replace(rung(14).default, **changes)


@pytest.mark.parametrize(("number", "config", "arch", "says"), [
    # The tile and its threads.
    (11, replace(TILE, bm=100), "sm_90", ["BM = 100", "multiple of 8 (TM)"]),
    (11, replace(TILE, bm=256, bn=256, tm=4, tn=4), "sm_90", ["4096 threads", "1024 at most"]),
    (11, replace(TILE, bm=8, bn=8), "sm_90", ["1 threads", "multiple of 32"]),
    (11, replace(TILE, tm=2, bm=32), "sm_90", ["TM = 2", "multiple of 4"]),
    (11, replace(TILE, bk=6), "sm_90", ["BK = 6", "multiple of 4"]),
    (11, replace(TILE, bk=4, bm=64), "sm_90", ["tile of A: 256 floats", "4 x 128 threads"]),
    (11, replace(TILE, stages=2, fragments=1), "sm_90", ["stages = 2, fragments = 1", "(1, 1), or (2, 2)"]),
    (0, replace(rung(0).default, tm=2), "sm_90", ["TM = 2 must be 1"]),
    (2, replace(rung(2).default, passes=2), "sm_90", ["passes = 2", "(4, 1)"]),
    (2, replace(rung(2).default, tn=2, bn=32), "sm_90", ["TN = 2", "multiple of 4 (float4 columns)"]),
    (3, replace(rung(3).default, bk=16), "sm_90", ["BK = 16 must be 32"]),
    (6, replace(rung(6).default, tm=2, bm=32), "sm_90", ["thread tile 2x4", "1x4, 4x4 or 8x8"]),
    (12, replace(rung(12).default, bm=32), "sm_90", ["BM = 32", "multiple of 64 (8 lanes of TM rows)"]),
    (13, replace(rung(13).default, bk=12), "sm_90", ["BK = 12", "multiple of 8"]),
    (13, replace(rung(13).default, stages=1), "sm_90", ["stages = 1", "at least 2"]),
    (14, large(bm=64, bn=384), "sm_90", ["BM = 64 must be a multiple of 24", "192 threads", "BN = 384"]),
    # What a kernel has fixed.
    (10, replace(rung(10).default, stages=1), "sm_90", ["stages = 1", "fixed at 2"]),
    # What an SM has.
    (11, replace(TILE, bk=64), "sm_75", ["131072 bytes asked", "65536 there"]),
    (14, large(stages=10), "sm_90", ["248320 bytes asked", "232448 there"]),
    (11, replace(TILE, tm=16, tn=16, bm=256, bn=256), "sm_90", ["320 a thread (1280 bytes)", "255 (1020 bytes)"]),
    (11, replace(TILE, bm=256, bn=256, bk=16), "sm_90", ["393216 bytes asked", "1024 threads", "262144 there"]),
    (11, replace(TILE, min_blocks=3), "sm_90", ["294912 bytes asked by 3 block(s)", "262144 there"]),
    (13, rung(13).default, "sm_75", ["cp.async needs sm_80 or later, not sm_75"]),
    (15, rung(15).default, "sm_80", ["setmaxnreg needs sm_90, not sm_80"]),
    (15, replace(rung(15).default, tm=4), "sm_90", ["512 threads must be 256"]),
    (15, replace(rung(15).default, bk=64), "sm_90", ["BK = 64 must be 8, 16 or 32"]),
    (15, replace(rung(15).default, bn=512, bm=64), "sm_90", ["BN = 512 must be at most 256"]),
    (15, replace(rung(15).default, bm=256, bn=192, tm=16, tn=12), "sm_90", ["248 for accumulators", "232 dealt"]),
    (15, replace(rung(15).default, stages=7), "sm_90", ["236712 bytes asked", "232448 there"]),
    (15, replace(rung(15).default, stages=1), "sm_90", ["stages = 1", "at least 2"]),
    (18, rung(18).default, "sm_80", ["wgmma needs sm_90, not sm_80"]),
    (18, replace(rung(18).default, bk=32), "sm_90", ["BK = 32 must be 64"]),
    (18, replace(rung(18).default, stages=4), "sm_90", ["266304 bytes asked", "232448 there"]),
])
def test_refused(number: int, config: Config, arch: str, says: list[str]) -> None:
    kernel = rung(number)
    assert not is_valid(kernel, config, architecture(arch))
    with pytest.raises(InvalidValue) as error:
        require(kernel, config, architecture(arch))
    assert str(error.value).startswith(f"rung {kernel.label} cannot use the tile {config.label()} on {arch}: ")
    for text in says:
        assert text in str(error.value)


def test_build_asks_the_predicate() -> None:
    with pytest.raises(InvalidValue, match=r"BM = 100 must be a multiple of 8"):
        build(rung(11), replace(TILE, bm=100), "sm_90")


ALIGNED = Problem.contiguous(256, 384, 512)


@pytest.mark.parametrize("kernel", LADDER, ids=lambda k: k.name)
def test_aligned_for_multiples_of_the_tile(kernel: Kernel) -> None:
    config = kernel.config_for("sm_90")
    problem = Problem.contiguous(2 * config.bm, 3 * config.bn, 5 * config.bk)
    assert choose(kernel, config, HOPPER, problem) == replace(config, aligned=True)


@pytest.mark.parametrize("problem", [
    replace(ALIGNED, m=255), replace(ALIGNED, n=383), replace(ALIGNED, k=511),
    replace(ALIGNED, lda=513), replace(ALIGNED, ldb=386), replace(ALIGNED, ldc=385),
    replace(ALIGNED, alignment=(4, 16, 16)), replace(ALIGNED, alignment=(16, 8, 16)),
    replace(ALIGNED, alignment=(16, 16, 4)),
], ids=["odd M", "odd N", "odd K", "odd lda", "even ldb", "odd ldc", "A at 4", "B at 8", "C at 4"])
def test_guarded_otherwise(problem: Problem) -> None:
    assert choose(rung(11), TILE, HOPPER, ALIGNED).aligned
    assert choose(rung(11), TILE, HOPPER, problem) == TILE


@pytest.mark.parametrize(("changes", "mapped"), [
    ({}, True), ({"m": 1, "n": 5, "k": 7}, True), ({"ldc": 385}, True), ({"alignment": (16, 16, 4)}, True),
    ({"lda": 514}, False), ({"ldb": 385}, False), ({"alignment": (8, 16, 16)}, False), ({"k": 0}, False),
    ({"ldb": 2**38 - 4}, True), ({"ldb": 2**38}, False),
], ids=str)
def test_tensor_maps_need_aligned_rows_and_no_multiples(changes: dict[str, Any], mapped: bool) -> None:
    """The address of C does not matter, nor do sizes; a map has elements and a pitch below 2**40 bytes."""
    kernel = rung(15)
    assert choose(kernel, kernel.default, HOPPER, replace(ALIGNED, **changes)).aligned == mapped


def test_require_names_what_misaligns() -> None:
    with pytest.raises(InvalidValue) as error:
        require(rung(11), replace(TILE, aligned=True), HOPPER, replace(ALIGNED, m=255, ldb=385))
    assert "M = 255 is not a multiple of the tile's 128" in str(error.value)
    assert "ldb = 385 elements, address aligned to 16 bytes: float4 wants 4 and 16" in str(error.value)


def test_choose_refuses_what_neither_path_can_run() -> None:
    with pytest.raises(InvalidValue, match="BM = 100"):
        choose(rung(11), replace(TILE, bm=100), HOPPER, ALIGNED)


@pytest.mark.parametrize(("text", "numbers"), [
    ("00-14", list(range(15))), ("3", [3]), ("03,07-09", [3, 7, 8, 9]), ("warp_tile", [12]), ("cp-async, 1", [1, 13]),
    ("13-16", [13, 14, 15, 16]), ("tensor-cores", [18]), ("9,9,8-9", [8, 9]),
])
def test_rungs_by_word(text: str, numbers: list[int]) -> None:
    assert [k.number for k in rungs(text)] == numbers


@pytest.mark.parametrize("text", ["99", "-1", "", "3-", "00-99", "nosuch", "1;2", "²", "3.0"])
def test_unknown_rungs_list_those_there_are(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"unknown rung .*; valid ones: 00 naive, .* 14 large_tile"):
        rungs(text)


def test_rungs_that_run_backwards() -> None:
    with pytest.raises(InvalidValue, match="write 03-07"):
        rungs("7-3")
