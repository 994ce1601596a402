"""`lab.choice`: candidates timed within a budget, kept compactly, read back, and what a profile's choice loses."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from math import exp
from pathlib import Path
from random import Random

import pytest

from commands import COLUMNS, here, valid
from host_peer import HostPeer
from lab import choice
from lab.profile.plan import Planned
from lab.profile.rows import estimate_us, row
from lab.profile.stopwatch import Done, Row
from peakgemm import cli
from peakgemm.cli import console
from peakgemm.errors import InvalidValue
from peakgemm.kernels.profile import Machine
from peakgemm.problem import Problem
from peakgemm.runtime.device import Gpu
from peakgemm.selection.machine import machine_with, shipped
from peakgemm.tools.bench import records
from peakgemm.tools.bench.suites import drawn_cases

__all__ = ["here"]
GPU = Gpu(0, "NVIDIA H100 80GB HBM3", "sm_90", 132, 1980, 3352.0, 50 << 20, "13.0")
HERE = machine_with(shipped("h100"), "sm_90", 132)


class Modelled:
    """A stopwatch whose times are the models', with noise."""

    def __init__(self, truth: Machine, noise: float = 0.0) -> None:
        self.truth, self.noise, self.draw = truth, noise, Random(1)

    def times(self, problem: Problem, rows: Sequence[Row]) -> list[list[float] | None]:
        found = [row(problem, kernel, config, 1.0, 1.0, self.truth) for kernel, config in rows]
        return [None if one is None else [estimate_us(one, self.truth) * exp(self.draw.gauss(0, self.noise))
                                          for _ in range(5)] for one in found]


@pytest.fixture(scope="module")
def measured() -> list[choice.Measured]:
    planned = choice.plan(choice.products("drawn", 11, 12), HERE)
    return list(choice.times(planned, Modelled(HERE, 0.05), Modelled(HERE), time.monotonic() + 60, lambda what: None))


def test_a_record_gives_back_what_was_measured(here: Path, measured: list[choice.Measured]) -> None:
    records.write(here / "choice.json", records.record(GPU, "sm_90", [choice.fields_of(measured)]))
    rows = choice.rows_of(valid(here / "choice.json"))
    assert len(rows) == 12 and [each.held_out for each in rows[:4]] == [True, False, False, True]
    for back, product in zip(rows, measured, strict=True):
        assert back.problem == product.case.problem()[0]
        assert back.us == {key: pytest.approx(sorted(us)[2], rel=1e-3) for key, us in product.samples.items()}
    assert not {each.problem for each in rows} & {case.problem()[0] for case in islice(drawn_cases(0), 200)}


def test_a_worse_profile_loses_more(measured: list[choice.Measured]) -> None:
    rows = choice.rows_of(json.loads(json.dumps(choice.fields_of(measured))))
    wrong = replace(HERE.profile, tiled=replace(HERE.profile.tiled, start_us=9.0, bandwidth_share=0.2),
                    emulated=replace(HERE.profile.emulated, worth_share=None))
    own, other = ([choice.loss(each, replace(HERE, profile=profile)) for each in rows]
                  for profile in (HERE.profile, wrong))
    assert all(min(each.ieee, each.scheme or 0, each.emulated or 0) >= 0 for each in own + other)
    assert sum(each.ieee for each in own) < 0.5 < sum(each.ieee for each in other)
    assert max(each.emulated or 0 for each in own) < 0.3 < max(each.emulated or 0 for each in other)


def test_what_does_not_run_is_left_out_and_time_is_kept() -> None:
    planned = choice.plan(choice.products("drawn", 11, 4), HERE)

    class Refuses(Modelled):
        def times(self, problem: Problem, rows: Sequence[Row]) -> list[list[float] | None]:
            if problem == planned[1].problem:
                raise MemoryError
            return [None, *super().times(problem, rows)[1:]]

    found = list(choice.times(planned, Refuses(HERE), Modelled(HERE), time.monotonic() + 60, lambda what: None))
    assert [each.case for each in found] == [planned[i].case for i in (0, 2, 3)]
    assert all(planned[i].rows[0] not in each.samples for i, each in zip((0, 2, 3), found, strict=True))
    assert list(choice.times(planned, Refuses(HERE), Modelled(HERE), time.monotonic() - 1, lambda what: None)) == []


def test_the_commands(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["lab/choice.py", *words])
        with pytest.raises(SystemExit) as end:
            cli.run(choice.app)
        return end.value.code or 0, capsys.readouterr().out

    class Watch(Modelled):
        def __init__(self, gpu: Gpu, machine: Machine, *more: object) -> None:
            super().__init__(machine)

        def compile(self, planned: Sequence[Planned], deadline: float, done: Done) -> Sequence[Planned]:
            return [replace(planned[0], rows=planned[0].rows[1:len(planned[0].rows) // 2]), *planned[1:]]

    monkeypatch.setattr(console.out, "width", COLUMNS)
    monkeypatch.setattr("peakgemm.runtime.device.require", lambda: GPU)
    monkeypatch.setattr(choice, "find_peer", HostPeer)
    monkeypatch.setattr(choice, "GpuStopwatch", Watch)
    monkeypatch.setattr(choice, "compile_ahead", lambda recipes, deadline, done: None)
    words = "--count", "6", "--json", "choice.json", "--raw", "raw.json"
    assert run("measure", *words)[0] == 0
    assert len(valid(here / "choice.json")["rungs"]) == len(valid(here / "raw.json")["rungs"]) == 5, "one incomplete"
    code, said = run("loss", "--rows", "choice.json")
    assert code == 0 and "shipped" in said and "held out" in said
    assert run("loss", "--rows", "raw.json")[0] == 2
    assert run("measure", "--dry-run", "--count", "3")[0] == 0
    assert run("measure")[0] == 2


@pytest.mark.parametrize("change", [{"programs": [{"kernel": "gone", "config": {}}]}, {"rungs": [{"shape": [1, 2]}]}])
def test_other_records_are_refused(measured: list[choice.Measured], change: dict[str, object]) -> None:
    with pytest.raises(InvalidValue, match=r"python -m lab\.choice measure"):
        choice.rows_of({**choice.fields_of(measured), **change})
