"""CUTLASS as a peer of `peakgemm bench`: every tile and split in every layout against FP64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lab.peers import cutlass_gemm
from lab.peers.cutlass_gemm import LAYOUTS, Operand, Products
from peakgemm.errors import LaunchFailed, MissingComponent
from peakgemm.runtime import device
from peakgemm.tools.bench import operands
from peakgemm.tools.bench.bench import bound_of
from peakgemm.tools.bench.errors import errors as worst_errors
from peakgemm.tools.bench.operands import Arrays
from peakgemm.tools.bench.peers import Peer, visiting
from peakgemm.tools.bench.suites import cases

try:
    cutlass_gemm.find_tools()
except MissingComponent as error:
    pytest.skip(str(error), allow_module_level=True)

SHAPES = ("1x1x1", "127x255x63", "513x1025x257", "1x300x200", "300x1x200", "64x96x8192", "33x65x129*7", "8x8x8*1000")


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with visiting() as found:
        yield found


@pytest.fixture(scope="module")
def cutlass(peer: Peer) -> Products:
    return Products(cutlass_gemm.find_tools(), device.require(), peer)


def arrays(text: str, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """One set of a case's arrays, and the case."""
    monkeypatch.setattr(operands, "set_count", lambda footprint, gpu: 1)
    (case,) = cases(text)
    return Arrays(case, device.require(), peer), case


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_products(shape: str, layout: str, peer: Peer, cutlass: Products, monkeypatch: pytest.MonkeyPatch
                  ) -> None:
    size, star, batch = shape.partition("*")
    held, case = arrays(f"{size}:{layout}{star}{batch}", peer, monkeypatch)
    a, b = held.a[0], held.b[0]
    eager, captured = held.blank(), held.blank()
    cutlass.work(a, b, eager)()
    peer.capture(cutlass.work(a, b, captured))()
    errors = worst_errors(a, b, [eager, captured])
    assert max(errors) <= bound_of(case), errors


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", ["255x127x2001", "256x128x4096"])
def test_every_tile_and_split(shape: str, layout: str, peer: Peer, cutlass: Products,
                              monkeypatch: pytest.MonkeyPatch) -> None:
    held, case = arrays(f"{shape}:{layout}", peer, monkeypatch)
    a, b = held.a[0], held.b[0]
    library, stream = cutlass._libraries[layout], int(peer.stream.handle)
    found = list(library.candidates(case.m, case.n, case.k, 1, device.require().sm_count))
    assert {each.tile for each in found} == set(range(library.count)) and max(each.slices for each in found) > 8
    for each in found:
        out = held.blank()
        size = library.workspace(each, case.m, case.n, case.k)
        assert (size > 0) == (each.slices > 1)
        scratch = peer.full(1, -(-size // 4), float("nan")) if size else None
        library.bind(each, Operand.of(a), Operand.of(b), Operand.of(out), scratch, stream)()
        assert worst_errors(a, b, [out])[0] <= bound_of(case), library.name(each)


def test_more_products_than_a_grid_has_room_for(peer: Peer, cutlass: Products,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    held, _ = arrays("1x1x1*70000", peer, monkeypatch)
    with pytest.raises(LaunchFailed, match=r"CUTLASS .* at 1x1x1, batch 70000"):
        cutlass.work(held.a[0], held.b[0], held.c[0])
