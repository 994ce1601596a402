"""The library's kernel on the simulator: layouts, edges, scales, batches, ways to share K; results and faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import stand_in
from library_case import LAYOUTS, SMALL, Case, multiply
from peakgemm.errors import InvalidValue
from peakgemm.kernels import bound
from peakgemm.kernels.ffma import repack
from peakgemm.kernels.ffma.specialised import SPECIALISED, FfmaOrder, SpecialisedConfig
from peakgemm.kernels.ffma.tile_model import tilings
from peakgemm.kernels.ffma.tiled import cluster_split, schedule
from peakgemm.kernels.ffma.wide import WIDE
from peakgemm.kernels.library import KERNELS
from peakgemm.kernels.validity import violations
from peakgemm.problem import Batch, Config, Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.device import Gpu
from peakgemm.runtime.tensor_map import Box
from peakgemm.selection.choose import candidates, choose
from peakgemm.selection.machine import machine
from peakgemm.tools.simulator.library import run_library

pytestmark = pytest.mark.usefixtures("many_lanes")

LEVELS = (2, 3, 2)
CONFIGURATIONS = list(tilings(SPECIALISED, machine("sm_90", 132)))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_edges_in_any_layout(layout: str) -> None:
    multiply(Case(45, 39, 21, layout, pad=3, shift=1))
    multiply(Case(44, 36, 20, layout, pad=4, integers=True))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_whole_tiles_at_any_address(arch: str) -> None:
    multiply(Case(64, 32, 24, "TN", arch=arch))
    multiply(Case(64, 32, 24, "TN", shift=1, arch=arch))


@pytest.mark.parametrize(("k", "alpha", "beta", "poison"), [
    (1, 1.5, 0.5, ""), (1, 1.0, 0.0, "c"), (0, 1.5, 0.5, ""), (0, 1.5, 0.0, "c"), (21, 0.0, 0.5, "ab"),
    (21, 0.0, 0.0, "abc"), (21, -2.0, 0.0, "c"), (9, 1.0, 1.0, ""),
])
def test_scales_and_short_k(k: int, alpha: float, beta: float, poison: str) -> None:
    """With alpha = 0 or K = 0, A and B are not read; with beta = 0, C0 is not."""
    multiply(Case(33, 34, k, alpha=alpha, beta=beta, poison=poison))


@pytest.mark.parametrize("c0", ["mn", "n", "m", ""])
@pytest.mark.parametrize("split", [1, 3])
def test_a_matrix_row_column_or_number_is_added(c0: str, split: int) -> None:
    multiply(Case(37, 41, 24, c0=c0, pad=1, beta=-0.75, config=replace(SMALL, split=split)))
    multiply(Case(5, 6, 24, c0=c0, beta=0.0, poison="c", config=replace(SMALL, split=split)))


@pytest.mark.parametrize("layout", ["NN", "TT"])
@pytest.mark.parametrize(("batch", "still"), [
    ((3,), {}), ((3,), {"b": (0,)}), ((3,), {"a": (0,)}), (LEVELS, {"a": (1,), "b": (0, 2), "c0": (2,)}),
    (LEVELS, {"a": (0, 1, 2), "c0": (0, 1, 2)}),
])
def test_batches(layout: str, batch: tuple[int, ...], still: dict[str, tuple[int, ...]]) -> None:
    multiply(Case(12, 36, 8, layout, batch=batch, still=still, pad=2, c0="mn" if "c0" in still else None))


SHARED = [replace(SMALL, split=3), replace(SMALL, split=0), replace(SMALL, slices=2),
          replace(SMALL, slices=2, split=0), replace(SMALL, slices=2, split=3),
          # Slices that end tiles together.
          *(replace(SMALL, bm=64, tm=8, slices=2, split=split) for split in (0, 1, 3)),
          # Copying warps that take the tiles of K in turn, with more tiles of C than one for each block.
          *(replace(SMALL, producers=32 * groups, copy_groups=groups, slices=2, split=split)
            for groups, split in ((2, 1), (4, 0), (2, 3)))]


@pytest.mark.parametrize("config", SHARED, ids=Config.label)
def test_ways_to_share_k(config: Config) -> None:
    """Six tiles for four SMs; K that every range has a part of, and K of one step."""
    for k in (5, 60):
        multiply(Case(70, 40, k, integers=True, config=config, c0="n", alpha=2.0, beta=-1.0))


@pytest.mark.parametrize("config", [SMALL, *SHARED], ids=Config.label)
def test_the_same_bits_every_time(config: Config) -> None:
    results = [multiply(Case(20, 70, 40, config=config), seed=7)[0] for _ in range(2)]
    assert (results[0].view("u4") == results[1].view("u4")).all()


@pytest.mark.parametrize(("m", "n", "batch"), [(0, 5, ()), (5, 0, ()), (4, 4, (0,))])
def test_nothing_to_do(m: int, n: int, batch: tuple[int, ...]) -> None:
    _, (report,) = multiply(Case(m, n, 3, batch=batch))
    assert report.counters["warp_instructions"] == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_row_or_column(layout: str) -> None:
    for m, n in ((1, 1), (1, 35), (35, 1)):
        multiply(Case(m, n, 10, layout))


@pytest.mark.parametrize("config", CONFIGURATIONS,
                         ids=lambda config: config.label().replace(" ", "-"))
@pytest.mark.exhaustive
def test_each_configuration_of_the_model_past_its_edges(config: Config) -> None:
    # Inner and edge tiles, a remainder of K, each way of copying: word by word, by sixteen bytes, transposed. Large
    # tiles, which take five times as long, pass one edge at a time.
    large = config.bm * config.bn >= 64 * 128
    for layout, m, n, k, pad in (("NN", 3, config.bn + 4, 4, 0), ("NN", 3, config.bn + 5, 1, 3),
                                 ("TN", 4, config.bn + 4, 1, 0), ("NT", 3, 7, 4, 0)):
        down = 0 if large and n > config.bn else m
        multiply(Case(config.bm + down, n, config.bk + k, layout=layout, config=config, pad=pad))


# ---- wide thread tiles ----------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "launches"), [
    (Case(200, 270, 21, "NN"), 2),  # both repacked: A for its layout, B for its rows
    (Case(200, 260, 40, "TN"), 1),
    (Case(196, 3, 9, "TT", pad=3, shift=1, c0="n"), 2),
    (Case(385, 4, 9, "NN", pad=4, beta=0.0, alpha=1.0, c0=""), 2),
    (Case(4, 513, 8, "NT", c0="m", integers=True), 2),
    (Case(200, 36, 200, "NT", pad=4), 2),  # four chunks of K; rows that begin at 16 bytes
    (Case(40, 70, 130, "TN", pad=1), 2),  # rows that begin anywhere
], ids=lambda x: f"{x.layout}-{x.m}x{x.n}x{x.k}" if isinstance(x, Case) else str(x))
def test_wide_tiles_past_their_edges(case: Case, launches: int) -> None:
    """Boxes bring zeros from beyond the edges; what is repacked lies at the start of the workspace, of
    K the first chunk from a kernel before."""
    reports = multiply(replace(case, kernel=WIDE, config=WIDE.default))[1]
    assert len(reports) == launches
    product = {place: counts for place, counts in reports[-1].by_line().items()
               if Path(place[0]).name not in ("repack.cuh", "cp_async.cuh")}  # but what idle warps repack
    assert sum(counts.wavefronts for counts in product.values()) > 1000
    for place, counts in product.items():
        assert counts.wavefronts == counts.wavefronts_ideal, f"lanes meet in a bank at {place}"


@pytest.mark.parametrize(("split", "sms", "k"), [(0, 3, 70), (3, 4, 100), (0, 4, 5), (12, 5, 100)])
def test_wide_tiles_share_their_k(split: int, sms: int, k: int) -> None:
    """Segments that end inside of a tile, blocks with two of them, more stages than the ring has, and fewer."""
    case = Case(200, 20, k, "TN", pad=4, config=replace(WIDE.default, split=split), kernel=WIDE, sms=sms)
    assert len(multiply(case)[1]) == 1 + (k > 8)
    again = multiply(replace(case, integers=True, config=replace(case.config, stages=3)))[0]
    np.testing.assert_array_equal(again, multiply(replace(case, integers=True))[0])


def test_wide_tiles_are_for_single_products() -> None:
    limits, p = architecture("sm_90"), Problem(512, 512, 512, 512, 512, 512)
    for other, wanted in ((replace(p, batch=Batch((2,), (1 << 18,), (0,), (1 << 18,), (1 << 18,))), "a batch of 2"),
                          (replace(p, alpha=0.0), "alpha = 0"), (replace(p, k=0), "K = 0"),
                          (replace(p, trans_a=True, lda=1 << 40), "lda = 1099511627776 elements"),
                          (replace(p, ldb=1 << 40), "ldb = 1099511627776 elements"),
                          (replace(p, m=1 << 23, k=1 << 20, lda=1 << 20), "4294967296 units of 32 x 64 to repack")):
        broken = violations(WIDE, WIDE.default, limits, other)
        assert any(wanted in one and "use 'specialised'" in one for one in broken), broken
    assert not violations(WIDE, WIDE.default, limits, p)
    with pytest.raises(InvalidValue, match="alpha = 0"):  # the simulator asks, too: C would be left as it is
        multiply(Case(8, 8, 8, alpha=0.0, kernel=WIDE, config=WIDE.default))
    assert "setmaxnreg needs sm_90" in violations(WIDE, WIDE.default, architecture("sm_100"))[0]
    for config, wanted in ((replace(WIDE.default, bn=512), "512 threads must be 256"),
                           (replace(WIDE.default, bm=128, bn=128, tm=8, tn=8), "thread tile"),
                           (replace(WIDE.default, stages=1), "stages = 1 must be at least 2"),
                           (replace(WIDE.default, bk=32), "BK = 32 must be 8 or 16")):
        assert any(wanted in one for one in violations(WIDE, config, limits)), config


def test_the_copy_engine_waits_for_what_is_repacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody makes the last unit, the product never ends."""
    case = Case(40, 20, 200, "NN", kernel=WIDE, config=WIDE.default)
    multiply(case)
    real = repack._REPACK
    monkeypatch.setattr(repack, "_REPACK", SimpleNamespace(pack=lambda *x: real.pack(*x[:7], x[7] - 1, *x[8:])))
    with pytest.raises(AssertionError, match="deadlock"):
        multiply(case)


@pytest.mark.parametrize(("old", "new"), [
    ("ld.acquire.gpu.global.u32", "ld.relaxed.gpu.global.u32"),
    ('  __threadfence();\n  __syncwarp();\n  if (threadIdx.x % 32 == 0) asm volatile("red.release.gpu',
     '  __syncwarp();\n  if (threadIdx.x % 32 == 0) asm volatile("red.relaxed.gpu'),
    ('__syncwarp();\n  if (threadIdx.x % 32 == 0) asm volatile("red.release.gpu',
     'if (threadIdx.x % 32 == 0) asm volatile("red.release.gpu'),
], ids=["acquire", "release", "the rest of the warp"])
def test_what_the_counters_of_units_forget_is_found(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    others, begin, header = WIDE.source.partition('#line 1 "include/copy/repack.cuh"')
    assert header.count(old) == 1
    monkeypatch.setitem(WIDE.__dict__, "source", others + begin + header.replace(old, new))
    with pytest.raises(AssertionError, match=r"global_race: read by a copy .* races with the write at \S*/repack"):
        multiply(Case(40, 20, 200, "NN", kernel=WIDE, config=WIDE.default))


def test_large_products_take_wide_tiles() -> None:
    for layout, size, kernel in (("NN", 8192, WIDE), ("NT", 8192, WIDE), ("TT", 16384, WIDE),
                                 ("NN", 2048, SPECIALISED)):
        p = Problem(size, size, size, size, size, size, trans_a=layout[0] == "T", trans_b=layout[1] == "T")
        assert candidates(p, machine("sm_90", 132))[0][0] is kernel, layout
    # Its workspace is bounded: not for operands of more than 2 GB.
    huge = Problem(32768, 32768, 32768, 32768, 32768, 32768)
    assert WIDE not in {kernel for kernel, *_ in candidates(huge, machine("sm_90", 132))}
    large = Problem(8192, 8192, 8192, 8192, 8192, 8192)
    assert WIDE not in {kernel for kernel, *_ in candidates(large, machine("sm_80", 108))}
    assert WIDE in {kernel for kernel, *_ in candidates(large, machine("sm_90", 108))}


def test_what_wide_tiles_read_is_what_was_repacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launches on a GPU, by their addresses: counters, A as (K, M), then B, then partial sums."""
    launched: list[tuple[str, tuple[int, ...]]] = []
    counters, size = 4 * 68, 4096 * 512 * 4  # one that deals units, one for each of 64 chunks, to a multiple of four

    def launcher(entry: str, label: str, gpu: Gpu, blocks: int, threads: int, argument: bytes, boxes: Sequence[Box],
                 *rest: Any) -> Any:
        places = [(box.operand, box.within, box.ld) for box in boxes]
        assert places == ([(0, counters, 512), (1, counters + size, 512)] if entry == "ffma_wide" else [])
        return SimpleNamespace(enqueue=lambda *addresses: launched.append((entry, addresses)))

    monkeypatch.setattr(bound, "load", lambda compiled, shared, gpu, cluster: compiled.entry)
    monkeypatch.setattr(bound, "Launcher", launcher)
    p = Problem(510, 512, 4096, 4096, 4096, 512, trans_b=True)
    made = bound.Bound(WIDE, replace(WIDE.default, split=0), p, stand_in.GPU)
    made.launch(1, 2, 3, 3, 1000, 0)
    addresses = (1, 2, 3, 3, 1000, 0)
    assert launched == [("ffma_first_chunk", addresses), ("ffma_wide", addresses),
                        ("ffma_reduce", (1, 2, 3, 3, 1000 + counters + 2 * size, 0))]
    assert made.workspace_bytes > counters + 2 * size
    with pytest.raises(InvalidValue, match="a batch of 2"):
        bound.Bound(WIDE, WIDE.default, replace(p, batch=Batch((2,), (1 << 21,), (0,), (1 << 18,), (1 << 18,))),
                    stand_in.GPU)


# ---- blocks that have one tile, or one range of its k-steps ----------------------------------------

ALONE = replace(SMALL, one_tile=True)
SLICED = SpecialisedConfig(32, 32, 8, 4, 4, stages=8, raster=4, producers=128, slices=4, copy_groups=4, one_tile=True)
SQUARE = SpecialisedConfig(32, 32, 32, 4, 4, stages=8, raster=4, producers=128, slices=2, copy_groups=2,
                ffma_order=FfmaOrder.ROWS_REVERSED, a_first=True, one_tile=True, chunked=True)
ROWS_OF_TWO = SpecialisedConfig(16, 16, 32, 2, 4, stages=12, raster=8, producers=128, slices=4, copy_groups=2,
                     one_tile=True, chunked=True)


@pytest.mark.parametrize("config", [ALONE, replace(ALONE, chunked=True), SLICED, SQUARE, ROWS_OF_TWO], ids=Config.label)
def test_blocks_with_one_tile(config: Config) -> None:
    """Also K of one k-step, and none; in a grid beyond the SMs'."""
    for layout, k in (("NN", 21), ("NT", 9), ("TT", 8), ("TN", 1)):
        _, reports = multiply(Case(70, 39, k, layout, pad=3, shift=1, config=config, batch=(2,)))
        assert len(reports) == 1
    multiply(Case(33, 34, 0, config=config))
    multiply(Case(33, 34, 9, alpha=0.0, poison="ab", config=config))
    multiply(Case(33, 34, 9, beta=0.0, poison="c", integers=True, config=config))


@pytest.mark.parametrize(("config", "split"), [(ROWS_OF_TWO, 2), (ROWS_OF_TWO, 12), (SQUARE, 9)], ids=str)
def test_blocks_with_one_range_of_a_tiles_k(config: Config, split: int) -> None:
    """Ranges that K does not divide evenly into, more of them than it has steps, and K of none; what adds them up asks
    for eight at once, and has fewer left, or one more."""
    for layout, k, batch in (("NN", 449, ()), ("TT", 70, (2,))):
        _, reports = multiply(Case(35, 39, k, layout, pad=3, shift=1, config=replace(config, split=split), batch=batch))
        assert len(reports) == 2
    _, reports = multiply(Case(35, 39, 31, "TN", integers=True, config=replace(config, split=split)))
    assert len(reports) == 1  # a K of one step has no ranges
    multiply(Case(33, 34, 0, config=replace(config, split=split)))


CLUSTER = replace(SLICED, cluster=4)


def one_after_the_other(config: Config, m: int, n: int, each: int, a: np.ndarray[Any, Any],
                        b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A B by ``config``, of ``each`` k-steps at a time, the partial sums added up in their order."""
    count, k = len(b) // each, len(b)
    alone = np.full((count, m, n), np.nan, "f4")
    parts = Problem(m, n, each, k, n, n, batch=Batch((count,), (each,), (each * n,), (m * n,), (m * n,)))
    run_library(SPECIALISED, config, parts, a, b, alone, sm_count=132)
    want = alone[0]
    for part in alone[1:]:
        want = want + part
    return want


@pytest.mark.parametrize(("config", "blocks"), [
    (SLICED, 2), (SLICED, 16), (replace(SLICED, slices=2, chunked=True, copy_groups=1), 8),
    (replace(ROWS_OF_TWO, stages=8, copy_groups=4), 8), (replace(ROWS_OF_TWO, bn=32), 16)], ids=str)
def test_cluster_split_k(config: Config, blocks: int) -> None:
    """Ranges that K does not divide evenly into, more of them than it has steps, and K of none; no second kernel."""
    config = replace(config, cluster=blocks)
    for layout, k, batch in (("NN", 12 * config.bk + 5, ()), ("TT", 2 * config.bk + 1, (2,)), ("TN", 3, ())):
        _, reports = multiply(Case(35, 39, k, layout, pad=3, shift=1, config=config, batch=batch))
        assert len(reports) == 1
    multiply(Case(33, 34, 0, config=config))
    multiply(Case(33, 34, 9, alpha=0.0, poison="ab", config=config))
    multiply(Case(33, 34, 9, beta=0.0, poison="c", integers=True, config=config))
    multiply(Case(20, 70, 40, c0="n", config=config))


@pytest.mark.parametrize("blocks", [2, 16])
def test_what_is_given_is_added_up_in_the_blocks_order(blocks: int) -> None:
    """The bits of one range's sum after the other."""
    m, n, each = 20, 40, 4 * SLICED.bk
    k = each * blocks
    rng = np.random.default_rng(blocks)
    a, b = rng.standard_normal((m, k)).astype("f4"), rng.standard_normal((k, n)).astype("f4")
    got = np.full((m, n), np.nan, "f4")
    run_library(SPECIALISED, replace(SLICED, cluster=blocks), Problem.contiguous(m, n, k), a, b, got)
    assert got.tobytes() == one_after_the_other(SLICED, m, n, each, a, b).tobytes()


@pytest.mark.parametrize("split", [2, 8, 9, 18])
@pytest.mark.parametrize("size", [20, 130])
def test_partial_sums_are_added_up_in_their_order(split: int, size: int) -> None:
    """By single words where there are few results, else by quads: the bits of one sum after the other."""
    m, n, k = size, 40, 8 * split
    config = replace(SMALL, split=split)
    rng = np.random.default_rng(split)
    a, b = rng.standard_normal((m, k)).astype("f4"), rng.standard_normal((k, n)).astype("f4")
    got = np.full((m, n), np.nan, "f4")
    sms = 40 if size > 100 else 132
    problem = Problem.contiguous(m, n, k)
    plan = schedule(config, problem, sms)
    assert (plan.reduce_blocks == plan.shared * config.tm * config.tn) == (size < 100)
    run_library(SPECIALISED, config, problem, a, b, got, sm_count=sms)
    assert got.tobytes() == one_after_the_other(SMALL, m, n, 8, a, b).tobytes()


@pytest.mark.parametrize(("m", "n", "layout", "sms", "pad"), [
    (33, 63, "NN", 4, 1), (95, 32, "TT", 4, 1), (31, 65, "NT", 4, 1), (64, 36, "TN", 4, 1),
    # Tiles at the edge alone share their K: quads of their results lie across where their neighbour's end, by words and
    # where rows begin at 16 bytes now and then.
    (33, 63, "NN", 3, 1), (33, 66, "NN", 4, 0),
])
@pytest.mark.parametrize("split", [0, 1])
def test_what_tiles_at_the_edge_share_is_stored_once(m: int, n: int, layout: str, sms: int, pad: int,
                                                     split: int) -> None:
    """C is scaled in place: results stored twice would be scaled twice. What lies around the operands is NaN."""
    multiply(Case(m, n, 21, layout, pad=pad, integers=True, alpha=2.0, beta=-3.0, config=replace(SMALL, split=split),
                  sms=sms))


@pytest.mark.parametrize(("old", "new", "says"), [
    ("    mbarrier_wait(e.given, 0);\n", "", "races with"),
    ("all_are_there(given, BM * BN * 4);", "all_are_there(given, BM * BN * 4 - 64);", "deadlock"),
    ("all_are_there(given, BM * BN * 4);", "all_are_there(given, BM * BN * 4 + 64);", "deadlock"),
], ids=["no wait", "too few bytes", "too many"])
def test_what_blocks_of_a_cluster_forget_is_found(old: str, new: str, says: str,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    text = SPECIALISED.source
    assert text.count(old) == 1
    monkeypatch.setitem(SPECIALISED.__dict__, "source", text.replace(old, new))
    with pytest.raises(AssertionError, match=says):
        multiply(Case(64, 32, 48, config=CLUSTER))


@pytest.mark.parametrize(("config", "arch", "says"), [
    (replace(ALONE, split=0), "sm_90", "split = 0 must be 1"),
    (replace(SMALL, cluster=4), "sm_90", "cluster = 4 must be 1, or 2, 4, 8 or 16"),
    (replace(ALONE, copy_groups=2), "sm_90", "copy_groups = 2 of 32 copying threads and 4 stages"),
    (replace(ALONE, producers=256, copy_groups=8), "sm_90", "copy_groups = 8 of 256 copying threads and 4 stages"),
    (replace(ALONE, copy_groups=3), "sm_90", "copy_groups = 3"),
    (replace(ALONE, cluster=4), "sm_90", "that all its threads store"),
    (replace(SLICED, cluster=3), "sm_90", "cluster = 3 must be 1, or 2, 4, 8 or 16"),
    (replace(SLICED, cluster=4, split=2), "sm_90", "split = 2 must be 1: a cluster has one tile"),
    (replace(SLICED, cluster=4), "sm_80", "on sm_90 alone, not sm_80"),
])
def test_what_a_block_with_one_tile_cannot_be(config: Config, arch: str, says: str) -> None:
    assert not violations(SPECIALISED, ALONE, architecture("sm_90"))
    assert not violations(SPECIALISED, CLUSTER, architecture("sm_90"))
    assert says in "; ".join(violations(SPECIALISED, config, architecture(arch)))


@pytest.mark.parametrize(("bk", "chunk"), [(32, 32), (16, 16)])
def test_sums_of_chunks(bk: int, chunk: int) -> None:
    """Chains of FMAs over a chunk of k-steps, added to what was there, in the order of K."""
    config = SpecialisedConfig(32, 32, bk, 4, 8, stages=2, raster=4, producers=32, chunked=True)
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((32, 64)).astype("f4"), rng.standard_normal((64, 32)).astype("f4")
    c = np.zeros((32, 32), "f4")
    reports = run_library(SPECIALISED, config, Problem.contiguous(32, 32, 64), a, b, c)
    assert all(report.clean for report in reports)
    want, plain = np.zeros((32, 32), "f4"), np.zeros((32, 32), "f4")
    for begin in range(0, 64, chunk):
        chain = np.zeros((32, 32), "f4")
        for k in range(begin, begin + chunk):  # a product of two floats is exact in float64; so is rounding it once
            chain = (a[:, k:k + 1].astype(float) * b[k:k + 1].astype(float) + chain).astype("f4")
            plain = (a[:, k:k + 1].astype(float) * b[k:k + 1].astype(float) + plain).astype("f4")
        want = want + chain
    close = np.abs(c - want) <= np.spacing(np.abs(want))  # float64 rounds the sum once more, rarely otherwise
    assert close.all() and (c == want).mean() > 0.99 and (c == plain).mean() < 0.9


@pytest.mark.parametrize("config", [SQUARE, ROWS_OF_TWO], ids=Config.label)
def test_how_slices_reduce_their_sums(config: Config) -> None:
    """Without a bank conflict; where blocks have several tiles, or shares of one, as well."""
    for way in (config, replace(config, one_tile=False, split=0)):
        case = Case(config.bm + 3, config.bn + 5, 100, alpha=2.0, beta=-1.0, c0="mn", sms=3, integers=True, config=way)
        _, reports = multiply(case)
        ends = {place: counts for place, counts in reports[0].by_line().items()
                if Path(place[0]).name == "slice_reduction.cuh"}
        assert sum(counts.wavefronts for counts in ends.values()) > 50
        for place, counts in ends.items():
            assert counts.wavefronts == counts.wavefronts_ideal, f"lanes meet in a bank at {place}"


# ---- what is chosen -------------------------------------------------------------------------------


def test_blocks_with_one_tile_are_chosen_where_they_pay() -> None:
    small = choose(Problem.contiguous(128, 128, 128), "sm_90", 132)
    assert small.config.one_tile and small.config.cluster == 1
    assert not choose(Problem.contiguous(8192, 64, 8192), "sm_90", 132).config.one_tile
    tiles = {size: choose(Problem.contiguous(size, size, size), "sm_90", 132).config
             for size in (64, 128, 192, 256, 320)}
    assert {size: (tile.bm, tile.bn, tile.slices) for size, tile in tiles.items()} == {
        64: (16, 16, 4), 128: (16, 16, 4), 192: (16, 32, 4), 256: (32, 32, 2), 320: (32, 32, 2)}
    assert all(tile.one_tile for tile in tiles.values())


def test_a_long_k_of_small_tiles_is_cut_in_ranges() -> None:
    """No more of them than SMs, and none of more steps than were measured."""
    for m, n, k, tile in ((64, 64, 4096, 16), (100, 100, 1500, 32), (106, 46, 3667, 16)):
        chosen = choose(Problem.contiguous(m, n, k), "sm_90", 132).config
        assert chosen.bm == tile and chosen.split > 1 and chosen.one_tile
        assert chosen.split * -(-m // tile) * -(-n // tile) <= 132
    for m, n, k in ((64, 64, 512), (64, 64, 65536), (128, 128, 1024)):
        config = choose(Problem.contiguous(m, n, k), "sm_90", 132).config
        assert config.split == 1 or not config.one_tile


def test_few_small_tiles_have_a_cluster_each() -> None:
    """Two launches beside each other, with an SM a block; a short K is not cut, nor by a GPU without clusters."""
    for m, n, k, blocks in ((32, 32, 1024, 8), (16, 16, 2000, 16), (33, 33, 700, 8), (64, 64, 512, 8),
                            (128, 128, 512, 2)):
        p = Problem.contiguous(m, n, k)
        chosen = choose(p, "sm_90", 132)
        assert cluster_split(chosen.config) and chosen.config.cluster == blocks
        assert schedule(chosen.config, p, 132).workspace_bytes == 0
        for sms in (132, 60):
            clusters = [c for _, c, _ in candidates(p, machine("sm_90", sms)) if cluster_split(c)]
            assert (clusters or sms < 132) and all(2 * schedule(c, p, sms).blocks < sms for c in clusters)
        assert not any(cluster_split(config) for _, config, _ in candidates(p, machine("sm_89", 132)))
        # a GPU of 114 SMs may have no group of 16
        assert all(config.cluster <= 8 for _, config, _ in candidates(p, machine("sm_90", 114)))
    for m, n, k in ((64, 64, 64), (42, 5, 116), (1000, 1000, 512), (64, 64, 0)):
        assert not cluster_split(choose(Problem.contiguous(m, n, k), "sm_90", 132).config)


@pytest.mark.parametrize("m", [20, 127, 512])
@pytest.mark.parametrize("k", [33, 64, 320, 1500])
def test_an_ieee_product_runs_what_an_emulated_one_runs_without_tensor_cores(m: int, k: int) -> None:
    """So that "emulated" is never slower."""
    for n in (30, 100, 512, 1000):
        p = Problem.contiguous(m, n, k)
        plain, emulated = choose(p, "sm_90", 132), choose(p, "sm_90", 132, precision="emulated")
        assert emulated.kernel.folder == "emulated" or (
            plain.kernel, plain.config) == (emulated.kernel, emulated.config)


def test_how_a_tile_adds_up_is_its_own_property() -> None:
    """Sums of chunks where a thread has few results and registers for a second set; one chain elsewhere."""
    for config in CONFIGURATIONS:
        assert config.chunked == (config.tm * config.tn <= 32 and config.min_blocks <= 2), config.label()
    assert len({replace(config, chunked=False) for config in CONFIGURATIONS}) == len(CONFIGURATIONS)


@pytest.mark.parametrize("arch", ["sm_70", "sm_80", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_every_way_is_valid_where_it_is_proposed(arch: str) -> None:
    limits = architecture(arch)
    proposed = [(kernel, config) for kernel in KERNELS
                for config in kernel.family.configs(kernel, machine(arch, limits.gpu_sms))]
    assert proposed
    for kernel, config in proposed:
        assert arch == "sm_90" or (config.cluster == 1 and not config.registers)
        assert not violations(kernel, config, limits)
