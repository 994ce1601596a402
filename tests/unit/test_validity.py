"""The one predicate: what is valid is not refused, and what is not is refused with value and limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peakgemm.errors import InvalidValue
from peakgemm.kernels.ffma.chain import CHAIN
from peakgemm.kernels.ffma.skinny import SKINNY, SkinnyConfig
from peakgemm.kernels.ffma.small import SMALL, SmallConfig
from peakgemm.kernels.ffma.specialised import SPECIALISED, SpecialisedConfig
from peakgemm.kernels.ffma.wide import WIDE
from peakgemm.kernels.library import KERNELS
from peakgemm.kernels.registry import LADDER, Kernel, rung, rungs
from peakgemm.kernels.rung import RungConfig
from peakgemm.kernels.schedule import handing_on
from peakgemm.kernels.validity import choose, is_valid, require, violations
from peakgemm.problem import Batch, Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.tools.bench.sweep import published
from rung_code import build

HOPPER = architecture("sm_90")
TILE = RungConfig(128, 128, 8, 8, 8, stages=2, fragments=2)  # rung 11's
ALONE = SpecialisedConfig(32, 32, 8, 4, 8, stages=4, raster=4, producers=32, one_tile=True)
SLICED = SpecialisedConfig(32, 32, 8, 4, 4, stages=8, raster=4, producers=128, slices=4, copy_groups=4, one_tile=True)
HANDED = SpecialisedConfig(32, 32, 16, 4, 4, stages=4, raster=4, producers=64, split=0, handed=True)
VALID: dict[Any, Any] = {11: TILE, "one tile": ALONE, "sliced": SLICED, "handed": HANDED,
                         "small": SmallConfig(8, 8, 8, 2, 2, slices=8), "chain": CHAIN.default, "wide": WIDE.default,
                         "skinny": SkinnyConfig(32, 4, 128, 4, 4, slices=32)}
FAMILIES = {"one tile": SPECIALISED, "sliced": SPECIALISED, "handed": SPECIALISED, "small": SMALL, "chain": CHAIN,
            "wide": WIDE, "skinny": SKINNY}
# A rung's number or a name of `VALID`; what is changed of its configuration; the architecture; what the refusal says.
REFUSED: tuple[tuple[int | str, dict[str, Any], str, list[str]], ...] = (
    # The tile and its threads.
    (11, {"bm": 100}, "sm_90", ["BM = 100", "multiple of 8 (TM)"]),
    (11, {"bm": 256, "bn": 256, "tm": 4, "tn": 4}, "sm_90", ["4096 threads", "1024 at most"]),
    (11, {"bm": 8, "bn": 8}, "sm_90", ["1 threads", "multiple of 32"]),
    (11, {"tm": 2, "bm": 32}, "sm_90", ["TM = 2", "multiple of 4"]),
    (11, {"bk": 6}, "sm_90", ["BK = 6", "multiple of 4"]),
    (11, {"bk": 4, "bm": 64}, "sm_90", ["tile of A: 256 floats", "4 x 128 threads"]),
    (11, {"stages": 2, "fragments": 1}, "sm_90", ["stages = 2, fragments = 1", "(1, 1), or (2, 2)"]),
    (0, {"tm": 2}, "sm_90", ["TM = 2 must be 1"]), (2, {"passes": 2}, "sm_90", ["passes = 2", "(4, 1)"]),
    (2, {"tn": 2, "bn": 32}, "sm_90", ["TN = 2", "multiple of 4 (float4 columns)"]),
    (3, {"bk": 16}, "sm_90", ["BK = 16 must be 32"]),
    (6, {"tm": 2, "bm": 32}, "sm_90", ["thread tile 2x4", "1x4, 4x4 or 8x8"]),
    (12, {"bm": 32}, "sm_90", ["BM = 32", "multiple of 64 (8 lanes of TM rows)"]),
    (13, {"bk": 12}, "sm_90", ["BK = 12", "multiple of 8"]), (13, {"stages": 1}, "sm_90", ["stages = 1", "at least 2"]),
    (14, {"bm": 64, "bn": 384}, "sm_90", ["BM = 64 must be a multiple of 24", "192 threads", "BN = 384"]),
    (10, {"stages": 1}, "sm_90", ["stages = 1", "fixed at 2"]),
    # What an SM has.
    (11, {"bk": 64}, "sm_75", ["131072 bytes asked", "65536 there"]),
    (14, {"stages": 10}, "sm_90", ["248320 bytes asked", "232448 there"]),
    (11, {"tm": 16, "tn": 16, "bm": 256, "bn": 256}, "sm_90", ["320 a thread (1280 bytes)", "255 (1020 bytes)"]),
    (11, {"bm": 256, "bn": 256, "bk": 16}, "sm_90", ["393216 bytes asked", "1024 threads", "262144 there"]),
    (11, {"min_blocks": 3}, "sm_90", ["294912 bytes asked by 3 block(s)", "262144 there"]),
    (13, {}, "sm_75", ["cp.async needs sm_80 or later, not sm_75"]),
    (15, {}, "sm_80", ["setmaxnreg needs sm_90, not sm_80"]),
    (15, {"tm": 4}, "sm_90", ["512 threads must be 256"]), (15, {"bk": 64}, "sm_90", ["BK = 64 must be 8, 16 or 32"]),
    (15, {"bn": 512, "bm": 64}, "sm_90", ["BN = 512 must be at most 256"]),
    (15, {"bm": 256, "bn": 192, "tm": 16, "tn": 12}, "sm_90", ["248 for accumulators", "232 dealt"]),
    (15, {"stages": 7}, "sm_90", ["236712 bytes asked", "232448 there"]),
    (15, {"stages": 1}, "sm_90", ["stages = 1", "at least 2"]), (17, {}, "sm_80", ["wgmma needs sm_90, not sm_80"]),
    (17, {"bk": 32}, "sm_90", ["BK = 32 must be 64"]),
    (17, {"stages": 4}, "sm_90", ["266304 bytes asked", "232448 there"]),
    # Blocks with one tile, clusters, what is handed on.
    ("one tile", {"split": 0}, "sm_90", ["split = 0 must be 1"]),
    ("one tile", {"copy_groups": 2}, "sm_90", ["copy_groups = 2 of 32 copying threads and 4 stages"]),
    ("one tile", {"producers": 256, "copy_groups": 8}, "sm_90", ["copy_groups = 8 of 256 copying threads"]),
    ("one tile", {"copy_groups": 3}, "sm_90", ["copy_groups = 3"]),
    ("one tile", {"cluster": 4}, "sm_90", ["that all its threads store"]),
    ("one tile", {"cluster": 4, "one_tile": False}, "sm_90", ["cluster = 4 must be 1, or 2, 4, 8 or 16"]),
    ("sliced", {"cluster": 3}, "sm_90", ["cluster = 3 must be 1, or 2, 4, 8 or 16"]),
    ("sliced", {"cluster": 4, "split": 2}, "sm_90", ["split = 2 must be 1: a cluster has one tile"]),
    ("sliced", {"cluster": 4}, "sm_80", ["on sm_90 alone, not sm_80"]),
    *(("handed", wrong, "sm_90", ["handed: ", "must be 0, 1, 1, False and False"])
      for wrong in ({"split": 1}, {"split": 2}, {"slices": 2}, {"chunked": True})),
    # Small, thin and skinny products; wide thread tiles.
    ("small", {"bk": 12}, "sm_90", ["BK = 12 must be one of 8, 16, 32, 64"]),
    ("small", {"stages": 2}, "sm_90", ["stages = 2 must divide BK = 8"]),
    ("small", {"stages": 0}, "sm_90", ["stages = 0 must divide BK = 8"]),
    ("small", {"bm": 6, "tm": 2}, "sm_90", ["BM = 6 must be a power of two, 4 at least"]),
    ("small", {"bm": 24, "tm": 4}, "sm_90", ["BM = 24"]),
    ("small", {"bm": 12, "tm": 3}, "sm_90", ["TM = 3 must be a power of two"]),
    ("small", {"slices": 128}, "sm_90", ["2048 threads"]),
    ("small", {"bk": 64, "bm": 512, "tm": 8, "slices": 2}, "sm_90", ["shared memory"]),
    ("small", {"bm": 32, "tm": 8, "tn": 4, "chunked": True}, "sm_90", ["chunked with 32 results a thread: 16 at most"]),
    ("skinny", {"tm": 8}, "sm_90", ["TM = 8"]), ("skinny", {"bn": 3, "tn": 3}, "sm_90", ["BN = 3"]),
    ("skinny", {"bm": 48}, "sm_90", ["powers of two"]), ("skinny", {"slices": 4}, "sm_90", ["64 to 1024"]),
    ("skinny", {"slices": 512}, "sm_90", ["slices = 4096 threads must be a multiple of 32, 1024 at most"]),
    ("skinny", {"bm": 4, "slices": 16}, "sm_90", ["slices = 16 threads must be a multiple of 32"]),
    ("skinny", {"bm": 256, "slices": 4, "bk": 16}, "sm_90", ["slices = 4"]),
    ("skinny", {"bk": 384}, "sm_90", ["BK = 384"]), ("skinny", {"bk": 2048}, "sm_90", ["1024 at most"]),
    ("skinny", {"split": 0}, "sm_90", ["split = 0"]),
    ("chain", {"bn": 64}, "sm_90", ["a lane has a row"]), ("chain", {"tn": 4}, "sm_90", ["a lane has a row"]),
    ("chain", {"bm": 24, "tm": 6}, "sm_90", ["power of two"]), ("chain", {"bm": 64, "tm": 8}, "sm_90", ["32 at most"]),
    ("chain", {"bm": 32, "tm": 16}, "sm_90", ["TM = 16"]), ("chain", {"bk": 16}, "sm_90", ["BK = 16"]),
    ("chain", {"producers": 48}, "sm_90", ["whole warps"]), ("chain", {"stages": 2}, "sm_90", ["a stage of 2"]),
    ("chain", {"stages": 24}, "sm_90", ["shared memory"]), ("chain", {}, "sm_75", ["cp.async"]),
    ("wide", {}, "sm_100", ["setmaxnreg needs sm_90"]), ("wide", {"bn": 512}, "sm_90", ["512 threads must be 256"]),
    ("wide", {"bm": 128, "bn": 128, "tm": 8, "tn": 8}, "sm_90", ["thread tile"]),
    ("wide", {"stages": 1}, "sm_90", ["stages = 1 must be at least 2"]),
    ("wide", {"bk": 32}, "sm_90", ["BK = 32 must be 8 or 16"]),
)


@pytest.mark.parametrize(("name", "changes", "arch", "says"), REFUSED)
def test_refused(name: int | str, changes: dict[str, Any], arch: str, says: list[str]) -> None:
    kernel = FAMILIES[name] if isinstance(name, str) else rung(name)
    valid = VALID.get(name, kernel.default)
    assert violations(kernel, valid, HOPPER) == []
    config = replace(valid, **changes)
    with pytest.raises(InvalidValue) as error:
        require(kernel, config, architecture(arch))
    assert str(error.value).startswith(f"{kernel.title} cannot use the tile {config.label()} on {arch}: ")
    assert all(text in str(error.value) for text in says), error.value
    assert not is_valid(kernel, config, architecture(arch))


SQUARE = Problem.contiguous(512, 512, 512)
MANY = Problem(2**27, 8, 8, 8, 8, 8, batch=Batch((2**8,), (2**30,), (0,), (2**30,), (2**30,)))


@pytest.mark.parametrize(("name", "problem", "says"), [
    ("wide", replace(SQUARE, batch=Batch((2,), (1 << 18,), (0,), (1 << 18,), (1 << 18,))), "a batch of 2"),
    ("wide", replace(SQUARE, alpha=0.0), "alpha = 0"), ("wide", replace(SQUARE, k=0), "K = 0"),
    ("wide", replace(SQUARE, trans_a=True, lda=1 << 40), "lda = 1099511627776 elements"),
    ("wide", replace(SQUARE, ldb=1 << 40), "ldb = 1099511627776 elements"),
    ("wide", replace(SQUARE, m=1 << 23, k=1 << 20, lda=1 << 20), "4294967296 units of 32 x 64 to repack"),
    ("small", MANY, "4294967296 tiles, the limit is 2147483639; use a larger tile"),
    ("small", Problem(1, 9, 4, 4, 9, 9, batch=Batch((2**30 + 1,), (0,), (0,), (9,), (9,))), "tiles, the limit is"),
    ("chain", Problem.contiguous(35, 40, 40), "the smaller side is 35, BM = "),
    ("chain", replace(Problem.contiguous(1, 2**31 - 1024, 1), batch=Batch((64,), *((0,),) * 4)), "the limit is"),
    ("skinny", Problem.contiguous(5, 100, 8), "BN = 4"),
    ("skinny", replace(Problem.contiguous(1, 100, 8), batch=Batch((2**31 - 1,), (0,), (0,), (100,), (100,))),
     "split the product"),
    ("one tile", replace(MANY, batch=Batch((2**10,), (0,), (0,), (0,), (0,))),
     "the limit is 2147483647; use a larger tile or split the product")])
def test_problems_refused(name: str, problem: Problem, says: str) -> None:
    kernel = FAMILIES[name]
    assert not violations(kernel, VALID[name], HOPPER, Problem.contiguous(4, 512, 512))
    with pytest.raises(InvalidValue) as error:
        require(kernel, VALID[name], HOPPER, problem)
        kernel.launches(VALID[name], problem, "sm_90", 132)
    assert says in str(error.value)


def test_what_hands_on() -> None:
    assert handing_on(replace(HANDED, split=1, handed=False)) == HANDED
    assert [kernel for kernel in KERNELS if kernel.varies("handed")] == [SPECIALISED, WIDE]


@pytest.mark.parametrize("kernel", LADDER, ids=lambda kernel: kernel.name)
def test_rungs_are_valid_and_aligned_for_multiples_of_the_tile(kernel: Kernel) -> None:
    arch = HOPPER if kernel.sm_90a else architecture("sm_80")
    configs = (kernel.default, *kernel.named.values(), *(published() if kernel.number == 11 else ()))
    for config in (replace(config, aligned=aligned) for config in configs for aligned in (True, False)):
        assert violations(kernel, config, arch) == []
    config = kernel.config_for("sm_90")
    problem = Problem.contiguous(2 * config.bm, 3 * config.bn, 5 * config.bk)
    assert choose(kernel, config, HOPPER, problem) == replace(config, aligned=True)


ALIGNED = Problem.contiguous(256, 384, 512)


@pytest.mark.parametrize(("number", "changes", "aligned"), [
    (11, {}, True), *((11, changes, False) for changes in (
        {"m": 255}, {"n": 383}, {"k": 511}, {"lda": 513}, {"ldb": 386}, {"ldc": 385}, {"alignment": (4, 16, 16)},
        {"alignment": (16, 8, 16)}, {"alignment": (16, 16, 4)})),
    # Of tensor maps the address of C does not matter, nor do sizes; elements and a pitch below 2**40 bytes.
    *((15, changes, True) for changes in ({}, {"m": 1, "n": 5, "k": 7}, {"ldc": 385}, {"alignment": (16, 16, 4)},
                                          {"ldb": 2**38 - 4})),
    *((15, changes, False) for changes in ({"lda": 514}, {"ldb": 385}, {"alignment": (8, 16, 16)}, {"k": 0},
                                           {"ldb": 2**38}))])
def test_guarded_otherwise(number: int, changes: dict[str, Any], aligned: bool) -> None:
    config = TILE if number == 11 else rung(number).default
    assert choose(rung(number), config, HOPPER, replace(ALIGNED, **changes)) == replace(config, aligned=aligned)


def test_everybody_asks_the_predicate() -> None:
    with pytest.raises(InvalidValue) as error:
        require(rung(11), replace(TILE, aligned=True), HOPPER, replace(ALIGNED, m=255, ldb=385))
    assert "M = 255 is not a multiple of the tile's 128" in str(error.value)
    assert "ldb = 385 elements, address aligned to 16 bytes: float4 wants 4 and 16" in str(error.value)
    for refuses in (lambda config: choose(rung(11), config, HOPPER, ALIGNED),
                    lambda config: build(rung(11), config, "sm_90")):
        with pytest.raises(InvalidValue, match="BM = 100 must be a multiple of 8"):
            refuses(replace(TILE, bm=100))


@pytest.mark.parametrize(("text", "numbers"), [
    ("00-14", list(range(15))), ("3", [3]), ("03,07-09", [3, 7, 8, 9]), ("warp_tile", [12]), ("cp-async, 1", [1, 13]),
    ("13-16", [13, 14, 15, 16]), ("tensor-cores", [17]), ("9,9,8-9", [8, 9])])
def test_rungs_by_word(text: str, numbers: list[int]) -> None:
    assert [k.number for k in rungs(text)] == numbers


@pytest.mark.parametrize("text", ["99", "-1", "", "3-", "00-99", "nosuch", "1;2", "²", "3.0", "7-3"])
def test_unknown_rungs_list_those_there_are(text: str) -> None:
    says = "write 03-07" if text == "7-3" else r"unknown rung .*; valid ones: 00 naive, .* 14 large_tile"
    with pytest.raises(InvalidValue, match=says):
        rungs(text)
