"""Variants of main loops are what they claim, and `peakgemm inspect bill` as far as it goes without a GPU."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import record_schema
from lab.bill import __main__ as inspect_bill
from lab.bill import bill
from lab.bill import process as bill_process
from lab.bill.loop_variants import Variants, kind
from lab.bill.needed import needed
from peakgemm.runtime.device import Gpu
from peakgemm.sass.banks import bank_model
from peakgemm.sass.elf import Cubin
from peakgemm.sass.program import Program
from peakgemm.tools.bench.suites import cases
from peakgemm.tools.inspect.named import named
from peakgemm.tools.inspect.subject import Subject

H100 = Gpu(0, "NVIDIA H100 80GB HBM3", "sm_90", 132, 1980, 3352.3, 50 << 20, "13.0")
SIZE = "8192x8192x8192"


@pytest.fixture(scope="module", params=["13", "wide", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in (
    "11", "12", "14", "15", "specialised"))])
def both(request: pytest.FixtureRequest) -> tuple[Subject, Variants]:
    subject = named(request.param, "sm_90", shape=SIZE)
    return subject, Variants.of(subject.cubin, subject.function)


def loop_places(variants: Variants) -> set[int]:
    return {place for block in variants.program.loop_blocks for place in block}


def test_code_outside_the_loop_and_pinned_code_stay(both: tuple[Subject, Variants]) -> None:
    _, variants = both
    before, inside = variants.cubin.words(variants.program.name), loop_places(variants)
    pinned = variants.cubin.pinned(variants.program.name)
    for variant in variants.steps:
        made = Cubin.read(variants.code(variant))
        after = made.words(variants.program.name)
        changed = {place for place, (old, new) in enumerate(zip(before, after, strict=True)) if old != new}
        assert changed <= inside, variant.name
        kernel = made.kernel(variants.program.name)
        assert len(made.data) == len(variants.cubin.data)
        assert made.data[:kernel.offset] == variants.cubin.data[:kernel.offset]
        assert made.data[kernel.offset + kernel.size:] == variants.cubin.data[kernel.offset + kernel.size:]
        assert not {16 * place for place in changed} & pinned


def test_steps_do_what_they_say(both: tuple[Subject, Variants]) -> None:
    _, variants = both
    steps = {one.name: Program.of(Cubin.read(variants.code(one)), variants.program.name) for one in variants.steps}
    assert list(steps) == ["as it is", "reads", "loads", "copies", "others", "waits", "operands"]
    left = {name: [program.words[place] for place in sorted(loop_places(variants))] for name, program in steps.items()}
    assert not [word for word in left["loads"] if word.name == "LDS" and not word.never]
    assert not [word for word in left["copies"] if kind(word) == "copies"]
    keep = needed(steps["others"])
    for place in loop_places(variants):
        word = steps["others"].words[place]
        assert word.name in ("FFMA", "NOP") or place in keep or 16 * place in variants.cubin.pinned(
            variants.program.name), word.name
    # A ring's waits and arrivals stay: without its waits a warp passes the others by more stages than there are.
    assert not [word for word in left["waits"] if word.name == "BAR" and not word.never]
    assert [one for one in left["waits"] if one.name == "SYNCS"] == [one for one in left["as it is"]
                                                                     if one.name == "SYNCS"]
    assert not any(register.kind == "R" for place in variants.body for register in steps["operands"].words[place].reads
                   if steps["operands"].words[place].name == "FFMA")
    assert not any(word.control.reuse for word in left["operands"] if word.name == "FFMA" and not word.never)
    for before, after in zip(left["as it is"], left["operands"], strict=True):
        assert before.writes == after.writes or after.name != "FFMA"
        assert (after.control.stall, after.control.yield_) == (before.control.stall, before.control.yield_)
        assert after.control.wait_mask == before.control.wait_mask


def test_loop_control_is_intact(both: tuple[Subject, Variants]) -> None:
    _, variants = both
    first = variants.program.loop
    for variant in variants.steps:
        loop = variant.program.loop
        assert loop is not None and first is not None and loop.header == first.header
        assert variant.program.successors == variants.program.successors
        # What decides on another turn is computed as before: nothing that it needs is gone.
        for place in needed(variant.program) & loop_places(variants):
            word, before = variant.program.words[place], variants.program.words[place]
            assert word.name in ("FFMA", "NOP") or (word.name, word.rest, word.numbers) == (
                before.name, before.rest, before.numbers)


def test_no_ffma_reads_late(both: tuple[Subject, Variants]) -> None:
    """By the model that `inspect` uses, which is another way to the operands than the variants' own."""
    subject, variants = both
    reads = variants.steps[1]
    assert set(reads.changed) == {"FFMA"}
    made, was = (bank_model([program.words[place] for place in variants.body], subject.arch)
                 for program in (reads.program, variants.program))
    assert made is not None and was is not None
    assert made.conflicts == 0 < was.conflicts
    assert made.ffmas == was.ffmas == variants.slots["ffma"]
    # Rung 13 makes an address in a register that is a fragment's, too: what else reads a held register gets what it
    # held before, and then the copies go anywhere.
    words = [reads.program.words[place] for place in variants.body]
    held = {number for word in words if word.name == "FFMA" and word.control.reuse
            for field, number in word.named if field.low == 24}
    elsewhere = {register.number for word in words if word.name != "FFMA" for register in word.reads
                 if register.kind == "R"}
    assert held and not held & elsewhere


def test_work_is_that_of_the_launch() -> None:
    subject = named("14", "sm_90", shape=SIZE)
    variants = Variants.of(subject.cubin, subject.function)
    done = bill.work(subject, variants, cases(SIZE)[0].problem()[0], 132)
    tiles, steps = 64 * 32, 8192 // 16
    assert done == bill.Work(tiles * steps, -(-tiles // 132) * steps, 8, 8192**3 / 32)
    # The profiler counts in results/h100/counters.json 2,348,343,296 instructions at 4096: the loop's, and 0.1 %.
    done = bill.work(subject, variants, cases("4096x4096x4096")[0].problem()[0], 132)
    assert 1 < 2_348_343_296 / bill.static(subject, variants, done)["predicted"]["executed"] < 1.002
    subject = named("wide", "sm_90", shape=SIZE)  # which deals by stream-K, evenly
    variants = Variants.of(subject.cubin, subject.function)
    done = bill.work(subject, variants, cases(SIZE)[0].problem()[0], 132)
    assert done.turns == 43 * 32 * 1024
    assert done.turns / 132 <= done.busiest < done.turns / 132 * 1.001


COST = {"as it is": 1.0, "reads": 0.99, "loads": 0.96, "copies": 0.95, "others": 0.945, "waits": 0.93, "operands": 0.92}
CLOCK = 1995.0  # MHz, which is not what NVML says


def entry(name: str = "14") -> dict[str, Any]:
    subject = named(name, "sm_90", shape=SIZE)
    variants = Variants.of(subject.cubin, subject.function)
    done = bill.work(subject, variants, cases(SIZE)[0].problem()[0], 132)
    times = {name: [21.0 * cost] * 5 for name, cost in COST.items()} | {"half": [21.0 * 0.47] * 5}
    return {**bill.static(subject, variants, done), "shape": [8192] * 3, "clock_mhz": CLOCK, "power_w": 640.0,
            "samples_ms": times,
            "samples_cycles": {name: [ms * CLOCK * 1e3 for ms in each] for name, each in times.items()}}


def talking(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Workers that run ``script``, which finds what was asked in ``asked``."""
    monkeypatch.setattr(bill_process, "command", lambda asked: [
        sys.executable, "-c", f"import json, sys, time\nasked = {json.loads(json.dumps(asked))!r}\n"
        "def say(**what): print(json.dumps(what), flush=True)\n" + script])


def test_a_variant_that_hangs_is_named_and_the_next_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = entry()
    talking(monkeypatch, f"""
entry = {timed!r}
for what, shape in asked["jobs"]:
    say(trying="as it is", kernel=what)
    if what == "wide": say(trying="waits", kernel=what); time.sleep(60)
    if what == "13": say(trying="loads", kernel=what); print("illegal address", file=sys.stderr); raise SystemExit(1)
    if what == "12": say(failed="LaunchFailed: no", kernel=what); raise SystemExit(1)
    say(timed=entry, kernel=what); say(done=what)
""")
    jobs = [(name, SIZE) for name in ("wide", "13", "12", "14")]
    told: list[str] = []
    found, _ = bill_process.bills(jobs, H100, 5, 2.0, told.append)
    assert found[0] == {"kernel": "wide", "failed": "variant 'waits': no answer within 2 s"}
    assert found[1] == {"kernel": "13", "failed": "variant 'loads': the process ended: illegal address"}
    assert found[2] == {"kernel": "12", "failed": "variant 'as it is': LaunchFailed: no"}
    assert "failed" not in found[3]
    assert sum(found[3]["parts"].values()) == pytest.approx(1)
    assert told[:2] == ["wide: as it is", "wide: waits"]


app = typer.Typer()
app.command()(inspect_bill.command)


def test_dry_run(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["12-13,wide", "--dry-run", "--json", str(tmp_path / "b.json")])
    assert done.exit_code == 0, done.output
    assert "LDGSTS 10, LDGDEPBAR 1, DEPBAR 1" in done.output
    assert max(map(len, done.output.splitlines())) <= 100
    record = json.loads((tmp_path / "b.json").read_text())
    record_schema.validate(record)
    assert [one["number"] for one in record["bills"]] == [12, 13, None]
    assert all("parts" not in one for one in record["bills"])


def test_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peakgemm.runtime.device.require", lambda: replace(H100, name="A100", arch="sm_80"))
    for words, says in ((["14"], "A100 is sm_80"), (["14,15-11", "--dry-run"], "rungs '15-11' run backwards"),
                        (["nothing", "--dry-run"], "is no rung")):
        assert says in str(CliRunner().invoke(app, words).exception)
