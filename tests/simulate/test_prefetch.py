"""What a kernel asks to be in L2 before the kernel ahead of it has ended is what it reads first, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from library_case import SMALL as TILE
from library_case import Case, multiply
from peakgemm.kernels.emulated.product import product_on
from peakgemm.kernels.emulated.schemes import SCHEMES
from peakgemm.kernels.emulated.streamed import FUSED, STREAMED, streamed
from peakgemm.kernels.ffma.skinny import SkinnyConfig
from peakgemm.kernels.ffma.small import SmallConfig
from peakgemm.kernels.ffma.specialised import SPECIALISED
from peakgemm.kernels.library import SKINNY, SMALL
from peakgemm.kernels.registry import Kernel
from peakgemm.problem import Config, Problem
from peakgemm.runtime.architectures import architecture
from peakgemm.tools.simulator.checks import access
from peakgemm.tools.simulator.core import memory
from peakgemm.tools.simulator.library import run_library

LAYOUTS = ("NN", "NT", "TN", "TT")
LINE, OPERANDS = 128, ("argument 0", "argument 1")
Lines = set[tuple[str, int]]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> tuple[Lines, Lines]:
    """Lines of A and B that kernels ask to be in L2, and that they read; the simulator fills them."""
    asked, read = set[tuple[str, int]](), set[tuple[str, int]]()

    def note(into: Lines, arena: memory.Arena, addresses: Any, size: int) -> None:
        for at in addresses:
            for segment in arena.segments:
                if segment.base <= int(at) < segment.end and segment.name in OPERANDS:
                    into.update((segment.name, byte // LINE) for byte in (int(at), int(at) + size - 1))

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


def from_memory(read: Lines, operands: str) -> Lines:
    """Those of ``a`` or ``b``."""
    return {line for line in read if "ab"[OPERANDS.index(line[0])] in operands}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pad", [0, 3])
@pytest.mark.parametrize(("kernel", "config", "shape", "batch"), [
    (SPECIALISED, replace(TILE, bk=16, one_tile=True), (32, 32, 48), ()),
    (SPECIALISED, replace(TILE, bk=16, one_tile=True), (29, 31, 41), ()),
    (SMALL, SmallConfig(64, 64, 32, 8, 4, stages=1), (60, 56, 32), ()),
    (SMALL, SmallConfig(32, 32, 32, 4, 4, slices=2), (32, 29, 31), (1, 1)),
    (SKINNY, SkinnyConfig(32, 4, 128, 4, 4, slices=16), (30, 3, 250), ()),
], ids=["specialised", "specialised, edges", "small", "small, edges", "skinny"])
def test_ffma_kernels_ask_for_all_that_a_short_product_reads(
        kernel: Kernel, config: Config, shape: tuple[int, int, int], batch: tuple[int, ...], layout: str, pad: int,
        lines: tuple[Lines, Lines]) -> None:
    multiply(Case(*shape, layout, beta=0.0, pad=pad, batch=batch, config=config, kernel=kernel))
    asked, read = lines
    assert asked == (from_memory(read, "a") if kernel is SKINNY else read)  # of a thin operand there is little


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pad", [0, 3])
@pytest.mark.parametrize(("kernel", "config", "shape", "whose"), [
    (*product_on(SCHEMES["fp16x3"], architecture("sm_90")), (100, 90, 64), "a"),
    (STREAMED, streamed(64), (128, 64, 64), "ab"), (FUSED, FUSED.default, (100, 60, 64), "a"),
], ids=["split", "streamed", "fused"])
def test_tensor_core_kernels_ask_for_a_chunk(kernel: Kernel, config: Config, shape: tuple[int, int, int], whose: str,
                                             layout: str, pad: int, lines: tuple[Lines, Lines]) -> None:
    """Of both operands, or of A alone: where threads load B themselves, and by the first block of the split pass."""
    (m, n, k), (ta, tb) = shape, (letter == "T" for letter in layout)
    rng = np.random.default_rng(m)
    a, b = (rng.standard_normal((rows, columns + pad)).astype(np.float32)
            for rows, columns in ((k, m) if ta else (m, k), (n, k) if tb else (k, n)))
    c = np.zeros((m, n), np.float32)
    run_library(kernel, config, Problem(m, n, k, a.shape[1], b.shape[1], n, trans_a=ta, trans_b=tb), a, b, c)
    asked, read = lines
    assert asked == from_memory(read, whose)
