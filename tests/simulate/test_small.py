"""The kernel for many small products and thin ones, on the simulator: layouts, edges, scales, batches, tiles; when it
is taken."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from library_case import LAYOUTS, Case, multiply
from peakgemm.errors import InvalidValue
from peakgemm.kernels.ffma import small
from peakgemm.kernels.ffma.skinny import SKINNY
from peakgemm.kernels.ffma.small import SMALL, SmallConfig
from peakgemm.kernels.ffma.specialised import SPECIALISED
from peakgemm.kernels.library import compile_for
from peakgemm.kernels.validity import violations
from peakgemm.problem import Batch, Config, Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.compile import in_parallel
from peakgemm.selection.choose import candidates, choose
from peakgemm.selection.machine import machine
from peakgemm.tools.simulator.library import run_library
from seldom import exhaustive

TINY = SmallConfig(8, 8, 8, 2, 2, slices=8)
GPU = machine("sm_90", 132)
EIGHTH = next(c for c in small.configurations(Problem.contiguous(64, 64, 64), GPU) if (c.bk, c.stages) == (32, 2))
TILES = [replace(c, min_blocks=1) for k in (8, 16, 64) for c in small.tiles(k)]
TILES.append(replace(EIGHTH, min_blocks=1))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_edges_in_any_layout(layout: str) -> None:
    """By words, by sixteen bytes, and by words at the edge of a matrix whose rows are whole quads."""
    multiply(Case(13, 11, 9, layout, pad=3, shift=1, config=TINY, kernel=SMALL))
    multiply(Case(12, 20, 8, layout, pad=4, integers=True, config=TINY, kernel=SMALL))
    multiply(Case(12, 20, 12, layout, beta=0.0, config=TINY, kernel=SMALL))
    multiply(Case(13, 11, 9, layout, beta=0.0, pad=3, config=TINY, kernel=SMALL))


@pytest.mark.parametrize(("tile", "layout", "beta"), [
    (tile, *way) for tile in TILES for way in (("NN", 0.0), ("TT", 0.5)) if tile.bk > 8 or way[0] == "NN"],
    ids=lambda x: x.label() if isinstance(x, Config) else None)
def test_every_tile(tile: Config, layout: str, beta: float) -> None:
    """More K than a tile holds at once, rows and columns past the edge; results by words and by sixteen bytes."""
    multiply(Case(tile.bm + 4, tile.bn - 4, 2 * tile.bk - 4, layout, beta=beta, config=tile, kernel=SMALL, sms=1))


HALVES = [replace(c, min_blocks=1) for c in small.tiles(63) if c.bm * c.bn <= 1024]


@pytest.mark.parametrize(("tile", "k", "layout"), [
    (tile, k, layout) for number, tile in enumerate(HALVES)
    for k, layout in (((33, "NN"), (63, "NT")), ((63, "TN"), (33, "TT")))[number // 2 % 2]],
    ids=lambda x: x.label() if isinstance(x, Config) else str(x))
def test_halves_by_words(tile: Config, k: int, layout: str) -> None:
    """The second half of K has a k-step, or all but one; two layouts of a tile, the other two of the next."""
    multiply(Case(tile.bm + 1, tile.bn - 1, k, layout, beta=0.0, config=tile, kernel=SMALL, sms=1))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("m", "n"), [(7, 7), (13, 11), (5, 12), (16, 15), (33, 6), (1, 3)])
def test_matrices_without_gaps_between_them(m: int, n: int, layout: str) -> None:
    """The first and last results share sixteen bytes with other matrices', which are another team's."""
    tile = next(tile for tile in TILES if (tile.bm, tile.bn, tile.bk) == (16, 16, 8))
    multiply(Case(m, n, 9, layout, beta=0.0, batch=(11,), config=tile, kernel=SMALL))
    multiply(Case(m, n, 9, layout, beta=0.5, batch=(3,), config=tile, kernel=SMALL))


def test_batches_of_any_strides() -> None:
    """More matrices than a block has teams, the last block with fewer; operands that stay where they are."""
    multiply(Case(7, 6, 5, batch=(2, 3, 3), config=TINY, kernel=SMALL))
    multiply(Case(8, 8, 8, batch=(3, 5), still={"b": (0,), "a": (1,)}, config=TINY, kernel=SMALL))
    multiply(Case(8, 8, 8, beta=0.0, batch=(9,), pad=4, config=TINY, kernel=SMALL))
    multiply(Case(20, 8, 8, c0="n", batch=(3,), still={"c0": (0,)}, config=TINY, kernel=SMALL))


@pytest.mark.parametrize(("change", "words"), [
    ({"bk": 12}, "BK = 12 must be one of 8, 16, 32, 64"), ({"stages": 2}, "stages = 2 must divide BK = 8"),
    ({"stages": 0}, "stages = 0 must divide BK = 8"), ({"bm": 6, "tm": 2}, "BM = 6 must be a power of two, 4 at least"),
    ({"bm": 24, "tm": 4}, "BM = 24"), ({"bm": 12, "tm": 3}, "TM = 3 must be a power of two"),
    ({"slices": 128}, "2048 threads"), ({"bk": 64, "bm": 512, "tm": 8, "slices": 2}, "shared memory"),
    ({"bm": 32, "tm": 8, "tn": 4, "chunked": True}, "chunked with 32 results a thread: 16 at most"),
])
def test_what_is_not_valid(change: dict[str, int], words: str) -> None:
    assert any(words in broken for broken in violations(SMALL, replace(TINY, **change), architecture("sm_90")))


def test_too_many_tiles_are_refused() -> None:
    problem = Problem(2**27, 8, 8, 8, 8, 8, batch=Batch((2**8,), (2**30,), (0,), (2**30,), (2**30,)))
    with pytest.raises(InvalidValue, match=r"4294967296 tiles, the limit is 2147483639; use a larger tile"):
        small.schedule(TINY, problem, 132)
    problem = Problem(1, 9, 4, 4, 9, 9, batch=Batch((2**30 + 1,), (0,), (0,), (9,), (9,)))
    with pytest.raises(InvalidValue, match="tiles, the limit is"):
        small.schedule(TINY, problem, 132)
    assert choose(problem, "sm_90", 132).kernel is not SMALL, "others have a block each, and so many there may be"


def test_only_what_has_a_short_k() -> None:
    for m, n, k, there in (
        (8, 8, 8, True), (64, 10**6, 64, True), (2833, 3567, 8, True), (8, 8, 65, False), (2000, 2000, 65, False),
        (5000, 16, 32, True), (5000, 4, 64, True), (5000, 4, 65, False), (5000, 1, 65, False),
    ):
        assert bool(list(small.configurations(Problem.contiguous(m, n, k), GPU))) == there


def test_a_longer_k_in_batches_of_thin_products_alone() -> None:
    for n, k, there in ((20, 64, True), (20, 256, True), (20, 257, False), (64, 65, True), (65, 65, False)):
        batch = Batch((3000,), (128 * k,), (n * k,), (128 * n,), (128 * n,))
        found = list(small.configurations(replace(Problem.contiguous(128, n, k), batch=batch), GPU))
        assert bool(found) == there and all(config.bk <= 64 for config in found)


def test_no_tiny_tiles_of_large_products() -> None:
    assert min(c.bm * c.bn for c in small.configurations(Problem.contiguous(2000, 2000, 8), GPU)) == 1024


@pytest.mark.parametrize(("n", "ldc", "tile", "stores"), [
    (128, 128, (32, 64, 4, 4), "st.global.v4"), (128, 130, (32, 64, 4, 4), "st.global.f32"),
    (126, 126, (32, 64, 4, 4), "st.global.f32"),
    (126, 126, (8, 8, 2, 2), "st.global.v2"), (127, 127, (8, 8, 2, 2), "st.global.f32"),
])
def test_rows_that_start_anywhere_leave_by_neighbouring_words(n: int, ldc: int, tile: tuple[int, ...],
                                                              stores: str) -> None:
    """Not four words of a lane beside each other, which each touch all sectors that four lanes write."""
    problem = Problem(200, n, 8, 8, n, ldc)
    (config,) = (c for c in small.tiles(8) if (c.bm, c.bn, c.tm, c.tn) == tile)
    text = compile_for(SMALL, config, problem, "sm_90", "ptx").code.decode()
    assert stores in text and ("st.global.v" in text) == ("v" in stores)
    draw = np.random.default_rng(0)
    a, b = draw.standard_normal((200, 8)).astype("f4"), draw.standard_normal((8, n)).astype("f4")
    c = np.zeros((200, ldc), "f4")
    (report,) = run_library(SMALL, replace(config, min_blocks=1), problem, a, b, c)
    np.testing.assert_allclose(c[:, :n], a @ b, rtol=1e-5, atol=1e-5)
    if tile[1] == 64:  # 3.3 times as many by words of one lane; a tile's row begins and ends within sectors
        assert report.counters["global_sectors"] <= 1.3 * report.counters["global_sectors_ideal"]


@pytest.mark.parametrize(("m", "n", "k", "count"), [
    (8, 8, 8, 50000), (16, 16, 16, 20000), (32, 32, 32, 10000), (1_000_000, 16, 16, 1), (262144, 32, 32, 1),
])
def test_it_is_taken_for_small_and_thin_products(m: int, n: int, k: int, count: int) -> None:
    batch = Batch() if count == 1 else Batch((count,), (m * k,), (k * n,), (m * n,), (m * n,))
    assert choose(replace(Problem.contiguous(m, n, k), batch=batch), "sm_90", 132).kernel is SMALL


@pytest.mark.parametrize(("m", "n", "k", "via_l1"), [
    (200000, 12, 64, "B"), (200000, 12, 16, "AB"), (8, 10**6, 8, "A"), (12, 200000, 64, "A"), (64, 64, 64, "A"),
])
def test_what_all_tiles_read_comes_by_way_of_l1(m: int, n: int, k: int, via_l1: str) -> None:
    problem = Problem.contiguous(m, n, k)
    macros = small.specialisation(problem)
    assert "".join(name for name in "AB" if macros[f"VIA_L1_{name}"]) == via_l1
    text = compile_for(SMALL, small.tiles(k)[-1], problem, "sm_90", "ptx").code.decode()
    assert set(re.findall(r"cp\.async\.(c[ag])\.", text)) == ({"ca"} if via_l1 == "AB" else {"ca", "cg"})


def test_beside_tiles_where_k_is_no_more_than_a_few_steps() -> None:
    """By what they take where launches lie beside each other: 12 x 56 x 8 TT 1.1 us and 32 x 40 x 28 TN 1.5, by 16 x
    16 1.1 (docs/notebook/09)."""
    for shape, kernel in (((16, 16, 16), SMALL), ((32, 32, 32), SPECIALISED), ((68, 172, 5), SMALL),
                          ((102, 133, 51), SPECIALISED), ((406, 38, 32), SPECIALISED), ((10, 18, 34), SPECIALISED),
                          ((2, 1000, 640), SKINNY)):
        assert choose(Problem.contiguous(*shape), "sm_90", 132).kernel is kernel, shape


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("shape", [(4, 0, 5), (0, 4, 5), (4, 4, 0), (0, 0, 0), (1, 1, 1)])
def test_products_with_nothing_in_them_have_a_choice(arch: str, shape: tuple[int, int, int]) -> None:
    """`peakgemm.plan` and `explain` ask for one before anything is launched."""
    for precision in ("ieee", "emulated"):
        assert choose(Problem.contiguous(*shape), arch, 132, precision=precision).reason


def test_sums_of_a_long_k_are_chunked() -> None:
    """In every tile that has registers for a second set of sums, whatever the problem."""
    for k in (8, 32, 64, 200):
        for tile in small.tiles(k):
            assert tile.chunked == (k > 32 and tile.tm * tile.tn <= 16), tile.label()


def test_results_leave_by_whole_sectors() -> None:
    """NVRTC makes four stores of a float4 there, each of which touches all of a quad's sectors."""
    tile = next(c for c in TILES if (c.bm, c.bn, c.bk) == (64, 32, 16))
    draw = np.random.default_rng(0)
    a, b = draw.standard_normal((128, 16)).astype("f4"), draw.standard_normal((16, 32)).astype("f4")
    (report,) = run_library(SMALL, tile, Problem.contiguous(128, 32, 16), a, b, np.zeros((128, 32), "f4"))
    assert report.counters["global_sectors"] == report.counters["global_sectors_ideal"]
    batch = Batch((16,), (64,), (64,), (64,), (64,))
    a, b, c = (np.zeros((16, 8, 8), "f4") for _ in range(3))
    (report,) = run_library(SMALL, TINY, replace(Problem.contiguous(8, 8, 8), batch=batch), a, b, c)
    assert report.counters["global_sectors"] == report.counters["global_sectors_ideal"]


@pytest.mark.parametrize(("layout", "size"), [
    ("NN", 63), exhaustive("NT", 63), exhaustive("TN", 63), ("TT", 63), ("NN", 64), exhaustive("TT", 64)])
def test_tiles_hardly_spill(layout: str, size: int) -> None:
    """Some tens of bytes in places that are passed once; by words, which want more addresses, in any layout."""
    ta, tb = (letter == "T" for letter in layout)
    problem = Problem(size, size, size, size, size, size, trans_a=ta, trans_b=tb)
    tiles = [*small.tiles(size), *small.configurations(problem, GPU)]
    found = in_parallel(lambda tile: compile_for(SMALL, tile, problem, "sm_90"), dict.fromkeys(tiles))
    assert max(one.spill_bytes for one in found) <= 48


def test_without_cp_async_there_is_none() -> None:
    found = candidates(Problem.contiguous(8, 8, 8), machine("sm_75", 40))
    assert found and all(kernel is not SMALL for kernel, *_ in found)


@pytest.mark.parametrize(("k", "pairs"), [(12, False), (16, True), (20, False), (30, True), (100, False), (104, True)])
def test_sums_of_four_are_added_up_two_by_two(k: int, pairs: bool) -> None:
    """By the smallest tiles, where they are an even number, more than three: else one after the other."""
    draw = np.random.default_rng(k)
    a, b = draw.standard_normal((8, k)).astype("f4"), draw.standard_normal((k, 8)).astype("f4")
    sums = []
    for start in range(0, k, 4):
        chain = np.zeros((8, 8), "f4")
        for i in range(start, min(start + 4, k)):
            chain = np.float32(chain.astype(float) + a[:, i : i + 1].astype(float) * b[i].astype(float))
        sums.append(chain)
    expected = np.zeros((8, 8), "f4")
    for one in [x + y for x, y in zip(sums[::2], sums[1::2], strict=True)] if pairs else sums:
        expected += one
    c = np.full((8, 8), np.nan, "f4")
    tile = next(replace(c, min_blocks=1) for c in small.tiles(k) if c.tm * c.tn == 4)
    (report,) = run_library(SMALL, tile, Problem.contiguous(8, 8, k), a, b, c)
    assert report.clean, str(report)
    np.testing.assert_array_equal(c, expected)
