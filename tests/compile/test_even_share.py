"""What is launched asks for an even share of shared memory."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from peakgemm.kernels import bound
from peakgemm.kernels.bound import shared_bytes
from peakgemm.kernels.emulated.product import PRODUCTS
from peakgemm.kernels.emulated.schemes import SCHEMES
from peakgemm.kernels.ffma import skinny, small
from peakgemm.kernels.ffma.skinny import SKINNY
from peakgemm.kernels.ffma.specialised import SPECIALISED
from peakgemm.kernels.ffma.tile_model import tilings
from peakgemm.problem import Problem
from peakgemm.runtime.compile import Compiled
from peakgemm.runtime.device import Gpu
from peakgemm.selection.machine import machine

H100 = Gpu(0, "H100", "sm_90", 132, 1980, 3352.0, 50 << 20, "13.0")
GPU = machine("sm_90", 132)


def test_what_is_launched_asks_for_an_even_share(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = dict[str, int]()
    known = list(tilings(SPECIALISED, GPU))

    def note(compiled: Compiled, shared: int, gpu: Gpu, cluster: int) -> None:
        asked[compiled.entry] = shared

    monkeypatch.setattr(bound, "load", note)
    monkeypatch.setattr(bound, "Launcher", lambda *_: SimpleNamespace(enqueue=None))
    tile = next(c for c in small.tiles(64) if (c.bm, c.bn) == (64, 32))
    bound.Bound(small.SMALL, tile, Problem.contiguous(6192, 110, 64), H100)
    assert asked["ffma_small"] == shared_bytes(small.SMALL.shared_bytes(tile), 388, 8, H100) > 50000
    thin = Problem(16, 11008, 4096, 4096, 4096, 11008, trans_b=True)  # lives on L1
    config = replace(next(skinny.configurations(thin, GPU)), split=3)
    bound.Bound(SKINNY, config, thin, H100)
    assert asked["ffma_skinny"] == SKINNY.shared_bytes(config) and asked["ffma_skinny_reduce"] == 0
    for bm, blocks, reduce in ((64, 1, True), (32, 2, False)):  # beside few small tiles a second kernel has room
        tile = next(c for c in known if (c.bm, c.bn, c.bk, c.min_blocks) == (bm, bm, 32, blocks))
        bound.Bound(SPECIALISED, replace(tile, split=0), Problem.contiguous(32, 704, 776), H100)
        assert (asked["ffma_reduce"] > 0) is reduce
    three = next(c for c in known if (c.bm, c.bn, c.bk, c.min_blocks) == (64, 64, 16, 3))
    for rows, reduce in ((2624, True), (512, False)):  # more tiles than find room, of which the last share their K
        bound.Bound(SPECIALISED, replace(three, split=0), Problem.contiguous(rows, 640, 160), H100)
        assert asked["ffma_specialised"] == SPECIALISED.shared_bytes(three)
        assert (asked["ffma_reduce"] > 0) is reduce
    product = PRODUCTS["fp16x3"]
    for n, split in ((1023, 1), (1536, 0)):  # of more panels than find room at once nothing gathers
        bound.Bound(product, replace(product.default, split=split), Problem.contiguous(n, n, n), H100)
        assert (asked["tensor_split"] > SCHEMES["fp16x3"].panel) is (n < 1100)
    assert asked["tensor_reduce"] > 0
