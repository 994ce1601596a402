"""Accesses of our kernels: no lanes that meet in a bank, whole sectors, and what is asked to be in L2 beforehand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from library_case import LAYOUTS, Case, multiply
from library_case import SMALL as TILE
from peakgemm.kernels.emulated.product import PRODUCTS
from peakgemm.kernels.emulated.streamed import FUSED, STREAMED, streamed
from peakgemm.kernels.ffma import small
from peakgemm.kernels.ffma.chain import CHAIN
from peakgemm.kernels.ffma.skinny import SKINNY, SkinnyConfig
from peakgemm.kernels.ffma.small import SMALL, SmallConfig
from peakgemm.kernels.ffma.specialised import SpecialisedConfig
from peakgemm.kernels.ffma.wide import WIDE
from peakgemm.kernels.library import compile_for
from peakgemm.kernels.registry import rung
from peakgemm.kernels.rung import RungConfig
from peakgemm.problem import Problem
from peakgemm.selection.machine import machine
from peakgemm.tools.simulator.checks import access
from peakgemm.tools.simulator.core import memory
from seldom import exhaustive

pytestmark = pytest.mark.usefixtures("many_lanes")

GPU = machine("sm_90", 132)
SQUARE = SpecialisedConfig(32, 32, 32, 4, 4, stages=8, raster=4, producers=128, slices=2, copy_groups=2, chunked=True)
TWO_ROWS = replace(SQUARE, bm=16, bn=16, tm=2, stages=12, raster=8, slices=4)


def small_tile(k: int, *sizes: int) -> Any:
    return next(replace(c, min_blocks=1) for c in small.tiles(k) if (c.bm, c.bn, c.tm, c.tn) == sizes)


def of_slices(config: Any, **changes: Any) -> Case:
    """Tiles that slices add up together; where blocks have several, or shares of one, as well."""
    return Case(config.bm + 3, config.bn + 5, 100, c0="mn", sms=3, config=replace(config, **changes))


# A product, the files whose lines are looked at (empty: all), and those that are not: one is repacked, or copied.
WITHOUT_CONFLICTS = [
    (Case(200, 260, 24, "TN", kernel=WIDE, config=WIDE.default), "", "repack.cuh cp_async.cuh"),
    *((of_slices(config, **changes), "slice_reduction.cuh", "") for config in (SQUARE, TWO_ROWS)
      for changes in ({"one_tile": True}, {"split": 0})),
    # Of 16 columns neighbouring rows' sums would meet in one bank, were rows not turned.
    (Case(64, 16, 512, beta=0.0, kernel=SKINNY, config=SkinnyConfig(32, 16, 256, 4, 16, slices=64)), "", "")]


@pytest.mark.parametrize(("case", "files", "others"), WITHOUT_CONFLICTS, ids=str)
def test_no_lanes_meet_in_a_bank(case: Case, files: str, others: str) -> None:
    report = multiply(case)[1][-1 if case.kernel is WIDE else 0]
    lines = {place: counts for place, counts in report.by_line().items()
             if Path(place[0]).name in (files or Path(place[0]).name) and Path(place[0]).name not in others.split()}
    assert sum(counts.wavefronts for counts in lines.values()) > 50
    for place, counts in lines.items():
        assert counts.wavefronts == counts.wavefronts_ideal, f"lanes meet in a bank at {place}"


@pytest.mark.parametrize(("config", "pad"), [
    (rung(15).default, 4), exhaustive(rung(15).default, 3),
    (RungConfig(128, 128, 32, 8, 8, stages=3, fragments=2, raster=2, producers=128, registers=232), 3),
    exhaustive(RungConfig(256, 128, 8, 16, 8, stages=2, fragments=2, raster=8, producers=128, registers=232), 4)])
def test_boxes_and_copies_of_rung_15(config: RungConfig, pad: int) -> None:
    """An LDS.128 of a fragment takes two wavefronts; of A's box four, as many as the stores of it transposed."""
    mapped = replace(config, aligned=pad == 4)
    (report,) = multiply(Case(config.bm + 36, config.bn + 4, 5 * config.bk, pad=pad, kernel=rung(15), config=mapped))[1]
    counters = report.counters
    stores = counters["shared_stores"] if mapped.aligned else 0  # else those of cp.async
    fragments = counters["shared_loads"] - stores // 4
    assert (counters["bulk_copies"] > 0) == (stores > 0) == mapped.aligned
    assert counters["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"] == 2 * fragments + stores
    assert counters["l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"] == stores


@pytest.mark.parametrize(("layout", "width"), [("NN", 1), ("NT", 4)])
def test_words_of_x_in_the_chain_kernel(layout: str, width: int) -> None:
    """A computing warp's reads of X take as many wavefronts as they have lines of 128 bytes."""
    few = replace(CHAIN.default, bm=4, tm=1, tn=1, bk=32, stages=3, producers=64)
    (report,) = multiply(Case(4, 64, 256, layout, beta=0.0, kernel=CHAIN, config=few))[1]
    reads = [x for x in report.instructions if x.opcode.startswith("ld.shared") and ("v4" in x.opcode) == (width == 4)]
    assert reads and max(x.wavefronts / x.requests for x in reads) <= width


@pytest.mark.parametrize(("case", "most"), [
    (Case(128, 32, 16, kernel=SMALL, config=small_tile(16, 64, 32, 4, 4)), 1.0),
    (Case(8, 8, 8, batch=(16,), kernel=SMALL, config=SmallConfig(8, 8, 8, 2, 2, slices=8)), 1.0),
    (Case(64, 16, 512, kernel=SKINNY, config=SkinnyConfig(32, 16, 256, 4, 16, slices=64)), 1.0),
    # Of rows that start anywhere by neighbouring words: 3.3 times as many by four of a lane. A row begins and ends
    # within sectors.
    (Case(200, 126, 8, kernel=SMALL, config=small_tile(8, 32, 64, 4, 4)), 1.3),
    (Case(200, 128, 8, pad=2, kernel=SMALL, config=small_tile(8, 32, 64, 4, 4)), 1.4)], ids=str)
def test_whole_sectors(case: Case, most: float) -> None:
    (report,) = multiply(replace(case, beta=0.0))[1]
    assert report.counters["global_sectors"] <= most * report.counters["global_sectors_ideal"]


def test_each_sector_of_the_large_operand_is_read_once() -> None:
    config = SkinnyConfig(32, 1, 256, 4, 1, slices=32)
    (report,) = multiply(Case(1, 128, 256, beta=0.0, kernel=SKINNY, config=config))[1]
    loads = [x for x in report.instructions if x.opcode.startswith("ld.global") and "v4" in x.opcode]
    assert sum(x.sectors for x in loads) == 256 * 128 * 4 // 32


@pytest.mark.parametrize(("m", "n", "k", "via_l1"), [
    (200000, 12, 64, "B"), (200000, 12, 16, "AB"), (8, 10**6, 8, "A"), (12, 200000, 64, "A"), (64, 64, 64, "A")])
def test_what_all_tiles_read_comes_by_way_of_l1(m: int, n: int, k: int, via_l1: str) -> None:
    problem = Problem.contiguous(m, n, k)
    macros = small.layouts(problem)
    assert "".join(name for name in "AB" if macros[f"VIA_L1_{name}"]) == via_l1
    text = compile_for(SMALL, small.tiles(k)[-1], problem, "sm_90", "ptx").code.decode()
    assert ("cp.async.ca." in text, "cp.async.cg." in text) == (True, via_l1 != "AB")


# ---- what a kernel asks to be in L2 before the kernel ahead of it has ended -----------------------------------

LINE, OPERANDS = 128, {"argument 0": "a", "argument 1": "b"}
Lines = set[tuple[str, int]]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> tuple[Lines, Lines]:
    """Lines of A and B that kernels ask to be in L2, and that they read; the simulator fills them."""
    asked, read = set[tuple[str, int]](), set[tuple[str, int]]()

    def note(into: Lines, arena: memory.Arena, addresses: Any, size: int) -> None:
        for at in map(int, addresses):
            for segment in arena.segments:
                if segment.base <= at < segment.end and segment.name in OPERANDS:
                    into.update((OPERANDS[segment.name], byte // LINE) for byte in (at, at + size - 1))

    inside, global_ = memory.Arena.inside, access.Site.global_

    def look(self: memory.Arena, address: Any, size: int) -> Any:
        if size == 1:  # a prefetch
            note(asked, self, address, size)
        return inside(self, address, size)

    def load(self: access.Site, lanes: Any, address: Any, write: bool) -> Any:
        if self.kind in ("ld", "ldgsts"):
            note(read, self.machine.arena, address, self.size)
        return global_(self, lanes, address, write)

    monkeypatch.setattr(memory.Arena, "inside", look)
    monkeypatch.setattr(access.Site, "global_", load)
    return asked, read


STEPS_OF_16 = replace(TILE, bk=16, one_tile=True)
# A product, and of which operands all that it reads is asked for: of a thin one, or one that threads split, there is
# little, or it comes by the first block of a split pass.
ASKED = {
    "specialised": (Case(32, 32, 48, config=STEPS_OF_16), "ab"), "edges": (Case(29, 31, 41, config=STEPS_OF_16), "ab"),
    "small": (Case(60, 56, 32, kernel=SMALL, config=SmallConfig(64, 64, 32, 8, 4, stages=1)), "ab"),
    "halves": (Case(32, 29, 31, batch=(1, 1), kernel=SMALL, config=SmallConfig(32, 32, 32, 4, 4, slices=2)), "ab"),
    "skinny": (Case(30, 3, 250, kernel=SKINNY, config=SkinnyConfig(32, 4, 128, 4, 4, slices=16)), "a"),
    "split": (Case(100, 90, 64, kernel=PRODUCTS["fp16x3"], config=PRODUCTS["fp16x3"].default), "a"),
    "streamed": (Case(128, 64, 64, kernel=STREAMED, config=streamed(64)), "ab"),
    "fused": (Case(100, 60, 64, kernel=FUSED, config=FUSED.default), "a")}


@pytest.mark.parametrize(("name", "layout", "pad"), [
    (name, layout, pad) if (i + j) % (4 if case.kernel.family.scheme else 2) == pad % 2
    else exhaustive(name, layout, pad)
    for i, (name, (case, _)) in enumerate(ASKED.items()) for j, layout in enumerate(LAYOUTS) for pad in (0, 3)])
def test_all_that_is_read_first_is_asked_for(name: str, layout: str, pad: int, lines: tuple[Lines, Lines]) -> None:
    case, operands = ASKED[name]
    multiply(replace(case, layout=layout, pad=pad, beta=0.0, alpha=1.0))
    asked, read = lines
    assert asked == {line for line in read if line[0] in operands} and asked
