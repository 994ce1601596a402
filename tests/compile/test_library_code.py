"""The library's kernels compiled: registers and spills, loops, and the launches and shared memory of what is bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, product
from types import SimpleNamespace
from typing import Any

import pytest

import stand_in
from peakgemm.errors import InvalidValue
from peakgemm.kernels import bound
from peakgemm.kernels.emulated.product import PRODUCTS
from peakgemm.kernels.emulated.schemes import SCHEMES
from peakgemm.kernels.ffma import chain, skinny, small
from peakgemm.kernels.ffma.chain import CHAIN
from peakgemm.kernels.ffma.skinny import SKINNY
from peakgemm.kernels.ffma.small import SMALL
from peakgemm.kernels.ffma.specialised import SPECIALISED
from peakgemm.kernels.ffma.tile_model import may_hand_on, tilings
from peakgemm.kernels.ffma.wide import WIDE
from peakgemm.kernels.library import compile_for
from peakgemm.kernels.registry import Kernel
from peakgemm.kernels.schedule import handing_on
from peakgemm.problem import Batch, Config, Problem, varied
from peakgemm.runtime.architectures import architecture
from peakgemm.runtime.compile import Compiled, in_parallel
from peakgemm.sass.facts import static_facts
from peakgemm.selection.machine import machine
from peakgemm.tools.bench.occupancy import occupancy
from seldom import exhaustive

GPU = machine("sm_90", 132)
SQUARE = Problem.contiguous(4096, 4096, 4096)


def stored(m: int, n: int, k: int, layout: str, align: int = 16) -> Problem:
    ta, tb = (letter == "T" for letter in layout)
    return Problem(m, n, k, m if ta else k, k if tb else n, n, alignment=(align, align, 16), trans_a=ta, trans_b=tb)


def of_chain() -> list[tuple[Config, Problem]]:
    """Every configuration of the model; layouts and widths of copies take turns."""
    ways = cycle(product(("NN", "NT", "TN", "TT"), (16, 4)))
    return [(config, problem if m % 3 else problem.turned()) for m in (1, 2, 4, 8, 16, 32)
            for config in chain.configurations(Problem.contiguous(m, 4096, 4096), GPU)
            for problem in (stored(m, 4096, 4096, *next(ways)) for _ in range(2))]


def of_skinny(layouts: Sequence[str], align: int) -> list[tuple[Config, Problem]]:
    """The first configuration for each number of columns, or of rows."""
    problems = [stored(*sizes, 4096, layout, align) for columns in (1, 2, 4, 8, 16)
                for sizes in ((columns, 8192), (8192, columns)) for layout in layouts]
    return [(next(iter(skinny.configurations(problem, GPU))), problem) for problem in problems]


def of_small(size: int, layout: str) -> list[tuple[Config, Problem]]:
    problem = stored(size, size, size, layout)
    tiles = dict.fromkeys([*small.tiles(size), *small.configurations(problem, GPU)])
    return [(tile, problem) for tile in tiles]


@pytest.mark.parametrize(("kernel", "jobs", "arch", "most"), [
    (CHAIN, of_chain(), "sm_90", 16), (CHAIN, of_chain()[4:5], "sm_80", 0),  # words that are kept for the end
    (SKINNY, of_skinny(("NN", "TT"), 16), "sm_90", 0), exhaustive(SKINNY, of_skinny(("NN", "TT"), 4), "sm_90", 0),
    exhaustive(SKINNY, of_skinny(("NT", "TN"), 16), "sm_90", 0),
    *(exhaustive(SKINNY, of_skinny(("NN",), 16), arch, 0) for arch in ("sm_75", "sm_80")),
    # Some tens of bytes in places that are passed once; by words, which want more addresses, in any layout.
    (SMALL, of_small(64, "NN"), "sm_90", 48),
    *(exhaustive(SMALL, of_small(*way), "sm_90", 48)
      for way in ((64, "TT"), (63, "NN"), (63, "NT"), (63, "TN"), (63, "TT")))],
    ids=lambda x: x.name if isinstance(x, Kernel) else x if isinstance(x, str) else "")
def test_hardly_spills(kernel: Kernel, jobs: list[tuple[Any, Problem]], arch: str, most: int) -> None:
    limits = architecture(arch)
    codes = in_parallel(lambda job: compile_for(kernel, *job, arch), jobs)
    for (config, _), code in zip(jobs, codes, strict=True):
        assert code.spill_bytes <= most, config.label()
        fit = occupancy(limits, config.block_threads, code.registers or 0, kernel.shared_bytes(config))
        if kernel is CHAIN:
            assert (code.registers or 0) <= chain.registers(limits)
        elif kernel is SKINNY:
            assert fit.blocks_per_sm >= config.min_blocks, fit
            # Bytes on their way in an SM: bandwidth times latency wants 20 KB of each.
            in_flight = fit.warps_per_sm * 32 * 64 * (config.bk // (4 * config.slices))
            assert arch != "sm_90" or in_flight >= 32 * 1024


def handing(arch: str) -> list[tuple[Kernel, Config]]:
    """Those that may hand on accumulators."""
    return [(kernel, varied(tiling, chunked=False)) for kernel in (SPECIALISED, WIDE)
            for tiling in tilings(kernel, machine(arch, 132)) if may_hand_on(kernel, tiling)]


@pytest.mark.parametrize(("kernel", "plain"), handing("sm_90"),
                         ids=lambda x: x.name if isinstance(x, Kernel) else x.label())
def test_what_hands_on_has_the_loop_of_whole_tiles(kernel: Kernel, plain: Config) -> None:
    whole, handed = (compile_for(kernel, config, SQUARE, "sm_90") for config in (plain, handing_on(plain)))
    assert {(code.spill_bytes, code.stack_bytes) for code in (whole, handed)} == {(0, 0)}
    old, new = (static_facts(code.code, "sm_90a") for code in (whole, handed))
    # Wide tiles take seven more of 1,626, of what is not FFMA: 5000 takes 1.0003 of the time of the kernel before.
    assert new["loop_ffma"] == old["loop_ffma"] and new["loop_instructions"] <= old["loop_instructions"] + 8
    assert new["bank_cycles_per_ffma"] < old["bank_cycles_per_ffma"] + 0.015


@pytest.mark.parametrize("arch", ["sm_80", exhaustive("sm_89"), exhaustive("sm_120")])
def test_what_hands_on_does_not_spill_elsewhere(arch: str) -> None:
    for kernel, plain in handing(arch):
        code = compile_for(kernel, handing_on(plain), SQUARE, arch)
        assert (code.spill_bytes, code.stack_bytes) == (0, 0), plain.label()


# ---- what is bound ----------------------------------------------------------------------------------------------


def test_what_wide_tiles_read_is_what_was_repacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launches on a GPU, by their addresses: counters, A as (K, M), then B, then partial sums."""
    launched: list[tuple[str, tuple[int, ...]]] = []
    counters, size = 4 * 68, 4096 * 512 * 4  # one that deals units, one for each of 64 chunks, to a multiple of four

    def launcher(entry: str, label: str, gpu: Any, blocks: int, threads: int, argument: bytes, boxes: Sequence[Any],
                 *rest: Any) -> Any:
        operands = [(box.operand, box.within, box.ld) for box in boxes]
        assert operands == ([(0, counters, 512), (1, counters + size, 512)] if entry == "ffma_wide" else [])
        return SimpleNamespace(enqueue=lambda *addresses: launched.append((entry, addresses)))

    monkeypatch.setattr(bound, "load", lambda compiled, shared, gpu, cluster: compiled.entry)
    monkeypatch.setattr(bound, "Launcher", launcher)
    problem = Problem(510, 512, 4096, 4096, 4096, 512, trans_b=True)
    made = bound.Bound(WIDE, replace(WIDE.default, split=0), problem, stand_in.GPU)
    made.launch(1, 2, 3, 3, 1000, 0)
    assert launched == [("ffma_first_chunk", (1, 2, 3, 3, 1000, 0)), ("ffma_wide", (1, 2, 3, 3, 1000, 0)),
                        ("ffma_reduce", (1, 2, 3, 3, 1000 + counters + 2 * size, 0))]
    assert made.workspace_bytes > counters + 2 * size
    batch = Batch((2,), (1 << 21,), (0,), (1 << 18,), (1 << 18,))
    with pytest.raises(InvalidValue, match="a batch of 2"):
        bound.Bound(WIDE, WIDE.default, replace(problem, batch=batch), stand_in.GPU)


def tile(bm: int, bk: int, blocks: int) -> Config:
    return next(c for c in tilings(SPECIALISED, GPU)
                if (c.bm, c.bn, c.bk, c.min_blocks) == (bm, bm, bk, blocks))


def test_what_is_launched_asks_for_an_even_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an SM's shared memory, but where operands come by way of L1."""
    asked, gpu = dict[str, int](), replace(stand_in.GPU, name="NVIDIA H100 80GB HBM3", sm_count=132)

    def note(compiled: Compiled, shared: int, *rest: Any) -> None:
        asked[compiled.entry] = shared

    monkeypatch.setattr(bound, "load", note)
    monkeypatch.setattr(bound, "Launcher", lambda *_: SimpleNamespace(enqueue=None))
    config = next(c for c in small.tiles(64) if (c.bm, c.bn) == (64, 32))
    bound.Bound(SMALL, config, Problem.contiguous(6192, 110, 64), gpu)
    assert asked["ffma_small"] == bound.shared_bytes(SMALL.shared_bytes(config), 388, 8, gpu) > 50000
    thin = Problem(16, 11008, 4096, 4096, 4096, 11008, trans_b=True)
    parts = replace(next(skinny.configurations(thin, GPU)), split=3)
    bound.Bound(SKINNY, parts, thin, gpu)
    assert asked["ffma_skinny"] == SKINNY.shared_bytes(parts) and asked["ffma_skinny_reduce"] == 0
    # Beside few small tiles a second kernel has room; of more tiles than find room the last share their K.
    for config, (m, n, k), second in ((tile(64, 32, 1), (32, 704, 776), True), (tile(32, 32, 2), (32, 704, 776), False),
                                      (tile(64, 16, 3), (2624, 640, 160), True),
                                      (tile(64, 16, 3), (512, 640, 160), False)):
        bound.Bound(SPECIALISED, replace(config, split=0), Problem.contiguous(m, n, k), gpu)
        assert (asked["ffma_reduce"] > 0) is second
    assert asked["ffma_specialised"] == SPECIALISED.shared_bytes(config)
    kernel = PRODUCTS["fp16x3"]
    for n, split in ((1023, 1), (1536, 0)):  # of more panels than find room at once nothing gathers
        bound.Bound(kernel, replace(kernel.default, split=split), Problem.contiguous(n, n, n), gpu)
        assert (asked["tensor_split"] > SCHEMES["fp16x3"].panel) is (n < 1100)
    assert asked["tensor_reduce"] > 0
