"""Streams in the compiled loop, and `peakgemm inspect registers` as far as it goes without a GPU."""

from __future__ import annotations

import pytest

from lab.registers.kinds import KINDS, NAMED, drawn, from_pattern
from lab.registers.streams import ENTRY, LOADED, RZ, Bed, Op, predicted
from peakgemm.errors import InvalidValue
from peakgemm.runtime.compile import compile_source
from peakgemm.runtime.device import Gpu
from peakgemm.sass.elf import Cubin
from peakgemm.sass.program import Program

H100 = Gpu(0, "NVIDIA H100 80GB HBM3", "sm_90", 132, 1980, 3352.3, 50 << 20, "13.0")


@pytest.fixture(scope="module")
def bed() -> Bed:
    return Bed.make()


def test_no_word_of_the_loop_uses_a_register_of_streams(bed: Bed) -> None:
    whole = Program.of(Cubin.read(bed.compiled.code), ENTRY)
    assert whole.loop is not None
    assert [place for place in whole.loop.places if whole.words[place].is_ffma] == list(bed.places)
    named = {register.number for word in whole.main if not word.is_ffma for register in word.reads | word.writes
             if register.kind == "R"}
    assert not named.intersection({*bed.even, *bed.odd})


@pytest.mark.parametrize(("name", "pattern", "cycles"), NAMED, ids=[name for name, _, _ in NAMED])
def test_named_streams_by_hand(bed: Bed, name: str, pattern: str, cycles: int) -> None:
    stream = from_pattern(pattern, bed)
    assert predicted(stream) * len(stream) == pytest.approx(cycles)


def test_drawn_streams_fit_the_loop(bed: Bed) -> None:
    """And break no rule that a compiler keeps: four instructions from an FFMA to the next that reads its sum."""
    rows = drawn(60, 3, bed)
    assert {kind.name for kind, _ in rows} == {kind.name for kind in KINDS}
    for kind, stream in rows:
        bed.patched(stream)
        if kind.name == "accumulate":
            assert not any(stream[number - back].written in stream[number].reads
                           for number in range(len(stream)) for back in (1, 2, 3))
    assert rows == drawn(60, 3, bed) != drawn(60, 4, bed)


def test_streams_that_do_not_fit(bed: Bed) -> None:
    with pytest.raises(InvalidValue, match="3 instructions does not fill 512"):
        bed.patched((Op(bed.even[0]),) * 3)
    foreign = next(register for register in range(RZ) if register not in {*bed.even, *bed.odd})
    with pytest.raises(InvalidValue, match=rf"registers \[{foreign}\] are not free"):
        bed.patched((Op(bed.even[0], (foreign, RZ, RZ)),))
    other = compile_source(f'extern "C" __global__ void {ENTRY}(float* x) {{ *x = *x * 3 + 1; }}', ENTRY, "sm_90")
    with pytest.raises(InvalidValue, match="has 0 FFMAs, expected 512"):
        Bed.of(other)
    assert len(bed.quads) == len(set(bed.quads)) == max(LOADED.values()) == 4
    for quad in bed.quads:
        assert {*range(quad, quad + 4)} <= {*bed.even, *bed.odd}
