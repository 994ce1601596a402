"""Streams in the compiled loop, and `peakgemm inspect registers` as far as it goes without a GPU."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import record_schema
from lab.registers import __main__ as inspect_registers
from lab.registers import clock as stream_clock
from lab.registers.clock import TURNS, Clock, Cycles
from lab.registers.kinds import KINDS, NAMED, drawn, from_pattern
from lab.registers.shared_loads import predicted_shared
from lab.registers.streams import ENTRY, LOADED, RZ, WORDS, Bed, Op, predicted, text
from peakgemm.errors import InvalidValue, MissingComponent
from peakgemm.runtime.compile import Compiled, compile_source
from peakgemm.runtime.convention import Convention
from peakgemm.runtime.device import Gpu
from peakgemm.sass.control import Control
from peakgemm.sass.elf import Cubin
from peakgemm.sass.listing import nvdisasm, parse
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


def test_words_are_what_nvdisasm_reads(bed: Bed) -> None:
    quad, (a, b, c) = bed.quads[0], (bed.even[20], bed.odd[20], bed.even[21])
    stream = (Op(quad, (a, b, c), 5), Op(quad, (RZ, b, RZ), 2), Op(quad, (RZ, b, RZ), 2, "MOV"),
              Op(quad, (a, b, c), 0, "IADD3"), Op(quad, (a, b, c), 0, "IMAD"), Op(RZ, name="NOP"), Op(quad, name="LDS"),
              Op(quad, (a, RZ, RZ), name="LDS.128"))
    patched = bed.patched(stream)
    lines = [one.text for one in parse(nvdisasm(patched.code, "sm_90", "-c"))]
    assert [lines[place] for place in bed.places[8:16]] == [
        f"FFMA R{quad}, R{a}.reuse, R{b}, R{c}.reuse", f"FFMA R{quad}, RZ, R{b}.reuse, RZ", f"MOV R{quad}, R{b}.reuse",
        f"IADD3 R{quad}, R{a}, R{b}, R{c}", f"IMAD R{quad}, R{a}, R{b}, R{c}", "NOP", f"LDS R{quad}, [0x400]",
        f"LDS.128 R{quad}, [R{a}+0x400]"]
    before, after = (Cubin.read(code).words(ENTRY) for code in (bed.compiled.code, patched.code))
    assert {n for n, (old, new) in enumerate(zip(before, after, strict=True)) if old != new} == {*bed.places}
    control = Control.decode(after[bed.places[0]])
    assert (control.stall, control.yield_, control.wait_mask, control.reuse) == (1, 1, 0, 5)


@pytest.mark.parametrize(("name", "pattern", "cycles"), NAMED, ids=[name for name, _, _ in NAMED])
def test_named_streams_by_hand(bed: Bed, name: str, pattern: str, cycles: int) -> None:
    stream = from_pattern(pattern, bed)
    assert predicted(stream) * len(stream) == pytest.approx(cycles)


def test_drawn_streams_fit_the_loop(bed: Bed) -> None:
    found = drawn(200, 3, bed)
    assert {kind.name for kind, _ in found} == {kind.name for kind in KINDS}
    assert len({text(stream) for _, stream in found}) > 190
    for _, stream in found:
        bed.patched(stream)
    assert found == drawn(200, 3, bed)
    assert found != drawn(200, 4, bed)


def test_a_sum_is_read_when_it_is_there(bed: Bed) -> None:
    """Drawn streams break no rule that a compiler keeps: four instructions from an FFMA to the next that reads it."""
    draw = next(kind.draw for kind in KINDS if kind.name == "accumulate")
    for seed in range(50):
        stream = draw(Random(seed), bed)
        for number in range(len(stream)):
            for back in (1, 2, 3):
                assert stream[number - back].written not in stream[number].reads


def test_streams_that_do_not_fit(bed: Bed) -> None:
    with pytest.raises(InvalidValue, match="3 instructions does not fill 512"):
        bed.patched((Op(bed.even[0]),) * 3)
    foreign = next(register for register in range(RZ) if register not in {*bed.even, *bed.odd})
    with pytest.raises(InvalidValue, match=rf"registers \[{foreign}\] are not free"):
        bed.patched((Op(bed.even[0], (foreign, RZ, RZ)),))
    assert len(bed.quads) == len(set(bed.quads)) == max(LOADED.values()) == 4
    for quad in bed.quads:
        assert {*range(quad, quad + 4)} <= {*bed.even, *bed.odd}


def test_another_compilation_is_refused() -> None:
    other = compile_source(f'extern "C" __global__ void {ENTRY}(float* x) {{ *x = *x * 3 + 1; }}', ENTRY, "sm_90")
    with pytest.raises(InvalidValue, match="has 0 FFMAs, expected 512"):
        Bed.of(other)


def test_no_clock_for_another_architecture(bed: Bed) -> None:
    with pytest.raises(InvalidValue, match="A100 is sm_80, streams and model are for sm_90"):
        Clock(Gpu(0, "A100", "sm_80", 108, 1410, 1555.0, 40 << 20, "13.0"), bed)


def test_clock(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cycles from the clocks of warps: first start to last end of a block, median of blocks, least of launches."""
    launched: list[int] = []
    cost = {"now": 1.5}

    class Memory:
        pointer = 4096

        def __init__(self, *_: object) -> None:
            return

    class Kernel:
        def __init__(self, compiled: Compiled) -> None:
            self.words = Cubin.read(compiled.code).words(ENTRY)
            cost["now"] = 1.25 if self.words[bed.places[0]] == Op(RZ, name="NOP").word() else 3.25

    class Launcher:
        def __init__(self, loaded: object, label: str, gpu: Gpu, blocks: int, threads: int, argument: bytes,
                     convention: Convention) -> None:
            assert blocks == gpu.sm_count and convention.unpack(argument) == (TURNS, Memory.pointer)
            self.warps = threads // 32

        def enqueue(self, sink: int, data: int, *_: int) -> None:
            assert (sink, data) == (Memory.pointer + 1024, Memory.pointer)
            launched.append(self.warps)

    def demand(what: str, call: str, *args: Any) -> None:
        if call != "cuMemcpyDtoH_v2":
            return
        clocks, warps = args[0]._obj, launched[-1]
        slow = 1 + len(launched) % 3  # of three launches the last is a slow one
        for warp in range(H100.sm_count * warps):
            block = warp // warps
            began = 10**6 * block + warp % warps
            clocks[2 * warp] = began
            clocks[2 * warp + 1] = began + round(cost["now"] * TURNS * WORDS * max(warps // 4, 1)) * slow

    monkeypatch.setattr(stream_clock, "DeviceMemory", Memory)
    monkeypatch.setattr(stream_clock, "Resident", Kernel)
    monkeypatch.setattr(stream_clock, "Launcher", Launcher)
    monkeypatch.setattr(stream_clock, "activated", lambda index: nullcontext())
    monkeypatch.setattr("peakgemm.runtime.driver.demand", demand)
    with Clock(H100, bed) as clock:
        assert clock.overhead == pytest.approx((0.25, 0.25, 0.25), abs=1e-3)
        assert clock.cycles(from_pattern("-01", bed)) == pytest.approx((3, 3, 3), abs=1e-3)
    assert set(launched) == {1, 4, 8}


app = typer.Typer()
app.command()(inspect_registers.command)


def test_dry_run(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["--dry-run", "--streams", "20", "--json", str(tmp_path / "r.json")])
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "r.json").read_text())
    record_schema.validate(record)
    assert record["device"] is None
    assert len(record["streams"]) >= 20 + len(NAMED)
    assert all("alone" not in row for row in record["streams"])


def test_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With a clock that says what the model says, and a hundredth more."""
    class Agrees:
        def __init__(self, *_: object) -> None:
            self.overhead = Cycles(0.04, 0.05, 0.01)

        def __enter__(self) -> Agrees:
            return self

        def __exit__(self, *_: object) -> None:
            return

        def cycles(self, stream: tuple[Op, ...]) -> Cycles:
            return Cycles(predicted(stream) + 0.01, predicted_shared(stream) + 0.02, predicted(stream))

    monkeypatch.setattr("peakgemm.runtime.device.require", lambda: H100)
    monkeypatch.setattr("lab.registers.clock.Clock", Agrees)
    inspect_registers.command(streams=20, seed=1, dry_run=False, json=tmp_path / "r.json")
    record = json.loads((tmp_path / "r.json").read_text())
    record_schema.validate(record)
    assert record["loop_overhead"] == [0.04, 0.05, 0.01]
    assert record["seed"] == 1
    assert {kind["largest_error"] for kind in record["kinds"]} == {0.01}
    assert {kind["mean_error_shared"] for kind in record["kinds"]} == {0.02}
    shown = capsys.readouterr().out
    assert "NVIDIA H100 80GB HBM3" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Gpu:
        raise MissingComponent("no GPU here")

    monkeypatch.setattr("peakgemm.runtime.device.require", none)
    assert isinstance(CliRunner().invoke(app, []).exception, MissingComponent)
